package translate

import (
	"fmt"

	"heddle.io/heddle/control/model"
)

// Names of listeners, clusters, chains and filters, the same as Istio's.
const (
	listenerOutbound = "virtualOutbound"
	listenerInbound  = "virtualInbound"

	chainOutboundBlackhole = "virtualOutbound-blackhole"
	chainOutboundCatchAll  = "virtualOutbound-catchall-tcp"
	chainInboundBlackhole  = "virtualInbound-blackhole"
	chainPassthrough       = "PassthroughFilterChain"
	// The chains of the listener between clusters are Heddle's own.
	chainPassServices = "eastwest-services"
	chainFederation   = "eastwest-federation"

	clusterBlackhole          = "BlackHoleCluster"
	clusterNotGranted         = "NotGrantedCluster"
	clusterPassthrough        = "PassthroughCluster"
	clusterInboundPassthrough = "InboundPassthroughCluster"
	// clusterFederation leads to the controller. It is not below the services' domain, so no server name stands for it.
	clusterFederation = "federation"

	filterHCM             = "envoy.filters.network.http_connection_manager"
	filterTCPProxy        = "envoy.filters.network.tcp_proxy"
	filterSNICluster      = "envoy.filters.network.sni_cluster"
	filterNetworkRBAC     = "envoy.filters.network.rbac"
	filterNetworkExtAuthz = "envoy.filters.network.ext_authz"
	filterHTTPRBAC        = "envoy.filters.http.rbac"
	filterExtAuthz        = "envoy.filters.http.ext_authz"
	// principalMutualTLS is a principal that compares one kind of subject alternative name.
	principalMutualTLS   = "envoy.rbac.principals.mtls_authenticated"
	filterJWT            = "envoy.filters.http.jwt_authn"
	filterFault          = "envoy.filters.http.fault"
	filterCORS           = "envoy.filters.http.cors"
	filterHeaderMutation = "envoy.filters.http.header_mutation"
	filterRouter         = "envoy.filters.http.router"
	filterOriginalDst    = "envoy.filters.listener.original_dst"
	filterTLSInspector   = "envoy.filters.listener.tls_inspector"
	filterStats          = "istio.stats"
	filterPeerMetadata   = "istio.metadata_exchange"

	socketTLS = "envoy.transport_sockets.tls"
	socketRaw = "envoy.transport_sockets.raw_buffer"

	// statPrefixTCP of filters on connections.
	statPrefixTCP = "tcp."

	upstreamHTTPOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

// Ports of proxies, the same as Istio's.
const (
	PortAdmin    = 15000
	PortOutbound = 15001
	PortInbound  = 15006
	PortHealth   = 15021
	PortMetrics  = 15090
	PortEastWest = 15443
)

// passthroughSource is the address that a sidecar's last leg comes from, so that capture leaves it alone; the same as
// Istio's.
func (g *generator) passthroughSource() string {
	if g.node.Address.Is6() {
		return "::6"
	}
	return "127.0.0.6"
}

func outboundCluster(host string, port uint16, subset string) string {
	return fmt.Sprintf("outbound|%d|%s|%s", port, subset, host)
}

func inboundCluster(port uint16) string { return fmt.Sprintf("inbound|%d||", port) }

// serverName is the SNI between sidecars: it has no "|", which DNS names may not have.
func serverName(host string, port uint16, subset string) string {
	return fmt.Sprintf("outbound_.%d_.%s_.%s", port, subset, host)
}

// destinationCluster names a destination's cluster, or where the routes may not use it one that is never there: others may have
// the destination's own.
func destinationCluster(d model.Destination) string {
	if d.NotGranted {
		return clusterNotGranted
	}
	return outboundCluster(d.Host, d.Port, d.Subset)
}
