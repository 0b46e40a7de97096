package translate

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"heddle.io/heddle/control/model"
)

// boundToMesh says whether any of the routes can hold for sidecars.
func boundToMesh(r *model.Routes) bool { return slices.Contains(r.Gateways, model.GatewayMesh) }

// serviceHost is the virtual host of a service: with the routes that hold for it, or one that leads to it. Those of a
// VirtualService come before those of routes that are attached to the service.
func (g *generator) serviceHost(s *model.Service, port uint16) *routev3.VirtualHost {
	r, attached := g.meshRoutes(s), slices.DeleteFunc(g.attachedTo(s, port), func(r *model.Routes) bool { return len(r.HTTP) == 0 })
	if r != nil && len(r.HTTP) == 0 {
		r = nil
	}
	sets := attached
	if r != nil {
		sets = append([]*model.Routes{r}, attached...)
	}
	key, inputs := hostKey{port: port, own: s.Namespace == g.node.Namespace}, []any{s}
	for _, set := range sets {
		g.from(set.Source)
		inputs = append(inputs, set)
		// The clusters that the routes lead to are made for each kind that has them.
		for i := range set.HTTP {
			if g.anyInScope(&set.HTTP[i], set, port, model.GatewayMesh) {
				for _, d := range destinations(&set.HTTP[i]) {
					g.destinationClusters([]model.Destination{d})
					inputs = append(inputs, g.service(d.Host))
				}
			}
		}
	}
	if len(sets) > 0 || len(s.Aliases) > 0 {
		key.kind = g.kind
	}
	return memo(g, within(g.cache.hosts, s.Host), key, inputs, func() *routev3.VirtualHost {
		host := &routev3.VirtualHost{
			Name:                       fmt.Sprintf("%s:%d", s.Host, port),
			Domains:                    distinct(g.domains(s, port)),
			IncludeRequestAttemptCount: true,
		}
		switch {
		case len(sets) == 0:
			host.Routes = []*routev3.Route{g.defaultRoute(s, port)}
		case r == nil:
			host.Routes = uncovered(g.rankedRoutes(attached, port, s.Host))
		default:
			host.Routes = uncovered(append(g.routes(r, port, model.GatewayMesh, s.Host), g.rankedRoutes(attached, port, s.Host)...))
		}
		return host
	})
}

// destinations are all that a route sends requests to, copies included.
func destinations(h *model.HTTPRoute) []model.Destination {
	out := slices.Clone(h.Forward)
	for _, m := range h.Mirrors {
		out = append(out, m.To)
	}
	return out
}

// distinct leaves out names that a service has twice.
func distinct(names []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(n string) bool {
		again := seen[n]
		seen[n] = true
		return again
	})
}

// withoutTaken leaves out the names that an earlier virtual host has, which keeps them: a service may be called like a namespace's
// path, and a host that is no service like another one and a port.
func withoutTaken(host *routev3.VirtualHost, taken map[string]bool) *routev3.VirtualHost {
	clash := false
	for _, d := range host.Domains {
		clash = clash || taken[d]
	}
	if clash {
		free := slices.DeleteFunc(slices.Clone(host.Domains), func(d string) bool { return taken[d] })
		host = &routev3.VirtualHost{
			Name: host.Name, Domains: free, Routes: host.Routes, IncludeRequestAttemptCount: host.IncludeRequestAttemptCount,
		}
	}
	for _, d := range host.Domains {
		taken[d] = true
	}
	return host
}

// maxDirectBody is Istio's bound on the body of a direct response.
const maxDirectBody = 1 << 20

// foreignHosts are the virtual hosts of routes for hosts that are no services. Of routes for one host, the oldest hold.
func (g *generator) foreignHosts() []*routev3.VirtualHost {
	taken := map[string]bool{}
	var out []*routev3.VirtualHost
	for _, r := range g.mesh.Routes {
		if r.Ranked || !boundToMesh(r) || !r.ExportTo.In(g.node.Namespace) || len(r.HTTP) == 0 {
			continue
		}
		for _, h := range r.Hosts {
			if g.service(h) != nil || taken[h] || !g.scope.SeesHost(g.node.Namespace, r.Namespace, h) {
				continue
			}
			taken[h] = true
			g.from(r.Source)
			out = append(out, &routev3.VirtualHost{
				Name: h + ":80", Domains: withPort([]string{h}, foreignPort), IncludeRequestAttemptCount: true,
				Routes: g.routes(r, foreignPort, model.GatewayMesh, h),
			})
		}
	}
	return out
}

// unknownHost is for requests to hosts that nobody has a route for.
func (g *generator) unknownHost() *routev3.VirtualHost {
	if g.blocksUnknown() {
		return &routev3.VirtualHost{
			Name: "block_all", Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name: "block_all", Match: anyPath(),
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}},
			}},
		}
	}
	return &routev3.VirtualHost{
		Name: "allow_any", Domains: []string{"*"}, IncludeRequestAttemptCount: true,
		Routes: []*routev3.Route{{
			Name: "allow_any", Match: anyPath(),
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: clusterPassthrough},
				Timeout:          duration(0), MaxStreamDuration: noStreamBound(),
			}},
		}},
	}
}

func anyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// noStreamBound leaves the length of streams, gRPC deadlines included, to client and server.
func noStreamBound() *routev3.RouteAction_MaxStreamDuration {
	return &routev3.RouteAction_MaxStreamDuration{
		MaxStreamDuration: duration(0), GrpcTimeoutHeaderMax: duration(0),
	}
}

// defaultRoute sends everything to the service itself.
func (g *generator) defaultRoute(s *model.Service, port uint16) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: outboundCluster(s.Host, port, "")},
		Timeout:          duration(0), MaxStreamDuration: noStreamBound(), RetryPolicy: g.retryPolicy(nil),
	}
	if hasOwnNames(s) {
		action.HostRewriteSpecifier = &routev3.RouteAction_AutoHostRewrite{AutoHostRewrite: flag(true)}
	}
	return &routev3.Route{
		Name: "default", Match: anyPath(),
		Decorator: &routev3.Decorator{Operation: fmt.Sprintf("%s:%d/*", s.Host, port)},
		Action:    &routev3.Route_Route{Route: action},
	}
}

// hasOwnNames says whether the hosts behind a service know themselves by other names than the service's: servers outside
// of the mesh never heard of the global namespace's domain, and go by the request's host.
func hasOwnNames(s *model.Service) bool { return s.External != nil && len(s.External.Names) > 0 }

// routes makes the Envoy routes of a set that can hold on a port of this node, one for each match. What stands behind a
// route for everything is dropped: it could never be reached.
func (g *generator) routes(r *model.Routes, port uint16, gateway, host string) []*routev3.Route {
	var out []*routev3.Route
	for i := range r.HTTP {
		h := &r.HTTP[i]
		matches := h.Matches
		if len(matches) == 0 {
			matches = []model.HTTPMatch{{}}
		}
		for _, m := range matches {
			if !g.inScope(m.Scope, r, port, gateway) {
				continue
			}
			out = append(out, g.route(h, m, host, port))
			if everything(m) {
				return out
			}
		}
	}
	return out
}

// anyInScope says whether a route can hold at all for this node, port and gateway.
func (g *generator) anyInScope(h *model.HTTPRoute, r *model.Routes, port uint16, gateway string) bool {
	return len(h.Matches) == 0 && g.inScope(model.Scope{}, r, port, gateway) ||
		slices.ContainsFunc(h.Matches, func(m model.HTTPMatch) bool { return g.inScope(m.Scope, r, port, gateway) })
}

func everything(m model.HTTPMatch) bool {
	return len(m.Headers) == 0 && len(m.Claims) == 0 && len(m.Query) == 0 &&
		(m.Path == nil || m.Path.Kind == model.Prefix && m.Path.Value == "/")
}

func (g *generator) route(h *model.HTTPRoute, m model.HTTPMatch, host string, port uint16) *routev3.Route {
	out := &routev3.Route{
		Name: routeName(h.Name, m.Name), Match: routeMatch(m), TypedPerFilterConfig: g.routeFilterConfigs(h),
	}
	out.RequestHeadersToAdd, out.RequestHeadersToRemove = headerChanges(h.Request)
	out.ResponseHeadersToAdd, out.ResponseHeadersToRemove = headerChanges(h.Response)
	switch {
	case h.Redirect != nil:
		out.Action = redirect(h.Redirect, port)
	case h.Direct != nil:
		action := &routev3.DirectResponseAction{Status: h.Direct.Status}
		if len(h.Direct.Body) > 0 {
			action.Body = bytesSource(h.Direct.Body)
		}
		out.Action = &routev3.Route_DirectResponse{DirectResponse: action}
	default:
		out.Decorator = &routev3.Decorator{Operation: fmt.Sprintf("%s:%d/*", host, port)}
		out.Action = &routev3.Route_Route{Route: g.forward(h)}
	}
	return out
}

func routeName(route, match string) string {
	switch {
	case match == "":
		return route
	case route == "":
		return match
	}
	return route + "." + match
}

