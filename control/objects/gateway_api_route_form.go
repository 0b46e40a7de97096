package objects

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func (c *checker) gatewayHTTPRoute(r *gatewayv1.HTTPRoute) {
	c.parents(r.Spec.ParentRefs, KubernetesGateway, Service)
	c.hostnames(r.Spec.Hostnames)
	c.atMost("spec.rules", len(r.Spec.Rules), maxRules)
	total := 0
	for i, rule := range r.Spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		total += len(rule.Matches)
		c.atMost(at+".matches", len(rule.Matches), maxMatches)
		for j, m := range rule.Matches {
			c.gatewayMatch(fmt.Sprintf("%s.matches[%d]", at, j), m)
		}
		prefix := len(rule.Matches) == 0
		if len(rule.Matches) == 1 {
			path := rule.Matches[0].Path
			prefix = path == nil || ptr.Deref(path.Type, gatewayv1.PathMatchPathPrefix) == gatewayv1.PathMatchPathPrefix
		}
		c.httpFilters(at+".filters", rule.Filters, prefix, false)
		redirects := slices.ContainsFunc(rule.Filters, func(f gatewayv1.HTTPRouteFilter) bool { return f.RequestRedirect != nil })
		if redirects && len(rule.BackendRefs) > 0 {
			c.fail(at+".backendRefs", "cannot stand beside a redirect, which answers at once", "remove one of the two")
		}
		c.atMost(at+".backendRefs", len(rule.BackendRefs), maxBackends)
		for j, b := range rule.BackendRefs {
			path := fmt.Sprintf("%s.backendRefs[%d]", at, j)
			c.backend(path, &b.BackendObjectReference)
			c.gatewayWeight(path, b.Weight)
			c.httpFilters(path+".filters", b.Filters, prefix, true)
		}
		c.timeouts(at+".timeouts", rule.Timeouts)
		c.gatewayRetry(at+".retry", rule.Retry)
	}
	c.atMost("spec.rules[].matches", total, maxMatchesOfRules)
}

func (c *checker) gatewayGRPCRoute(r *gatewayv1.GRPCRoute) {
	c.parents(r.Spec.ParentRefs, KubernetesGateway, Service)
	c.hostnames(r.Spec.Hostnames)
	c.atMost("spec.rules", len(r.Spec.Rules), maxRules)
	for i, rule := range r.Spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		c.atMost(at+".matches", len(rule.Matches), maxMatches)
		for j, m := range rule.Matches {
			c.grpcMatch(fmt.Sprintf("%s.matches[%d]", at, j), m)
		}
		c.httpFilters(at+".filters", grpcFilters(rule.Filters), false, false)
		c.atMost(at+".backendRefs", len(rule.BackendRefs), maxBackends)
		for j, b := range rule.BackendRefs {
			path := fmt.Sprintf("%s.backendRefs[%d]", at, j)
			c.backend(path, &b.BackendObjectReference)
			c.gatewayWeight(path, b.Weight)
			c.httpFilters(path+".filters", grpcFilters(b.Filters), false, true)
		}
	}
}

// grpcFilters are gRPC's filters in the form of HTTP's, which have the same fields.
func grpcFilters(all []gatewayv1.GRPCRouteFilter) []gatewayv1.HTTPRouteFilter {
	out := make([]gatewayv1.HTTPRouteFilter, 0, len(all))
	for _, f := range all {
		out = append(out, HTTPFilter(f))
	}
	return out
}

// HTTPFilter is a filter of a GRPCRoute in the form of an HTTPRoute's.
func HTTPFilter(f gatewayv1.GRPCRouteFilter) gatewayv1.HTTPRouteFilter {
	return gatewayv1.HTTPRouteFilter{
		Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
		ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
	}
}

