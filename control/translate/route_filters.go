package translate

import (
	"slices"
	"strconv"
	"strings"

	rulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"heddle.io/heddle/control/model"
)

// filtersOfRoutes are the filters that routes configure, in Istio's order. A proxy has one when a route asks for it that
// the proxy may get, so that others do not pay for it: unlike in Istio, the first such route changes the listener too, and
// its open connections are drained.
func (g *generator) filtersOfRoutes() []*hcmv3.HttpFilter {
	var faults, cors, changes bool
	for _, r := range g.mesh.Routes {
		if !r.ExportTo.In(g.node.Namespace) || !g.mayBeBound(r) {
			continue
		}
		for i := range r.HTTP {
			faults = faults || r.HTTP[i].Fault != nil
			cors = cors || r.HTTP[i].CORS != nil
			changes = changes || changesHeaders(&r.HTTP[i])
		}
	}
	var out []*hcmv3.HttpFilter
	if faults {
		out = append(out, g.httpFilter(filterFault, &faultv3.HTTPFault{}))
	}
	if cors {
		out = append(out, g.httpFilter(filterCORS, &corsv3.Cors{}))
	}
	if changes {
		out = append(out, g.httpFilter(filterHeaderMutation, &mutationv3.HeaderMutation{}))
	}
	return out
}

// asksForFilters says whether any of the routes needs a filter.
func asksForFilters(r *model.Routes) bool {
	return slices.ContainsFunc(r.HTTP, func(h model.HTTPRoute) bool { return h.Fault != nil || h.CORS != nil || changesHeaders(&h) })
}

// changesHeaders says whether a destination of the route has header changes of its own.
func changesHeaders(h *model.HTTPRoute) bool {
	return slices.ContainsFunc(h.Forward, func(d model.Destination) bool { return d.ChangesHeaders() })
}

// destinationConfigs is what a destination says to filters.
func (g *generator) destinationConfigs(d *model.Destination) map[string]*anypb.Any {
	if !d.ChangesHeaders() {
		return nil
	}
	return map[string]*anypb.Any{filterHeaderMutation: g.pack(&mutationv3.HeaderMutationPerRoute{
		Mutations: &mutationv3.Mutations{RequestMutations: mutations(d.Request), ResponseMutations: mutations(d.Response)},
	})}
}

func mutations(ops model.HeaderOps) []*rulesv3.HeaderMutation {
	var out []*rulesv3.HeaderMutation
	changes, removed := headerChanges(ops)
	for _, name := range removed {
		out = append(out, &rulesv3.HeaderMutation{Action: &rulesv3.HeaderMutation_Remove{Remove: name}})
	}
	for _, c := range changes {
		out = append(out, &rulesv3.HeaderMutation{Action: &rulesv3.HeaderMutation_Append{Append: c}})
	}
	return out
}

// mayBeBound says whether routes are for this kind of proxy: sidecars, or some gateway.
func (g *generator) mayBeBound(r *model.Routes) bool {
	if g.node.Type == Sidecar {
		return boundToMesh(r)
	}
	return slices.ContainsFunc(r.Gateways, func(name string) bool { return name != model.GatewayMesh })
}

// routeFilterConfigs is what a route says to them.
func (g *generator) routeFilterConfigs(h *model.HTTPRoute) map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	if h.Fault != nil {
		out[filterFault] = g.pack(httpFault(h.Fault))
	}
	if h.CORS != nil {
		out[filterCORS] = g.pack(corsPolicy(h.CORS))
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func httpFault(f *model.Fault) *faultv3.HTTPFault {
	out := &faultv3.HTTPFault{}
	if d := f.Delay; d != nil {
		out.Delay = &commonfaultv3.FaultDelay{
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: duration(d.Time)},
			Percentage:         ofMillion(d.Share),
		}
	}
	if a := f.Abort; a != nil {
		out.Abort = &faultv3.FaultAbort{
			ErrorType:  &faultv3.FaultAbort_HttpStatus{HttpStatus: a.HTTPStatus},
			Percentage: ofMillion(a.Share),
		}
		if a.GRPCStatus != 0 {
			out.Abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: a.GRPCStatus}
		}
	}
	return out
}

func ofMillion(share uint32) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: share, Denominator: typev3.FractionalPercent_MILLION}
}

func (g *generator) mirrors(all []model.Mirror) []*routev3.RouteAction_RequestMirrorPolicy {
	out := make([]*routev3.RouteAction_RequestMirrorPolicy, 0, len(all))
	for _, m := range all {
		g.destinationClusters([]model.Destination{m.To})
		out = append(out, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster:         destinationCluster(m.To),
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: ofMillion(m.Share)},
			TraceSampled:    flag(false),
		})
	}
	return out
}

func corsPolicy(c *model.CORS) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{
		AllowMethods: strings.Join(c.Methods, ","), AllowHeaders: strings.Join(c.Headers, ","),
		ExposeHeaders: strings.Join(c.Expose, ","),
		FilterEnabled: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}},
	}
	for _, o := range c.Origins {
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, stringMatcher(o))
	}
	if c.MaxAge != nil {
		out.MaxAge = strconv.FormatInt(int64(c.MaxAge.Seconds()), 10)
	}
	if c.Credentials != nil {
		out.AllowCredentials = flag(*c.Credentials)
	}
	if c.KeepUnmatched {
		out.ForwardNotMatchingPreflights = flag(false)
	}
	return out
}
