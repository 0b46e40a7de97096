package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"heddle.io/heddle/control/model"
)

// inboundPort is a port of the workload with the service that speaks for it.
type inboundPort struct {
	number  uint16
	service *model.Service
	port    model.ServicePort
	// target is the port of the workload's loopback that connections are handed to; 0 for where they were going.
	target uint16
}

// inboundPorts are the workload's ports that services lead to. When two services lead to one port, one that says the
// protocol is HTTP goes before one that does not, then the first by name. Ports that only clients of a former mesh go to
// come last.
func (g *generator) inboundPorts() []inboundPort {
	replica := &model.Replica{Namespace: g.node.Namespace, Labels: g.node.Labels, Ports: g.ports}
	found := map[uint16]inboundPort{}
	for _, services := range g.servedServices() {
		before := maps.Clone(found)
		for _, s := range services {
			for _, p := range s.Ports {
				target, ok := p.TargetOn(replica)
				if _, decided := before[target]; !ok || decided {
					continue
				}
				first, taken := found[target]
				if !taken || p.Protocol.IsHTTP() && !first.port.Protocol.IsHTTP() {
					found[target] = inboundPort{number: target, service: s, port: p}
				}
			}
		}
	}
	if g.scope != nil && g.scope.Ingress != nil {
		found = g.ingressPorts(found)
	}
	out := make([]inboundPort, 0, len(found))
	for _, p := range found {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b inboundPort) int { return cmp.Compare(a.number, b.number) })
	return out
}

// ingressPorts are the ports that a Sidecar lists, with the services that lead to them; one that none leads to has the
// workload's own name.
func (g *generator) ingressPorts(led map[uint16]inboundPort) map[uint16]inboundPort {
	g.from(g.scope.Source)
	out := map[uint16]inboundPort{}
	for _, i := range g.scope.Ingress {
		p, led := led[i.Number]
		if !led {
			name := model.CanonicalName(g.node.Labels, g.scope.Name)
			p.service = &model.Service{
				Namespace: g.node.Namespace, Name: name, Host: name + "." + g.node.Namespace + ".svc." + g.mesh.Settings.Domain, Source: g.scope.Source,
			}
		}
		p.number, p.target = i.Number, i.Target
		p.port = model.ServicePort{Name: i.Name, Number: i.Number, Protocol: i.Protocol}
		out[i.Number] = p
	}
	return out
}

// servedServices are the services that the workload is behind, for clients of the mesh and of each former one that is
// accepted.
func (g *generator) servedServices() [][]*model.Service {
	var out [][]*model.Service
	for _, mesh := range append([]*model.Mesh{g.mesh}, g.mesh.Accepted...) {
		out = append(out, slices.DeleteFunc(slices.Clone(mesh.ServicesIn(g.node.Namespace)), func(s *model.Service) bool {
			return !s.Local() || !model.Selects(s.Selector, g.node.Labels)
		}))
	}
	return out
}

// inbound makes the listener for what comes to the application, and its clusters.
func (g *generator) inbound() {
	listener := &listenerv3.Listener{
		Name:             listenerInbound,
		Address:          socketAddress(g.wildcard(), PortInbound),
		TrafficDirection: corev3.TrafficDirection_INBOUND,
		ListenerFilters: []*listenerv3.ListenerFilter{
			g.listenerFilter(filterOriginalDst, &originaldstv3.OriginalDst{}),
			g.listenerFilter(filterTLSInspector, &tlsinspectorv3.TlsInspector{}),
		},
		// A server that speaks first is reached after the timeout, if plain text is allowed at all.
		ContinueOnListenerFiltersTimeout: true,
		FilterChains: []*listenerv3.FilterChain{{
			Name:             chainInboundBlackhole,
			FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: count(PortInbound)},
			Filters:          g.tcpFilters(clusterBlackhole, nil, clusterBlackhole),
		}},
	}
	g.out.Clusters = append(g.out.Clusters, g.originalDestination(clusterInboundPassthrough, g.passthroughSource()))
	policies := g.mesh.AccessFor(g.node.Namespace, g.node.Labels)
	for _, p := range policies {
		g.from(p.Source)
	}
	for _, p := range g.inboundPorts() {
		g.from(p.service.Source)
		cluster := g.originalDestination(inboundCluster(p.number), g.passthroughSource())
		if p.target != 0 {
			g.handTo(cluster, p.target)
		}
		cluster.Metadata = serviceMetadata(p.service)
		g.httpOptions(cluster, p.port.Protocol, nil, false)
		g.out.Clusters = append(g.out.Clusters, cluster)
		listener.FilterChains = append(listener.FilterChains, g.inboundChains(p, policies)...)
	}
	listener.FilterChains = append(listener.FilterChains, g.inboundCatchAll(policies)...)
	g.out.Listeners = append(g.out.Listeners, listener)
}