func (c *checker) gatewayTLSRoute(r *gatewayv1.TLSRoute) {
	c.parents(r.Spec.ParentRefs, KubernetesGateway)
	if len(r.Spec.Hostnames) == 0 {
		c.fail("spec.hostnames", "missing", "give the server names that clients ask for")
	}
	c.hostnames(r.Spec.Hostnames)
	if len(r.Spec.Rules) != 1 {
		c.fail("spec.rules", fmt.Sprintf("has %d rules", len(r.Spec.Rules)), "give exactly one")
	}
	for i, rule := range r.Spec.Rules {
		c.backends(fmt.Sprintf("spec.rules[%d].backendRefs", i), rule.BackendRefs)
	}
}

func (c *checker) gatewayTCPRoute(r *gatewayv1.TCPRoute) {
	c.parents(r.Spec.ParentRefs, KubernetesGateway, Service)
	if len(r.Spec.Rules) != 1 {
		c.fail("spec.rules", fmt.Sprintf("has %d rules", len(r.Spec.Rules)), "give exactly one")
	}
	for i, rule := range r.Spec.Rules {
		c.backends(fmt.Sprintf("spec.rules[%d].backendRefs", i), rule.BackendRefs)
	}
}

func (c *checker) backends(at string, all []gatewayv1.BackendRef) {
	if len(all) == 0 {
		c.fail(at, "missing", "name a Service and its port")
	}
	c.atMost(at, len(all), maxBackends)
	total := int32(0)
	for i, b := range all {
		path := fmt.Sprintf("%s[%d]", at, i)
		c.backend(path, &b.BackendObjectReference)
		c.gatewayWeight(path, b.Weight)
		total += ptr.Deref(b.Weight, 1)
	}
	if len(all) > 0 && total == 0 {
		c.fail(at, "the weights add up to 0", "give weights; a connection has to go somewhere")
	}
}

// parents checks what the routes are attached to, of one of these kinds.
func (c *checker) parents(all []gatewayv1.ParentReference, kinds ...*Kind) {
	c.atMost("spec.parentRefs", len(all), maxParents)
	if len(all) == 0 {
		c.fail("spec.parentRefs", "missing", "name the "+kindNames(kinds)+" that the routes are for")
	}
	seen := map[string]int{}
	for i, p := range all {
		at := fmt.Sprintf("spec.parentRefs[%d]", i)
		c.named(at+".name", string(p.Name))
		c.referred(at, p.Group, p.Kind, kinds...)
		if p.Namespace != nil {
			c.dnsLabel(at+".namespace", string(*p.Namespace))
		}
		if p.Port != nil {
			c.port(at+".port", int64(*p.Port))
		}
		id := fmt.Sprintf("%s/%s/%s/%s/%d", ptr.Deref(p.Kind, ""), ptr.Deref(p.Namespace, ""), p.Name, ptr.Deref(p.SectionName, ""), ptr.Deref(p.Port, 0))
		if j, dup := seen[id]; dup {
			c.fail(at, fmt.Sprintf("is the same as parentRefs[%d]", j), "give each another sectionName or port, or remove one")
		}
		seen[id] = i
	}
}

// kindNames are kinds in words.
func kindNames(kinds []*Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Kind)
	}
	return strings.Join(names, " or ")
}

func (c *checker) hostnames(all []gatewayv1.Hostname) {
	seen := map[gatewayv1.Hostname]bool{}
	for i, h := range all {
		at := fmt.Sprintf("spec.hostnames[%d]", i)
		c.hostname(at, string(h))
		if seen[h] {
			c.fail(at, fmt.Sprintf("%q is there twice", h), "remove one of the two")
		}
		seen[h] = true
	}
}

func (c *checker) backend(at string, b *gatewayv1.BackendObjectReference) {
	c.named(at+".name", string(b.Name))
	c.referred(at, b.Group, b.Kind, Service)
	if b.Namespace != nil {
		c.dnsLabel(at+".namespace", string(*b.Namespace))
	}
	c.port(at+".port", int64(ptr.Deref(b.Port, 0)))
}

// maxWeight is Gateway API's.
const maxWeight = 1_000_000

