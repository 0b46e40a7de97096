package translate

import (
	"math"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"heddle.io/heddle/control/model"
)

// ConnectTimeout is Istio's default.
const ConnectTimeout = 10 * time.Second

// serviceClusters makes the clusters of a service: one per port, and one per port and subset of the policy in force.
func (g *generator) serviceClusters(s *model.Service) {
	policy := g.destination(s)
	for _, p := range s.Ports {
		g.serviceCluster(s, p, policy, nil)
		if policy == nil {
			continue
		}
		for i := range policy.Subsets {
			g.serviceCluster(s, p, policy, &policy.Subsets[i])
		}
	}
}

// destinationClusters makes the clusters that destinations name.
func (g *generator) destinationClusters(all []model.Destination) {
	for _, d := range all {
		s := g.service(d.Host)
		if d.Missing || s == nil {
			continue
		}
		if b := g.backendTLS(s, d.Port); b != nil && b.TLS.Untrusted {
			g.from(b.Source)
			continue
		}
		p := s.Port(d.Port)
		if p == nil {
			continue
		}
		policy := g.destination(s)
		var subset *model.Subset
		if d.Subset != "" {
			// A subset of a policy that is not in force for this client: no cluster, so 503, as in Istio.
			if policy == nil || policy.Subset(d.Subset) == nil {
				continue
			}
			subset = policy.Subset(d.Subset)
		}
		g.serviceCluster(s, *p, policy, subset)
	}
}

func (g *generator) serviceCluster(s *model.Service, p model.ServicePort, policy *model.DestinationPolicy, subset *model.Subset) {
	key := clusterKey{port: p.Number, policy: policy, tls: g.backendTLS(s, p.Number)}
	if subset != nil {
		key.subset = subset.Name
	}
	name := outboundCluster(s.Host, p.Number, key.subset)
	if g.clusters[name] {
		return
	}
	g.clusters[name] = true
	part := g.clusterPart(s, key, func() *clusterPart { return g.clientCluster(name, s, p, key, subset) })
	g.portPolicies[name] = part.rules
}

// backendTLS is how a gateway speaks TLS with a service's port by a policy of its own, nil for none.
func (g *generator) backendTLS(s *model.Service, port uint16) *model.BackendTLS {
	if g.node.Type != Router || len(g.mesh.BackendTLS) == 0 {
		return nil
	}
	if g.backends == nil {
		g.backends = g.mesh.BackendTLSByTarget()
	}
	if b := g.backends[model.BackendTarget{Host: s.Host, Port: port}]; b != nil {
		return b
	}
	return g.backends[model.BackendTarget{Host: s.Host}]
}

// clientCluster makes a cluster as clients use it under the policies of its key.
func (g *generator) clientCluster(name string, s *model.Service, p model.ServicePort, key clusterKey, subset *model.Subset) *clusterPart {
	policy := key.policy
	out := &clusterPart{}
	g.from(s.Source)
	subsetName := ""
	var labels map[string]string
	var overlay *model.TrafficPolicy
	if subset != nil {
		subsetName, labels, overlay = subset.Name, subset.Labels, &subset.Policy
	}
	if policy != nil {
		g.from(policy.Source)
		out.rules = policy.Policy.ForPort(p.Number, overlay)
	}
	if key.tls != nil {
		g.from(key.tls.Source)
		out.rules.TLS = &key.tls.TLS
	}
	rules := out.rules
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: name},
		ConnectTimeout:       duration(ConnectTimeout),
		LbPolicy:             lbPolicy(rules.Balance),
		CircuitBreakers:      circuitBreakers(rules.Pool),
		Metadata:             serviceMetadata(s),
	}
	out.cluster = c
	remote := len(s.Remote) > 0
	if remote {
		c.ConnectTimeout = duration(remoteConnectTimeout)
		c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: keepalive()}
	}
	if rules.Pool != nil && rules.Pool.ConnectTimeout > 0 {
		c.ConnectTimeout = duration(rules.Pool.ConnectTimeout)
	}
	http2 := g.httpOptions(c, p.Protocol, rules.Pool, remote)
	if rules.Outlier == nil {
		rules.Outlier = s.Outlier
	}
	outlierDetection(c, rules.Outlier)
	if global := g.mesh.Global(s.Global); global != nil {
		g.from(global.Source)
	}
	switch {
	case s.External != nil && s.External.Entry == nil:
		g.externalCluster(c, s, p, http2, rules.TLS)
		return out
	case !s.UsesEndpoints():
		g.entryCluster(c, s, p, labels, http2, rules)
		out.anchors = g.anchorsNamed(c, s, rules.TLS)
		return out
	}
	g.clientSocket(c, s, serverName(s.Host, p.Number, subsetName), http2, rules.TLS)
	out.anchors = g.anchorsNamed(c, s, rules.TLS)
	out.assign = func(g *generator, s *model.Service) *endpointv3.ClusterLoadAssignment {
		return g.endpoints(name, s, p, labels, rules)
	}
	out.endpoints = out.assign(g, s)
	return out
}

