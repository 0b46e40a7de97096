package envoyapi

import (
	"errors"
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// terminal are the filters that answer or forward, by the type of their configuration: each list of filters ends with one, and
// has no other.
var terminal = map[string]bool{
	"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router":                                    true,
	"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager": true,
	"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":                            true,
	"type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy":                        true,
	"type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo":                                     true,
	"type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config":                        true,
	"type.googleapis.com/envoy.extensions.filters.network.thrift_proxy.v3.ThriftProxy":                      true,
	"type.googleapis.com/envoy.extensions.filters.network.generic_proxy.v3.GenericProxy":                    true,
}

// order says whether filters stand behind one that ends their list.
func order(m proto.Message) error {
	switch m := m.(type) {
	case *listenerv3.FilterChain:
		for i, f := range m.GetFilters() {
			if i < len(m.Filters)-1 && terminal[f.GetTypedConfig().GetTypeUrl()] {
				return fmt.Errorf("%s must be the last filter, and %s stands behind it", f.GetName(), m.Filters[i+1].GetName())
			}
		}
	case *hcmv3.HttpConnectionManager:
		if len(m.GetHttpFilters()) == 0 {
			return errors.New("there is no HTTP filter, and the last must be the router")
		}
		for i, f := range m.HttpFilters {
			if i < len(m.HttpFilters)-1 && terminal[f.GetTypedConfig().GetTypeUrl()] {
				return fmt.Errorf("%s must be the last HTTP filter, and %s stands behind it", f.GetName(), m.HttpFilters[i+1].GetName())
			}
		}
		if last := m.HttpFilters[len(m.HttpFilters)-1]; last.GetTypedConfig() != nil && knownNotTerminal[last.GetTypedConfig().GetTypeUrl()] {
			return fmt.Errorf("%s is the last HTTP filter, and none answers or forwards: the last must be the router", last.GetName())
		}
	}
	return nil
}

// knownNotTerminal are HTTP filters that pass requests on. Of others it is not known: a filter of somebody's own may answer.
var knownNotTerminal = map[string]bool{
	"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC":                      true,
	"type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua":                        true,
	"type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault":                true,
	"type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors":                      true,
	"type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit": true,
	"type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit":            true,
	"type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication":    true,
	"type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz":             true,
	"type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor":          true,
}