func (c *checker) gatewayWeight(at string, weight *int32) {
	if w := ptr.Deref(weight, 1); w < 0 || w > maxWeight {
		c.fail(at+".weight", fmt.Sprintf("%d is out of range", w), "use 0 to 1000000")
	}
}

var gatewayPath = regexp.MustCompile(`^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})+$`)

// notInPaths are what a path that a proxy has normalized cannot hold.
var notInPaths = []string{"//", "/./", "/../", "%2f", "%2F"}

func (c *checker) gatewayMatch(at string, m gatewayv1.HTTPRouteMatch) {
	if p := m.Path; p != nil {
		kind, value := string(ptr.Deref(p.Type, gatewayv1.PathMatchPathPrefix)), ptr.Deref(p.Value, "/")
		c.word(at+".path.type", kind, "Exact", "PathPrefix", "RegularExpression")
		if kind == string(gatewayv1.PathMatchRegularExpression) {
			c.regex(at+".path.value", value)
		} else {
			c.plainPath(at+".path.value", value)
		}
	}
	seen := map[string]bool{}
	for i, h := range m.Headers {
		path := fmt.Sprintf("%s.headers[%d]", at, i)
		c.namedMatch(path, string(h.Name), string(ptr.Deref(h.Type, gatewayv1.HeaderMatchExact)), h.Value, seen)
	}
	seen = map[string]bool{}
	for i, q := range m.QueryParams {
		path := fmt.Sprintf("%s.queryParams[%d]", at, i)
		c.namedMatch(path, string(q.Name), string(ptr.Deref(q.Type, gatewayv1.QueryParamMatchExact)), q.Value, seen)
	}
	c.word(at+".method", string(ptr.Deref(m.Method, "")),
		"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
}

func (c *checker) plainPath(path, value string) {
	switch {
	case !strings.HasPrefix(value, "/"):
		c.fail(path, fmt.Sprintf("%q does not begin with /", value), "write an absolute path")
	case !gatewayPath.MatchString(value):
		c.fail(path, fmt.Sprintf("%q has characters that a path cannot have", value), "write them as %XX")
	case strings.HasSuffix(value, "/.") || strings.HasSuffix(value, "/.."):
		c.fail(path, fmt.Sprintf("%q ends with a dot segment", value), "remove it")
	default:
		for _, not := range notInPaths {
			if strings.Contains(value, not) {
				c.fail(path, fmt.Sprintf("%q holds %q, which no request's path has after it was normalized", value, not), "remove it")
				return
			}
		}
	}
}

// namedMatch checks the match of a header or query parameter.
func (c *checker) namedMatch(at, name, kind, value string, seen map[string]bool) {
	if len(name) > maxQueryName {
		c.queryName(at+".name", name)
	} else if !headerName.MatchString(name) {
		c.fail(at+".name", fmt.Sprintf("%q is not a name", name), "use letters, digits and '-'")
	}
	if seen[strings.ToLower(name)] {
		c.fail(at+".name", fmt.Sprintf("%q is there twice", name), "leave the first: Gateway API has the others without effect")
	}
	seen[strings.ToLower(name)] = true
	c.word(at+".type", kind, "Exact", "RegularExpression")
	if kind == "RegularExpression" {
		c.regex(at+".value", value)
	} else if value == "" {
		c.fail(at+".value", "missing", "give the value")
	}
}

var (
	grpcService = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_][A-Za-z_0-9]*)*$`)
	grpcMethod  = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)
)

// GRPCPath is the expression for the path of a call whose service and method match one each; an empty one matches all.
func GRPCPath(service, method string) string {
	path := ""
	for _, pattern := range []string{service, method} {
		if pattern == "" {
			path += "/[^/]+"
		} else {
			path += "/(?:" + pattern + ")"
		}
	}
	return path
}

func (c *checker) grpcMatch(at string, m gatewayv1.GRPCRouteMatch) {
	if x := m.Method; x != nil {
		kind := string(ptr.Deref(x.Type, gatewayv1.GRPCMethodMatchExact))
		c.word(at+".method.type", kind, "Exact", "RegularExpression")
		service, method := ptr.Deref(x.Service, ""), ptr.Deref(x.Method, "")
		failed := len(c.errs)
		if service == "" && method == "" {
			c.fail(at+".method", "names neither service nor method", "give one of the two, or remove it")
		}
		for _, part := range []struct {
			field, value string
			form         *regexp.Regexp
		}{{"service", service, grpcService}, {"method", method, grpcMethod}} {
			path := at + ".method." + part.field
			switch {
			case part.value == "":
			case kind == string(gatewayv1.GRPCMethodMatchRegularExpression):
				c.regex(path, part.value)
			case !part.form.MatchString(part.value):
				c.fail(path, fmt.Sprintf("%q is not a name of gRPC", part.value), "write for example com.example.User and Login")
			}
		}
		if kind == string(gatewayv1.GRPCMethodMatchRegularExpression) && len(c.errs) == failed {
			// Each by itself may be one that the other makes invalid, or too large.
			c.regex(at+".method", GRPCPath(service, method))
		}
	}
	seen := map[string]bool{}
	for i, h := range m.Headers {
		path := fmt.Sprintf("%s.headers[%d]", at, i)
		c.namedMatch(path, string(h.Name), string(ptr.Deref(h.Type, gatewayv1.GRPCHeaderMatchExact)), h.Value, seen)
	}
}

// httpFilters checks the filters of a rule, or of one of its backends.
func (c *checker) httpFilters(at string, all []gatewayv1.HTTPRouteFilter, prefix, ofBackend bool) {
	c.atMost(at, len(all), maxBackends)
	seen := map[gatewayv1.HTTPRouteFilterType]bool{}
	for i, f := range all {
		path := fmt.Sprintf("%s[%d]", at, i)
		if seen[f.Type] && f.Type != gatewayv1.HTTPRouteFilterRequestMirror {
			c.fail(path+".type", fmt.Sprintf("there is another %s", f.Type), "leave one")
		}
		seen[f.Type] = true
		c.httpFilter(path, &f, prefix, ofBackend)
	}
	if seen[gatewayv1.HTTPRouteFilterRequestRedirect] && seen[gatewayv1.HTTPRouteFilterURLRewrite] {
		c.fail(at, "has both RequestRedirect and URLRewrite", "leave one: what is redirected is not forwarded")
	}
}

func (c *checker) httpFilter(path string, f *gatewayv1.HTTPRouteFilter, prefix, ofBackend bool) {
	kinds := []struct {
		kind  gatewayv1.HTTPRouteFilterType
		field string
		set   bool
		// backend says that a backend of a rule may have it too.
		backend bool
	}{
		{gatewayv1.HTTPRouteFilterRequestHeaderModifier, "requestHeaderModifier", f.RequestHeaderModifier != nil, true},
		{gatewayv1.HTTPRouteFilterResponseHeaderModifier, "responseHeaderModifier", f.ResponseHeaderModifier != nil, true},
		{gatewayv1.HTTPRouteFilterRequestMirror, "requestMirror", f.RequestMirror != nil, false},
		{gatewayv1.HTTPRouteFilterRequestRedirect, "requestRedirect", f.RequestRedirect != nil, false},
		{gatewayv1.HTTPRouteFilterURLRewrite, "urlRewrite", f.URLRewrite != nil, false},
		{gatewayv1.HTTPRouteFilterCORS, "cors", f.CORS != nil, false},
	}
	names := make([]string, 0, len(kinds))
	known := false
	for _, k := range kinds {
		if !ofBackend || k.backend {
			names = append(names, string(k.kind))
		}
		if k.set != (k.kind == f.Type) {
			if k.set {
				c.fail(path+"."+k.field, fmt.Sprintf("is set, but the type is %s", f.Type), "remove it, or correct the type")
			} else {
				c.fail(path+"."+k.field, "missing", "say what the filter does")
			}
		}
		known = known || k.kind == f.Type
		if k.kind == f.Type && ofBackend && !k.backend {
			c.fail(path+".type", fmt.Sprintf("%s of one backend is not supported", f.Type), "write it into the rule's filters")
			return
		}
	}
	if !known {
		remedy := "use one of " + strings.Join(names, ", ")
		if near := Nearest(string(f.Type), names); near != "" {
			remedy = fmt.Sprintf("did you mean %s?", near)
		}
		c.fail(path+".type", fmt.Sprintf("a filter of type %q is not supported", f.Type), remedy)
		return
	}
	c.headerFilter(path+".requestHeaderModifier", f.RequestHeaderModifier)
	c.headerFilter(path+".responseHeaderModifier", f.ResponseHeaderModifier)
	if m := f.RequestMirror; m != nil {
		c.backend(path+".requestMirror.backendRef", &m.BackendRef)
		if p := ptr.Deref(m.Percent, 100); p < 0 || p > 100 {
			c.fail(path+".requestMirror.percent", fmt.Sprintf("%d is not a percentage", p), "use 0 to 100")
		}
		if m.Percent != nil && m.Fraction != nil {
			c.fail(path+".requestMirror", "has both percent and fraction", "leave one")
		}
		if x := m.Fraction; x != nil && (x.Numerator < 0 || ptr.Deref(x.Denominator, 100) < 1 || x.Numerator > ptr.Deref(x.Denominator, 100)) {
			c.fail(path+".requestMirror.fraction", "is not between 0 and 1", "let the numerator be no more than the denominator")
		}
	}
	if r := f.RequestRedirect; r != nil {
		c.gatewayRedirect(path+".requestRedirect", r, prefix)
	}
	if w := f.URLRewrite; w != nil {
		if w.Hostname != nil {
			c.host(path+".urlRewrite.hostname", string(*w.Hostname))
		}
		c.pathModifier(path+".urlRewrite.path", w.Path, prefix)
	}
	if x := f.CORS; x != nil {
		c.gatewayCORS(path+".cors", x)
	}
}

func (c *checker) headerFilter(at string, f *gatewayv1.HTTPHeaderFilter) {
	if f == nil {
		return
	}
	c.most(at, len(f.Set)+len(f.Add), maxHeadersOfSide)
	seen := map[string]string{}
	once := func(path, name string, check func(path, name string)) {
		check(path, name)
		if first, dup := seen[strings.ToLower(name)]; dup {
			c.fail(path, fmt.Sprintf("%q is changed by %s too", name, first), "leave one of the two")
		}
		seen[strings.ToLower(name)] = path
	}
	for _, list := range []struct {
		field string
		all   []gatewayv1.HTTPHeader
	}{{"set", f.Set}, {"add", f.Add}} {
		for i, h := range list.all {
			path := fmt.Sprintf("%s.%s[%d]", at, list.field, i)
			once(path+".name", string(h.Name), c.settableHeader)
			// As a proxy is told it: a sign of its own is written twice.
			c.headerValue(path+".value", strings.ReplaceAll(h.Value, "%", "%%"))
		}
	}
	for i, name := range f.Remove {
		once(fmt.Sprintf("%s.remove[%d]", at, i), name, c.plainHeader)
	}
}

func (c *checker) gatewayRedirect(at string, r *gatewayv1.HTTPRequestRedirectFilter, prefix bool) {
	c.word(at+".scheme", ptr.Deref(r.Scheme, ""), "http", "https")
	if r.Hostname != nil {
		c.host(at+".hostname", string(*r.Hostname))
	}
	if r.Port != nil {
		c.port(at+".port", int64(*r.Port))
	}
	switch code := ptr.Deref(r.StatusCode, 302); code {
	case 301, 302, 303, 307, 308:
	default:
		c.fail(at+".statusCode", fmt.Sprintf("%d is not a redirect", code), "use 301, 302, 303, 307 or 308")
	}
	c.pathModifier(at+".path", r.Path, prefix)
}

func (c *checker) pathModifier(at string, p *gatewayv1.HTTPPathModifier, prefix bool) {
	if p == nil {
		return
	}
	c.word(at+".type", string(p.Type), "ReplaceFullPath", "ReplacePrefixMatch")
	full := p.Type == gatewayv1.FullPathHTTPPathModifier
	for _, field := range []struct {
		name   string
		value  *string
		wanted bool
	}{{"replaceFullPath", p.ReplaceFullPath, full}, {"replacePrefixMatch", p.ReplacePrefixMatch, !full}} {
		switch {
		case field.wanted && field.value == nil:
			c.fail(at+"."+field.name, "missing", "give the new path")
		case !field.wanted && field.value != nil:
			c.fail(at+"."+field.name, fmt.Sprintf("is set, but the type is %s", p.Type), "remove it, or correct the type")
		case field.value != nil && !gatewayPath.MatchString(*field.value+"/"):
			c.fail(at+"."+field.name, fmt.Sprintf("%q has characters that a path cannot have", *field.value), "write them as %XX")
		}
	}
	if !full && !prefix {
		c.fail(at+".type", "ReplacePrefixMatch needs exactly one match, of a PathPrefix", "use ReplaceFullPath, or split the rule")
	}
}

// maxOrigin is in bytes: a scheme, a name of the DNS and a port.
const maxOrigin = 300

func (c *checker) gatewayCORS(at string, x *gatewayv1.HTTPCORSFilter) {
	corsNames(c, at+".allowMethods", x.AllowMethods)
	corsNames(c, at+".allowHeaders", x.AllowHeaders)
	corsNames(c, at+".exposeHeaders", x.ExposeHeaders)
	for i, o := range x.AllowOrigins {
		path := fmt.Sprintf("%s.allowOrigins[%d]", at, i)
		scheme, host, ok := strings.Cut(string(o), "://")
		if o != "*" && (!ok || len(o) > maxOrigin || scheme == "" || host == "" || strings.Count(host, "*") > 1 || strings.Contains(host, "*") && !strings.HasPrefix(host, "*.")) {
			c.fail(path, fmt.Sprintf("%q is not an origin", o), `write scheme://host, scheme://*.domain or "*"`)
		}
	}
	if x.MaxAge < 0 {
		c.fail(at+".maxAge", "is negative", "use seconds, 0 or more")
	}
}