// clientSocket chooses how bytes travel: as a policy says, or by itself mutual TLS wherever the endpoint speaks it.
func (g *generator) clientSocket(c *clusterv3.Cluster, s *model.Service, sni string, http2 bool, t *model.ClientTLS) {
	if !s.MeshEndpoints() && (t == nil || t.Mode == model.TLSMesh) {
		return // Nobody there has an identity of the mesh: a policy for all hosts does not mean them.
	}
	if t == nil {
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
			{
				Name:            "tlsMode-istio",
				Match:           socketMatch(tlsModeKey, tlsModeMesh),
				TransportSocket: g.outboundTLS(s, sni, http2, nil),
			},
			{
				Name:            "tlsMode-disabled",
				Match:           &structpb.Struct{},
				TransportSocket: g.socket(socketRaw, g.pack(&rawv3.RawBuffer{})),
			},
		}
		return
	}
	switch t.Mode {
	case model.TLSMesh:
		c.TransportSocket = g.outboundTLS(s, sni, http2, t)
	case model.TLSSimple, model.TLSMutual:
		c.TransportSocket = g.originatedTLS(entryTLS(s, t), http2)
	}
}

func (g *generator) socket(name string, config *anypb.Any) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
}

func lbPolicy(b model.Balance) clusterv3.Cluster_LbPolicy {
	switch b {
	case model.RoundRobin:
		return clusterv3.Cluster_ROUND_ROBIN
	case model.Random:
		return clusterv3.Cluster_RANDOM
	}
	return clusterv3.Cluster_LEAST_REQUEST
}

// circuitBreakers are without bounds unless a policy sets them, as in Istio: Envoy's own default of 1024 surprises.
func circuitBreakers(p *model.Pool) *clusterv3.CircuitBreakers {
	bound := func(v uint32) uint32 {
		if v == 0 {
			return math.MaxUint32
		}
		return v
	}
	if p == nil {
		p = &model.Pool{}
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     count(bound(p.MaxConnections)),
		MaxPendingRequests: count(bound(p.MaxPendingRequests)),
		MaxRequests:        count(bound(p.MaxRequests)),
		MaxRetries:         count(bound(p.MaxRetries)),
		TrackRemaining:     true,
	}}}
}

// httpOptions sets the HTTP version towards endpoints and the limits of its connections. Those to other clusters are
// asked for signs of life: a link that is gone acknowledges nothing and resets nothing. It says whether it is HTTP/2.
func (g *generator) httpOptions(c *clusterv3.Cluster, protocol model.Protocol, pool *model.Pool, remote bool) (http2 bool) {
	if !protocol.IsHTTP() {
		return false
	}
	if pool == nil {
		pool = &model.Pool{}
	}
	h2 := &corev3.Http2ProtocolOptions{}
	if pool.MaxConcurrentStreams > 0 {
		h2.MaxConcurrentStreams = count(pool.MaxConcurrentStreams)
	}
	if remote {
		h2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: duration(pingInterval), Timeout: duration(pingTimeout)}
	}
	options := &upstreamhttpv3.HttpProtocolOptions{}
	if pool.HTTPIdleTimeout > 0 || pool.MaxRequestsPerConnection > 0 {
		common := &corev3.HttpProtocolOptions{}
		if pool.HTTPIdleTimeout > 0 {
			common.IdleTimeout = duration(pool.HTTPIdleTimeout)
		}
		if pool.MaxRequestsPerConnection > 0 {
			common.MaxRequestsPerConnection = count(pool.MaxRequestsPerConnection)
		}
		options.CommonHttpProtocolOptions = common
	}
	switch {
	case pool.Upgrade == model.AsClient:
		options.UpstreamProtocolOptions = asClient(h2)
	case protocol == model.HTTP2 || pool.Upgrade == model.ToHTTP2:
		http2 = true
		options.UpstreamProtocolOptions = &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: h2,
				},
			},
		}
	default:
		options.UpstreamProtocolOptions = &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
					HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
				},
			},
		}
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{upstreamHTTPOptions: g.pack(options)}
	return http2
}

