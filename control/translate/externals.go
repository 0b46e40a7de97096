package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
)

// externalHostKey is the endpoint metadata by which TLS to an external host asks for that host's certificate.
const externalHostKey = "externalHost"

// externalCluster has the proxy reach a service outside of the mesh: by names that it resolves itself, or by addresses.
func (g *generator) externalCluster(c *clusterv3.Cluster, s *model.Service, p model.ServicePort, http2 bool, t *model.ClientTLS) {
	c.EdsClusterConfig = nil
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	if len(s.External.Names) > 0 {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		// Both families are looked up, because a name may have one only; this cluster's own goes first.
		c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
		if g.mesh.Settings.Family == cluster.IPv6 {
			c.DnsLookupFamily = clusterv3.Cluster_AUTO
		}
	}
	group := &endpointv3.LocalityLbEndpoints{}
	add := func(host string, kind tlsv3.SubjectAltNameMatcher_SanType) {
		meta := map[string]*structpb.Struct{}
		if p.TLS && t == nil {
			meta[metadataSocketMatch] = socketMatch(externalHostKey, host)
			c.TransportSocketMatches = append(c.TransportSocketMatches, &clusterv3.Cluster_TransportSocketMatch{
				Name: host, Match: socketMatch(externalHostKey, host), TransportSocket: g.externalTLS(host, kind, http2),
			})
		}
		e := lbEndpoint(socketAddress(host, p.Target), 1, meta)
		e.GetEndpoint().Hostname = host
		if len(meta) == 0 {
			e.Metadata = nil
		}
		group.LbEndpoints = append(group.LbEndpoints, e)
	}
	for _, n := range s.External.Names {
		add(n, tlsv3.SubjectAltNameMatcher_DNS)
	}
	for _, a := range s.External.Addresses {
		add(a.String(), tlsv3.SubjectAltNameMatcher_IP_ADDRESS)
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.Name}
	if len(group.LbEndpoints) > 0 {
		c.LoadAssignment.Endpoints = []*endpointv3.LocalityLbEndpoints{group}
	}
	if t != nil && t.Mode != model.TLSDisable && t.Mode != model.TLSMesh {
		c.TransportSocket = g.originatedTLS(t, http2)
	}
}

// externalTLS is TLS to an external host, whose certificate must be for that very name or address and of one of the
// system's authorities.
func (g *generator) externalTLS(host string, kind tlsv3.SubjectAltNameMatcher_SanType, http2 bool) *corev3.TransportSocket {
	common := &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa:                 fileSource(systemRoots),
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{SanType: kind, Matcher: exactly(host)}},
		},
	}}
	if http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	out := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if kind == tlsv3.SubjectAltNameMatcher_DNS {
		// Addresses are no server names (RFC 6066, section 3).
		out.Sni = host
	}
	return g.socket(socketTLS, g.pack(out))
}
