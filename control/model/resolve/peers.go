package resolve

import (
	"slices"
	"strings"

	"heddle.io/heddle/control/registry"
)

// offered is a service that another cluster offers.
type offered struct {
	cluster string
	name    registry.ExportName
}

// setPeers takes what other clusters say, and notes what of it is another matter than before.
func (m *Model) setPeers(now []registry.Peer) {
	before := m.peers
	m.peers = now
	if !slices.EqualFunc(before, now, func(a, b registry.Peer) bool { return a.Cluster == b.Cluster }) {
		m.globalsChanged, m.anchorsChanged = true, true
		return
	}
	for i := range now {
		was, is := &before[i], &now[i]
		m.anchorsChanged = m.anchorsChanged || !slices.Equal(was.Anchors, is.Anchors)
		set, gone := is.Services.Since(was.Services)
		m.globalsChanged = m.globalsChanged || len(gone) > 0
		for _, e := range set {
			// What is imported, and under which names, depends on names and ports.
			if old := was.Services.Get(e.Key()); old == nil || !slices.Equal(old.Ports, e.Ports) {
				m.globalsChanged = true
			}
		}
		if m.globalsChanged {
			continue // All is looked at.
		}
		if was.Reachable != is.Reachable || was.Locality != is.Locality || !slices.Equal(was.Gateways, is.Gateways) {
			set = is.Services.Sorted()
		}
		for _, e := range set {
			m.reoffered[offered{is.Cluster, e.Key()}] = true
		}
	}
}

// renewRemote puts into a service what another cluster says of it now, the ports being those that it said before. It gives the
// service's host, empty when there is none here by what the cluster says.
func (m *Model) renewRemote(at offered) string {
	host := at.name.Name + "." + at.name.Namespace + ".svc." + m.settings.Domain
	was := m.global.made[host]
	if was == nil {
		return ""
	}
	for i, r := range was.Remote {
		if r.Cluster != at.cluster {
			continue
		}
		p, _ := slices.BinarySearchFunc(m.peers, at.cluster, func(p registry.Peer, name string) int { return strings.Compare(p.Cluster, name) })
		now := *was
		now.Remote = slices.Clone(was.Remote)
		now.Remote[i] = remoteOf(m.settings, &m.peers[p], m.peers[p].Services.Get(at.name))
		now.Remote[i].Ports = r.Ports
		m.global.made[host] = &now
		return host
	}
	return ""
}
