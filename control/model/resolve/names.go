package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// GlobalHosts are the full host names that need a virtual address of [model.Settings].Globals: imported services that
// have no Service object here, and external services. They are sorted.
func GlobalHosts(settings model.Settings, objs []*objects.Object, peers []registry.Peer) []string {
	if !slices.ContainsFunc(objs, func(o *objects.Object) bool {
		return o.Kind == objects.GlobalNamespace || o.Kind == objects.ServiceEntry
	}) {
		return nil
	}
	m := New(settings)
	m.Update(Change{Objects: byKey(objs), Peers: &peers})
	return m.GlobalHosts()
}

// GlobalHosts are the hosts of the model that need a virtual address of the global range, sorted.
func (m *Model) GlobalHosts() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.external.hostsBeside(m.global.wanted)
}

// Names are all full host names that workloads of this cluster may look up, sorted.
func Names(mesh *model.Mesh) []model.Name {
	var out []model.Name
	for _, s := range mesh.Services {
		visible := s.ExportTo
		if s.Local() {
			// As in Kubernetes, the name resolves everywhere, whoever may use the service.
			visible = model.Visibility{}
		}
		addresses := s.Addresses()
		if len(addresses) == 0 {
			continue
		}
		out = append(out, model.Name{Host: s.Host, Addresses: addresses, Visible: visible})
		for _, a := range s.Aliases {
			out = append(out, model.Name{Host: a.Host, Addresses: []netip.Addr{s.Address}, Visible: a.Visible})
		}
	}
	slices.SortFunc(out, func(x, y model.Name) int { return cmp.Compare(x.Host, y.Host) })
	return out
}

// address is the virtual address of an imported or external service. Without one, the service has to wait.
func (b *builder) address(g *global, host, path string) (netip.Addr, bool) {
	b.m.global.wanted = append(b.m.global.wanted, host)
	a, ok := b.m.addresses[host]
	if !ok {
		b.report.missing(g.key, "NoAddress", path, host+" has no virtual address yet", "it gets one; if this stays, read the controller's log")
	}
	return a, ok
}

// aliases gives a service its further names: the one in the global namespace's domain, and the short name in each
// namespace of this cluster that belongs to it.
func (b *builder) aliases(g *global, s *model.Service) {
	visible := b.members(g)
	add := func(host string) {
		s.Aliases = append(s.Aliases, model.Alias{Host: host, Visible: visible})
		b.m.global.canonical[host] = s.Host
	}
	if !g.hasExternal(s.Name) {
		add(s.Name + "." + g.spec.Domain)
	}
	for _, ns := range g.model.Namespaces {
		if ns != s.Namespace {
			add(s.Name + "." + ns + ".svc." + b.settings.Domain)
		}
	}
	slices.SortFunc(s.Aliases, func(x, y model.Alias) int { return cmp.Compare(x.Host, y.Host) })
}
