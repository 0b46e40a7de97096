package resolve

import (
	"fmt"
	"reflect"
	"slices"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// same gives the part as it was when it says the same, else the new one; either may be nil. id names the part.
func same[T any](m *Model, id any, was, now *T) *T {
	old, known := m.before[id].(*T)
	if m.returning && known && now != nil && reflect.DeepEqual(old, now) {
		return old
	}
	if was != nil && now != nil && reflect.DeepEqual(was, now) {
		return was
	}
	if known && now != nil && reflect.DeepEqual(old, now) {
		return old
	}
	if m.before != nil && !known && was != nil {
		m.before[id] = was
	}
	return now
}

// samePart is [same] for the part of an object.
func (m *Model) samePart(key objects.Key, was, now any) any {
	old, known := m.before[key]
	if m.returning && known && reflect.DeepEqual(old, now) {
		return old
	}
	if was != nil && reflect.DeepEqual(was, now) {
		return was
	}
	if known && !m.moved[key] && reflect.DeepEqual(old, now) {
		return old
	}
	if m.before != nil && !known && was != nil {
		m.before[key] = was
	}
	return now
}

// setPart puts the part of an object into force, nil for none.
func (m *Model) setPart(key objects.Key, e *keptObject, part any) {
	was := e.part
	if was == nil && part == nil {
		return
	}
	if part = m.samePart(key, was, part); part == was {
		return
	}
	e.part = part
	m.replacePart(was, part)
}

// replacePart puts a part into the mesh in place of another; either may be nil.
func (m *Model) replacePart(was, now any) {
	for _, side := range []struct {
		part  any
		there bool
	}{{was, false}, {now, true}} {
		switch p := side.part.(type) {
		case nil:
		case *model.Service:
			m.setLocal(p, side.there)
		case *entryServices:
			m.setEntry(p, side.there)
		case *entryReplica:
			m.setReplica(p.Replica, side.there)
		case *model.Sidecar:
			m.setSidecar(p, side.there)
		case *model.DestinationPolicy:
			m.changed.destinations.set(p, side.there)
			m.destinations.set(p.Host, p.Source.Key, p, side.there)
			if isPattern(p.Host) {
				m.touch(fact{kind: factDestinations})
			} else {
				m.touch(fact{kind: factDestinations, a: p.Host})
			}
		case *model.Gateway:
			m.changed.gateways.set(p, side.there)
			if delete(m.gateways, p.FullName()); side.there {
				m.gateways[p.FullName()] = p
			}
			m.setServers(p, side.there)
			m.forgetConflicts(p.Source.Key)
			m.touch(fact{kind: factGateway, a: p.FullName()})
		case *model.BackendTLS:
			m.changed.backendTLS.set(p, side.there)
			for _, t := range p.Targets {
				m.backendTLS.set(t.Host, p.Source.Key, p, side.there)
				m.retargeted[t.Host] = true
			}
			m.forgetConflicts(p.Source.Key)
		case *model.PeerMode:
			m.changed.peerModes.set(p, side.there)
			if len(p.Selector) == 0 {
				if m.peerModes[p.Namespace] == nil {
					m.peerModes[p.Namespace] = map[objects.Key]*model.PeerMode{}
				}
				if delete(m.peerModes[p.Namespace], p.Source.Key); side.there {
					m.peerModes[p.Namespace][p.Source.Key] = p
				}
				m.remoded[p.Namespace] = true
			}
			m.say(p.Source.Key, saidConflict, nil)
		case *meshConfig:
			if m.config = nil; side.there {
				m.config = p
			}
			for name := range p.authorizers {
				m.touch(fact{kind: factAuthorizer, a: name})
			}
			m.credentialsChanged = m.credentialsChanged || p.keyProvider != nil
		case *model.AccessPolicy:
			m.changed.access.set(p, side.there)
		case *model.Authentication:
			m.changed.authentications.set(p, side.there)
		case *model.Dependencies:
			m.changed.dependencies.set(p, side.there)
		case *model.EnvoyFilter:
			m.changed.envoyFilters.set(p, side.there)
		case *attachments:
			for _, r := range p.sets {
				m.attached.set(r, side.there)
			}
		case *model.Routes:
			m.changed.routes.set(p, side.there)
			if slices.Contains(p.Gateways, model.GatewayMesh) {
				for _, h := range p.Hosts {
					m.routes.set(h, p.Source.Key, p, side.there)
					m.rehosted[h] = true
				}
			}
			m.say(p.Source.Key, saidConflict, nil)
		default:
			// Only a resolver that was added without this can make one; what its objects say would be lost without a word.
			panic(fmt.Sprintf("resolve: a part of type %T has no place in the mesh: give it one here", p))
		}
	}
}

// forgetConflicts has an object be in nobody's way, until it is settled again whether it is.
func (m *Model) forgetConflicts(key objects.Key) {
	if e := m.entries[key]; e != nil {
		m.restate(key)
		e.said[saidConflict], e.sections.conflicts, e.sections.keptOut = nil, nil, nil
	}
}

func (m *Model) say(key objects.Key, segment int, f *findings) {
	if e := m.entries[key]; e != nil && e.said[segment] != f {
		m.restate(key)
		e.said[segment] = f
	}
}

// setLocal takes note of a service of this cluster that is there, or not any more.
func (m *Model) setLocal(s *model.Service, there bool) {
	in := m.local[s.Namespace]
	if in == nil {
		in = map[string]*model.Service{}
		m.local[s.Namespace] = in
	}
	old := in[s.Name]
	if old == nil && !there {
		return
	}
	if there {
		in[s.Name] = s
	} else if delete(in, s.Name); len(in) == 0 {
		delete(m.local, s.Namespace)
	}
	m.relocal[s.Host] = true
	m.reshaped = m.reshaped || !there || !m.onlyReplicas(s)
}

// onlyReplicas says whether a service that is there now differs from the one in force in its replicas alone.
func (m *Model) onlyReplicas(s *model.Service) bool {
	was := m.services[s.Host]
	if was == nil || was.Imported || was.External != nil {
		return false
	}
	now := withGlobal(s, was)
	now.Replicas, now.Identities = was.Replicas, was.Identities
	return reflect.DeepEqual(now, was)
}

// withGlobal is a service of this cluster with what global namespaces add to another state of it.
func withGlobal(s, of *model.Service) *model.Service {
	out := *s
	out.Global, out.Aliases, out.Remote, out.Spread, out.Outlier = of.Global, of.Aliases, of.Remote, of.Spread, of.Outlier
	return &out
}

func (m *Model) setCredentials(e *keptObject, credentials []*model.Credential) {
	if len(e.credentials)+len(credentials) > 0 {
		e.credentials, m.credentialsChanged = credentials, true
	}
}
