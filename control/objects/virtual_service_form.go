package objects

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// RetryConditions are the words that retries.retryOn may hold: Envoy's x-envoy-retry-on and x-envoy-retry-grpc-on.
// Numbers (status codes) may stand there too.
var RetryConditions = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "refused-stream", "retriable-4xx",
	"retriable-status-codes", "cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
}

func (c *checker) virtualService(v *networkingv1.VirtualService) {
	if len(v.Spec.Hosts) == 0 {
		c.fail("spec.hosts", "missing", "give at least one host")
	}
	seen := map[string]bool{}
	mesh := len(v.Spec.Gateways) == 0 || slices.Contains(v.Spec.Gateways, "mesh")
	for i, h := range v.Spec.Hosts {
		at := fmt.Sprintf("spec.hosts[%d]", i)
		c.host(at, h)
		if seen[h] {
			c.fail(at, fmt.Sprintf("%q is there twice", h), "remove one of the two")
		}
		seen[h] = true
		if h == "*" && mesh {
			c.fail(at, `"*" cannot be used within the mesh`, "name the hosts, or bind the routes to a gateway only")
		}
	}
	for i, g := range v.Spec.Gateways {
		c.gatewayName(fmt.Sprintf("spec.gateways[%d]", i), g)
	}
	c.exportTo("spec.exportTo", v.Spec.ExportTo)
	if len(v.Spec.Http)+len(v.Spec.Tcp)+len(v.Spec.Tls) == 0 {
		c.fail("spec", "has no routes", "give http or tcp routes")
	}
	for i, r := range v.Spec.Http {
		c.httpRoute(fmt.Sprintf("spec.http[%d]", i), r)
	}
	for i, r := range v.Spec.Tcp {
		at := fmt.Sprintf("spec.tcp[%d]", i)
		for j, m := range r.Match {
			mat := fmt.Sprintf("%s.match[%d]", at, j)
			if m.GetPort() != 0 {
				c.port(mat+".port", int64(m.Port))
			}
			c.labels(mat+".sourceLabels", m.GetSourceLabels())
			for k, g := range m.GetGateways() {
				c.gatewayName(fmt.Sprintf("%s.gateways[%d]", mat, k), g)
			}
		}
		weights := make([]int32, len(r.Route))
		for j, d := range r.Route {
			c.destination(fmt.Sprintf("%s.route[%d].destination", at, j), d.GetDestination())
			weights[j] = d.GetWeight()
		}
		c.weights(at, weights)
	}
}

func (c *checker) gatewayName(path, g string) {
	if g == "mesh" {
		return
	}
	name := g
	if ns, rest, ok := strings.Cut(g, "/"); ok {
		if ns != "." {
			c.dnsLabel(path, ns)
		}
		name = rest
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		c.fail(path, fmt.Sprintf("%q is not a gateway's name", g), "write name, namespace/name or mesh")
	}
}

