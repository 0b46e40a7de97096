package resolve

import (
	"fmt"
	"slices"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// ingressLabels select the ingress gateways that every cluster has.
var ingressLabels = map[string]string{"istio": "ingressgateway"}

// publicParts are the parts of the mesh that global namespaces make beside services.
type publicParts struct {
	gateways []*model.Gateway
	routes   []*model.Routes
	access   []*model.AccessPolicy
	// hosts of public services, and whose they are.
	hosts map[string]objects.Key
}

// settlePublic makes these parts anew when services, names or certificates changed that they are made of.
func (m *Model) settlePublic() {
	if !m.publicChanged {
		return
	}
	m.publicChanged = false
	if m.global.owners == nil {
		return
	}
	m.quiet(saidPublic)
	b := &builder{m: m, settings: m.settings, report: recorder{m, saidPublic}}
	now := publicParts{hosts: map[string]objects.Key{}}
	for _, g := range m.global.owners.globals {
		b.publicServices(&now, g)
		now.defaultDeny(g)
	}
	was := &m.global.public
	replaceParts(m, was.gateways, now.gateways, (*model.Gateway).FullName)
	replaceParts(m, was.routes, now.routes, func(r *model.Routes) string { return r.Name })
	replaceParts(m, was.access, now.access, func(p *model.AccessPolicy) string { return p.Namespace + "/" + p.Name })
	m.global.reordered = false
	*was, m.global.credentials, m.credentialsChanged = now, b.credentials, true
}

// replaceParts puts all parts into force in place of others, in their order; those that say the same stay the same.
func replaceParts[T any](m *Model, was, now []*T, name func(*T) string) {
	known := map[string]*T{}
	for _, p := range was {
		known[name(p)] = p
	}
	for i, p := range now {
		id, old := fmt.Sprintf("%T %s", p, name(p)), known[name(p)]
		if m.global.reordered {
			// Another place among its like: another part.
			same(m, id, old, nil)
			old = nil
		}
		if !m.global.reordered || m.returning {
			now[i] = same(m, id, old, p)
		}
		delete(known, name(p))
	}
	for id, gone := range known {
		same(m, fmt.Sprintf("%T %s", gone, id), gone, nil)
	}
	if slices.Equal(was, now) {
		return
	}
	for _, p := range was {
		m.replacePart(p, nil)
	}
	for _, p := range now {
		m.replacePart(nil, p)
	}
}

// publicServices offers services of a global namespace on the ingress gateways, as a Gateway and its VirtualServices
// would.
func (b *builder) publicServices(to *publicParts, g *global) {
	if len(g.spec.PublicServices) == 0 || len(g.model.Namespaces) == 0 {
		return
	}
	root := b.settings.RootNamespace
	gateway := &model.Gateway{Namespace: root, Name: madeBy(g), Selector: ingressLabels, Source: g.model.Source}
	for i, p := range g.spec.PublicServices {
		at := fmt.Sprintf("spec.publicServices[%d]", i)
		s := g.services[p.Service]
		if s == nil {
			b.report.missing(g.key, "NoService", at+".service",
				fmt.Sprintf("%s has no service %s, or several", g.key, p.Service), "apply the Service in a mapped namespace, or correct the name")
			continue
		}
		port := publicPort(s, uint16(p.Port))
		if port == 0 {
			b.report.missing(g.key, "NoPort", at+".port", fmt.Sprintf("%s has no such HTTP port", s.Host),
				`name one of its HTTP ports; a port is HTTP when its name begins with "http" or "grpc"`)
			continue
		}
		if first, taken := to.hosts[p.Host]; taken {
			b.report.missing(g.key, "Conflict", at+".host", fmt.Sprintf("%s is a host of the older %s", p.Host, first), "choose another host")
			continue
		}
		to.hosts[p.Host] = g.key
		src := g.model.Source.At(at)
		server := model.Server{
			Port: 80, PortName: fmt.Sprintf("http-%d", i), Protocol: model.ServerHTTP, Source: src,
			Hosts: []model.ServerHost{{Namespace: root, Host: p.Host}},
		}
		if p.CredentialName != "" {
			server.Port, server.PortName, server.Protocol = 443, fmt.Sprintf("https-%d", i), model.ServerHTTPS
			server.TLS = &model.ServerTLS{Certificates: []model.Certificate{{Namespace: root, Name: p.CredentialName}}}
			b.credential(g.key, at+".credentialName", p.CredentialName, false)
		}
		gateway.Servers = append(gateway.Servers, server)
		to.routes = append(to.routes, &model.Routes{
			Namespace: root, Name: fmt.Sprintf("%s:%d", madeBy(g), i), Hosts: []string{p.Host}, Gateways: []string{gateway.FullName()},
			HTTP: []model.HTTPRoute{{
				Forward: []model.Destination{{Host: s.Host, Port: port, Weight: 1}}, Source: src,
			}},
			Source: src,
		})
	}
	if len(gateway.Servers) > 0 {
		to.gateways = append(to.gateways, gateway)
	}
}

// publicPort is the port asked for when it is an HTTP port, or with 0 the first of those; 0 when there is none.
func publicPort(s *model.Service, wanted uint16) uint16 {
	i := slices.IndexFunc(s.Ports, func(p model.ServicePort) bool {
		return p.Protocol.IsHTTP() && (wanted == 0 || p.Number == wanted)
	})
	if i < 0 {
		return 0
	}
	return s.Ports[i].Number
}
