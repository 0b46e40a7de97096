package model

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
)

// Whom clients and gateways believe, what gateways ask of their clients, and what routes may use is never held back: of a former
// mesh, [Mesh.AsClientsOf] takes which way things go, and of the mesh of now, what was withdrawn or is demanded meanwhile. Where
// nothing of now says anything of it, since its object is gone, it stays as it was until clients have left that way.

// replaced is a list with what becomes of its parts, the same list when all stay what they are.
func replaced[T any](all []*T, become func(*T) *T) []*T {
	out, changed := all, false
	for i, was := range all {
		is := become(was)
		if is == was {
			continue
		}
		if !changed {
			out, changed = slices.Clone(all), true
		}
		out[i] = is
	}
	return out
}

// trusting is how TLS is spoken that was spoken one way and is to be another now: as now where both go by the same sort of
// certificates, the mesh's or others; else the servers of the one are not those of the other, and it stays.
func trusting(was, now *ClientTLS) *ClientTLS {
	if was == nil || now == nil {
		return was
	}
	others := func(t *ClientTLS) bool { return t.Mode == TLSSimple || t.Mode == TLSMutual }
	if others(was) && others(now) || was.Mode == TLSMesh && now.Mode == TLSMesh {
		return now
	}
	return was
}

// destinationsOf are the policies towards services of a former mesh, with whom clients believe now.
func (m *Mesh) destinationsOf(former *Mesh) []*DestinationPolicy {
	type name struct{ namespace, name string }
	now := make(map[name]*DestinationPolicy, len(m.Destinations))
	for _, d := range m.Destinations {
		now[name{d.Namespace, d.Name}] = d
	}
	return replaced(former.Destinations, func(was *DestinationPolicy) *DestinationPolicy {
		is := now[name{was.Namespace, was.Name}]
		if is == nil || is == was || is.Host != was.Host {
			return was
		}
		return was.trusting(is)
	})
}

// tlsOn is how TLS is spoken with a port under a subset, both of which the policy may have not; port 0 stands for those without a
// policy of their own.
func (d *DestinationPolicy) tlsOn(port uint16, subset string) *ClientTLS {
	if s := d.Subset(subset); s != nil {
		return d.Policy.ForPort(port, &s.Policy).TLS
	}
	return d.Policy.ForPort(port, nil).TLS
}

// trusting is the policy with whom it believes by another state of it.
func (d *DestinationPolicy) trusting(now *DestinationPolicy) *DestinationPolicy {
	ports := map[uint16]bool{0: true}
	for _, of := range []*DestinationPolicy{d, now} {
		for p := range of.Policy.Ports {
			ports[p] = true
		}
		for i := range of.Subsets {
			for p := range of.Subsets[i].Policy.Ports {
				ports[p] = true
			}
		}
	}
	out := *d
	out.Policy.Ports, out.Subsets = maps.Clone(d.Policy.Ports), slices.Clone(d.Subsets)
	// The whole policy first: its ports and subsets go by it where they say nothing.
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		out.Policy.trust(port, trusting(d.tlsOn(port, ""), now.tlsOn(port, "")), out.Policy.ForPort(port, nil))
	}
	for i := range out.Subsets {
		s := &out.Subsets[i]
		s.Policy.Ports = maps.Clone(s.Policy.Ports)
		for _, port := range slices.Sorted(maps.Keys(ports)) {
			s.Policy.trust(port, trusting(d.tlsOn(port, s.Name), now.tlsOn(port, s.Name)), out.Policy.ForPort(port, &s.Policy))
		}
	}
	if reflect.DeepEqual(&out, d) {
		return d
	}
	return &out
}

// trust has TLS on a port be spoken this way, where it is not by what is in force there already.
func (t *TrafficPolicy) trust(port uint16, tls *ClientTLS, inForce PortPolicy) {
	switch {
	case reflect.DeepEqual(inForce.TLS, tls):
	case port == 0:
		t.TLS = tls
	default:
		if t.Ports == nil {
			t.Ports = map[uint16]PortPolicy{}
		}
		inForce.TLS = tls
		t.Ports[port] = inForce
	}
}

