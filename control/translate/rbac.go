package translate

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
)

// httpRBAC makes the filters that enforce policies on requests: first what is marked for logs, then what is denied, then
// what is allowed. Where any policy allows something, everything else is refused. What authorizers decide comes before,
// see [generator.custom].
func (g *generator) httpRBAC(policies []*model.AccessPolicy) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for _, rules := range g.rules(policies, false) {
		out = append(out, g.httpFilter(filterHTTPRBAC, &httprbacv3.RBAC{Rules: rules}))
	}
	return out
}

// networkRBAC makes the filters that enforce policies on connections whose requests are not read.
func (g *generator) networkRBAC(policies []*model.AccessPolicy) []*listenerv3.Filter {
	out := g.customTCP(policies)
	for _, rules := range g.rules(policies, true) {
		out = append(out, g.networkFilter(filterNetworkRBAC, &networkrbacv3.RBAC{Rules: rules, StatPrefix: statPrefixTCP}))
	}
	return out
}

func (g *generator) rules(policies []*model.AccessPolicy, tcp bool) []*rbacv3.RBAC {
	var out []*rbacv3.RBAC
	for _, a := range []struct {
		action model.AccessAction
		rbac   rbacv3.RBAC_Action
	}{{model.Audit, rbacv3.RBAC_LOG}, {model.Deny, rbacv3.RBAC_DENY}, {model.Allow, rbacv3.RBAC_ALLOW}} {
		rules, any := &rbacv3.RBAC{Action: a.rbac, Policies: map[string]*rbacv3.Policy{}}, false
		for _, p := range policies {
			if p.Action != a.action {
				continue
			}
			any = true
			for i, r := range p.Rules {
				if tcp {
					var holds bool
					if r, holds = forTCP(r, p.Action); !holds {
						continue
					}
				}
				rules.Policies[policyName(p, i)] = g.policy(r)
			}
		}
		if any {
			out = append(out, rules)
		}
	}
	return out
}

func policyName(p *model.AccessPolicy, rule int) string {
	return fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", p.Namespace, p.Name, rule)
}

// forTCP makes of a rule what can be told of a connection, as Istio does: a rule to allow that asks for something of
// requests never holds; others hold without it, since to deny or to ask more is the safe reading.
func forTCP(r model.AccessRule, action model.AccessAction) (model.AccessRule, bool) {
	out := model.AccessRule{}
	for _, f := range r.From {
		if !f.NeedsHTTP() {
			out.From = append(out.From, f)
		} else if action != model.Allow {
			f.RequestPrincipals = model.Values[string]{}
			out.From = append(out.From, f)
		}
	}
	if len(r.From) > 0 && len(out.From) == 0 {
		return out, false
	}
	for _, t := range r.To {
		if !t.NeedsHTTP() {
			out.To = append(out.To, t)
			continue
		}
		if action == model.Allow {
			continue
		}
		out.To = append(out.To, model.AccessTo{Ports: t.Ports})
	}
	if len(r.To) > 0 && len(out.To) == 0 {
		return out, false
	}
	for _, c := range r.When {
		if !c.NeedsHTTP() {
			out.When = append(out.When, c)
		} else if action == model.Allow {
			return out, false
		}
	}
	return out, true
}

func (g *generator) policy(r model.AccessRule) *rbacv3.Policy {
	var fromAll []*rbacv3.Principal
	var toAll []*rbacv3.Permission
	for _, c := range r.When {
		if p := g.conditionPrincipals(c); p != nil {
			fromAll = append(fromAll, p...)
		}
		toAll = append(toAll, conditionPermissions(c)...)
	}
	out := &rbacv3.Policy{}
	from := r.From
	if len(from) == 0 {
		from = []model.AccessFrom{{}}
	}
	for _, f := range from {
		out.Principals = append(out.Principals, allPrincipals(append(g.principals(f), fromAll...)))
	}
	to := r.To
	if len(to) == 0 {
		to = []model.AccessTo{{}}
	}
	for _, t := range to {
		out.Permissions = append(out.Permissions, allPermissions(append(permissions(t), toAll...)))
	}
	return out
}