func (g *generator) forward(h *model.HTTPRoute) *routev3.RouteAction {
	g.destinationClusters(h.Forward)
	out := &routev3.RouteAction{
		Timeout: duration(h.Timeout), MaxStreamDuration: noStreamBound(), RetryPolicy: g.retryPolicy(h.Retry),
	}
	if used := weighted(h.Forward); len(used) == 1 {
		out.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: destinationCluster(used[0])}
		if s := g.service(used[0].Host); s != nil && hasOwnNames(s) {
			out.HostRewriteSpecifier = &routev3.RouteAction_AutoHostRewrite{AutoHostRewrite: flag(true)}
		}
	} else {
		split := &routev3.WeightedCluster{}
		for _, d := range used {
			split.Clusters = append(split.Clusters, &routev3.WeightedCluster_ClusterWeight{
				Name: destinationCluster(d), Weight: count(d.Weight), TypedPerFilterConfig: g.destinationConfigs(&d),
			})
		}
		out.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: split}
	}
	if h.MissingStatus == 500 {
		out.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
	}
	out.RequestMirrorPolicies = g.mirrors(h.Mirrors)
	if w := h.Rewrite; w != nil {
		if w.Pattern != "" {
			out.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
				Pattern: &matcherv3.RegexMatcher{Regex: w.Pattern}, Substitution: w.Substitution,
			}
		} else if w.Path != "" {
			out.PrefixRewrite = w.Path
		}
		if w.Authority != "" {
			out.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: w.Authority}
		}
	}
	return out
}

// redirect of a request that came on a port.
func redirect(r *model.Redirect, port uint16) *routev3.Route_Redirect {
	out := &routev3.RedirectAction{HostRedirect: r.Authority, PortRedirect: uint32(r.Port)}
	if r.SamePort && port != 80 && port != 443 {
		out.PortRedirect = uint32(port)
	}
	switch {
	case r.Path != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: r.Path}
	case r.PathPrefix != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: r.PathPrefix}
	}
	if r.Scheme != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: r.Scheme}
	}
	switch r.Status {
	case 302:
		out.ResponseCode = routev3.RedirectAction_FOUND
	case 303:
		out.ResponseCode = routev3.RedirectAction_SEE_OTHER
	case 307:
		out.ResponseCode = routev3.RedirectAction_TEMPORARY_REDIRECT
	case 308:
		out.ResponseCode = routev3.RedirectAction_PERMANENT_REDIRECT
	}
	return &routev3.Route_Redirect{Redirect: out}
}

func routeMatch(m model.HTTPMatch) *routev3.RouteMatch {
	out := anyPath()
	if m.Path != nil {
		switch m.Path.Kind {
		case model.Exact:
			out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Path.Value}
		case model.Prefix:
			out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: m.Path.Value}
		case model.Segments:
			out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: m.Path.Value}
		case model.Regex:
			out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: m.Path.Value}}
		}
		if m.IgnorePathCase {
			out.CaseSensitive = flag(false)
		}
	}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, headerMatcher(h))
	}
	for _, c := range m.Claims {
		out.DynamicMetadata = append(out.DynamicMetadata, claimMatch(c))
	}
	for _, q := range m.Query {
		qm := &routev3.QueryParameterMatcher{Name: q.Name}
		if q.Match.Kind == model.Present {
			qm.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		} else {
			qm.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: stringMatcher(q.Match)}
		}
		out.QueryParameters = append(out.QueryParameters, qm)
	}
	return out
}

func headerMatcher(h model.NamedMatch) *routev3.HeaderMatcher {
	out := &routev3.HeaderMatcher{Name: h.Name, InvertMatch: h.Not}
	if h.Match.Kind == model.Present {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		return out
	}
	out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: stringMatcher(h.Match)}
	// A request without the header is one whose header does not have the value.
	out.TreatMissingHeaderAsEmpty = h.Not
	return out
}

func stringMatcher(m model.StringMatch) *matcherv3.StringMatcher {
	switch m.Kind {
	case model.Prefix:
		return beginning(m.Value)
	case model.Regex:
		return matching(m.Value)
	}
	return exactly(m.Value)
}

func headerChanges(ops model.HeaderOps) ([]*corev3.HeaderValueOption, []string) {
	var out []*corev3.HeaderValueOption
	for _, h := range ops.Set {
		out = append(out, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, Value: h.Value},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	for _, h := range ops.Add {
		out = append(out, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, Value: h.Value},
			AppendAction: corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD,
		})
	}
	return out, ops.Remove
}

// defaultRetryOn is Istio's default: failures in which the request has not been worked on.
const defaultRetryOn = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"

// retryPolicy makes a route's retries; nil means the mesh's default.
func (g *generator) retryPolicy(r *model.Retry) *routev3.RetryPolicy {
	if r == nil {
		r = &model.Retry{Attempts: uint32(max(g.mesh.Settings.RetryAttempts, 0))}
	}
	if r.Attempts == 0 {
		return nil
	}
	out := &routev3.RetryPolicy{
		RetryOn: defaultRetryOn, NumRetries: count(r.Attempts), RetriableStatusCodes: r.Statuses,
	}
	if len(r.On) > 0 {
		out.RetryOn = strings.Join(r.On, ",")
	}
	if !r.SameHost {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: g.pack(&previousv3.PreviousHostsPredicate{}),
			},
		}}
		out.HostSelectionRetryMaxAttempts = 5
	}
	if r.PerTry > 0 {
		out.PerTryTimeout = duration(r.PerTry)
	}
	if r.Backoff > 0 {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: duration(r.Backoff)}
	}
	return out
}