// backendTLSOf are a former mesh's policies for TLS from gateways to services, each target with whom gateways believe by the
// policy that is for it now.
func (m *Mesh) backendTLSOf(former *Mesh) []*BackendTLS {
	if slices.Equal(m.BackendTLS, former.BackendTLS) {
		return former.BackendTLS
	}
	now, before := m.BackendTLSByTarget(), former.BackendTLSByTarget()
	// ports are the targets of a host that are one of its ports, and have a policy of their own now.
	ports := map[string][]BackendTarget{}
	for _, by := range m.BackendTLS {
		for _, t := range by.Targets {
			if t.Port != 0 && now[t] == by && before[t] == nil {
				ports[t.Host] = append(ports[t.Host], t)
			}
		}
	}
	var out []*BackendTLS
	for _, was := range former.BackendTLS {
		kept, others := *was, []*BackendTLS{}
		kept.Targets = nil
		target := func(t BackendTarget, by *BackendTLS) {
			if by == nil || reflect.DeepEqual(by.TLS, was.TLS) {
				kept.Targets = append(kept.Targets, t)
				return
			}
			other := *was
			other.Targets, other.TLS, other.Source = []BackendTarget{t}, by.TLS, by.Source
			others = append(others, &other)
		}
		for _, t := range was.Targets {
			by := now[t]
			if by == nil {
				by = now[BackendTarget{Host: t.Host}]
			}
			target(t, by)
			if t.Port != 0 {
				continue
			}
			// They went by this one.
			for _, p := range ports[t.Host] {
				if !reflect.DeepEqual(now[p].TLS, was.TLS) {
					target(p, now[p])
				}
			}
		}
		switch {
		case len(others) == 0:
			out = append(out, was)
		case len(kept.Targets) > 0:
			out = append(out, &kept)
		}
		out = append(out, others...)
	}
	return out
}

// gatewaysOf are the gateways of a former mesh, whose servers show and ask for the certificates that they do now.
func (m *Mesh) gatewaysOf(former *Mesh) []*Gateway {
	now := make(map[string]*Gateway, len(m.Gateways))
	for _, g := range m.Gateways {
		now[g.FullName()] = g
	}
	return replaced(former.Gateways, func(was *Gateway) *Gateway {
		is := now[was.FullName()]
		if is == nil || is == was {
			return was
		}
		out, changed := *was, false
		for i := range was.Servers {
			tls, server := was.Servers[i].TLS, is.like(was, i)
			if tls == nil || server == nil || server.TLS == nil || reflect.DeepEqual(server.TLS, tls) {
				continue
			}
			if !changed {
				out.Servers, changed = slices.Clone(was.Servers), true
			}
			out.Servers[i].TLS = server.TLS
		}
		if !changed {
			return was
		}
		return &out
	})
}

// like is the server that has the place of one of another state of the gateway: of those with its port and name, the one with as many
// before it. nil for none.
func (g *Gateway) like(other *Gateway, i int) *Server {
	same := func(s *Server) bool {
		return s.Port == other.Servers[i].Port && s.PortName == other.Servers[i].PortName
	}
	before := 0
	for j := range i {
		if same(&other.Servers[j]) {
			before++
		}
	}
	for j := range g.Servers {
		if !same(&g.Servers[j]) {
			continue
		}
		if before == 0 {
			return &g.Servers[j]
		}
		before--
	}
	return nil
}