func (g *generator) principals(f model.AccessFrom) []*rbacv3.Principal {
	var out []*rbacv3.Principal
	out = append(out, principalValues(f.Principals, g.byPrincipal)...)
	out = append(out, principalValues(f.Namespaces, g.byNamespace)...)
	out = append(out, principalValues(f.Accounts, g.byAccount)...)
	out = append(out, principalValues(f.RequestPrincipals, byRequestPrincipal)...)
	out = append(out, principalValues(f.IPs, byDirectIP)...)
	return append(out, principalValues(f.RemoteIPs, byRemoteIP)...)
}

func (g *generator) conditionPrincipals(c model.Condition) []*rbacv3.Principal {
	switch c.Kind {
	case model.OnHeader:
		return principalValues(c.Values, func(v string) *rbacv3.Principal {
			return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: headerPattern(c.Header, v, namesHost(c.Header))}}
		})
	case model.OnSourceIP:
		return principalValues(c.IPs, byDirectIP)
	case model.OnRemoteIP:
		return principalValues(c.IPs, byRemoteIP)
	case model.OnSourceNamespace:
		return principalValues(c.Values, g.byNamespace)
	case model.OnPrincipal:
		return principalValues(c.Values, g.byPrincipal)
	case model.OnAccount:
		return principalValues(c.Accounts, g.byAccount)
	case model.OnCluster:
		return principalValues(c.Values, g.byCluster)
	case model.OnRequestPrincipal:
		return principalValues(c.Values, byRequestPrincipal)
	case model.OnAudiences:
		return claimValues([]string{"aud"}, c.Values)
	case model.OnPresenter:
		return claimValues([]string{"azp"}, c.Values)
	case model.OnClaim:
		return claimValues(c.Claim, c.Values)
	}
	return nil
}

func conditionPermissions(c model.Condition) []*rbacv3.Permission {
	switch c.Kind {
	case model.OnDestinationIP:
		return permissionValues(c.IPs, func(p netip.Prefix) *rbacv3.Permission {
			return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: cidr(p)}}
		})
	case model.OnDestinationPort:
		return permissionValues(c.Ports, byPort)
	case model.OnServerName:
		return permissionValues(c.Values, func(v string) *rbacv3.Permission {
			return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: sniPattern(v)}}
		})
	}
	return nil
}

// namesHost says whether a field holds a host, which has no case (RFC 9110, section 4.2.3).
func namesHost(field string) bool {
	return strings.EqualFold(field, "host") || strings.EqualFold(field, ":authority")
}

// sniPattern is a pattern in lower case: proxies compare the SNI in lower case, as it has none (RFC 6066, section 3).
func sniPattern(v string) *matcherv3.StringMatcher {
	return pattern(strings.ToLower(v))
}

func permissions(t model.AccessTo) []*rbacv3.Permission {
	header := func(name string) func(string) *rbacv3.Permission {
		return func(v string) *rbacv3.Permission {
			return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: headerPattern(name, v, namesHost(name))}}
		}
	}
	var out []*rbacv3.Permission
	out = append(out, permissionValues(t.Hosts, header(":authority"))...)
	out = append(out, permissionValues(t.Methods, header(":method"))...)
	out = append(out, permissionValues(t.Paths, func(v string) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
			Rule: &matcherv3.PathMatcher_Path{Path: pattern(v)},
		}}}
	})...)
	return append(out, permissionValues(t.Ports, byPort)...)
}

func byPort(port uint16) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(port)}}
}

func authenticated(m *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
		Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m},
	}}
}

// byPrincipal matches <trust domain>/ns/<namespace>/sa/<account>. Policies written for Istio's default trust domain
// hold for this mesh's.
func (g *generator) byPrincipal(v string) *rbacv3.Principal {
	if rest, ok := strings.CutPrefix(v, "cluster.local/"); ok {
		v = g.mesh.Settings.TrustDomain + "/" + rest
	}
	switch {
	case v == "*", strings.HasPrefix(v, "*"):
		return authenticated(pattern(v))
	}
	return authenticated(pattern("spiffe://" + v))
}

func (g *generator) byNamespace(v string) *rbacv3.Principal {
	base := "spiffe://" + g.mesh.Settings.TrustDomain + "/ns/"
	switch {
	case v == "*":
		return authenticated(beginning(base))
	case strings.HasSuffix(v, "*"):
		return authenticated(beginning(base + strings.TrimSuffix(v, "*")))
	case strings.HasPrefix(v, "*"):
		return authenticated(matching(regexp.QuoteMeta(base) + "[^/]*" + regexp.QuoteMeta(v[1:]) + "/.*"))
	}
	return authenticated(beginning(base + v + "/"))
}

