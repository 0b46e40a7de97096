package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"heddle.io/heddle/control/model"
)

// boundServer is a server with the gateway it belongs to.
type boundServer struct {
	gateway *model.Gateway
	server  *model.Server
}

// gateway makes the configuration of a gateway proxy: one listener per port of the Gateways that select it. Only
// clusters that its routes name are sent.
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
			if first := byPort[s.Port]; len(first) > 0 && first[0].server.Protocol != s.Protocol {
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
		g.gatewayRoutes(name, port, servers)
	case model.ServerHTTPS:
		listener.ListenerFilters = []*listenerv3.ListenerFilter{
			g.listenerFilter(filterTLSInspector, &tlsinspectorv3.TlsInspector{}),
		}
		taken := map[string]bool{}
		for _, s := range servers {
			if chain := g.httpsChain(listener.Name, port, s, taken); chain != nil {
				listener.FilterChains = append(listener.FilterChains, chain)
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

// httpsChain terminates TLS for a server's hosts; nil while its certificate is missing, so that the other servers of
// the port work, and when older servers have all of its hosts.
func (g *generator) httpsChain(listener string, port uint16, s boundServer, taken map[string]bool) *listenerv3.FilterChain {
	t := s.server.TLS
	credential := g.mesh.Credential(g.node.Namespace, t.Credential)
	if credential == nil || t.ClientCertificate && len(credential.Authorities) == 0 {
		return nil
	}
	var names []string
	all := false
	for _, h := range s.server.Hosts {
		if taken[h.Host] {
			continue
		}
		taken[h.Host] = true
		if h.Host == "*" {
			all = true
		}
		names = append(names, h.Host)
	}
	if len(names) == 0 {
		return nil
	}
	if all {
		names = nil
	}
	slices.Sort(names)
	g.from(credential.Source)
	routes := fmt.Sprintf("https.%d.%s.%s.%s", port, s.server.PortName, s.gateway.Name, s.gateway.Namespace)
	g.gatewayRoutes(routes, port, []boundServer{s})
	return &listenerv3.FilterChain{
		FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: names},
		TransportSocket:  g.edgeTLS(t, credential),
		Filters:          []*listenerv3.Filter{g.edgeManager(listener, routes)},
	}
}

// edgeTLS is a gateway's TLS with a certificate that comes over the same stream as everything else.
func (g *generator) edgeTLS(t *model.ServerTLS, c *model.Credential) *corev3.TransportSocket {
	name := "kubernetes://" + c.Name
	g.secret(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: bytesSource(c.Chain), PrivateKey: bytesSource(c.Key),
	}}})
	common := &tlsv3.CommonTlsContext{
		AlpnProtocols:                  []string{"h2", "http/1.1"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: name, SdsConfig: ads()}},
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsProtocol(t.Min, tlsv3.TlsParameters_TLSv1_2),
			TlsMaximumProtocolVersion: tlsProtocol(t.Max, tlsv3.TlsParameters_TLSv1_3),
			CipherSuites:              t.Ciphers,
		},
	}
	if t.ClientCertificate {
		authority := name + "-cacert"
		g.secret(&tlsv3.Secret{Name: authority, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: bytesSource(c.Authorities)},
		}})
		peers := make([]*tlsv3.SubjectAltNameMatcher, 0, len(t.SubjectNames))
		for _, n := range t.SubjectNames {
			kind := tlsv3.SubjectAltNameMatcher_DNS
			if isURI(n) {
				kind = tlsv3.SubjectAltNameMatcher_URI
			}
			peers = append(peers, &tlsv3.SubjectAltNameMatcher{SanType: kind, Matcher: exactly(n)})
		}
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: peers},
				ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: authority, SdsConfig: ads()},
			},
		}
	}
	return g.socket(socketTLS, g.pack(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: common, RequireClientCertificate: flag(t.ClientCertificate),
	}))
}

func (g *generator) secret(s *tlsv3.Secret) {
	if !slices.ContainsFunc(g.out.Secrets, func(o *tlsv3.Secret) bool { return o.Name == s.Name }) {
		g.out.Secrets = append(g.out.Secrets, s)
	}
}

