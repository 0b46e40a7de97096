package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
)

// hasExternal says whether an external service has that name.
func (g *global) hasExternal(name string) bool {
	return slices.ContainsFunc(g.spec.ExternalServices, func(e v1alpha1.ExternalService) bool { return e.Name == name })
}

// externals makes the services outside of the mesh known to the namespaces that a global namespace maps here.
func (b *builder) externals(g *global) {
	if len(g.model.Namespaces) == 0 {
		return
	}
	for i, e := range g.spec.ExternalServices {
		at := fmt.Sprintf("spec.externalServices[%d]", i)
		host := e.Name + "." + g.spec.Domain
		if s, taken := g.services[e.Name]; taken {
			b.report.missing(g.key, "Collision", at+".name",
				fmt.Sprintf("%s is this external service, and so %s does not answer to it", host, s.Host), "rename one of the two")
		}
		address, ok := b.address(g, host, at)
		if !ok {
			continue
		}
		s := &model.Service{
			Name: e.Name, Host: host, Address: address, Global: g.key.Name, ExportTo: b.members(g),
			External: b.externalHosts(g, at, e.Hosts), Source: g.model.Source.At(at),
		}
		if c := g.spec.Resilience.OutlierDetection; c != nil {
			s.Outlier = outlier(c, 1)
		}
		for j, p := range e.Ports {
			protocol, known := model.ProtocolOf("", p.Name)
			if !known {
				b.report.note(g.key, fmt.Sprintf("%s.ports[%d].name", at, j), unknownProtocol)
			}
			s.Ports = append(s.Ports, model.ServicePort{
				Name: p.Name, Number: uint16(p.Port), Protocol: protocol, Target: uint16(p.TargetPort), TLS: p.TLS,
			})
		}
		b.working[host] = s
	}
}

func (b *builder) externalHosts(g *global, at string, hosts []string) *model.External {
	out := &model.External{}
	for i, h := range hosts {
		a, err := netip.ParseAddr(h)
		switch {
		case err != nil:
			out.Names = append(out.Names, h)
		case a.Is6() != (b.settings.Family == cluster.IPv6):
			b.report.missing(g.key, "OtherFamily", fmt.Sprintf("%s.hosts[%d]", at, i),
				fmt.Sprintf("%s cannot be reached from %s, which has %s addresses only", a, b.settings.Cluster, b.settings.Family),
				"give an address of that family, or a DNS name")
		default:
			out.Addresses = append(out.Addresses, a)
		}
	}
	return out
}