func (c *checker) httpRoute(at string, r *networking.HTTPRoute) {
	actions := 0
	if len(r.Route) > 0 {
		actions++
	}
	if r.Redirect != nil {
		actions++
		c.redirect(at+".redirect", r.Redirect)
	}
	if r.DirectResponse != nil {
		actions++
		if s := r.DirectResponse.Status; s < 200 || s > 599 {
			c.fail(at+".directResponse.status", fmt.Sprintf("%d is not a status", s), "use 200 to 599")
		}
		if b := r.DirectResponse.GetBody(); b != nil && len(b.GetString_())+len(b.GetBytes()) > 4096 {
			c.fail(at+".directResponse.body", "is longer than 4096 bytes", "serve longer answers from a workload")
		}
	}
	if actions != 1 {
		c.fail(at, fmt.Sprintf("has %d of route, redirect and directResponse", actions), "give exactly one")
	}
	for i, m := range r.Match {
		c.httpMatch(fmt.Sprintf("%s.match[%d]", at, i), m)
	}
	weights := make([]int32, len(r.Route))
	for i, d := range r.Route {
		path := fmt.Sprintf("%s.route[%d]", at, i)
		c.destination(path+".destination", d.GetDestination())
		weights[i] = d.GetWeight()
		if d.Headers != nil {
			if len(r.Route) > 1 {
				c.fail(path+".headers", "header changes for one of several destinations are not supported",
					"change headers of the whole route in http[].headers")
			}
			c.headers(path+".headers", d.Headers)
		}
	}
	if len(r.Route) > 0 {
		c.weights(at, weights)
	}
	c.duration(at+".timeout", r.Timeout)
	c.headers(at+".headers", r.Headers)
	if w := r.Rewrite; w != nil {
		if len(r.Route) == 0 {
			c.fail(at+".rewrite", "needs a route", "remove it, or route to a destination")
		}
		if w.Uri != "" && w.UriRegexRewrite != nil {
			c.fail(at+".rewrite", "has both uri and uriRegexRewrite", "leave one")
		}
		c.noControls(at+".rewrite", w.Uri+w.Authority+w.GetUriRegexRewrite().GetRewrite())
		if rw := w.UriRegexRewrite; rw != nil {
			c.regex(at+".rewrite.uriRegexRewrite.match", rw.Match)
			c.substitution(at+".rewrite.uriRegexRewrite.rewrite", rw.Match, rw.Rewrite)
		}
	}
	c.retries(at+".retries", r.Retries)
	c.fault(at+".fault", r.Fault)
	c.cors(at+".corsPolicy", r.CorsPolicy)
	c.mirrors(at, r)
}

// noControls refuses what ends a line of a message, and what no header can hold.
func (c *checker) noControls(at, text string) {
	if strings.ContainsAny(text, "\r\n\x00") {
		c.fail(at, "holds control characters", "remove them")
	}
}

func (c *checker) redirect(at string, r *networking.HTTPRedirect) {
	switch r.RedirectCode {
	case 0, 301, 302, 303, 307, 308:
	default:
		c.fail(at+".redirectCode", fmt.Sprintf("%d is not a redirect", r.RedirectCode),
			"use 301, 302, 303, 307 or 308")
	}
	switch r.Scheme {
	case "", "http", "https":
	default:
		c.fail(at+".scheme", fmt.Sprintf("%q is not a scheme", r.Scheme), "use http or https")
	}
	if p := r.GetPort(); p > 65535 {
		c.port(at+".port", int64(p))
	}
	c.noControls(at, r.Uri+r.Authority+r.GetPrefixRewrite())
	if r.Uri != "" && r.GetPrefixRewrite() != "" {
		c.fail(at, "has both uri and prefixRewrite", "leave one")
	}
}

func (c *checker) httpMatch(at string, m *networking.HTTPMatchRequest) {
	if m == nil {
		return
	}
	c.stringMatch(at+".uri", m.Uri)
	c.stringMatch(at+".scheme", m.Scheme)
	c.stringMatch(at+".method", m.Method)
	c.stringMatch(at+".authority", m.Authority)
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		c.matchedHeader(joinKey(at+".headers", name), name)
		c.stringMatch(joinKey(at+".headers", name), m.Headers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.WithoutHeaders)) {
		c.matchedHeader(joinKey(at+".withoutHeaders", name), name)
		c.stringMatch(joinKey(at+".withoutHeaders", name), m.WithoutHeaders[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.QueryParams)) {
		c.queryName(joinKey(at+".queryParams", name), name)
		c.stringMatch(joinKey(at+".queryParams", name), m.QueryParams[name])
	}
	if m.Port > 65535 {
		c.port(at+".port", int64(m.Port))
	}
	if m.IgnoreUriCase && m.Uri.GetRegex() != "" {
		c.fail(at+".ignoreUriCase", "has no effect on a regex", "begin the regex with (?i)")
	}
	c.labels(at+".sourceLabels", m.SourceLabels)
	for i, g := range m.Gateways {
		c.gatewayName(fmt.Sprintf("%s.gateways[%d]", at, i), g)
	}
}

