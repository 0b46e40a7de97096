package build

import (
	"fmt"
	"slices"

	"heddle.io/heddle/control/model"
)

// ingressLabels select the ingress gateways that every cluster has.
var ingressLabels = map[string]string{"istio": "ingressgateway"}

// publicServices offers services of a global namespace on the ingress gateways, as a Gateway and its VirtualServices
// would.
func (b *builder) publicServices(g *global) {
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
		if first, taken := b.publicHosts[p.Host]; taken {
			b.report.missing(g.key, "Conflict", at+".host", fmt.Sprintf("%s is a host of the older %s", p.Host, first), "choose another host")
			continue
		}
		b.publicHosts[p.Host] = g.key
		src := g.model.Source.At(at)
		server := model.Server{
			Port: 80, PortName: fmt.Sprintf("http-%d", i), Protocol: model.ServerHTTP, Source: src,
			Hosts: []model.ServerHost{{Namespace: root, Host: p.Host}},
		}
		if p.CredentialName != "" {
			server.Port, server.PortName, server.Protocol = 443, fmt.Sprintf("https-%d", i), model.ServerHTTPS
			server.TLS = &model.ServerTLS{Credential: p.CredentialName}
			b.credential(g.key, at+".credentialName", p.CredentialName, false)
		}
		gateway.Servers = append(gateway.Servers, server)
		b.mesh.Routes = append(b.mesh.Routes, &model.Routes{
			Namespace: root, Name: fmt.Sprintf("%s:%d", madeBy(g), i), Hosts: []string{p.Host}, Gateways: []string{gateway.FullName()},
			HTTP: []model.HTTPRoute{{
				Forward: []model.Destination{{Host: s.Host, Port: port, Weight: 1}}, Source: src,
			}},
			Source: src,
		})
	}
	if len(gateway.Servers) > 0 {
		b.mesh.Gateways = append(b.mesh.Gateways, gateway)
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
