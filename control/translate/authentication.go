package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/emptypb"

	"heddle.io/heddle/control/model"
)

// payloadKey is where the filter puts a token's claims, below its own name.
const payloadKey = "payload"

// How long a fetch of keys may take where nothing is said, and how often it is made, as in Istio.
const (
	keysTimeout  = 5 * time.Second
	keysDuration = 5 * time.Minute
)

// listClaims are the claims that Istio takes for lists in any case.
var listClaims = []string{"permission", "scope"}

// authentication makes the filter that verifies tokens; none without issuers. At a gateway claims may choose the route.
func (g *generator) authentication() []*hcmv3.HttpFilter {
	rules := g.mesh.AuthenticationsFor(g.node.Namespace, g.node.Labels)
	for _, a := range rules {
		g.from(a.Source)
	}
	issuers := model.Issuers(rules)
	if len(issuers) == 0 {
		return nil
	}
	config := &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{}, BypassCorsPreflight: true}
	var optional, either []*jwtv3.JwtRequirement
	for i, issuer := range issuers {
		name := fmt.Sprintf("origins-%d", i)
		config.Providers[name] = g.provider(issuer)
		either = append(either, ofProvider(name))
		optional = append(optional, anyOf(ofProvider(name), &jwtv3.JwtRequirement{
			RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}},
		}))
	}
	requires := optional[0]
	if len(issuers) > 1 {
		// As in Istio. Where issuers' tokens are in the same place, one that is good for one of them is bad for the others, so
		// being good for one is enough. It is where their places differ, too: what is in the others' places then goes on
		// unread, so that policies see the claims of good tokens only, and applications must not read tokens themselves.
		requires = anyOf(append(either, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{
			RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: optional},
		}})...)
	}
	config.Rules = []*jwtv3.RequirementRule{{
		Match: anyPath(), RequirementType: &jwtv3.RequirementRule_Requires{Requires: requires},
	}}
	return []*hcmv3.HttpFilter{g.httpFilter(filterJWT, config)}
}

func (g *generator) provider(i model.TokenIssuer) *jwtv3.JwtProvider {
	lists := append(slices.Clone(i.ListClaims), listClaims...)
	slices.Sort(lists)
	out := &jwtv3.JwtProvider{
		Issuer: i.Issuer, Audiences: i.Audiences, Forward: i.Forward, ForwardPayloadHeader: i.PayloadHeader,
		FromParams: i.FromParams, FromCookies: i.FromCookies, PayloadInMetadata: payloadKey,
		NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{SpaceDelimitedClaims: slices.Compact(lists)},
		ClearRouteCache:            g.node.Type == Router,
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: i.Keys},
		}},
	}
	if i.Fetch != nil {
		out.JwksSourceSpecifier = &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: g.remoteKeys(i.Fetch)}
	}
	for _, h := range i.FromHeaders {
		out.FromHeaders = append(out.FromHeaders, &jwtv3.JwtHeader{Name: h.Name, ValuePrefix: h.Prefix})
	}
	for _, h := range i.ClaimHeaders {
		out.ClaimToHeaders = append(out.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: h.Name, ClaimName: h.Claim})
	}
	return out
}

// remoteKeys has the proxy fetch keys ahead, so that they stay good while their host cannot be reached. A listener does
// not wait for them, only requests with tokens do.
func (g *generator) remoteKeys(s *model.KeysSource) *jwtv3.RemoteJwks {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = keysTimeout
	}
	return &jwtv3.RemoteJwks{
		HttpUri: &corev3.HttpUri{
			Uri: s.URI, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: g.keysCluster(s)}, Timeout: duration(timeout),
		},
		CacheDuration: duration(keysDuration),
		AsyncFetch:    &jwtv3.JwksAsyncFetch{FastListener: true},
	}
}

// keysCluster makes the cluster of an issuer's keys, if it is not there for another reason, and names it.
func (g *generator) keysCluster(s *model.KeysSource) string {
	if s.Service != "" {
		return g.ownCluster(s.Service, s.Port)
	}
	name := fmt.Sprintf("jwks|%d||%s", s.Port, s.Host)
	if g.clusters[name] {
		return name
	}
	g.clusters[name] = true
	outside := &model.Service{Host: s.Host, External: &model.External{}}
	if address, err := netip.ParseAddr(s.Host); err == nil {
		outside.External.Addresses = []netip.Addr{address}
	} else {
		outside.External.Names = []string{s.Host}
	}
	port := model.ServicePort{Number: s.Port, Target: s.Port, Protocol: model.HTTP, TLS: true}
	g.fixedCluster(name, func() *clusterv3.Cluster { return g.clientCluster(name, outside, port, clusterKey{}, nil).cluster })
	return name
}