// handTo has a cluster hand connections to a port of the workload's loopback.
func (g *generator) handTo(c *clusterv3.Cluster, port uint16) {
	c.ClusterDiscoveryType, c.LbPolicy = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, clusterv3.Cluster_ROUND_ROBIN
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: socketAddress(g.loopback(), port)},
		}}},
	}}}
}

func (g *generator) mode(port uint16) model.MTLSMode {
	mode, by := g.mesh.Accepts(g.node.Namespace, g.node.Labels, port)
	if by != nil {
		g.from(by.Source)
	}
	return mode
}

// inboundChains makes the chains of one port: with mutual TLS, without, or both.
func (g *generator) inboundChains(p inboundPort, policies []*model.AccessPolicy) []*listenerv3.FilterChain {
	name := g.wildcardName(p.number)
	var filters []*listenerv3.Filter
	alpn := []string{"h2", "http/1.1"}
	if p.port.Protocol.IsHTTP() {
		filters = []*listenerv3.Filter{g.inboundHTTP(p, policies)}
	} else {
		alpn = []string{alpnMesh}
		filters = g.tcpFilters(inboundCluster(p.number), nil, inboundCluster(p.number), g.networkRBAC(policies)...)
	}
	match := func(transport string, alpn []string) *listenerv3.FilterChainMatch {
		return &listenerv3.FilterChainMatch{
			DestinationPort: count(uint32(p.number)), TransportProtocol: transport, ApplicationProtocols: alpn,
		}
	}
	mode := g.mode(p.number)
	switch mode {
	case model.MTLSDisable:
		return []*listenerv3.FilterChain{{
			Name: name, FilterChainMatch: match("", nil), Filters: filters,
		}}
	case model.MTLSPermissive:
		chains := []*listenerv3.FilterChain{
			{
				Name: name, FilterChainMatch: match("tls", alpnMeshAll),
				TransportSocket: g.inboundTLS(alpn), Filters: filters,
			},
			{Name: name, FilterChainMatch: match("raw_buffer", nil), Filters: filters},
		}
		if !p.port.Protocol.IsHTTP() {
			// The application's own TLS, which is not the mesh's, passes as it is.
			chains = append(chains, &listenerv3.FilterChain{
				Name: name, FilterChainMatch: match("tls", nil), Filters: filters,
			})
		}
		return chains
	}
	return []*listenerv3.FilterChain{{
		Name: name, FilterChainMatch: match("tls", nil), TransportSocket: g.inboundTLS(alpn), Filters: filters,
	}}
}

// inboundCatchAll is for ports that no service leads to: they are reached as they are, under the same rules.
func (g *generator) inboundCatchAll(policies []*model.AccessPolicy) []*listenerv3.FilterChain {
	filters := g.tcpFilters(clusterInboundPassthrough, nil, clusterInboundPassthrough, g.networkRBAC(policies)...)
	match := func(transport string, alpn []string) *listenerv3.FilterChainMatch {
		return &listenerv3.FilterChainMatch{TransportProtocol: transport, ApplicationProtocols: alpn}
	}
	plain := &listenerv3.FilterChain{Name: listenerInbound, FilterChainMatch: match("raw_buffer", nil), Filters: filters}
	switch g.mode(0) {
	case model.MTLSDisable:
		plain.FilterChainMatch = nil
		return []*listenerv3.FilterChain{plain}
	case model.MTLSPermissive:
		return []*listenerv3.FilterChain{
			{
				Name: listenerInbound, FilterChainMatch: match("tls", alpnMeshAll),
				TransportSocket: g.inboundTLS([]string{alpnMesh}), Filters: filters,
			},
			plain,
			{Name: listenerInbound, FilterChainMatch: match("tls", nil), Filters: filters},
		}
	}
	return []*listenerv3.FilterChain{{
		Name: listenerInbound, FilterChainMatch: match("tls", nil),
		TransportSocket: g.inboundTLS([]string{alpnMesh}), Filters: filters,
	}}
}

func (g *generator) inboundHTTP(p inboundPort, policies []*model.AccessPolicy) *listenerv3.Filter {
	cluster := inboundCluster(p.number)
	return g.connectionManager(&hcmv3.HttpConnectionManager{
		StatPrefix: "inbound_" + g.wildcardName(p.number),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name:             cluster,
			ValidateClusters: flag(false),
			VirtualHosts: []*routev3.VirtualHost{{
				Name: fmt.Sprintf("inbound|http|%d", p.port.Number), Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Name: "default", Match: anyPath(),
					Decorator: &routev3.Decorator{
						Operation: fmt.Sprintf("%s:%d/*", p.service.Host, p.port.Number),
					},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
						Timeout:          duration(0), MaxStreamDuration: noStreamBound(),
					}},
				}},
			}},
		}},
		HttpFilters:                g.httpFilters(slices.Concat(g.custom(policies), g.authentication(), g.httpRBAC(policies))...),
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
		ForwardClientCertDetails:   hcmv3.HttpConnectionManager_APPEND_FORWARD,
		SetCurrentClientCertDetails: &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: flag(true), Uri: true, Dns: true,
		},
		StreamIdleTimeout: duration(0),
	})
}