func (g *generator) byAccount(a model.Account) *rbacv3.Principal {
	return authenticated(exactly(g.mesh.Settings.Identity(a.Namespace, a.Name)))
}

// byCluster matches the DNS name that says whose authority issued the caller's certificate, for every cluster of the mesh
// that the value means: the same names, compared in the same way, as [generator.callers] demands one of. Envoy's untyped
// principal would compare URIs and the subject too, which no constraint keeps an authority from choosing.
func (g *generator) byCluster(v string) *rbacv3.Principal {
	before, after, open := strings.Cut(v, "*")
	meant := slices.DeleteFunc(slices.Clone(g.issuers()), func(i cluster.Issuer) bool {
		fits := open && len(i.Cluster) >= len(before)+len(after) && strings.HasPrefix(i.Cluster, before) && strings.HasSuffix(i.Cluster, after)
		return i.Cluster != v && !fits
	})
	if len(meant) == 0 {
		// Nobody can prove to be of a cluster that is none of the mesh's.
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: anyone()}}
	}
	return anyPrincipal(meant, func(i cluster.Issuer) *rbacv3.Principal {
		return g.provenName(i.Name(g.mesh.Settings.TrustDomain))
	})
}

// provenName matches callers whose verified certificate has this DNS name.
func (g *generator) provenName(name string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Custom{Custom: &corev3.TypedExtensionConfig{
		Name: principalMutualTLS, TypedConfig: g.pack(&mtlsv3.Config{SanMatcher: dnsMatcher(exactly(name))}),
	}}}
}

func anyone() *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
}

func byDirectIP(p netip.Prefix) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: cidr(p)}}
}

func byRemoteIP(p netip.Prefix) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: cidr(p)}}
}

func cidr(p netip.Prefix) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: count(uint32(p.Bits()))}
}

// pattern is Istio's: exact, "prefix*", "*suffix", and "*" for anything that is not empty.
func pattern(v string) *matcherv3.StringMatcher {
	switch {
	case v == "*":
		return matching(".+")
	case strings.HasSuffix(v, "*"):
		return beginning(strings.TrimSuffix(v, "*"))
	case strings.HasPrefix(v, "*"):
		return ending(v[1:])
	}
	return exactly(v)
}

func headerPattern(name, v string, ignoreCase bool) *routev3.HeaderMatcher {
	if v == "*" {
		return &routev3.HeaderMatcher{
			Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}
	}
	m := pattern(v)
	m.IgnoreCase = ignoreCase
	return &routev3.HeaderMatcher{
		Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m},
	}
}

// principalValues demands one of In, and none of Not.
func principalValues[T any](v model.Values[T], make func(T) *rbacv3.Principal) []*rbacv3.Principal {
	var out []*rbacv3.Principal
	if len(v.In) > 0 {
		out = append(out, anyPrincipal(v.In, make))
	}
	if len(v.Not) > 0 {
		out = append(out, &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: anyPrincipal(v.Not, make)}})
	}
	return out
}

func anyPrincipal[T any](values []T, make func(T) *rbacv3.Principal) *rbacv3.Principal {
	if len(values) == 1 {
		return make(values[0])
	}
	set := &rbacv3.Principal_Set{}
	for _, v := range values {
		set.Ids = append(set.Ids, make(v))
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: set}}
}

func allPrincipals(all []*rbacv3.Principal) *rbacv3.Principal {
	switch len(all) {
	case 0:
		return anyone()
	case 1:
		return all[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: all}}}
}

func permissionValues[T any](v model.Values[T], make func(T) *rbacv3.Permission) []*rbacv3.Permission {
	var out []*rbacv3.Permission
	if len(v.In) > 0 {
		out = append(out, anyPermission(v.In, make))
	}
	if len(v.Not) > 0 {
		out = append(out, &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: anyPermission(v.Not, make)}})
	}
	return out
}

func anyPermission[T any](values []T, make func(T) *rbacv3.Permission) *rbacv3.Permission {
	if len(values) == 1 {
		return make(values[0])
	}
	set := &rbacv3.Permission_Set{}
	for _, v := range values {
		set.Rules = append(set.Rules, make(v))
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: set}}
}

func allPermissions(all []*rbacv3.Permission) *rbacv3.Permission {
	switch len(all) {
	case 0:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
	case 1:
		return all[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}
