package translate

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"heddle.io/heddle/control/model"
)

// outboundTCP listens on a service's virtual address and port.
func (g *generator) outboundTCP(s *model.Service, p model.ServicePort) {
	to := []model.Destination{{Host: s.Host, Port: p.Number, Weight: 1}}
	chosen, source := g.connectionRoute(s, p.Number)
	routed := chosen != nil
	if routed {
		g.from(source)
		g.destinationClusters(chosen.Forward)
		to = chosen.Forward
	}
	if s.External != nil && s.External.Entry != nil {
		g.entryListeners(s, p, to, routed)
		return
	}
	if routed {
		g.out.Listeners = append(g.out.Listeners, g.tcpListener(s, p, to))
		return
	}
	policy := g.portPolicies[outboundCluster(s.Host, p.Number, "")]
	g.clientListener(tcpListenerName(s, p), func() *listenerv3.Listener {
		return g.tcpListener(s, p, to)
	}, s.Host, policy.Pool)
}

// clientListener gives a sidecar's listener, and adds it to what is made. Beside its name, the kind of proxy and what holds
// for the whole mesh, it depends on the inputs.
func (g *generator) clientListener(name string, produce func() *listenerv3.Listener, inputs ...any) {
	g.out.Listeners = append(g.out.Listeners, g.sharedListener(name, produce, inputs...))
}

func (g *generator) sharedListener(name string, produce func() *listenerv3.Listener, inputs ...any) *listenerv3.Listener {
	return memo(g, g.cache.listeners, listenerKey{name: name, heddle: g.node.Heddle, ipv6: g.node.Address.Is6(), blocks: g.blocksUnknown()}, inputs, produce)
}

func tcpListenerName(s *model.Service, p model.ServicePort) string {
	return addressName(s.Address, p.Number)
}

func addressName(a netip.Addr, port uint16) string { return fmt.Sprintf("%s_%d", a, port) }

func (g *generator) tcpListener(s *model.Service, p model.ServicePort, to []model.Destination) *listenerv3.Listener {
	return g.listenerOn(s.Address, s, p, to)
}

// listenerOn listens on one address for a service.
func (g *generator) listenerOn(a netip.Addr, s *model.Service, p model.ServicePort, to []model.Destination) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:             addressName(a, p.Number),
		Address:          socketAddress(a.String(), p.Number),
		BindToPort:       flag(false),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{
			Filters: g.tcpFilters(outboundCluster(s.Host, p.Number, ""), to, ""),
		}},
	}
}

// connectionRoute finds the TCP route for a port of a service, and where it comes from; nil for none.
func (g *generator) connectionRoute(s *model.Service, port uint16) (*model.TCPRoute, model.Source) {
	if r := g.meshRoutes(s); r != nil {
		if chosen := g.tcpRoute(r, port, model.GatewayMesh); chosen != nil {
			return chosen, r.Source
		}
	}
	for _, r := range g.attachedTo(s, port) {
		if len(r.TCP) > 0 {
			return &r.TCP[0], r.Source
		}
	}
	return nil, model.Source{}
}

// tcpRoute finds the first TCP route that holds for the node, or nil.
func (g *generator) tcpRoute(r *model.Routes, port uint16, gateway string) *model.TCPRoute {
	for i := range r.TCP {
		t := &r.TCP[i]
		if len(t.Matches) == 0 && slices.Contains(r.Gateways, gateway) {
			return t
		}
		for _, m := range t.Matches {
			if g.inScope(m, r, port, gateway) {
				return t
			}
		}
	}
	return nil
}

// inScope says whether a match can hold at all for this node, port and gateway.
func (g *generator) inScope(m model.Scope, r *model.Routes, port uint16, gateway string) bool {
	gateways := m.Gateways
	if len(gateways) == 0 {
		gateways = r.Gateways
	}
	return slices.Contains(gateways, gateway) && (m.Port == 0 || m.Port == port) &&
		(m.SourceNamespace == "" || m.SourceNamespace == g.node.Namespace) &&
		model.Selects(m.SourceLabels, g.node.Labels)
}

// outboundPort listens on a port of all addresses. With HTTP, the host of each request tells services apart; chains are for
// those that other things tell apart. What is neither is passed on as the policy for unknown destinations says.
func (g *generator) outboundPort(port uint16, http bool, chains []*listenerv3.FilterChain) *listenerv3.Listener {
	if len(chains) == 0 {
		return g.outboundHTTP(port)
	}
	out := g.outboundHTTP(port)
	whole := &listenerv3.Listener{
		Name: out.Name, Address: out.Address, BindToPort: out.BindToPort, TrafficDirection: out.TrafficDirection, ListenerFilters: out.ListenerFilters,
		ContinueOnListenerFiltersTimeout: out.ContinueOnListenerFiltersTimeout, FilterChains: slices.Clone(chains), DefaultFilterChain: out.DefaultFilterChain,
	}
	if http {
		whole.FilterChains = append(whole.FilterChains, out.FilterChains...)
	}
	return whole
}

// outboundHTTP listens on a port for all HTTP services that use it.
func (g *generator) outboundHTTP(port uint16) *listenerv3.Listener {
	name, unknown := g.wildcardName(port), g.unknown()
	return g.sharedListener(name, func() *listenerv3.Listener {
		manager := g.connectionManager(&hcmv3.HttpConnectionManager{
			StatPrefix:                 "outbound_" + name,
			RouteSpecifier:             rds(fmt.Sprint(port)),
			HttpFilters:                g.httpFilters(g.routeFilters...),
			ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
			ForwardClientCertDetails:   hcmv3.HttpConnectionManager_SANITIZE,
			// As Istio has it: how long a stream may be silent is the application's business.
			StreamIdleTimeout: duration(0),
		})
		return &listenerv3.Listener{
			Name:             name,
			Address:          socketAddress(g.wildcard(), port),
			BindToPort:       flag(false),
			TrafficDirection: corev3.TrafficDirection_OUTBOUND,
			ListenerFilters: []*listenerv3.ListenerFilter{
				g.listenerFilter(filterTLSInspector, &tlsinspectorv3.TlsInspector{}),
			},
			ContinueOnListenerFiltersTimeout: true,
			FilterChains: []*listenerv3.FilterChain{{
				FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"},
				Filters:          []*listenerv3.Filter{manager},
			}},
			DefaultFilterChain: &listenerv3.FilterChain{
				Name:    chainPassthrough,
				Filters: g.tcpFilters(unknown, nil, unknown),
			},
		}
	}, g.filterFingerprint())
}

// filterFingerprint tells filters of routes apart.
func (g *generator) filterFingerprint() string {
	all := &hcmv3.HttpConnectionManager{HttpFilters: g.routeFilters}
	return string(g.pack(all).GetValue())
}

// loopback is the address of the node's own host in its family.
func (g *generator) loopback() string {
	if g.node.Address.Is6() {
		return "::1"
	}
	return "127.0.0.1"
}

func rds(name string) *hcmv3.HttpConnectionManager_Rds {
	return &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: name}}
}