// ownCluster names the cluster of a service that the proxy itself calls, and makes it at a gateway: a sidecar has the
// clusters of all services that its workload may use.
func (g *generator) ownCluster(host string, port uint16) string {
	if g.node.Type == Router {
		g.destinationClusters([]model.Destination{{Host: host, Port: port}})
	}
	return outboundCluster(host, port, "")
}

func ofProvider(name string) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
}

func anyOf(requirements ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: requirements},
	}}
}

// claim compares a claim of a verified token, whose value may be nested in others.
func claim(path []string, value *matcherv3.ValueMatcher) *matcherv3.MetadataMatcher {
	out := &matcherv3.MetadataMatcher{Filter: filterJWT, Value: value}
	for _, name := range append([]string{payloadKey}, path...) {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: name},
		})
	}
	return out
}

// textOrList matches a text, and a list with such a text in it.
func textOrList(text *matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	return orMatch(&matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: text}},
	}}, text)
}

func orMatch(values ...*matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: values},
	}}
}

func textMatch(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

// claimMatch is a route's condition on a claim.
func claimMatch(m model.ClaimMatch) *matcherv3.MetadataMatcher {
	value := textOrList(textMatch(stringMatcher(m.Match)))
	if m.Match.Kind == model.Present {
		value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
	}
	out := claim(m.Claim, value)
	out.Invert = m.Not
	return out
}

// byClaim matches requests whose claim has one of some values; there is one at least.
func byClaim(path, values []string) *rbacv3.Principal {
	texts := make([]*matcherv3.ValueMatcher, 0, len(values))
	for _, v := range values {
		texts = append(texts, textMatch(pattern(v)))
	}
	if len(texts) == 1 {
		return byMetadata(claim(path, textOrList(texts[0])))
	}
	return byMetadata(claim(path, textOrList(orMatch(texts...))))
}

// claimValues demands that a claim has one of In, and none of Not.
func claimValues(path []string, v model.Values[string]) []*rbacv3.Principal {
	var out []*rbacv3.Principal
	if len(v.In) > 0 {
		out = append(out, byClaim(path, v.In))
	}
	if len(v.Not) > 0 {
		out = append(out, &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: byClaim(path, v.Not)}})
	}
	return out
}

// byRequestPrincipal matches issuer/subject of a verified token. An issuer may be a URL, so the last slash divides them.
func byRequestPrincipal(v string) *rbacv3.Principal {
	issuer, subject := requestPrincipal(v)
	return allPrincipals([]*rbacv3.Principal{
		byMetadata(claim([]string{"iss"}, textMatch(issuer))), byMetadata(claim([]string{"sub"}, textMatch(subject))),
	})
}

func byMetadata(m *matcherv3.MetadataMatcher) *rbacv3.Principal {
	//nolint:staticcheck // Deprecated in Envoy's API, and what Istio writes.
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Metadata{Metadata: m}}
}

// requestPrincipal reads Istio's patterns: a star at the beginning is the issuer's, one at the end the subject's, and
// without a slash the rest is the other's.
func requestPrincipal(v string) (issuer, subject *matcherv3.StringMatcher) {
	at := strings.LastIndex(v, "/")
	iss, sub := v, ""
	if at >= 0 {
		iss, sub = v[:at], v[at+1:]
	}
	switch {
	case v == "*":
		return pattern("*"), pattern("*")
	case strings.HasPrefix(v, "*") && at < 0:
		return pattern("*"), ending(v[1:])
	case strings.HasPrefix(v, "*"):
		return pattern(iss), exactly(sub)
	case strings.HasSuffix(v, "*") && at < 0:
		return beginning(strings.TrimSuffix(v, "*")), pattern("*")
	case strings.HasSuffix(v, "*"):
		return exactly(iss), pattern(sub)
	}
	return exactly(iss), exactly(sub)
}
