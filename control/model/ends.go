package model

import (
	"maps"
	"reflect"
	"slices"
)

// What concerns two ends of a connection: how servers take connections, and how clients make them.

// Or accepts what either mode accepts.
func (m MTLSMode) Or(other MTLSMode) MTLSMode {
	if m == other {
		return m
	}
	return MTLSPermissive
}

// Accepts is what a server takes on a port: what the rules say ([Mesh.InboundMode]), and what clients do who still go by a
// former mesh.
func (m *Mesh) Accepts(namespace string, labels map[string]string, port uint16) (MTLSMode, *PeerMode) {
	mode, by := m.InboundMode(namespace, labels, port)
	for _, former := range m.Accepted {
		other, _ := former.InboundMode(namespace, labels, port)
		mode = mode.Or(other)
	}
	return mode, by
}

// ConcernsServers says whether servers may have to take connections otherwise for clients of this mesh than for those of a
// former one: by other rules for mutual TLS, or on other ports.
func (m *Mesh) ConcernsServers(former *Mesh) bool {
	if !slices.EqualFunc(m.PeerModes, former.PeerModes, samePeerMode) {
		return true
	}
	i, j := 0, 0
	for {
		a, b := nextLocal(m.Services, &i), nextLocal(former.Services, &j)
		switch {
		case a == nil && b == nil:
			return false
		case a == nil || b == nil:
			return true
		case a != b && (a.Host != b.Host || !maps.Equal(a.Selector, b.Selector) || !slices.Equal(a.Ports, b.Ports)):
			return true
		}
	}
}

func samePeerMode(a, b *PeerMode) bool {
	return a == b || a.Namespace == b.Namespace && a.Mode == b.Mode && maps.Equal(a.Selector, b.Selector) && maps.Equal(a.Ports, b.Ports)
}

// Covers says that servers take the connections of clients who go by a former mesh without accepting that one: whatever
// leads to them there leads to them here, and the rules for mutual TLS are the same.
func (m *Mesh) Covers(former *Mesh) bool {
	if !slices.EqualFunc(m.PeerModes, former.PeerModes, samePeerMode) {
		return false
	}
	i := 0
	for was := nextLocal(former.Services, &i); was != nil; was = nextLocal(former.Services, &i) {
		is := m.Service(was.Host)
		if is == was {
			continue
		}
		if is == nil || !is.Local() || !maps.Equal(is.Selector, was.Selector) {
			return false
		}
		for _, p := range was.Ports {
			if now := is.Port(p.Number); now == nil || *now != p {
				return false
			}
		}
	}
	return true
}

// nextLocal is the first service from there on that replicas of this cluster serve, or nil.
func nextLocal(all []*Service, at *int) *Service {
	for *at < len(all) {
		*at++
		if s := all[*at-1]; s.Local() {
			return s
		}
	}
	return nil
}

// AsClientsOf is the mesh as clients see it who still go by a former one: its services, routes and policies towards
// services, with the replicas there are now, and with who calls whom, and whom clients believe (see trust.go), as it is now.
// Policies ask services: one that a policy of now names and the former mesh has not is there besides, or requests would pass
// unasked until clients have switched. Both meshes stay as they are, and what is the same in both is shared.
func (m *Mesh) AsClientsOf(former *Mesh) *Mesh {
	out := *m
	out.Routes, out.Gateways, out.Destinations, out.PeerModes = m.routesOf(former), m.gatewaysOf(former), m.destinationsOf(former), former.PeerModes
	out.Globals, out.BackendTLS = former.Globals, m.backendTLSOf(former)
	out.Credentials = m.credentialsOf(out.Gateways, former)
	out.Services = make([]*Service, len(former.Services))
	for i, s := range former.Services {
		out.Services[i] = m.replicasFor(s)
	}
	for _, asked := range m.asked() {
		now := m.Service(asked.host)
		if now == nil || now.Port(asked.port) == nil {
			continue
		}
		i := slices.IndexFunc(out.Services, func(s *Service) bool { return s.Host == now.Host })
		switch {
		case i < 0:
			// Where it stands in the mesh of now: services are sorted there by the same names.
			at, _ := slices.BinarySearchFunc(out.Services, now, CompareServices)
			out.Services = slices.Insert(out.Services, at, now)
		case out.Services[i].Port(asked.port) == nil:
			more := *out.Services[i]
			more.Ports = append(slices.Clone(more.Ports), *now.Port(asked.port))
			out.Services[i] = &more
		}
	}
	return &out
}

