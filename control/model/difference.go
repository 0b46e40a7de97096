package model

import (
	"reflect"
	"slices"
)

// Pair is a part of one mesh and what took its place in another; nil for one that was not or is not there.
type Pair[T any] struct{ Before, After *T }

// Difference is what differs between two meshes, whose parts are compared by pointer.
type Difference struct {
	Globals         []Pair[GlobalNamespace]
	Services        []Pair[Service]
	Replicas        []Pair[Replica]
	Routes          []Pair[Routes]
	Gateways        []Pair[Gateway]
	Destinations    []Pair[DestinationPolicy]
	BackendTLS      []Pair[BackendTLS]
	PeerModes       []Pair[PeerMode]
	Access          []Pair[AccessPolicy]
	Authentications []Pair[Authentication]
	Credentials     []Pair[Credential]
	Sidecars        []Pair[Sidecar]
	EnvoyFilters    []Pair[EnvoyFilter]
	Dependencies    []Pair[Dependencies]
	Anchors         []Pair[Anchors]
}

// Differ compares two meshes of one kept model: a part that is the same in both, and has the same place among its like, is the
// same pointer. It looks no further into those.
func Differ(before, after *Mesh) Difference {
	return Difference{
		Globals:         pairs(before.Globals, after.Globals, func(g *GlobalNamespace) name { return name{name: g.Name} }),
		Services:        DifferInServices(before, after),
		Replicas:        pairs(before.Replicas, after.Replicas, func(r *Replica) name { return name{namespace: r.Namespace, name: r.Name} }),
		Routes:          pairs(before.Routes, after.Routes, func(r *Routes) name { return name{r.Namespace, r.Name, r.Source.Key.Kind + "/" + r.OfService()} }),
		Gateways:        pairs(before.Gateways, after.Gateways, func(g *Gateway) name { return name{g.Namespace, g.Name, g.Group} }),
		Destinations:    pairs(before.Destinations, after.Destinations, func(d *DestinationPolicy) name { return name{namespace: d.Namespace, name: d.Name} }),
		BackendTLS:      pairs(before.BackendTLS, after.BackendTLS, func(b *BackendTLS) name { return name{namespace: b.Namespace, name: b.Name} }),
		PeerModes:       pairs(before.PeerModes, after.PeerModes, func(p *PeerMode) name { return name{namespace: p.Namespace, name: p.Name} }),
		Access:          pairs(before.Access, after.Access, func(p *AccessPolicy) name { return name{namespace: p.Namespace, name: p.Name} }),
		Authentications: pairs(before.Authentications, after.Authentications, func(a *Authentication) name { return name{namespace: a.Namespace, name: a.Name} }),
		Sidecars:        pairs(before.Sidecars, after.Sidecars, func(s *Sidecar) name { return name{namespace: s.Namespace, name: s.Name} }),
		Credentials:     pairs(before.Credentials, after.Credentials, func(c *Credential) name { return name{namespace: c.Namespace, name: c.Name} }),
		Dependencies:    pairs(before.Dependencies, after.Dependencies, func(d *Dependencies) name { return name{namespace: d.Namespace} }),
		Anchors:         pairs(before.Anchors, after.Anchors, func(a *Anchors) name { return name{name: a.Cluster} }),
		EnvoyFilters:    pairs(before.EnvoyFilters, after.EnvoyFilters, func(f *EnvoyFilter) name { return name{namespace: f.Namespace, name: f.Name} }),
	}
}

// name is a part's among its like.
type name struct{ namespace, name, more string }

// DifferInServices is [Differ] for services alone.
func DifferInServices(before, after *Mesh) []Pair[Service] {
	return pairs(before.Services, after.Services, func(s *Service) name { return name{s.Namespace, s.Name, s.Host} })
}

// pairs finds what differs between two lists. Lists that differ at few places have long beginnings and ends in common.
func pairs[T any, K comparable](before, after []*T, key func(*T) K) []Pair[T] {
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	if len(before)+len(after) == 0 {
		return nil
	}
	kept := make(map[*T]bool, len(before))
	for _, p := range before {
		kept[p] = false
	}
	for _, p := range after {
		if _, both := kept[p]; both {
			kept[p] = true
		}
	}
	var out []Pair[T]
	at := map[K]int{}
	for _, p := range before {
		if !kept[p] {
			at[key(p)] = len(out)
			out = append(out, Pair[T]{Before: p})
		}
	}
	for _, p := range after {
		if kept[p] {
			continue
		}
		if i, known := at[key(p)]; known && out[i].After == nil {
			out[i].After = p
		} else {
			out = append(out, Pair[T]{After: p})
		}
	}
	return out
}

// Both lists the parts of pairs, before and after.
func Both[T any](all []Pair[T]) []*T {
	out := make([]*T, 0, 2*len(all))
	for _, p := range all {
		if p.Before != nil {
			out = append(out, p.Before)
		}
		if p.After != nil {
			out = append(out, p.After)
		}
	}
	return out
}

// SameNames says whether services have the same names in two meshes, visible to the same.
func SameNames(before, after *Mesh) bool {
	return !slices.ContainsFunc(pairs(before.Services, after.Services, func(s *Service) string { return s.Host }), func(p Pair[Service]) bool {
		return p.Before == nil || p.After == nil || !slices.Equal(p.Before.Addresses(), p.After.Addresses()) || p.Before.Local() != p.After.Local() ||
			!sameVisibility(p.Before.ExportTo, p.After.ExportTo) ||
			!slices.EqualFunc(p.Before.Aliases, p.After.Aliases, func(x, y Alias) bool { return x.Host == y.Host && sameVisibility(x.Visible, y.Visible) })
	})
}

func sameVisibility(x, y Visibility) bool {
	return x.Limited == y.Limited && slices.Equal(x.Namespaces, y.Namespaces)
}

// EndpointsAlone says whether all that differs is which replicas are ready, where they are and their locality, and so nothing
// of services but their replicas, and what is behind the gateways of other clusters.
func (d *Difference) EndpointsAlone() bool {
	if len(d.Globals)+len(d.Routes)+len(d.Gateways)+len(d.Destinations)+len(d.BackendTLS)+len(d.PeerModes)+len(d.Access)+len(d.Authentications)+len(d.Credentials)+len(d.Sidecars)+len(d.EnvoyFilters)+len(d.Dependencies)+len(d.Anchors) > 0 {
		return false
	}
	for _, p := range d.Replicas {
		if p.Before == nil || p.After == nil {
			return false
		}
		now := *p.After
		now.Ready, now.Address, now.Locality = p.Before.Ready, p.Before.Address, p.Before.Locality
		if !reflect.DeepEqual(&now, p.Before) {
			return false
		}
	}
	for _, p := range d.Services {
		if p.Before == nil || p.After == nil {
			return false
		}
		now := *p.After
		now.Replicas = p.Before.Replicas
		if !slices.EqualFunc(now.Remote, p.Before.Remote, sameButForEndpoints) {
			return false
		}
		now.Remote = p.Before.Remote
		if !reflect.DeepEqual(&now, p.Before) {
			return false
		}
	}
	return true
}

// sameButForEndpoints says whether all that differs of a service in another cluster is how many replicas it has there, and where
// and whether they are reached.
func sameButForEndpoints(a, b Remote) bool {
	return a.Cluster == b.Cluster && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Identities, b.Identities)
}
