package objects

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
)

func (c *checker) peerAuthentication(p *securityv1.PeerAuthentication) {
	selector := p.Spec.GetSelector().GetMatchLabels()
	c.labels("spec.selector.matchLabels", selector)
	if len(p.Spec.PortLevelMtls) > 0 && len(selector) == 0 {
		c.fail("spec.portLevelMtls", "needs a selector", "give spec.selector.matchLabels of one workload, as in Istio")
	}
	ports := make([]uint32, 0, len(p.Spec.PortLevelMtls))
	for port := range p.Spec.PortLevelMtls {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	for _, port := range ports {
		c.port(fmt.Sprintf("spec.portLevelMtls.%d", port), int64(port))
	}
}

// ConditionKeys are the keys that when[].key may hold, besides request.headers[name] and request.auth.claims[name].
var ConditionKeys = []string{
	"source.ip", "remote.ip", "source.namespace", "source.principal", "source.serviceAccount", "destination.ip",
	"destination.port", "connection.sni", "source.cluster", "request.auth.principal", "request.auth.audiences",
	"request.auth.presenter",
}

func (c *checker) authorizationPolicy(p *securityv1.AuthorizationPolicy) {
	c.labels("spec.selector.matchLabels", p.Spec.GetSelector().GetMatchLabels())
	custom := p.Spec.Action == security.AuthorizationPolicy_CUSTOM
	switch provider := p.Spec.GetProvider(); {
	case custom && provider.GetName() == "":
		c.fail("spec.provider.name", "missing", "name an extension provider of the mesh's configuration")
	case !custom && provider != nil:
		c.fail("spec.provider", fmt.Sprintf("has no meaning for action %s", p.Spec.Action), "use action CUSTOM, or remove it")
	}
	if custom && len(p.Spec.Rules) == 0 {
		c.fail("spec.rules", "missing: a CUSTOM policy without rules never matches",
			"write rules: [{}] to have every request decided by the provider")
	}
	if p.Spec.Action == security.AuthorizationPolicy_DENY && len(p.Spec.Rules) == 0 {
		c.fail("spec.rules", "missing: a DENY policy without rules never matches",
			"write rules: [{}] to deny everything")
	}
	for i, r := range p.Spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		c.rule(at, r)
		if custom {
			c.asksNoToken(at, r)
		}
	}
}

// asksNoToken refuses what a CUSTOM rule cannot know: providers are asked before tokens are verified, as in Istio, so that
// they may bring one.
func (c *checker) asksNoToken(at string, r *security.Rule) {
	remedy := "let the provider look at the token, or write an ALLOW or DENY policy beside this one"
	for i, f := range r.GetFrom() {
		if s := f.GetSource(); len(s.GetRequestPrincipals())+len(s.GetNotRequestPrincipals()) > 0 {
			c.fail(fmt.Sprintf("%s.from[%d].source", at, i), "requestPrincipals are not known yet to CUSTOM policies", remedy)
		}
	}
	for i, w := range r.GetWhen() {
		if strings.HasPrefix(w.GetKey(), "request.auth.") {
			c.fail(fmt.Sprintf("%s.when[%d].key", at, i), w.GetKey()+" is not known yet to CUSTOM policies", remedy)
		}
	}
}

func (c *checker) rule(at string, r *security.Rule) {
	for i, f := range r.GetFrom() {
		sat := fmt.Sprintf("%s.from[%d].source", at, i)
		s := f.GetSource()
		if s == nil || emptySource(s) {
			c.fail(sat, "is empty", "name principals, namespaces, serviceAccounts or ipBlocks, or leave `from` out")
			continue
		}
		for _, l := range []struct {
			name   string
			values []string
			check  func(path, value string)
		}{
			{"principals", s.Principals, c.wildcard}, {"notPrincipals", s.NotPrincipals, c.wildcard},
			{"namespaces", s.Namespaces, c.wildcard}, {"notNamespaces", s.NotNamespaces, c.wildcard},
			{"serviceAccounts", s.ServiceAccounts, c.serviceAccount},
			{"notServiceAccounts", s.NotServiceAccounts, c.serviceAccount},
			{"requestPrincipals", s.RequestPrincipals, c.wildcard}, {"notRequestPrincipals", s.NotRequestPrincipals, c.wildcard},
			{"ipBlocks", s.IpBlocks, c.ipBlock}, {"notIpBlocks", s.NotIpBlocks, c.ipBlock},
			{"remoteIpBlocks", s.RemoteIpBlocks, c.ipBlock}, {"notRemoteIpBlocks", s.NotRemoteIpBlocks, c.ipBlock},
		} {
			for j, v := range l.values {
				l.check(fmt.Sprintf("%s.%s[%d]", sat, l.name, j), v)
			}
		}
		if len(s.ServiceAccounts)+len(s.NotServiceAccounts) > 0 &&
			len(s.Principals)+len(s.NotPrincipals)+len(s.Namespaces)+len(s.NotNamespaces) > 0 {
			c.fail(sat, "serviceAccounts cannot stand beside principals and namespaces", "use one of them, as in Istio")
		}
	}
	for i, t := range r.GetTo() {
		oat := fmt.Sprintf("%s.to[%d].operation", at, i)
		o := t.GetOperation()
		if o == nil || emptyOperation(o) {
			c.fail(oat, "is empty", "name hosts, ports, methods or paths, or leave `to` out")
			continue
		}
		for _, l := range []struct {
			name   string
			values []string
			check  func(path, value string)
		}{
			{"hosts", o.Hosts, c.wildcard}, {"notHosts", o.NotHosts, c.wildcard},
			{"methods", o.Methods, c.wildcard}, {"notMethods", o.NotMethods, c.wildcard},
			{"paths", o.Paths, c.pathPattern}, {"notPaths", o.NotPaths, c.pathPattern},
			{"ports", o.Ports, c.portText}, {"notPorts", o.NotPorts, c.portText},
		} {
			for j, v := range l.values {
				l.check(fmt.Sprintf("%s.%s[%d]", oat, l.name, j), v)
			}
		}
	}
	for i, w := range r.GetWhen() {
		c.condition(fmt.Sprintf("%s.when[%d]", at, i), w)
	}
}