// askedPort is a service that proxies ask by themselves.
type askedPort struct {
	host string
	port uint16
}

// asked are the services that policies have proxies ask: authorizers, and servers of keys.
func (m *Mesh) asked() []askedPort {
	var out []askedPort
	add := func(host string, port uint16) {
		if one := (askedPort{host, port}); host != "" && !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	for _, p := range m.Access {
		if p.Authorizer != nil {
			add(p.Authorizer.Service, p.Authorizer.Port)
		}
	}
	for _, a := range m.Authentications {
		for _, i := range a.Issuers {
			if i.Fetch != nil {
				add(i.Fetch.Service, i.Fetch.Port)
			}
		}
	}
	return out
}

// sameReplicas says whether what runs behind a service of now stands behind the former one as it is: they select the same. The
// endpoints that a ServiceEntry names belong to its ports, so a former one keeps its own.
func sameReplicas(former, now *Service) bool {
	x, y := former.entry(), now.entry()
	switch {
	case x == nil && y == nil:
		return former.Local() == now.Local() && maps.Equal(now.Selector, former.Selector)
	case x == nil || y == nil:
		return false
	}
	return x.selects() && y.selects() && x.Mesh == y.Mesh && maps.Equal(x.Selector, y.Selector)
}

// entry is what a ServiceEntry says of the service, nil for any other and for none.
func (s *Service) entry() *Entry {
	if s == nil || s.External == nil {
		return nil
	}
	return s.External.Entry
}

// selects says whether the entry's endpoints are what a selector selects.
func (e *Entry) selects() bool { return e.Resolution == ResolveStatic && e.Selector != nil }

// replicasFor is a former service with what runs behind it now, and who may answer for it by that.
func (m *Mesh) replicasFor(s *Service) *Service {
	now := m.Service(s.Host)
	if now == s {
		return s
	}
	is := *s
	if now != nil && s.entry() == nil && now.entry() == nil {
		// Where else it runs has nothing to do with whom it selects here.
		is.Remote = now.Remote
	}
	if x, y := s.entry(), now.entry(); x != nil && y != nil && !slices.Equal(x.SubjectNames, y.SubjectNames) {
		external, entry := *s.External, *x
		entry.SubjectNames = y.SubjectNames
		external.Entry = &entry
		is.External = &external
	}
	switch e := is.entry(); {
	case now != nil && sameReplicas(s, now):
		is.Replicas, is.Identities = now.Replicas, now.Identities
	case s.Local():
		is.Replicas = m.selected(s.Namespace, s.Selector)
		// While there are none, those of before may answer, to none of whom a connection is made: nobody at all would stand for
		// everybody of the namespace.
		if now := accounts(m.Settings, is.Replicas); len(now) > 0 {
			is.Identities = slices.Sorted(maps.Keys(now))
		}
	case e != nil && e.Resolution == ResolveStatic:
		if e.Selector != nil {
			is.Replicas = m.selected(s.Namespace, e.Selector)
		}
		if now := is.answering(m.Settings); e.Mesh && len(now) > 0 {
			is.Identities = now
		}
	}
	if reflect.DeepEqual(&is, s) {
		return s
	}
	return &is
}

// selected are the replicas of a namespace that a selector selects.
func (m *Mesh) selected(namespace string, selector map[string]string) []*Replica {
	var out []*Replica
	for _, r := range m.replicasIn(namespace) {
		if Selects(selector, r.Labels) {
			out = append(out, r)
		}
	}
	return out
}
