package resolve

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// answered500 is what Gateway API has for requests to backends that cannot be used.
const answered500 = 500

func (b *builder) gatewayHTTPRoute(o *objects.Object, r *gatewayv1.HTTPRoute) *attachments {
	return b.attach(o, r.Spec.ParentRefs, r.Spec.Hostnames, func(out *model.Routes) {
		for i := range r.Spec.Rules {
			rule, at := &r.Spec.Rules[i], fmt.Sprintf("spec.rules[%d]", i)
			route := model.HTTPRoute{Name: string(ptr.Deref(rule.Name, "")), Source: source(o).At(at), MissingStatus: answered500}
			for j, ref := range rule.BackendRefs {
				route.Forward = append(route.Forward, b.httpBackend(o, fmt.Sprintf("%s.backendRefs[%d]", at, j), &ref.BackendRef, ref.Filters))
			}
			b.timing(&route, rule)
			matches := rule.Matches
			if len(matches) == 0 {
				matches = []gatewayv1.HTTPRouteMatch{{}}
			}
			b.rule(o, out, at, route, rule.Filters, func(add func(model.HTTPMatch, string)) {
				for j, m := range matches {
					add(gatewayMatch(m), fmt.Sprintf("%s.matches[%d]", at, j))
				}
			}, len(rule.Matches) > 0)
		}
		if len(r.Spec.Rules) == 0 {
			// One rule by default, which has no backends.
			out.HTTP = []model.HTTPRoute{{Matches: []model.HTTPMatch{{}}, Direct: &model.Direct{Status: answered500}, Source: source(o)}}
		}
	})
}

func (b *builder) gatewayGRPCRoute(o *objects.Object, r *gatewayv1.GRPCRoute) *attachments {
	return b.attach(o, r.Spec.ParentRefs, r.Spec.Hostnames, func(out *model.Routes) {
		for i := range r.Spec.Rules {
			rule, at := &r.Spec.Rules[i], fmt.Sprintf("spec.rules[%d]", i)
			route := model.HTTPRoute{Name: string(ptr.Deref(rule.Name, "")), Source: source(o).At(at), MissingStatus: answered500}
			for j, ref := range rule.BackendRefs {
				path := fmt.Sprintf("%s.backendRefs[%d]", at, j)
				d := b.httpBackend(o, path, &ref.BackendRef, httpFilters(ref.Filters))
				b.speaksGRPC(o, path, d)
				route.Forward = append(route.Forward, d)
			}
			matches := rule.Matches
			if len(matches) == 0 {
				matches = []gatewayv1.GRPCRouteMatch{{}}
			}
			b.rule(o, out, at, route, httpFilters(rule.Filters), func(add func(model.HTTPMatch, string)) {
				for j, m := range matches {
					add(grpcMatch(m), fmt.Sprintf("%s.matches[%d]", at, j))
				}
			}, len(rule.Matches) > 0)
		}
	})
}

func httpFilters(all []gatewayv1.GRPCRouteFilter) []gatewayv1.HTTPRouteFilter {
	out := make([]gatewayv1.HTTPRouteFilter, 0, len(all))
	for _, f := range all {
		out = append(out, objects.HTTPFilter(f))
	}
	return out
}

// speaksGRPC notes backends whose port says nothing of HTTP/2, which gRPC needs.
func (b *builder) speaksGRPC(o *objects.Object, path string, d model.Destination) {
	if d.Missing {
		return
	}
	if p := b.serviceOf(d.Host).Port(d.Port); p.Protocol != model.HTTP2 {
		b.report.note(o.Key(), path, fmt.Sprintf("port %d of %s does not speak HTTP/2, so calls of gRPC fail: name it grpc, or give it appProtocol grpc", d.Port, d.Host))
	}
}

