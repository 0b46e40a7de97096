package translate

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"heddle.io/heddle/control/model"
)

// Istio's names for what a filter of shadow rules tells the one that asks.
const (
	customStatPrefix = "istio_ext_authz_"
	customPrefix     = "istio-ext-authz-"
	// badCustomSuffix marks rules whose authorizer there is not.
	badCustomSuffix = "-deny-due-to-bad-CUSTOM-action"
)

// customTimeout of a question where nothing is said, as in Istio.
const customTimeout = 10 * time.Minute

// custom makes the filters that ask authorizers, before tokens and all other policies: of each authorizer's policies the
// rules, as a shadow, and the filter that asks about what they matched. What would have to be asked of nobody is refused.
func (g *generator) custom(policies []*model.AccessPolicy) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	if bad := g.customRules(policies, nil, badCustom); len(bad.Policies) > 0 {
		out = append(out, g.httpFilter(filterHTTPRBAC, &httprbacv3.RBAC{Rules: bad}))
	}
	done := map[string]bool{}
	for _, p := range policies {
		a := p.Authorizer
		if p.Action != model.Custom || a == nil || done[a.Name] {
			continue
		}
		done[a.Name] = true
		rules := g.customRules(policies, a, func(p *model.AccessPolicy, i int) string { return askedOf(a) + policyName(p, i) })
		out = append(out,
			g.httpFilter(filterHTTPRBAC, &httprbacv3.RBAC{ShadowRules: rules, ShadowRulesStatPrefix: customStatPrefix}),
			g.httpFilter(filterExtAuthz, g.extAuthz(a)))
	}
	return out
}

// customTCP makes the same filters for connections whose requests are not read. A rule about requests holds of a connection by what else
// it says, as a rule to deny does: what may have to be asked about is. An authorizer by HTTP is shown requests, so what would have
// to be asked of it is refused. All as in Istio.
func (g *generator) customTCP(policies []*model.AccessPolicy) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	bad := newDenial()
	asked := map[string]*rbacv3.RBAC{}
	var authorizers []*model.Authorizer
	for _, p := range policies {
		if p.Action != model.Custom {
			continue
		}
		for i, r := range p.Rules {
			r, holds := forTCP(r, model.Custom)
			if !holds {
				continue
			}
			a := p.Authorizer
			if a == nil || !a.GRPC {
				bad.Policies[badCustom(p, i)] = g.policy(r)
				continue
			}
			if asked[a.Name] == nil {
				asked[a.Name] = newDenial()
				authorizers = append(authorizers, a)
			}
			asked[a.Name].Policies[askedOf(a)+policyName(p, i)] = g.policy(r)
		}
	}
	if len(bad.Policies) > 0 {
		out = append(out, g.networkFilter(filterNetworkRBAC, &networkrbacv3.RBAC{Rules: bad, StatPrefix: statPrefixTCP}))
	}
	for _, a := range authorizers {
		out = append(out,
			g.networkFilter(filterNetworkRBAC, &networkrbacv3.RBAC{
				ShadowRules: asked[a.Name], ShadowRulesStatPrefix: customStatPrefix, StatPrefix: statPrefixTCP,
			}),
			g.networkFilter(filterNetworkExtAuthz, &networkextauthzv3.ExtAuthz{
				StatPrefix: statPrefixTCP, TransportApiVersion: corev3.ApiVersion_V3, FailureModeAllow: a.FailOpen,
				GrpcService: g.authorizerService(a), FilterEnabledMetadata: askedMetadata(filterNetworkRBAC, a),
			}))
	}
	return out
}

// customRules are the rules of the policies with an authorizer.
func (g *generator) customRules(
	policies []*model.AccessPolicy, of *model.Authorizer, name func(*model.AccessPolicy, int) string,
) *rbacv3.RBAC {
	out := newDenial()
	for _, p := range policies {
		same := (p.Authorizer == nil) == (of == nil) && (of == nil || p.Authorizer.Name == of.Name)
		if p.Action != model.Custom || !same {
			continue
		}
		for i, r := range p.Rules {
			out.Policies[name(p, i)] = g.policy(r)
		}
	}
	return out
}

