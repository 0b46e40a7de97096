package resolve

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	security "istio.io/api/security/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func (b *builder) peerMode(o *objects.Object, p *securityv1.PeerAuthentication) *model.PeerMode {
	out := &model.PeerMode{
		Namespace: o.GetNamespace(), Name: o.GetName(), Selector: p.Spec.GetSelector().GetMatchLabels(),
		Mode: mtlsMode(p.Spec.Mtls), Source: source(o),
	}
	for port, m := range p.Spec.PortLevelMtls {
		if out.Ports == nil {
			out.Ports = map[uint16]model.MTLSMode{}
		}
		out.Ports[uint16(port)] = mtlsMode(m)
	}
	if len(out.Selector) > 0 && !b.selectsWorkload(out.Namespace, out.Selector) {
		b.report.missing(o.Key(), "NoWorkload", "spec.selector", "selects no workload",
			"correct the labels, or apply the Workload")
	}
	return out
}

func mtlsMode(m *security.PeerAuthentication_MutualTLS) model.MTLSMode {
	switch m.GetMode() {
	case security.PeerAuthentication_MutualTLS_STRICT:
		return model.MTLSStrict
	case security.PeerAuthentication_MutualTLS_PERMISSIVE:
		return model.MTLSPermissive
	case security.PeerAuthentication_MutualTLS_DISABLE:
		return model.MTLSDisable
	}
	return model.MTLSUnset
}

// selectsWorkload says whether a policy's selector selects a workload or a running replica. Policies of the root
// namespace select in all namespaces.
func (b *builder) selectsWorkload(namespace string, selector map[string]string) bool {
	if namespace != b.settings.RootNamespace {
		return len(b.workloadsIn(namespace, selector)) > 0 || len(b.replicasIn(namespace, selector)) > 0
	}
	// Gateways are no workloads of the store.
	return len(b.workloadsIn("", selector)) > 0 || b.selectsGateway(selector)
}

func (b *builder) access(o *objects.Object, p *securityv1.AuthorizationPolicy) *model.AccessPolicy {
	ns := o.GetNamespace()
	out := &model.AccessPolicy{
		Namespace: ns, Name: o.GetName(), Selector: p.Spec.GetSelector().GetMatchLabels(),
		Action: model.Allow, Source: source(o),
	}
	switch p.Spec.Action {
	case security.AuthorizationPolicy_DENY:
		out.Action = model.Deny
	case security.AuthorizationPolicy_AUDIT:
		out.Action = model.Audit
	case security.AuthorizationPolicy_CUSTOM:
		out.Action, out.Authorizer = model.Custom, b.custom(o, p.Spec.GetProvider().GetName())
	}
	if len(out.Selector) > 0 && !b.selectsWorkload(ns, out.Selector) {
		b.report.missing(o.Key(), "NoWorkload", "spec.selector", "selects no workload",
			"correct the labels, or apply the Workload")
	}
	for i, r := range p.Spec.Rules {
		var rule model.AccessRule
		for _, f := range r.GetFrom() {
			s := f.Source
			rule.From = append(rule.From, model.AccessFrom{
				Principals:        model.Values[string]{In: s.Principals, Not: s.NotPrincipals},
				Namespaces:        model.Values[string]{In: s.Namespaces, Not: s.NotNamespaces},
				Accounts:          model.Values[model.Account]{In: accounts(s.ServiceAccounts, ns), Not: accounts(s.NotServiceAccounts, ns)},
				IPs:               model.Values[netip.Prefix]{In: prefixes(s.IpBlocks), Not: prefixes(s.NotIpBlocks)},
				RemoteIPs:         model.Values[netip.Prefix]{In: prefixes(s.RemoteIpBlocks), Not: prefixes(s.NotRemoteIpBlocks)},
				RequestPrincipals: model.Values[string]{In: s.RequestPrincipals, Not: s.NotRequestPrincipals},
			})
		}
		for _, t := range r.GetTo() {
			op := t.Operation
			rule.To = append(rule.To, model.AccessTo{
				Hosts:   model.Values[string]{In: op.Hosts, Not: op.NotHosts},
				Methods: model.Values[string]{In: op.Methods, Not: op.NotMethods},
				Paths:   model.Values[string]{In: op.Paths, Not: op.NotPaths},
				Ports:   model.Values[uint16]{In: ports(op.Ports), Not: ports(op.NotPorts)},
			})
		}
		for j, w := range r.GetWhen() {
			c := whenCondition(w, ns)
			rule.When = append(rule.When, c)
			if c.Kind == model.OnCluster {
				at := fmt.Sprintf("spec.rules[%d].when[%d].", i, j)
				b.namesClusters(o, at+"values", c.Values.In)
				b.namesClusters(o, at+"notValues", c.Values.Not)
			}
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// namesClusters notes clusters that the mesh does not have.
func (b *builder) namesClusters(o *objects.Object, at string, names []string) {
	for i, n := range names {
		if !isPattern(n) && !b.isCluster(n) {
			b.report.missing(o.Key(), "NoCluster", fmt.Sprintf("%s[%d]", at, i), fmt.Sprintf("there is no cluster %s in the mesh", n),
				"join it, or correct the name")
		}
	}
}

func whenCondition(w *security.Condition, ns string) model.Condition {
	c := model.Condition{Kind: model.ConditionKind(w.Key)}
	if rest, ok := strings.CutPrefix(w.Key, "request.headers["); ok {
		c.Kind, c.Header = model.OnHeader, strings.ToLower(strings.TrimSuffix(rest, "]"))
	}
	if claim, ok := claimsOf(w.Key); ok {
		c.Kind, c.Claim = model.OnClaim, claim
	}
	switch c.Kind {
	case model.OnSourceIP, model.OnRemoteIP, model.OnDestinationIP:
		c.IPs = model.Values[netip.Prefix]{In: prefixes(w.Values), Not: prefixes(w.NotValues)}
	case model.OnDestinationPort:
		c.Ports = model.Values[uint16]{In: ports(w.Values), Not: ports(w.NotValues)}
	case model.OnAccount:
		c.Accounts = model.Values[model.Account]{In: accounts(w.Values, ns), Not: accounts(w.NotValues, ns)}
	default:
		c.Values = model.Values[string]{In: w.Values, Not: w.NotValues}
	}
	return c
}

// The form check has let through only what can be read here.

func accounts(values []string, namespace string) []model.Account {
	var out []model.Account
	for _, v := range values {
		ns, name, ok := strings.Cut(v, "/")
		if !ok {
			ns, name = namespace, v
		}
		out = append(out, model.Account{Namespace: ns, Name: name})
	}
	return out
}

func prefixes(values []string) []netip.Prefix {
	var out []netip.Prefix
	for _, v := range values {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			a, aerr := netip.ParseAddr(v)
			if aerr != nil {
				continue
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out
}

func ports(values []string) []uint16 {
	var out []uint16
	for _, v := range values {
		if n, err := strconv.ParseUint(v, 10, 16); err == nil {
			out = append(out, uint16(n))
		}
	}
	return out
}
