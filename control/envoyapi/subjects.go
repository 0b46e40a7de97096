package envoyapi

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// Subject gives an empty message of what an EnvoyFilter's applyTo names, such as "HTTP_FILTER"; nil for a name that it has not.
func Subject(applyTo string) proto.Message {
	switch applyTo {
	case "LISTENER":
		return &listenerv3.Listener{}
	case "LISTENER_FILTER":
		return &listenerv3.ListenerFilter{}
	case "FILTER_CHAIN":
		return &listenerv3.FilterChain{}
	case "NETWORK_FILTER":
		return &listenerv3.Filter{}
	case "HTTP_FILTER":
		return &hcmv3.HttpFilter{}
	case "ROUTE_CONFIGURATION":
		return &routev3.RouteConfiguration{}
	case "VIRTUAL_HOST":
		return &routev3.VirtualHost{}
	case "HTTP_ROUTE":
		return &routev3.Route{}
	case "CLUSTER":
		return &clusterv3.Cluster{}
	case "EXTENSION_CONFIG":
		return &corev3.TypedExtensionConfig{}
	case "BOOTSTRAP":
		return &bootstrapv3.Bootstrap{}
	}
	return nil
}