func emptySource(s *security.Source) bool {
	set := false
	s.ProtoReflect().Range(rangeAny(&set))
	return !set
}

func emptyOperation(o *security.Operation) bool {
	set := false
	o.ProtoReflect().Range(rangeAny(&set))
	return !set
}

func (c *checker) condition(at string, w *security.Condition) {
	if len(w.Values)+len(w.NotValues) == 0 {
		c.fail(at+".values", "missing", "give values or notValues")
	}
	check := c.wildcard
	key := w.Key
	switch {
	case strings.HasPrefix(key, "request.headers[") && strings.HasSuffix(key, "]"):
		name := key[len("request.headers[") : len(key)-1]
		if name == ":path" {
			// It would be compared as it is sent, and //admin or /;x/admin get past.
			c.fail(at+".key", fmt.Sprintf("%q is not supported", key),
				"use to.operation.paths or notPaths, which see what servers make of a path")
		}
		c.headerName(at+".key", name)
	case strings.HasPrefix(key, "request.auth.claims"):
		if _, ok := ClaimPath(strings.TrimPrefix(key, "request.auth.claims")); !ok {
			c.fail(at+".key", fmt.Sprintf("%q names no claim", key), "write request.auth.claims[name]")
		}
	case !slices.Contains(ConditionKeys, key):
		remedy := "use request.headers[name], request.auth.claims[name], " + strings.Join(ConditionKeys, ", ")
		if near := Nearest(key, ConditionKeys); near != "" {
			remedy = fmt.Sprintf("did you mean %q?", near)
		}
		c.fail(at+".key", fmt.Sprintf("%q is not supported", key), remedy)
	}
	switch key {
	case "source.ip", "remote.ip", "destination.ip":
		check = c.ipBlock
	case "destination.port":
		check = c.portText
	case "source.serviceAccount":
		check = c.serviceAccount
	case "source.cluster":
		check = c.clusterPattern
	}
	for i, v := range w.Values {
		check(fmt.Sprintf("%s.values[%d]", at, i), v)
	}
	for i, v := range w.NotValues {
		check(fmt.Sprintf("%s.notValues[%d]", at, i), v)
	}
}

// wildcard checks Istio's patterns: exact, "*", "prefix*" and "*suffix".
func (c *checker) wildcard(path, v string) {
	switch {
	case v == "":
		c.fail(path, "is empty", `write a value, or "*" for any`)
	case v != "*" && strings.Contains(strings.TrimSuffix(strings.TrimPrefix(v, "*"), "*"), "*"),
		len(v) > 1 && strings.HasPrefix(v, "*") && strings.HasSuffix(v, "*"):
		c.fail(path, fmt.Sprintf(`%q has "*" in the middle or at both ends`, v),
			`"*" may stand alone, at the beginning or at the end`)
	case strings.ContainsAny(v, "\r\n\x00"):
		c.fail(path, "holds control characters", "remove them")
	}
}

func (c *checker) pathPattern(path, v string) {
	if strings.Contains(v, "{*}") || strings.Contains(v, "{**}") {
		c.fail(path, fmt.Sprintf("the path template %q is not supported", v), `use a prefix such as "/cart/*"`)
		return
	}
	c.wildcard(path, v)
}

func (c *checker) serviceAccount(path, v string) {
	ns, name, ok := strings.Cut(v, "/")
	if !ok {
		ns, name = "x", v
	}
	if strings.Contains(v, "*") || ns == "" || name == "" || strings.Contains(name, "/") {
		c.fail(path, fmt.Sprintf("%q is not a service account", v), "write name or namespace/name, without wildcards")
	}
}

func (c *checker) ipBlock(path, v string) {
	if _, err := netip.ParsePrefix(v); err == nil {
		return
	}
	if _, err := netip.ParseAddr(v); err != nil {
		c.fail(path, fmt.Sprintf("%q is neither an address nor a CIDR block", v), "write for example 10.244.0.0/16")
	}
}

func (c *checker) portText(path, v string) {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		c.fail(path, fmt.Sprintf("%q is not a port", v), "use 1 to 65535")
	}
}