// maxQueryName is Envoy's bound, in bytes (QueryParameterMatcher.name).
const maxQueryName = 1024

func (c *checker) queryName(path, name string) {
	if name == "" || len(name) > maxQueryName {
		c.fail(path, fmt.Sprintf("a parameter's name has 1 to %d bytes, this one %d", maxQueryName, len(name)), "correct the name")
	}
}

func (c *checker) stringMatch(at string, m *networking.StringMatch) {
	if r, ok := m.GetMatchType().(*networking.StringMatch_Regex); ok {
		c.regex(at+".regex", r.Regex)
	}
	if p, ok := m.GetMatchType().(*networking.StringMatch_Prefix); ok && p.Prefix == "" {
		c.fail(at+".prefix", "is empty", "remove the match")
	}
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (c *checker) headerName(path, name string) {
	if len(name) > maxHeaderName {
		c.fail(path, fmt.Sprintf("a name of %d bytes is longer than %d", len(name), maxHeaderName), "shorten it")
		return
	}
	if !headerName.MatchString(name) && !slices.Contains([]string{":method", ":authority", ":path", ":scheme"}, name) {
		c.fail(path, fmt.Sprintf("%q is not a header name", name), "use letters, digits and '-'")
	}
}

// matchedHeader is a header that a match looks at, or a claim that stands in its place.
func (c *checker) matchedHeader(path, name string) {
	if !strings.HasPrefix(name, "@") {
		c.headerName(path, name)
	} else if _, ok := RoutingClaim(name); !ok {
		c.fail(path, fmt.Sprintf("%q names no claim", name), "write @request.auth.claims.name or @request.auth.claims[name]")
	}
}

func (c *checker) headers(at string, h *networking.Headers) {
	for _, side := range []struct {
		name string
		ops  *networking.Headers_HeaderOperations
	}{{"request", h.GetRequest()}, {"response", h.GetResponse()}} {
		c.most(at+"."+side.name, len(side.ops.GetSet())+len(side.ops.GetAdd()), maxHeadersOfSide)
		for _, op := range []struct {
			name   string
			values map[string]string
		}{{"set", side.ops.GetSet()}, {"add", side.ops.GetAdd()}} {
			for _, name := range slices.Sorted(maps.Keys(op.values)) {
				path := joinKey(at+"."+side.name+"."+op.name, name)
				c.settableHeader(path, name)
				c.headerValue(path, op.values[name])
				c.headerFormat(path, op.values[name])
			}
		}
		for i, name := range side.ops.GetRemove() {
			c.plainHeader(fmt.Sprintf("%s.%s.remove[%d]", at, side.name, i), name)
		}
	}
}

// headerOperators are the values that a header may be made from, Envoy's command operators.
var headerOperators = regexp.MustCompile(`%%|%(PROTOCOL|START_TIME|DOWNSTREAM_REMOTE_ADDRESS|` +
	`DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT|DOWNSTREAM_LOCAL_ADDRESS|DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT|` +
	`DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT|DOWNSTREAM_PEER_URI_SAN|DOWNSTREAM_PEER_SUBJECT|` +
	`UPSTREAM_REMOTE_ADDRESS|UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT|REQUESTED_SERVER_NAME|ROUTE_NAME|` +
	`REQ\(:?[A-Za-z0-9-]+(\?:?[A-Za-z0-9-]+)?\)(:[0-9]{1,4})?)%`)

// Envoy's bounds: of a value and a name in bytes (HeaderValue), and of how many headers one route sets or adds on a side
// (Route.request_headers_to_add).
const (
	maxHeaderValue   = 16384
	maxHeaderName    = 16384
	maxHeadersOfSide = 1000
)

func (c *checker) headerValue(path, value string) {
	c.noControls(path, value)
	if len(value) > maxHeaderValue {
		c.fail(path, fmt.Sprintf("the value is longer than %d bytes", maxHeaderValue), "shorten it")
	}
}

// headerFormat refuses "%" signs that a proxy could not read: it would refuse the whole route table.
func (c *checker) headerFormat(path, value string) {
	if strings.Contains(headerOperators.ReplaceAllString(value, ""), "%") {
		c.fail(path, fmt.Sprintf("%q has a \"%%\" that begins no known operator", value),
			"write %% for the sign itself, or an operator such as %REQ(x-name)% or %DOWNSTREAM_REMOTE_ADDRESS%")
	}
}

// plainHeader refuses what Envoy refuses to change: pseudo headers and Host. The authority is changed by rewrite.
func (c *checker) plainHeader(path, name string) {
	if strings.HasPrefix(name, ":") || strings.EqualFold(name, "host") {
		c.fail(path, fmt.Sprintf("%q cannot be changed here", name), "use rewrite.authority for the host")
		return
	}
	c.headerName(path, name)
}

// settableHeader refuses as well what says where a message ends: who believes another value than the proxy's own takes a body for
// the next message.
func (c *checker) settableHeader(path, name string) {
	if strings.EqualFold(name, "content-length") || strings.EqualFold(name, "transfer-encoding") {
		c.fail(path, fmt.Sprintf("%q cannot be set: where a message ends is known by the proxy alone", name), "leave it out")
		return
	}
	c.plainHeader(path, name)
}

func (c *checker) duration(path string, d *durationpb.Duration) {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration().Hours() > 24*365) {
		c.fail(path, "is out of range", "use 0s to a year")
	}
}