func tlsProtocol(v model.TLSVersion, otherwise tlsv3.TlsParameters_TlsProtocol) tlsv3.TlsParameters_TlsProtocol {
	switch v {
	case model.TLS12:
		return tlsv3.TlsParameters_TLSv1_2
	case model.TLS13:
		return tlsv3.TlsParameters_TLSv1_3
	}
	return otherwise
}

// gatewayRoutes makes the route table of servers that share it. Routes of several sets for one host follow each other,
// the oldest set first, but those for everything go last.
func (g *generator) gatewayRoutes(name string, port uint16, servers []boundServer) {
	hosts := map[string]*routev3.VirtualHost{}
	var order []string
	add := func(host string, routes []*routev3.Route) {
		v := hosts[host]
		if v == nil {
			v = &routev3.VirtualHost{
				Name: fmt.Sprintf("%s:%d", host, port), Domains: []string{host}, IncludeRequestAttemptCount: true,
			}
			hosts[host] = v
			order = append(order, host)
		}
		v.Routes = append(v.Routes, routes...)
	}
	for _, s := range servers {
		for _, r := range g.mesh.Routes {
			if len(r.HTTP) == 0 || !slices.Contains(r.Gateways, s.gateway.FullName()) || !r.ExportTo.In(g.node.Namespace) {
				continue
			}
			for _, h := range r.Hosts {
				host := s.server.Serves(r.Namespace, h)
				if host == "" {
					continue
				}
				if routes := g.routes(r, port, s.gateway.FullName(), host); len(routes) > 0 {
					g.from(r.Source)
					add(host, routes)
				}
			}
		}
	}
	for _, s := range servers {
		if !s.server.RedirectHTTPS {
			continue
		}
		for _, h := range s.server.Hosts {
			add(h.Host, nil)
			hosts[h.Host].RequireTls = routev3.VirtualHost_ALL
		}
		for host, v := range hosts {
			if slices.ContainsFunc(s.server.Hosts, func(h model.ServerHost) bool { return coversHost(h.Host, host) }) {
				v.RequireTls = routev3.VirtualHost_ALL
			}
		}
	}
	table := &routev3.RouteConfiguration{
		Name: name, ValidateClusters: flag(false), IgnorePortInHostMatching: true,
		MaxDirectResponseBodySizeBytes: count(maxDirectBody),
	}
	slices.Sort(order)
	for _, host := range order {
		v := hosts[host]
		slices.SortStableFunc(v.Routes, func(a, b *routev3.Route) int { return cmp.Compare(catchAll(a), catchAll(b)) })
		if i := slices.IndexFunc(v.Routes, func(r *routev3.Route) bool { return catchAll(r) == 1 }); i >= 0 {
			v.Routes = v.Routes[:i+1]
		}
		table.VirtualHosts = append(table.VirtualHosts, v)
	}
	if len(table.VirtualHosts) == 0 {
		// Nothing is routed: everything is answered with 404.
		table.VirtualHosts = []*routev3.VirtualHost{{
			Name: fmt.Sprintf("blackhole:%d", port), Domains: []string{"*"},
		}}
	}
	g.out.Routes = append(g.out.Routes, table)
}

func coversHost(pattern, host string) bool {
	_, ok := model.MatchesHost(pattern, host)
	return ok || strings.HasPrefix(host, "*.") && strings.HasPrefix(pattern, "*.") && strings.HasSuffix(host, pattern[1:])
}

// catchAll is 1 for a route that matches everything.
func catchAll(r *routev3.Route) int {
	m := r.Match
	if m.GetPrefix() == "/" && len(m.Headers) == 0 && len(m.QueryParameters) == 0 && len(m.DynamicMetadata) == 0 {
		return 1
	}
	return 0
}

// gatewayTCP passes a port's connections on to the destination of the first route that is bound to it; nil when there
// is none.
func (g *generator) gatewayTCP(port uint16, servers []boundServer) *listenerv3.FilterChain {
	for _, s := range servers {
		for _, r := range g.mesh.Routes {
			if !slices.Contains(r.Gateways, s.gateway.FullName()) || !r.ExportTo.In(g.node.Namespace) ||
				!slices.ContainsFunc(r.Hosts, func(h string) bool { return s.server.Serves(r.Namespace, h) != "" }) {
				continue
			}
			t := g.tcpRoute(r, port, s.gateway.FullName())
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
