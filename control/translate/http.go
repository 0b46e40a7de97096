package translate

import (
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"heddle.io/heddle/control/model"
)

// accessLogFormat has the fields of Istio's default access log, in its order.
const accessLogFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" ` +
	`%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% ` +
	`"%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% ` +
	`%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" ` +
	`"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% ` +
	`%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%` + "\n"

// accessLogs writes a line per request or connection to the proxy's standard output, which the agent keeps. The stream
// logger is used because a proxy that does not run as root may not open /dev/stdout.
func (g *generator) accessLogs() []*accesslogv3.AccessLog {
	if !g.mesh.Settings.AccessLog {
		return nil
	}
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: g.pack(&streamv3.StdoutAccessLog{
			AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
					Specifier: &corev3.DataSource_InlineString{InlineString: accessLogFormat},
				}},
			}},
		})},
	}}
}

// connectionManager packs a connection manager as a network filter.
func (g *generator) connectionManager(h *hcmv3.HttpConnectionManager) *listenerv3.Filter {
	h.AccessLog = g.accessLogs()
	h.NormalizePath = flag(true)
	h.UpgradeConfigs = []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}}
	return g.networkFilter(filterHCM, h)
}

// httpFilters are the filters of a connection manager, in Istio's order: telemetry's exchange of names, those given
// (policies, what routes ask for), statistics, router.
func (g *generator) httpFilters(given ...*hcmv3.HttpFilter) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	if g.node.Heddle {
		out = append(out, g.httpFilter(filterPeerMetadata, g.typedStruct("io.istio.http.peer_metadata.Config")))
	}
	out = append(out, given...)
	if g.node.Heddle {
		out = append(out, g.httpFilter(filterStats, g.typedStruct("stats.PluginConfig")))
	}
	return append(out, g.router())
}

func (g *generator) router() *hcmv3.HttpFilter { return g.httpFilter(filterRouter, &routerv3.Router{}) }

func (g *generator) httpFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: g.pack(config)}}
}

func (g *generator) networkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: g.pack(config)}}
}

// typedStruct names the configuration of one of Istio's filters, whose messages are not part of Envoy's API.
func (g *generator) typedStruct(name string) proto.Message {
	return &xdstypev3.TypedStruct{TypeUrl: "type.googleapis.com/" + name, Value: &structpb.Struct{}}
}

// tcpFilters are the filters of a chain that passes bytes on: policies, statistics, proxy.
func (g *generator) tcpFilters(statPrefix string, to []model.Destination, cluster string, policies ...*listenerv3.Filter) []*listenerv3.Filter {
	out := append([]*listenerv3.Filter(nil), policies...)
	if g.node.Heddle {
		out = append(out, g.networkFilter(filterStats, g.typedStruct("stats.PluginConfig")))
	}
	proxy := &tcpv3.TcpProxy{StatPrefix: statPrefix, AccessLog: g.accessLogs()}
	used := weighted(to)
	switch {
	case cluster != "":
		proxy.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: cluster}
	case len(used) == 1:
		proxy.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: destinationCluster(used[0])}
	default:
		split := &tcpv3.TcpProxy_WeightedCluster{}
		for _, d := range used {
			split.Clusters = append(split.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
				Name: destinationCluster(d), Weight: d.Weight,
			})
		}
		proxy.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: split}
	}
	if len(used) > 0 {
		if pool := g.portPolicies[destinationCluster(used[0])].Pool; pool != nil && pool.TCPIdleTimeout > 0 {
			proxy.IdleTimeout = duration(pool.TCPIdleTimeout)
		}
	}
	return append(out, g.networkFilter(filterTCPProxy, proxy))
}

// weighted drops destinations that get nothing.
func weighted(all []model.Destination) []model.Destination {
	var out []model.Destination
	for _, d := range all {
		if d.Weight > 0 {
			out = append(out, d)
		}
	}
	return out
}

func (g *generator) listenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{
		TypedConfig: g.pack(config),
	}}
}
