package model

import (
	"reflect"
	"slices"
)

// Reuse has a model that was built anew share each part with the one before it that says the same, so that whoever keeps
// something made of a part sees by the pointer whether it is still good. It returns the new model.
func (m *Mesh) Reuse(before *Mesh) *Mesh {
	if before == nil {
		return m
	}
	type name struct{ namespace, name, more string }
	reuse(before.Globals, m.Globals, func(g *GlobalNamespace) name { return name{name: g.Name} })
	reuse(before.Replicas, m.Replicas, func(r *Replica) name { return name{namespace: r.Namespace, name: r.Name} })
	replicas := make(map[name]*Replica, len(m.Replicas))
	for _, r := range m.Replicas {
		replicas[name{namespace: r.Namespace, name: r.Name}] = r
	}
	for _, s := range m.Services {
		for i, r := range s.Replicas {
			s.Replicas[i] = replicas[name{namespace: r.Namespace, name: r.Name}]
		}
	}
	reuse(before.Services, m.Services, func(s *Service) name { return name{s.Namespace, s.Name, s.Host} })
	reuse(before.Routes, m.Routes, func(r *Routes) name { return name{namespace: r.Namespace, name: r.Name} })
	reuse(before.Gateways, m.Gateways, func(g *Gateway) name { return name{namespace: g.Namespace, name: g.Name} })
	reuse(before.Destinations, m.Destinations, func(d *DestinationPolicy) name { return name{namespace: d.Namespace, name: d.Name} })
	reuse(before.PeerModes, m.PeerModes, func(p *PeerMode) name { return name{namespace: p.Namespace, name: p.Name} })
	reuse(before.Authentications, m.Authentications, func(a *Authentication) name { return name{namespace: a.Namespace, name: a.Name} })
	reuse(before.Access, m.Access, func(p *AccessPolicy) name { return name{namespace: p.Namespace, name: p.Name} })
	reuse(before.Credentials, m.Credentials, func(c *Credential) name { return name{namespace: c.Namespace, name: c.Name} })
	return m
}

// reuse puts the old parts in place of new ones that say the same.
func reuse[T any, K comparable](before, after []*T, key func(*T) K) {
	known := make(map[K]*T, len(before))
	for _, old := range before {
		known[key(old)] = old
	}
	for i, part := range after {
		if old := known[key(part)]; old != nil && (old == part || reflect.DeepEqual(old, part)) {
			after[i] = old
		}
	}
}

// WithReplicas is the model with other states of replicas that it has, and the services that are changed by it, before and
// after. The replicas' labels, accounts and ports must be the same.
func (m *Mesh) WithReplicas(replicas []*Replica) (out *Mesh, before, after []*Service) {
	copied := *m
	out = &copied
	out.Replicas, out.Services = slices.Clone(m.Replicas), slices.Clone(m.Services)
	changed := map[string]map[string]*Replica{}
	for _, r := range replicas {
		if i, known := m.replica(r.Namespace, r.Name); known {
			out.Replicas[i] = r
			if changed[r.Namespace] == nil {
				changed[r.Namespace] = map[string]*Replica{}
			}
			changed[r.Namespace][r.Name] = r
		}
	}
	for namespace, names := range changed {
		from, to := m.servicesIn(namespace)
		for i, s := range m.Services[from:to] {
			var now *Service
			for j, r := range s.Replicas {
				if to := names[r.Name]; to != nil {
					if now == nil {
						is := *s
						now = &is
						now.Replicas = slices.Clone(s.Replicas)
					}
					now.Replicas[j] = to
				}
			}
			if now != nil {
				out.Services[from+i] = now
				before, after = append(before, s), append(after, now)
			}
		}
	}
	return out, before, after
}
