package translate

import (
	"fmt"
	"net/netip"
	"time"

	hyperscanv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/regex_engines/hyperscan/v3alpha"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"heddle.io/heddle/control/model"
)

// BootstrapParams say what a proxy's bootstrap holds.
type BootstrapParams struct {
	// Node is the proxy.
	Node Node
	// Socket is the path of the agent's unix socket that serves secrets and configuration.
	Socket string
	// SecretSocket serves secrets where it is another one; empty means Socket.
	SecretSocket string
	// Hyperscan finds regular expressions, if the proxy is heddle-proxy: a stock Envoy has none.
	Hyperscan bool
	// AdminAddress of the administration interface. Default 127.0.0.1:15000.
	AdminAddress netip.AddrPort
	// Public is the address on which metrics (15090) and health (15021) are served. Default all addresses of the node's
	// family: a workload's network namespace is its own.
	Public netip.Addr
}

const (
	clusterPrometheus = "prometheus_stats"
	clusterAdmin      = "agent"
)

// Bootstrap writes the Envoy-format bootstrap document of a sidecar or gateway: who it is, the agent's socket, the
// administration interface, and static listeners for metrics and health. heddle-proxy and a stock Envoy both take it.
func Bootstrap(p BootstrapParams) ([]byte, error) {
	if p.Socket == "" {
		return nil, fmt.Errorf("node %s: the bootstrap needs the agent's socket", p.Node.ID())
	}
	if p.SecretSocket == "" {
		p.SecretSocket = p.Socket
	}
	if !p.AdminAddress.IsValid() {
		p.AdminAddress = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), PortAdmin)
	}
	if !p.Public.IsValid() {
		p.Public = netip.IPv4Unspecified()
		if p.Node.Address.Is6() {
			p.Public = netip.IPv6Unspecified()
		}
	}
	g := &generator{mesh: &model.Mesh{}, node: p.Node, out: &Resources{}}
	// Istio's own bound for regular expressions; Envoy's default refuses some that are in use. heddle-proxy has no
	// runtime keys and bounds the compiled size.
	runtime := &structpb.Struct{Fields: map[string]*structpb.Value{
		"re2.max_program_size.error_level": structpb.NewNumberValue(32768),
	}}
	document := &bootstrapv3.Bootstrap{
		Node: p.Node.Proto(),
		Admin: &bootstrapv3.Admin{
			Address: socketAddress(p.AdminAddress.Addr().String(), p.AdminAddress.Port()),
		},
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
			Name: "global", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: runtime},
		}}},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			LdsConfig: ads(), CdsConfig: ads(),
			AdsConfig: &corev3.ApiConfigSource{
				ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: clusterXDS},
				}}},
			},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{
				g.pipe(clusterXDS, p.Socket), g.pipe(clusterSDS, p.SecretSocket),
				local(clusterPrometheus, p.AdminAddress), local(clusterAdmin, p.AdminAddress),
			},
			Listeners: []*listenerv3.Listener{
				g.adminListener("metrics", p.Public, PortMetrics, "/stats/prometheus", "/stats/prometheus", clusterPrometheus),
				g.adminListener("health", p.Public, PortHealth, "/healthz/ready", "/ready", clusterAdmin),
			},
		},
	}
	if p.Hyperscan && p.Node.Heddle {
		document.DefaultRegexEngine = &corev3.TypedExtensionConfig{Name: "envoy.regex_engines.hyperscan", TypedConfig: g.pack(&hyperscanv3.Hyperscan{})}
	}
	if g.err != nil {
		return nil, fmt.Errorf("bootstrap of %s: %w", p.Node.ID(), g.err)
	}
	return YAML(document)
}

// YAML writes a message as YAML with Envoy's field names, the same for equal messages.
func YAML(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("writing a %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return yaml.JSONToYAML(text)
}

// pipe is a cluster behind a unix socket that speaks gRPC.
func (g *generator) pipe(name, path string) *clusterv3.Cluster {
	c := staticCluster(name, &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}})
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{upstreamHTTPOptions: g.pack(&upstreamhttpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
				},
			},
		},
	})}
	return c
}

func local(name string, a netip.AddrPort) *clusterv3.Cluster {
	return staticCluster(name, socketAddress(a.Addr().String(), a.Port()))
}

func staticCluster(name string, address *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout: duration(time.Second),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
			}}}},
		},
	}
}

// adminListener shows one path of the administration interface, and nothing else of it.
func (g *generator) adminListener(name string, on netip.Addr, port uint16, path, to, cluster string) *listenerv3.Listener {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:  name,
		HttpFilters: []*hcmv3.HttpFilter{g.router()},
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name,
			VirtualHosts: []*routev3.VirtualHost{{
				Name: name, Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: path}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}, PrefixRewrite: to,
						// The administration interface answers to no other name, so that no web page can reach it.
						HostRewriteSpecifier: &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: "localhost"},
					}},
				}},
			}},
		}},
	}
	return &listenerv3.Listener{
		Name: name, Address: socketAddress(on.String(), port),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: filterHCM, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: g.pack(manager)},
		}}}},
	}
}
