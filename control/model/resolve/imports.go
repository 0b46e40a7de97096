package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/registry"
)

// place is one cluster and namespace in which a global namespace has a service.
type place struct {
	cluster   string
	namespace string
	// local is the service of this cluster, else peer and export say what another cluster offers.
	local  *model.Service
	peer   *registry.Peer
	export *registry.Export
}

func (p place) String() string { return p.cluster + "/" + p.namespace }

// imports brings the services of a global namespace together. The same name in namespaces of the same name is one
// service. The same name in namespaces of different names are different services, so that neither has the short name
// everywhere, nor the one in the domain. offered are the services of other clusters that belong to it.
func (b *builder) imports(g *global, offered []place) {
	found := map[string][]place{}
	here, there := 0, 0
	for _, ns := range g.model.Namespaces {
		for _, s := range b.localIn(ns) {
			s.Global = g.key.Name
			found[s.Name] = append(found[s.Name], place{cluster: b.settings.Cluster, namespace: s.Namespace, local: s})
			here++
			if s.ExportTo.Limited {
				b.report.note(s.Source.Key, "metadata.annotations["+exportAnnotation+"]",
					"the service is kept to namespaces of this cluster, so it is not offered to the other clusters of "+g.key.String())
			}
		}
	}
	if len(g.model.Namespaces) > 0 {
		for _, p := range b.usable(g, offered) {
			found[p.export.Name] = append(found[p.export.Name], p)
			there++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		places := found[name]
		unique := b.unique(g, name, places)
		byNamespace := map[string][]place{}
		for _, p := range places {
			byNamespace[p.namespace] = append(byNamespace[p.namespace], p)
		}
		for _, ns := range slices.Sorted(maps.Keys(byNamespace)) {
			s := b.join(g, name, ns, byNamespace[ns])
			if s != nil && unique {
				g.services[name] = s
				b.aliases(g, s)
			}
		}
	}
	b.summary(g, here, there)
}

// offers are the services of other clusters by the global namespace that they belong to, by cluster, namespace and name.
func (b *builder) offers() map[*global][]place {
	out := map[*global][]place{}
	for i := range b.m.peers {
		p := &b.m.peers[i]
		// What a cluster says that is not, or no more, of the mesh does not count: its certificates would be refused.
		if p.Cluster == b.settings.Cluster || !b.isCluster(p.Cluster) {
			continue
		}
		namespace, owner := "", (*global)(nil)
		for _, e := range p.Services.Sorted() {
			if e.Namespace != namespace {
				namespace, owner = e.Namespace, b.m.global.owners.of(p.Cluster, e.Namespace)
			}
			if owner != nil {
				out[owner] = append(out[owner], place{cluster: p.Cluster, namespace: e.Namespace, peer: p, export: e})
			}
		}
	}
	return out
}

// usable are the offered services that can be here.
func (b *builder) usable(g *global, offered []place) []place {
	out := make([]place, 0, len(offered))
	for _, p := range offered {
		e := p.export
		if i := slices.IndexFunc(e.Ports, func(p registry.ExportPort) bool { return slices.Contains(proxyPorts, int(p.Number)) }); i >= 0 {
			b.report.missing(g.key, "BadExport", "spec.mappings",
				fmt.Sprintf("cluster %s offers the service %q in namespace %q, but its port %d is one of the proxies' own", p.cluster, e.Name, e.Namespace, e.Ports[i].Number),
				"choose another port for the service there")
			continue
		}
		if problem := malformed(e); problem != "" {
			b.report.missing(g.key, "BadExport", "spec.mappings",
				fmt.Sprintf("cluster %s offers the service %q in namespace %q, but %s", p.cluster, e.Name, e.Namespace, problem),
				"run the same version of Heddle in all clusters")
			continue
		}
		out = append(out, p)
	}
	return out
}

// proxyPorts are taken in every workload's network namespace: by them, another cluster's service would stand for a
// sidecar's own listeners.
var proxyPorts = []int{cluster.PortAdmin, cluster.PortOutbound, cluster.PortInbound, cluster.PortHealth, cluster.PortDNS, cluster.PortMetrics}

// malformed says what is wrong with what another cluster told: it is another party, and its words become configuration.
func malformed(e *registry.Export) string {
	switch {
	case len(validation.IsDNS1123Label(e.Namespace)) > 0:
		return "that is no namespace"
	case len(validation.IsDNS1035Label(e.Name)) > 0:
		return "that is no service's name"
	case len(e.Ports) == 0:
		return "it has no ports"
	}
	for i, p := range e.Ports {
		if p.Number == 0 || slices.IndexFunc(e.Ports, func(o registry.ExportPort) bool { return o.Number == p.Number }) < i {
			return fmt.Sprintf("its port %d cannot be", p.Number)
		}
		switch model.Protocol(p.Protocol) {
		case model.TCP, model.HTTP, model.HTTP2:
		default:
			return fmt.Sprintf("its port %d speaks %q", p.Number, p.Protocol)
		}
	}
	return ""
}

// unique says whether all places of a name are namespaces of one name, and reports when not.
func (b *builder) unique(g *global, name string, places []place) bool {
	first := places[0]
	i := slices.IndexFunc(places, func(p place) bool { return p.namespace != first.namespace })
	if i < 0 {
		return true
	}
	problem := fmt.Sprintf("service %s is in %s and in %s, whose namespaces have different names: neither answers to %s.%s, "+
		"nor to the short name in the other's namespace", name, first, places[i], name, g.spec.Domain)
	remedy := "rename one of the two services, or map only one of the namespaces"
	b.report.missing(g.key, "Collision", "spec.mappings", problem, remedy)
	for _, p := range places {
		if p.local != nil {
			b.report.note(p.local.Source.Key, "metadata.name", "in "+g.key.String()+", "+problem+"; "+remedy)
		}
	}
	return false
}

// join makes one service of all places in namespaces of one name, or nil when it cannot be here.
func (b *builder) join(g *global, name, namespace string, places []place) *model.Service {
	var s *model.Service
	for _, p := range places {
		if p.local != nil {
			s = p.local
		}
	}
	if s == nil {
		if s = b.imported(g, name, namespace); s == nil {
			return nil
		}
	}
	for _, p := range places {
		if p.export != nil {
			b.remote(g, s, p)
		}
	}
	slices.SortFunc(s.Remote, func(x, y model.Remote) int { return cmp.Compare(x.Cluster, y.Cluster) })
	clusters := len(s.Remote)
	if s.Local() {
		clusters++
	}
	s.Outlier, s.Spread = outlier(g.spec.Resilience.OutlierDetection, clusters), !g.spec.Failover()
	return s
}

// imported makes a service that only other clusters have.
func (b *builder) imported(g *global, name, namespace string) *model.Service {
	host := name + "." + namespace + ".svc." + b.settings.Domain
	if other := b.serviceOf(host); other != nil {
		b.report.missing(g.key, "Collision", "spec.mappings",
			fmt.Sprintf("%s of another cluster has the name of %s, whose namespace is not mapped here", host, other.Source.Key),
			fmt.Sprintf("map namespace %s of %s as well, or rename one of the two services", namespace, b.settings.Cluster))
		return nil
	}
	address, ok := b.address(g, host, "spec.mappings")
	if !ok {
		return nil
	}
	s := &model.Service{
		Namespace: namespace, Name: name, Host: host, Address: address, Imported: true, Global: g.key.Name,
		ExportTo: b.members(g), Source: g.model.Source,
	}
	b.working[host] = s
	return s
}

// remote adds what another cluster offers to a service. A service of this cluster has the ports that it has here: another
// cluster cannot open one more.
func (b *builder) remote(g *global, s *model.Service, p place) {
	r := remoteOf(b.settings, p.peer, p.export)
	for _, port := range p.export.Ports {
		known := s.Port(port.Number)
		if known == nil && s.Local() {
			b.report.note(g.key, "spec.mappings", fmt.Sprintf("port %d of %s is there in %s only and is ignored; give the service the same ports in all clusters",
				port.Number, s.Host, p.cluster))
			continue
		}
		r.Ports = append(r.Ports, port.Number)
		if known == nil {
			s.Ports = append(s.Ports, model.ServicePort{Name: port.Name, Number: port.Number, Protocol: model.Protocol(port.Protocol)})
		} else if known.Protocol != model.Protocol(port.Protocol) {
			b.report.note(g.key, "spec.mappings", fmt.Sprintf("port %d of %s is %s in %s, and %s is used; name the port alike in all clusters",
				port.Number, s.Host, port.Protocol, p.cluster, known.Protocol))
		}
	}
	slices.Sort(r.Ports)
	s.Remote = append(s.Remote, r)
}

// remoteOf is what another cluster offers, but for the ports.
func remoteOf(settings model.Settings, p *registry.Peer, e *registry.Export) model.Remote {
	r := model.Remote{Cluster: p.Cluster, Gateways: slices.Clone(p.Gateways), Reachable: p.Reachable, Locality: model.Locality(p.Locality)}
	// A cluster may only speak for accounts of the namespace that it offers the service from.
	prefix := settings.Identity(e.Namespace, "")
	for _, id := range e.Identities {
		if strings.HasPrefix(id, prefix) {
			r.Identities = append(r.Identities, id)
		}
	}
	slices.Sort(r.Identities)
	for _, group := range e.Groups {
		r.Groups = append(r.Groups, model.RemoteGroup(group))
	}
	return r
}
