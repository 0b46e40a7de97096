package translate

import (
	"fmt"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	sniclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_cluster/v3"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
)

// helloTimeout bounds the arrival of a ClientHello.
const helloTimeout = 5 * time.Second

// eastWestLabels are Istio's, of the gateways between clusters.
var eastWestLabels = map[string]string{"istio": "eastwestgateway"}

func (g *generator) isEastWest() bool { return model.Selects(eastWestLabels, g.node.Labels) }

// eastWest makes the listener for what other clusters send. The gateway reads the server name of the ClientHello and
// nothing else: the cluster of that name has the service's endpoints here, and mutual TLS ends in their sidecars.
//
// Two things keep it from being a relay. A server name that is not that of an exported service has no cluster, and is
// refused; and the clusters have endpoints of this cluster only, so that two gateways cannot pass a connection on to
// each other for ever.
func (g *generator) eastWest() {
	g.blackhole()
	for _, s := range g.mesh.Services {
		if s.Exported() {
			g.from(s.Source)
			g.exported(s)
		}
	}
	listener := &listenerv3.Listener{
		Name:             g.wildcardName(PortEastWest),
		Address:          socketAddress(g.wildcard(), PortEastWest),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		ListenerFilters: []*listenerv3.ListenerFilter{
			g.listenerFilter(filterTLSInspector, &tlsinspectorv3.TlsInspector{}),
		},
		// Proxies send their ClientHello at once; who does not, is none.
		ListenerFiltersTimeout: duration(helloTimeout),
		TcpKeepalive:           keepalive(),
		FilterChains: []*listenerv3.FilterChain{{
			Name:             chainPassServices,
			FilterChainMatch: serverNames("*." + g.mesh.Settings.Domain),
			Filters:          g.passByServerName(),
		}},
	}
	if chain := g.federation(); chain != nil {
		listener.FilterChains = append(listener.FilterChains, chain)
	}
	g.out.Listeners = append(g.out.Listeners, listener)
}

func serverNames(names ...string) *listenerv3.FilterChainMatch {
	return &listenerv3.FilterChainMatch{TransportProtocol: "tls", ServerNames: names}
}

// passByServerName hands a connection to the cluster that its server name names.
func (g *generator) passByServerName() []*listenerv3.Filter {
	sni := g.networkFilter(filterSNICluster, &sniclusterv3.SniCluster{})
	return g.tcpFilters(clusterBlackhole, nil, clusterBlackhole, append(g.gatewayRBAC(), sni)...)
}

// gatewayRBAC enforces the policies that select this gateway. Those for the whole mesh are for the servers to enforce:
// this proxy does not know who calls, so a policy that names callers would refuse everybody here.
func (g *generator) gatewayRBAC() []*listenerv3.Filter {
	var own []*model.AccessPolicy
	for _, p := range g.mesh.AccessFor(g.node.Namespace, g.node.Labels) {
		if len(p.Selector) > 0 {
			g.from(p.Source)
			own = append(own, p)
		}
	}
	return g.networkRBAC(own)
}

// exported makes the clusters of a service: one per port, and one per port and subset. Clients of other clusters ask
// for the subsets that their own policies name, so all that any policy here defines are there.
func (g *generator) exported(s *model.Service) {
	subsets := g.allSubsets(s)
	for _, p := range s.Ports {
		if p.Target == 0 && p.TargetName == "" {
			continue // Only other clusters have it.
		}
		g.exportedCluster(s, p, "", nil)
		for _, sub := range subsets {
			g.exportedCluster(s, p, sub.Name, sub.Labels)
		}
	}
}

// allSubsets are those of the policies for a service: of its own namespace first, then of the root namespace, then the
// oldest.
func (g *generator) allSubsets(s *model.Service) []model.Subset {
	var out []model.Subset
	add := func(mine func(namespace string) bool) {
		for _, d := range g.mesh.Destinations {
			if _, ok := s.Matches(d.Host); !ok || !mine(d.Namespace) {
				continue
			}
			for _, sub := range d.Subsets {
				if !slices.ContainsFunc(out, func(o model.Subset) bool { return o.Name == sub.Name }) {
					g.from(d.Source)
					out = append(out, sub)
				}
			}
		}
	}
	root := g.mesh.Settings.RootNamespace
	add(func(ns string) bool { return ns == s.Namespace })
	add(func(ns string) bool { return ns == root })
	add(func(ns string) bool { return ns != s.Namespace && ns != root })
	return out
}

func (g *generator) exportedCluster(s *model.Service, p model.ServicePort, subset string, labels map[string]string) {
	name := serverName(s.Host, p.Number, subset)
	// Labels may be those of any policy for the service; they make no difference to the cluster, but to its endpoints.
	key := clusterKey{port: p.Number, subset: subset, labels: fmt.Sprint(labels), exported: true}
	g.clusterPart(s, key, func() *clusterPart {
		assign := func(g *generator, s *model.Service) *endpointv3.ClusterLoadAssignment {
			// Replicas that do not terminate mutual TLS could not read what comes.
			speaking := *s
			speaking.Replicas = nil
			for _, r := range s.Replicas {
				if port, ok := p.TargetOn(r); ok && g.mesh.MutualTLS(r, port) {
					speaking.Replicas = append(speaking.Replicas, r)
				}
			}
			return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: g.localEndpoints(&speaking, p, labels, 1)}
		}
		return &clusterPart{assign: assign, endpoints: assign(g, s), cluster: &clusterv3.Cluster{
			Name:                 name,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: name},
			ConnectTimeout:       duration(ConnectTimeout),
			// Bounds of policies are for single clients; those of all clients of a cluster come through here.
			LbPolicy:        lbPolicy(""),
			CircuitBreakers: circuitBreakers(nil),
			Metadata:        serviceMetadata(s),
		}}
	})
}

// federation passes connections of other controllers on to this cluster's, which asks them who they are; nil when it
// does not listen.
func (g *generator) federation() *listenerv3.FilterChain {
	to := g.mesh.Settings.Federation
	if !to.IsValid() {
		return nil
	}
	g.out.Clusters = append(g.out.Clusters, staticCluster(clusterFederation, socketAddress(to.Addr().String(), to.Port())))
	return &listenerv3.FilterChain{
		Name:             chainFederation,
		FilterChainMatch: serverNames(cluster.FederationName(g.mesh.Settings.TrustDomain)),
		Filters:          g.tcpFilters(clusterFederation, nil, clusterFederation, g.gatewayRBAC()...),
	}
}

// wildcard is the address that stands for all addresses of the node's family.
func (g *generator) wildcard() string {
	if g.node.Address.Is6() {
		return "::"
	}
	return "0.0.0.0"
}

// wildcardName names a listener on all addresses, as Istio does.
func (g *generator) wildcardName(port uint16) string { return fmt.Sprintf("%s_%d", g.wildcard(), port) }