func (c *checker) timeouts(at string, t *gatewayv1.HTTPRouteTimeouts) {
	if t == nil {
		return
	}
	whole := c.gatewayDuration(at+".request", t.Request)
	each := c.gatewayDuration(at+".backendRequest", t.BackendRequest)
	if t.Request != nil && whole > 0 && each > whole {
		c.fail(at+".backendRequest", "is longer than the whole request may take", "let it be at most request")
	}
}

var gatewayDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

func (c *checker) gatewayDuration(path string, d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	parsed, err := time.ParseDuration(string(*d))
	if err != nil || !gatewayDuration.MatchString(string(*d)) {
		c.fail(path, fmt.Sprintf("%q is not a duration", *d), `write for example "10s", "500ms" or "1m30s" (GEP-2257)`)
		return 0
	}
	return parsed
}

func (c *checker) gatewayRetry(at string, r *gatewayv1.HTTPRouteRetry) {
	if r == nil {
		return
	}
	for i, code := range r.Codes {
		if code < 400 || code > 599 {
			c.fail(fmt.Sprintf("%s.codes[%d]", at, i), fmt.Sprintf("%d is not a status of a failure", code), "use 400 to 599")
		}
	}
	if n := ptr.Deref(r.Attempts, 1); n < 0 || n > 1000 {
		c.fail(at+".attempts", fmt.Sprintf("%d is out of range", n), "use 0 (no retries) to 1000")
	}
	if d := c.gatewayDuration(at+".backoff", r.Backoff); r.Backoff != nil && d < time.Millisecond {
		c.fail(at+".backoff", "is below 1ms", "use at least 1ms")
	}
}