// rule adds the routes of a rule: one for each match, since each has its own rank.
func (b *builder) rule(o *objects.Object, to *model.Routes, at string, route model.HTTPRoute, filters []gatewayv1.HTTPRouteFilter,
	matches func(add func(model.HTTPMatch, string)), written bool,
) {
	var path *gatewayv1.HTTPPathModifier
	for i := range filters {
		path = cmpOr(path, b.filter(o, fmt.Sprintf("%s.filters[%d]", at, i), &filters[i], &route))
	}
	alone(&route)
	if route.Redirect == nil && len(weightedIn(route.Forward)) == 0 {
		route.Direct, route.Forward, route.Rewrite, route.Mirrors = &model.Direct{Status: answered500}, nil, nil, nil
	}
	matches(func(m model.HTTPMatch, source string) {
		if written {
			route.Source.Path = source
		}
		to.HTTP = append(to.HTTP, modified(route, m, path))
	})
}

func cmpOr[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func weightedIn(all []model.Destination) []model.Destination {
	return slices.DeleteFunc(slices.Clone(all), func(d model.Destination) bool { return d.Weight == 0 })
}

// alone gives the header changes of a destination that gets everything to the route.
func alone(r *model.HTTPRoute) {
	used := weightedIn(r.Forward)
	if len(used) != 1 || !used[0].ChangesHeaders() {
		return
	}
	r.Request, r.Response = joinOps(r.Request, used[0].Request), joinOps(r.Response, used[0].Response)
	for i := range r.Forward {
		r.Forward[i].Request, r.Forward[i].Response = model.HeaderOps{}, model.HeaderOps{}
	}
}

func (b *builder) httpBackend(o *objects.Object, at string, r *gatewayv1.BackendRef, filters []gatewayv1.HTTPRouteFilter) model.Destination {
	out := b.backend(o, at, &r.BackendObjectReference, r.Weight)
	for _, f := range filters {
		out.Request = joinOps(out.Request, gatewayHeaders(f.RequestHeaderModifier))
		out.Response = joinOps(out.Response, gatewayHeaders(f.ResponseHeaderModifier))
	}
	return out
}

// filter puts a filter into a route. A change of the path is given back, since it depends on the match.
func (b *builder) filter(o *objects.Object, at string, f *gatewayv1.HTTPRouteFilter, to *model.HTTPRoute) *gatewayv1.HTTPPathModifier {
	to.Request = joinOps(to.Request, gatewayHeaders(f.RequestHeaderModifier))
	to.Response = joinOps(to.Response, gatewayHeaders(f.ResponseHeaderModifier))
	if m := f.RequestMirror; m != nil {
		share := uint64(1_000_000)
		if m.Percent != nil {
			share = uint64(*m.Percent) * 10_000
		} else if x := m.Fraction; x != nil {
			share = uint64(x.Numerator) * 1_000_000 / uint64(ptr.Deref(x.Denominator, 100))
		}
		if d := b.backend(o, at+".requestMirror.backendRef", &m.BackendRef, nil); !d.Missing && share > 0 {
			to.Mirrors = append(to.Mirrors, model.Mirror{To: d, Share: uint32(share)})
		}
	}
	if x := f.CORS; x != nil {
		to.CORS = gatewayCORS(x)
	}
	if r := f.RequestRedirect; r != nil {
		to.Redirect = &model.Redirect{
			Scheme: ptr.Deref(r.Scheme, ""), Authority: string(ptr.Deref(r.Hostname, "")), Port: uint16(ptr.Deref(r.Port, 0)),
			Status: uint32(ptr.Deref(r.StatusCode, 302)), SamePort: r.Port == nil && r.Scheme == nil,
		}
		return r.Path
	}
	if w := f.URLRewrite; w != nil {
		to.Rewrite = &model.Rewrite{Authority: string(ptr.Deref(w.Hostname, ""))}
		return w.Path
	}
	return nil
}

// gatewayHeaders takes values as they are: they hold no operators.
func gatewayHeaders(f *gatewayv1.HTTPHeaderFilter) model.HeaderOps {
	var out model.HeaderOps
	if f == nil {
		return out
	}
	list := func(all []gatewayv1.HTTPHeader) []model.Header {
		var of []model.Header
		for _, h := range all {
			of = append(of, model.Header{Name: strings.ToLower(string(h.Name)), Value: strings.ReplaceAll(h.Value, "%", "%%")})
		}
		slices.SortStableFunc(of, func(a, b model.Header) int { return strings.Compare(a.Name, b.Name) })
		return of
	}
	out.Set, out.Add = list(f.Set), list(f.Add)
	for _, name := range f.Remove {
		out.Remove = append(out.Remove, strings.ToLower(name))
	}
	slices.Sort(out.Remove)
	return out
}

func gatewayCORS(x *gatewayv1.HTTPCORSFilter) *model.CORS {
	out := &model.CORS{Credentials: x.AllowCredentials}
	for _, o := range x.AllowOrigins {
		scheme, host, wild := strings.Cut(string(o), "://*.")
		if !wild {
			out.Origins = append(out.Origins, model.StringMatch{Kind: model.Exact, Value: string(o)})
			continue
		}
		out.Origins = append(out.Origins, model.StringMatch{
			Kind: model.Regex, Value: regexp.QuoteMeta(scheme) + "://[^/]+\\." + regexp.QuoteMeta(host),
		})
	}
	for _, m := range x.AllowMethods {
		out.Methods = append(out.Methods, string(m))
	}
	for _, h := range x.AllowHeaders {
		out.Headers = append(out.Headers, string(h))
	}
	for _, h := range x.ExposeHeaders {
		out.Expose = append(out.Expose, string(h))
	}
	if x.MaxAge > 0 {
		age := time.Duration(x.MaxAge) * time.Second
		out.MaxAge = &age
	}
	return out
}

// timing takes over timeouts and retries. The time of one try bounds the whole request where that has no bound.
func (b *builder) timing(to *model.HTTPRoute, rule *gatewayv1.HTTPRouteRule) {
	if r := rule.Retry; r != nil {
		to.Retry = &model.Retry{Attempts: uint32(ptr.Deref(r.Attempts, 1)), Backoff: gatewayTime(r.Backoff)}
		for _, c := range r.Codes {
			to.Retry.Statuses = append(to.Retry.Statuses, uint32(c))
		}
		if to.Retry.On = []string{"connect-failure", "refused-stream", "unavailable", "cancelled"}; len(r.Codes) > 0 {
			to.Retry.On = append(to.Retry.On, "retriable-status-codes")
		}
	}
	t := rule.Timeouts
	if t == nil {
		return
	}
	each := gatewayTime(t.BackendRequest)
	if to.Timeout = gatewayTime(t.Request); each == 0 {
		return
	}
	if to.Timeout == 0 && to.Retry == nil {
		to.Timeout = each
		return
	}
	if to.Retry == nil {
		to.Retry = &model.Retry{Attempts: uint32(max(b.settings.RetryAttempts, 0))}
	}
	to.Retry.PerTry = each
}

func gatewayTime(d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	out, err := time.ParseDuration(string(*d))
	if err != nil {
		return 0 // The form check has refused it.
	}
	return out
}

func gatewayMatch(m gatewayv1.HTTPRouteMatch) model.HTTPMatch {
	var out model.HTTPMatch
	if p := m.Path; p != nil {
		out.Path = pathMatch(ptr.Deref(p.Type, gatewayv1.PathMatchPathPrefix), ptr.Deref(p.Value, "/"))
	}
	if m.Method != nil && *m.Method != "" {
		out.Headers = append(out.Headers, model.NamedMatch{Name: ":method", Match: model.StringMatch{Kind: model.Exact, Value: string(*m.Method)}})
	}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, namedMatch(strings.ToLower(string(h.Name)), string(ptr.Deref(h.Type, "")), h.Value))
	}
	for _, q := range m.QueryParams {
		out.Query = append(out.Query, namedMatch(string(q.Name), string(ptr.Deref(q.Type, "")), q.Value))
	}
	return out
}