func asClient(h2 *corev3.Http2ProtocolOptions) *upstreamhttpv3.HttpProtocolOptions_UseDownstreamProtocolConfig {
	return &upstreamhttpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions:  &corev3.Http1ProtocolOptions{},
			Http2ProtocolOptions: h2,
		},
	}
}

func outlierDetection(c *clusterv3.Cluster, o *model.Outlier) {
	if o == nil {
		return
	}
	out := &clusterv3.OutlierDetection{
		// Success rates need many hosts and requests; Istio has them off as well.
		EnforcingSuccessRate:           count(0),
		SplitExternalLocalOriginErrors: o.SplitLocalOrigin,
	}
	if o.Consecutive5xx != nil {
		out.Consecutive_5Xx = count(*o.Consecutive5xx)
		out.EnforcingConsecutive_5Xx = enforce(*o.Consecutive5xx)
	}
	if o.ConsecutiveGateway != nil {
		out.ConsecutiveGatewayFailure = count(*o.ConsecutiveGateway)
		out.EnforcingConsecutiveGatewayFailure = enforce(*o.ConsecutiveGateway)
	}
	if o.ConsecutiveLocal != nil {
		out.ConsecutiveLocalOriginFailure = count(*o.ConsecutiveLocal)
		out.EnforcingConsecutiveLocalOriginFailure = enforce(*o.ConsecutiveLocal)
		out.EnforcingLocalOriginSuccessRate = count(0)
	}
	if o.Interval > 0 {
		out.Interval = duration(o.Interval)
	}
	if o.BaseEjection > 0 {
		out.BaseEjectionTime = duration(o.BaseEjection)
	}
	if o.MaxEjectionPercent > 0 {
		out.MaxEjectionPercent = count(o.MaxEjectionPercent)
	}
	c.OutlierDetection = out
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{Value: float64(o.MinHealthPercent)},
	}
}

// enforce turns a counter of zero off and any other on.
func enforce(v uint32) *wrapperspb.UInt32Value {
	if v == 0 {
		return count(0)
	}
	return count(100)
}

// serviceMetadata names the service behind a cluster, for telemetry.
func serviceMetadata(s *model.Service) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: map[string]*structpb.Value{
		"services": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
			structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				"host":      structpb.NewStringValue(s.Host),
				"name":      structpb.NewStringValue(s.Name),
				"namespace": structpb.NewStringValue(s.Namespace),
			}}),
		}}),
	}}}}
}

// blackhole has no endpoints: what goes there is refused.
func (g *generator) blackhole() {
	g.fixedCluster(clusterBlackhole, func() *clusterv3.Cluster {
		return &clusterv3.Cluster{
			Name:                 clusterBlackhole,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			ConnectTimeout:       duration(ConnectTimeout),
		}
	})
}

// originalDestination sends connections to where they were going; source, when not empty, is where they then come
// from.
func (g *generator) originalDestination(name, source string) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:       duration(ConnectTimeout),
		CircuitBreakers:      circuitBreakers(nil),
	}
	if source != "" {
		c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: &corev3.SocketAddress{
			Address: source, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}
	}
	return c
}

// passthrough is for destinations that the mesh does not know; it speaks what the client speaks.
func (g *generator) passthrough() {
	g.fixedCluster(clusterPassthrough, func() *clusterv3.Cluster {
		c := g.originalDestination(clusterPassthrough, "")
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
			upstreamHTTPOptions: g.pack(&upstreamhttpv3.HttpProtocolOptions{
				UpstreamProtocolOptions: asClient(&corev3.Http2ProtocolOptions{}),
			}),
		}
		return c
	})
}

func isURI(name string) bool { return strings.Contains(name, "://") }
