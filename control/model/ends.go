package model

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"heddle.io/heddle/control/cluster"
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
// services, with the replicas there are now, and with what holds for who calls whom as it is now. Policies ask services: one
// that a policy of now names and the former mesh has not is there besides, or requests would pass unasked until
// clients have switched. Both meshes stay as they are, and what is the same in both is shared.
func (m *Mesh) AsClientsOf(former *Mesh) *Mesh {
	out := *m
	out.Routes, out.Gateways, out.Destinations, out.PeerModes = former.Routes, former.Gateways, former.Destinations, former.PeerModes
	out.Globals, out.BackendTLS = former.Globals, former.BackendTLS
	out.Credentials = m.credentialsWith(former)
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

// credentialsWith are the credentials with those that only gateways of a former mesh name. One that a gateway of now names is
// there as it is now, be it that it is gone; of a former one that verified clients with it, the authorities stay.
func (m *Mesh) credentialsWith(former *Mesh) []*Credential {
	if len(former.Credentials) == 0 {
		return m.Credentials
	}
	named := map[string]bool{}
	for _, g := range m.Gateways {
		for _, s := range g.Servers {
			if s.TLS != nil {
				for _, c := range s.TLS.Certificates {
					named[c.Namespace+"/"+c.Name] = true
				}
			}
		}
	}
	out, changed := slices.Clone(m.Credentials), false
	for _, was := range former.Credentials {
		at, there := slices.BinarySearchFunc(out, was, func(x, y *Credential) int {
			return strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name)
		})
		switch {
		case there && len(out[at].Authorities) == 0 && len(was.Authorities) > 0:
			both := *out[at]
			both.Authorities = was.Authorities
			out[at], changed = &both, true
		case !there && !named[was.Namespace+"/"+was.Name]:
			out, changed = slices.Insert(out, at, was), true
		}
	}
	if !changed {
		return m.Credentials
	}
	return out
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

func (s *Service) entry() *Entry {
	if s.External == nil {
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
	switch e := s.entry(); {
	case now != nil && sameReplicas(s, now):
		is.Replicas, is.Identities = now.Replicas, now.Identities
	case s.Local():
		m.selectFor(&is, s.Selector, true)
	case e != nil && e.selects():
		m.selectFor(&is, e.Selector, e.Mesh)
	}
	if reflect.DeepEqual(&is, s) {
		return s
	}
	return &is
}

// selectFor puts the replicas of now behind a service that selects them, and, in the mesh, their accounts in the place of those that
// may answer for it: an account that none of them has any more may not. While there are none, those of before may, to none of
// whom a connection is made; nobody at all would stand for everybody of the namespace.
func (m *Mesh) selectFor(s *Service, selector map[string]string, mesh bool) {
	s.Replicas = nil
	identities := map[string]bool{}
	for _, r := range m.replicasIn(s.Namespace) {
		if !Selects(selector, r.Labels) {
			continue
		}
		if s.Replicas = append(s.Replicas, r); r.Account != "" {
			identities[m.Settings.Identity(r.Namespace, r.Account)] = true
		}
	}
	if !mesh || len(identities) == 0 {
		return
	}
	if e := s.entry(); e != nil {
		for _, name := range e.SubjectNames {
			if _, _, is := cluster.AccountOf(m.Settings.TrustDomain, name); is {
				identities[name] = true
			}
		}
	}
	s.Identities = slices.Sorted(maps.Keys(identities))
}