func namedMatch(name, kind, value string) model.NamedMatch {
	out := model.NamedMatch{Name: name, Match: model.StringMatch{Kind: model.Exact, Value: value}}
	if kind == string(gatewayv1.HeaderMatchRegularExpression) {
		out.Match.Kind = model.Regex
	}
	return out
}

// pathMatch leaves out what matches every path.
func pathMatch(kind gatewayv1.PathMatchType, value string) *model.StringMatch {
	switch kind {
	case gatewayv1.PathMatchExact:
		return &model.StringMatch{Kind: model.Exact, Value: value}
	case gatewayv1.PathMatchRegularExpression:
		return &model.StringMatch{Kind: model.Regex, Value: value}
	}
	if value = strings.TrimRight(value, "/"); value == "" {
		return nil
	}
	return &model.StringMatch{Kind: model.Segments, Value: value}
}

// grpcMatch is a match of gRPC's methods, whose path is /service/method.
func grpcMatch(m gatewayv1.GRPCRouteMatch) model.HTTPMatch {
	var out model.HTTPMatch
	if x := m.Method; x != nil {
		service, method := ptr.Deref(x.Service, ""), ptr.Deref(x.Method, "")
		regex := ptr.Deref(x.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression
		switch {
		case regex:
			out.Path = &model.StringMatch{Kind: model.Regex, Value: objects.GRPCPath(service, method)}
		case service == "":
			// Less specific than any service, so not a path of its own.
			out.Headers = append(out.Headers, model.NamedMatch{Name: ":path", Match: model.StringMatch{
				Kind: model.Regex, Value: "/[^/]+/" + regexp.QuoteMeta(method),
			}})
		case method == "":
			out.Path = &model.StringMatch{Kind: model.Prefix, Value: "/" + service + "/"}
		default:
			out.Path = &model.StringMatch{Kind: model.Exact, Value: "/" + service + "/" + method}
		}
	}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, namedMatch(strings.ToLower(string(h.Name)), string(ptr.Deref(h.Type, "")), h.Value))
	}
	return out
}