func newDenial() *rbacv3.RBAC {
	return &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
}

// askedOf begins the names of rules whose matches an authorizer is asked about. One authorizer's name may begin another's.
func askedOf(a *model.Authorizer) string { return customPrefix + a.Name + "-" }

func badCustom(p *model.AccessPolicy, i int) string { return policyName(p, i) + badCustomSuffix }

func (g *generator) extAuthz(a *model.Authorizer) *extauthzv3.ExtAuthz {
	out := &extauthzv3.ExtAuthz{
		TransportApiVersion: corev3.ApiVersion_V3, FailureModeAllow: a.FailOpen, ClearRouteCache: a.ClearRouteCache,
		FilterEnabledMetadata: askedMetadata(filterHTTPRBAC, a),
	}
	if a.StatusOnError != 0 {
		out.StatusOnError = &typev3.HttpStatus{Code: typev3.StatusCode(a.StatusOnError)}
	}
	if b := a.Body; b != nil {
		out.WithRequestBody = &extauthzv3.BufferSettings{
			MaxRequestBytes: b.Max, AllowPartialMessage: b.AllowPartial, PackAsBytes: b.AsBytes,
		}
	}
	if a.GRPC {
		out.Services = &extauthzv3.ExtAuthz_GrpcService{GrpcService: g.authorizerService(a)}
		return out
	}
	cluster := g.ownCluster(a.Service, a.Port)
	service := &extauthzv3.HttpService{
		PathPrefix: a.PathPrefix,
		ServerUri: &corev3.HttpUri{
			Uri: fmt.Sprintf("http://%s", a.Service), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster},
			Timeout: authorizerTimeout(a),
		},
	}
	if len(a.AddHeaders) > 0 {
		service.AuthorizationRequest = &extauthzv3.AuthorizationRequest{}
		for _, h := range a.AddHeaders {
			service.AuthorizationRequest.HeadersToAdd = append(service.AuthorizationRequest.HeadersToAdd,
				&corev3.HeaderValue{Key: h.Name, Value: h.Value})
		}
	}
	out.AllowedHeaders = headerNames(a.ShowHeaders)
	if len(a.ToUpstream)+len(a.ToClientOnDeny)+len(a.ToClientOnAllow) > 0 {
		service.AuthorizationResponse = &extauthzv3.AuthorizationResponse{
			AllowedUpstreamHeaders:        headerNames(a.ToUpstream),
			AllowedClientHeaders:          headerNames(a.ToClientOnDeny),
			AllowedClientHeadersOnSuccess: headerNames(a.ToClientOnAllow),
		}
	}
	out.Services = &extauthzv3.ExtAuthz_HttpService{HttpService: service}
	return out
}

// askedMetadata matches where the shadow rules before, of the filter named, have found something to ask an authorizer about.
func askedMetadata(rbac string, a *model.Authorizer) *matcherv3.MetadataMatcher {
	return &matcherv3.MetadataMatcher{
		Filter: rbac, Value: textMatch(beginning(askedOf(a) + "ns[")),
		Path: []*matcherv3.MetadataMatcher_PathSegment{{
			Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: customStatPrefix + "shadow_effective_policy_id"},
		}},
	}
}

// authorizerService is the way to an authorizer by gRPC.
func (g *generator) authorizerService(a *model.Authorizer) *corev3.GrpcService {
	cluster := g.ownCluster(a.Service, a.Port)
	return &corev3.GrpcService{
		Timeout: authorizerTimeout(a),
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			// The name of the cluster is no host name.
			ClusterName: cluster, Authority: strings.ReplaceAll(cluster, "|", "_."),
		}},
	}
}

func authorizerTimeout(a *model.Authorizer) *durationpb.Duration {
	return duration(cmp.Or(a.Timeout, customTimeout))
}

// headerNames match fields by their names, in any case; nil for none.
func headerNames(patterns []string) *matcherv3.ListStringMatcher {
	if len(patterns) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, p := range patterns {
		m := pattern(p)
		// A regular expression, which "*" is, has no such flag.
		m.IgnoreCase = m.GetSafeRegex() == nil
		out.Patterns = append(out.Patterns, m)
	}
	return out
}
