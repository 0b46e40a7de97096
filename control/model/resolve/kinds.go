package resolve

import (
	"heddle.io/heddle/control/objects"
)

// Objects are worked out in this order: each stratum looks up what those before it make.
const (
	// stratumEndpoints has what stands beside the replicas that agents report.
	stratumEndpoints = iota
	stratumServices
	// stratumDestinations has the mesh's configuration too, whose providers policies name.
	stratumDestinations
	stratumPolicies
	stratumRoutes
	strata
)

// resolver makes of the objects of a kind what the model has of them.
type resolver struct {
	kind    *objects.Kind
	stratum int
	// part is the part of the mesh that an object makes, nil for none.
	part func(*builder, *objects.Object) any
}

// resolvers are those of all kinds that make a part of the mesh, or of which more is said than their form. A new one is a file
// and a line here.
var resolvers = []resolver{
	resolved(objects.WorkloadEntry, stratumEndpoints, (*builder).workloadEntry),
	resolved(objects.Service, stratumServices, (*builder).service),
	resolved(objects.ServiceEntry, stratumServices, (*builder).serviceEntry),
	resolved(objects.DestinationRule, stratumDestinations, (*builder).destination),
	resolved(objects.ConfigMap, stratumDestinations, (*builder).authorizers),
	examined(objects.Workload, stratumPolicies, (*builder).workload),
	resolved(objects.Gateway, stratumPolicies, (*builder).gateway),
	resolved(objects.Sidecar, stratumPolicies, (*builder).sidecar),
	resolved(objects.EnvoyFilter, stratumPolicies, (*builder).envoyFilter),
	resolved(objects.PeerAuthentication, stratumPolicies, (*builder).peerMode),
	resolved(objects.AuthorizationPolicy, stratumPolicies, (*builder).access),
	resolved(objects.RequestAuthentication, stratumPolicies, (*builder).authentication),
	resolved(objects.VirtualService, stratumRoutes, (*builder).routes),
}

// resolved has a kind's objects worked out by a function that gives a part, nil for none.
func resolved[R, P any](kind *objects.Kind, stratum int, of func(*builder, *objects.Object, R) *P) resolver {
	return resolver{kind, stratum, func(b *builder, o *objects.Object) any {
		r, is := any(o.Resource).(R)
		if !is {
			return nil
		}
		if p := of(b, o, r); p != nil {
			return p
		}
		return nil
	}}
}

// examined has a function look at a kind's objects, which make no part.
func examined[R any](kind *objects.Kind, stratum int, look func(*builder, *objects.Object, R)) resolver {
	return resolver{kind, stratum, func(b *builder, o *objects.Object) any {
		if r, is := any(o.Resource).(R); is {
			look(b, o, r)
		}
		return nil
	}}
}

// resolverOf is that of a kind; of one that makes no part, it is nil.
func resolverOf(key objects.Key) *resolver {
	return resolversByKind[objects.Key{Group: key.Group, Kind: key.Kind}]
}

var resolversByKind = index(resolvers)

func index(all []resolver) map[objects.Key]*resolver {
	out := make(map[objects.Key]*resolver, len(all))
	for i := range all {
		out[objects.Key{Group: all[i].kind.Group, Kind: all[i].kind.Kind}] = &all[i]
	}
	return out
}

func stratumOf(key objects.Key) int {
	if r := resolverOf(key); r != nil {
		return r.stratum
	}
	return stratumPolicies
}

// part is the part of the mesh that an object makes, nil for none.
func (b *builder) part(key objects.Key, o *objects.Object) any {
	if r := resolverOf(key); r != nil {
		return r.part(b, o)
	}
	return nil
}