func (c *checker) retries(at string, r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	if r.Attempts < 0 || r.Attempts > 1000 {
		c.fail(at+".attempts", fmt.Sprintf("%d is out of range", r.Attempts), "use 0 (no retries) to 1000")
	}
	if r.Attempts == 0 && (r.PerTryTimeout != nil || r.RetryOn != "" || r.Backoff != nil) {
		c.fail(at+".attempts", "is 0, so nothing is retried", "set attempts, or remove the other fields")
	}
	c.duration(at+".perTryTimeout", r.PerTryTimeout)
	c.duration(at+".backoff", r.Backoff)
	if r.Backoff != nil && r.Backoff.AsDuration().Milliseconds() < 1 {
		c.fail(at+".backoff", "is below 1ms", "use at least 1ms")
	}
	if r.RetryOn == "" {
		return
	}
	for _, word := range strings.Split(r.RetryOn, ",") {
		word = strings.TrimSpace(word)
		if statusCode.MatchString(word) || slices.Contains(RetryConditions, word) {
			continue
		}
		remedy := "use status codes and words of " + strings.Join(RetryConditions, ", ")
		if near := Nearest(word, RetryConditions); near != "" {
			remedy = fmt.Sprintf("did you mean %q?", near)
		}
		c.fail(at+".retryOn", fmt.Sprintf("%q is not a condition", word), remedy)
	}
}

var statusCode = regexp.MustCompile(`^[1-5][0-9][0-9]$`)

func (c *checker) destination(at string, d *networking.Destination) {
	if d == nil || d.Host == "" {
		c.fail(at+".host", "missing", "name the service")
		return
	}
	if strings.HasPrefix(d.Host, "*") {
		c.fail(at+".host", `cannot hold "*"`, "name one service")
		return
	}
	c.host(at+".host", d.Host)
	if p := d.GetPort(); p != nil {
		c.port(at+".port.number", int64(p.Number))
	}
	if d.Subset != "" {
		c.dnsLabel(at+".subset", d.Subset)
	}
}

func (c *checker) weights(at string, weights []int32) {
	if len(weights) == 0 {
		c.fail(at+".route", "missing", "give at least one destination")
		return
	}
	total := int64(0)
	for i, w := range weights {
		if w < 0 {
			c.fail(fmt.Sprintf("%s.route[%d].weight", at, i), "is negative", "use 0 or more")
		}
		total += int64(w)
	}
	if len(weights) > 1 && total == 0 {
		c.fail(at+".route", "the weights add up to 0", "give weights")
	}
	if total > 1<<31-1 {
		c.fail(at+".route", "the weights are too large", "let them add up to 100")
	}
}