// modified gives a route for a match, with the change of its path.
func modified(route model.HTTPRoute, m model.HTTPMatch, p *gatewayv1.HTTPPathModifier) model.HTTPRoute {
	with := func(m model.HTTPMatch, set func(*model.Redirect, *model.Rewrite)) model.HTTPRoute {
		out := route
		out.Matches = []model.HTTPMatch{m}
		if out.Redirect != nil {
			r := *out.Redirect
			out.Redirect = &r
		}
		if out.Rewrite != nil {
			w := *out.Rewrite
			out.Rewrite = &w
		}
		if set != nil {
			set(out.Redirect, out.Rewrite)
		}
		return out
	}
	if p == nil {
		return with(m, nil)
	}
	if p.Type == gatewayv1.FullPathHTTPPathModifier {
		whole := ptr.Deref(p.ReplaceFullPath, "/")
		return with(m, func(r *model.Redirect, w *model.Rewrite) {
			if r != nil {
				r.Path = rooted(whole)
			} else if w != nil {
				w.Pattern, w.Substitution = ".+", strings.ReplaceAll(rooted(whole), `\`, `\\`)
			}
		})
	}
	prefix := func(value string) func(*model.Redirect, *model.Rewrite) {
		return func(r *model.Redirect, w *model.Rewrite) {
			if r != nil {
				r.PathPrefix = value
			} else if w != nil {
				w.Path = value
			}
		}
	}
	value := strings.TrimRight(rooted(ptr.Deref(p.ReplacePrefixMatch, "/")), "/")
	switch {
	case m.Path == nil && value == "":
		return with(m, nil)
	case m.Path == nil, value == "":
		return with(m, prefix(value+"/"))
	}
	return with(m, prefix(value))
}

func rooted(path string) string {
	if !strings.HasPrefix(path, "/") {
		return "/" + path
	}
	return path
}
