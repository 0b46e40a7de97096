package translate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"heddle.io/heddle/control/model"
)

// boundServer is a server with the gateway it belongs to.
type boundServer struct {
	gateway *model.Gateway
	server  *model.Server
}

// name by which routes are bound to the server.
func (s boundServer) name() string { return s.gateway.ServerName(s.server) }

// routesOf are the routes that are bound to the server, for this node, in the mesh's order.
func (g *generator) routesOf(s boundServer) []*model.Routes {
	if g.bound == nil {
		g.bound = map[string][]*model.Routes{}
		for _, r := range g.mesh.Routes {
			if !r.ExportTo.In(g.node.Namespace) {
				continue
			}
			for i, name := range r.Gateways {
				if name != model.GatewayMesh && !slices.Contains(r.Gateways[:i], name) {
					g.bound[name] = append(g.bound[name], r)
				}
			}
		}
	}
	return g.bound[s.name()]
}

// gateway makes the configuration of a gateway proxy, but for its route tables, which it notes: one listener per port of the
// Gateways that select it. Only clusters that its routes name are sent.
func (g *generator) gateway() {
	byPort := map[uint16][]boundServer{}
	for _, gw := range g.mesh.Gateways {
		if !model.Selects(gw.Selector, g.node.Labels) {
			continue
		}
		for i := range gw.Servers {
			s := &gw.Servers[i]
			// That port is for other clusters, whatever else is asked for.
			if s.Port == PortEastWest && g.isEastWest() {
				continue
			}
			// The older Gateway decides what a port speaks.
			if first := byPort[s.Port]; len(first) > 0 && !first[0].server.Protocol.SharesPort(s.Protocol) {
				continue
			}
			g.from(gw.Source)
			byPort[s.Port] = append(byPort[s.Port], boundServer{gw, s})
		}
	}
	ports := make([]uint16, 0, len(byPort))
	for p := range byPort {
		ports = append(ports, p)
	}
	slices.SortFunc(ports, cmp.Compare)
	for _, p := range ports {
		g.gatewayListener(p, byPort[p])
	}
	for _, p := range g.mesh.AccessFor(g.node.Namespace, g.node.Labels) {
		g.from(p.Source)
	}
}

func (g *generator) gatewayListener(port uint16, servers []boundServer) {
	listener := &listenerv3.Listener{
		Name:    g.wildcardName(port),
		Address: socketAddress(g.wildcard(), port),
		// Traffic of a gateway comes from outside and leaves the proxy: Istio calls it outbound.
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
	}
	switch servers[0].server.Protocol {
	case model.ServerHTTP:
		name := fmt.Sprintf("http.%d", port)
		listener.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{g.edgeManager(listener.Name, name)}}}
		g.tables = append(g.tables, edgeTable{name: name, port: port, servers: servers})
	case model.ServerHTTPS, model.ServerTLSByName:
		listener.ListenerFilters = []*listenerv3.ListenerFilter{
			g.listenerFilter(filterTLSInspector, &tlsinspectorv3.TlsInspector{}),
		}
		taken := map[string]bool{}
		for _, s := range servers {
			if s.server.Protocol == model.ServerTLSByName {
				listener.FilterChains = append(listener.FilterChains, g.tlsChains(port, s, taken)...)
			} else {
				listener.FilterChains = append(listener.FilterChains, g.httpsChains(listener.Name, port, s, taken)...)
			}
		}
	case model.ServerTCP:
		if chain := g.gatewayTCP(port, servers); chain != nil {
			listener.FilterChains = []*listenerv3.FilterChain{chain}
		}
	}
	// Without a chain nothing could be accepted: the port stays closed until a certificate or a route is there.
	if len(listener.FilterChains) > 0 {
		g.out.Listeners = append(g.out.Listeners, listener)
	}
}

// edgeManager is the connection manager of a gateway's port: it trusts nothing that comes from outside.
func (g *generator) edgeManager(listener, routes string) *listenerv3.Filter {
	policies := g.mesh.AccessFor(g.node.Namespace, g.node.Labels)
	return g.connectionManager(&hcmv3.HttpConnectionManager{
		StatPrefix:       "outbound_" + listener,
		RouteSpecifier:   rds(routes),
		HttpFilters:      g.httpFilters(slices.Concat(g.custom(policies), g.authentication(), g.httpRBAC(policies), g.routeFilters)...),
		UseRemoteAddress: flag(true),
		// What clients say about certificates is not believed.
		ForwardClientCertDetails: hcmv3.HttpConnectionManager_SANITIZE_SET,
		SetCurrentClientCertDetails: &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: flag(true), Uri: true, Dns: true,
		},
		ServerName: "istio-envoy",
		// A client that never ends its head must not hold a connection. Envoy's default is no bound.
		RequestHeadersTimeout: duration(edgeHeadersTimeout),
	})
}

// gatewayTCP passes a port's connections on to the destination of the first route that is bound to it; nil when there
// is none.
func (g *generator) gatewayTCP(port uint16, servers []boundServer) *listenerv3.FilterChain {
	for _, s := range servers {
		for _, r := range g.routesOf(s) {
			if !slices.ContainsFunc(r.Hosts, func(h string) bool { return s.server.Serves(r.Namespace, h) != "" }) {
				continue
			}
			t := g.tcpRoute(r, port, s.name())
			if t == nil {
				continue
			}
			g.from(r.Source)
			g.destinationClusters(t.Forward)
			policies := g.networkRBAC(g.mesh.AccessFor(g.node.Namespace, g.node.Labels))
			return &listenerv3.FilterChain{
				Filters: g.tcpFilters(destinationCluster(t.Forward[0]), t.Forward, "", policies...),
			}
		}
	}
	return nil
}

// edgeHeadersTimeout bounds the arrival of a request's head at a gateway.
const edgeHeadersTimeout = 30 * time.Second