// credentialsOf are the credentials with those that only gateways of a former mesh name, as those are now. One that a gateway of
// now names is there as it is now, be it that it is gone. Nobody is let in by authorities that no gateway of now goes by.
func (m *Mesh) credentialsOf(gateways []*Gateway, former *Mesh) []*Credential {
	if len(former.Credentials) == 0 {
		return m.Credentials
	}
	now, then := certificates(m.Gateways), certificates(gateways)
	out, changed := slices.Clone(m.Credentials), false
	for _, was := range former.Credentials {
		name := credentialName{was.Namespace, was.Name}
		at, there := slices.BinarySearchFunc(out, was, func(x, y *Credential) int {
			return strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name)
		})
		if there || now[name] || !then[name] {
			continue
		}
		if len(was.Authorities) > 0 {
			bare := *was
			bare.Authorities, was = nil, &bare
		}
		out, changed = slices.Insert(out, at, was), true
	}
	if !changed {
		return m.Credentials
	}
	return out
}

type credentialName struct{ namespace, name string }

// certificates are the credentials that servers of gateways name.
func certificates(gateways []*Gateway) map[credentialName]bool {
	out := map[credentialName]bool{}
	for _, g := range gateways {
		for _, s := range g.Servers {
			if s.TLS == nil {
				continue
			}
			for _, c := range s.TLS.Certificates {
				out[credentialName{c.Namespace, c.Name}] = true
			}
		}
	}
	return out
}

// routesOf are the routes of a former mesh without the destinations that they may not use any more.
func (m *Mesh) routesOf(former *Mesh) []*Routes {
	// What the callers of sidecars may use is another matter than what gateways may.
	type routes struct {
		key  objects.Key
		mesh bool
	}
	of := func(r *Routes) routes { return routes{r.Source.Key, slices.Contains(r.Gateways, GatewayMesh)} }
	denied := map[routes]map[string]bool{}
	for _, r := range m.Routes {
		r.eachDestination(func(d *Destination) {
			if !d.NotGranted {
				return
			}
			if denied[of(r)] == nil {
				denied[of(r)] = map[string]bool{}
			}
			denied[of(r)][d.Host] = true
		})
	}
	if len(denied) == 0 {
		return former.Routes
	}
	return replaced(former.Routes, func(was *Routes) *Routes {
		hosts, used := denied[of(was)], false
		was.eachDestination(func(d *Destination) { used = used || hosts[d.Host] && !d.NotGranted })
		if !used {
			return was
		}
		out := was.clone()
		out.eachDestination(func(d *Destination) {
			if hosts[d.Host] {
				d.Missing, d.NotGranted = true, true
			}
		})
		return out
	})
}

// eachDestination calls f with all that the routes lead to.
func (r *Routes) eachDestination(f func(*Destination)) {
	for i := range r.HTTP {
		h := &r.HTTP[i]
		for j := range h.Forward {
			f(&h.Forward[j])
		}
		for j := range h.Mirrors {
			f(&h.Mirrors[j].To)
		}
	}
	for i := range r.TCP {
		for j := range r.TCP[i].Forward {
			f(&r.TCP[i].Forward[j])
		}
	}
}

// clone is a copy with destinations of its own.
func (r *Routes) clone() *Routes {
	out := *r
	out.HTTP, out.TCP = slices.Clone(r.HTTP), slices.Clone(r.TCP)
	for i := range out.HTTP {
		h := &out.HTTP[i]
		h.Forward, h.Mirrors = slices.Clone(h.Forward), slices.Clone(h.Mirrors)
	}
	for i := range out.TCP {
		out.TCP[i].Forward = slices.Clone(out.TCP[i].Forward)
	}
	return &out
}

// answering are the identities that may answer for a service of a ServiceEntry in the mesh, as its endpoints and its
// subjectAltNames say.
func (s *Service) answering(settings Settings) []string {
	identities := accounts(settings, s.Replicas)
	for _, name := range s.entry().SubjectNames {
		if _, _, is := cluster.AccountOf(settings.TrustDomain, name); is {
			identities[name] = true
		}
	}
	return slices.Sorted(maps.Keys(identities))
}

// accounts are the identities of replicas.
func accounts(settings Settings, replicas []*Replica) map[string]bool {
	out := map[string]bool{}
	for _, r := range replicas {
		if r.Account != "" {
			out[settings.Identity(r.Namespace, r.Account)] = true
		}
	}
	return out
}
