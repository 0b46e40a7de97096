package objects

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The form of Gateway API's kinds: what their definitions for Kubernetes demand, and what Heddle refuses.

// GatewayController is how GatewayClasses name Heddle.
const GatewayController = "heddle.io/gateway-controller"

func (c *checker) gatewayClass(g *gatewayv1.GatewayClass) {
	if g.Spec.ControllerName == "" {
		c.fail("spec.controllerName", "missing", "use "+GatewayController)
	}
}

// Bounds of Gateway API's lists.
const (
	maxListeners      = 64
	maxCertificates   = 64
	maxRules          = 16
	maxMatches        = 64
	maxMatchesOfRules = 128
	maxBackends       = 16
	maxParents        = 32
)

func (c *checker) atMost(path string, length, most int) {
	if length > most {
		c.fail(path, fmt.Sprintf("has %d entries, more than %d", length, most), "split it over several objects")
	}
}

// word checks a value that is one of a few; an empty one is left to its default.
func (c *checker) word(path, value string, words ...string) {
	if value != "" && !slices.Contains(words, value) {
		remedy := "use one of " + strings.Join(words, ", ")
		if near := Nearest(value, words); near != "" {
			remedy = fmt.Sprintf("did you mean %s?", near)
		}
		c.fail(path, fmt.Sprintf("%q is not a value of this field", value), remedy)
	}
}

// named checks the name of something that is given in an object.
func (c *checker) named(path, name string) {
	if name == "" {
		c.fail(path, "missing", "give a name")
	} else if len(validation.IsDNS1123Subdomain(name)) > 0 {
		c.fail(path, fmt.Sprintf("%q is not a valid name", name),
			"use lower-case letters, digits, '-' and '.', and begin and end with a letter or digit")
	}
}

// hostname checks a name in which the first label may be "*", which alone is none.
func (c *checker) hostname(path, name string) {
	if name == "*" {
		c.fail(path, `"*" is not a host name here`, "leave the field out for every host")
		return
	}
	c.host(path, name)
	if name != strings.ToLower(name) {
		c.fail(path, fmt.Sprintf("%q has capital letters", name), "write it in lower case")
	}
}

// referred checks the kind of what is named; the first of the kinds is the default.
func (c *checker) referred(path string, group *gatewayv1.Group, kind *gatewayv1.Kind, kinds ...*Kind) {
	g, k := string(ptr.Deref(group, gatewayv1.Group(kinds[0].Group))), string(ptr.Deref(kind, gatewayv1.Kind(kinds[0].Kind)))
	var known []string
	for _, want := range kinds {
		if want.Group == g && want.Kind == k {
			return
		}
		known = append(known, fmt.Sprintf("kind %s of group %q", want.Kind, want.Group))
	}
	c.fail(path+".kind", fmt.Sprintf("kind %s of group %q cannot be named here", k, g), "use "+strings.Join(known, " or "))
}

func (c *checker) kubernetesGateway(g *gatewayv1.Gateway) {
	c.named("spec.gatewayClassName", string(g.Spec.GatewayClassName))
	if len(g.Spec.Listeners) == 0 {
		c.fail("spec.listeners", "missing", "give at least one listener")
	}
	c.atMost("spec.listeners", len(g.Spec.Listeners), maxListeners)
	names, taken := map[string]int{}, map[string]int{}
	protocols := map[int32]gatewayv1.ProtocolType{}
	for i, l := range g.Spec.Listeners {
		at := fmt.Sprintf("spec.listeners[%d]", i)
		c.named(at+".name", string(l.Name))
		if j, dup := names[string(l.Name)]; dup {
			c.fail(at+".name", fmt.Sprintf("%q is also the name of listeners[%d]", l.Name, j), "use another name")
		}
		names[string(l.Name)] = i
		c.port(at+".port", int64(l.Port))
		c.listener(at, &l)
		family := listenerFamily(l.Protocol)
		if other, used := protocols[l.Port]; used && listenerFamily(other) != family {
			c.fail(at+".protocol", fmt.Sprintf("port %d is %s in another listener", l.Port, other),
				"use one protocol per port; HTTPS and TLS may share one")
		} else {
			protocols[l.Port] = l.Protocol
		}
		id := fmt.Sprintf("%d %s %s", l.Port, family, ptr.Deref(l.Hostname, ""))
		if j, dup := taken[id]; dup {
			c.fail(at+".hostname", fmt.Sprintf("listeners[%d] has the same port and hostname", j), "use another hostname or port")
		}
		taken[id] = i
	}
	for i, a := range g.Spec.Addresses {
		at := fmt.Sprintf("spec.addresses[%d]", i)
		if kind := ptr.Deref(a.Type, gatewayv1.IPAddressType); kind != gatewayv1.HostnameAddressType {
			c.fail(at+".type", fmt.Sprintf("%s is not supported", kind),
				"use type Hostname with the full name of the Service whose workloads are the gateway, or leave addresses out for the ingress gateway")
		} else if c.host(at+".value", a.Value); i > 0 {
			c.fail(at, "a second address is not supported", "leave one")
		}
	}
}

// listenerFamily is what listeners of one port must have in common.
func listenerFamily(p gatewayv1.ProtocolType) gatewayv1.ProtocolType {
	if p == gatewayv1.HTTPSProtocolType {
		return gatewayv1.TLSProtocolType
	}
	return p
}

// RouteKinds are the kinds of routes that a listener can have, by its protocol.
func RouteKinds(p gatewayv1.ProtocolType) []*Kind {
	switch p {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		return []*Kind{HTTPRoute, GRPCRoute}
	case gatewayv1.TLSProtocolType:
		return []*Kind{TLSRoute}
	case gatewayv1.TCPProtocolType:
		return []*Kind{TCPRoute}
	}
	return nil
}

func (c *checker) listener(at string, l *gatewayv1.Listener) {
	kinds := RouteKinds(l.Protocol)
	if kinds == nil {
		c.fail(at+".protocol", fmt.Sprintf("protocol %q is not supported", l.Protocol), "use HTTP, HTTPS, TLS or TCP")
		return
	}
	if l.Hostname != nil && *l.Hostname != "" {
		if l.Protocol == gatewayv1.TCPProtocolType {
			c.fail(at+".hostname", "has no meaning for protocol TCP", "remove it, or use protocol TLS")
		} else {
			c.hostname(at+".hostname", string(*l.Hostname))
		}
	}
	c.listenerTLS(at, l)
	if l.AllowedRoutes == nil {
		return
	}
	if n := l.AllowedRoutes.Namespaces; n != nil {
		from := ptr.Deref(n.From, gatewayv1.NamespacesFromSame)
		c.word(at+".allowedRoutes.namespaces.from", string(from), "All", "Selector", "Same", "None")
		if from == gatewayv1.NamespacesFromSelector && n.Selector == nil {
			c.fail(at+".allowedRoutes.namespaces.selector", "missing", "give labels of namespaces")
		}
		if n.Selector != nil {
			if _, err := metav1.LabelSelectorAsSelector(n.Selector); err != nil {
				c.fail(at+".allowedRoutes.namespaces.selector", err.Error(), "correct the labels")
			}
		}
	}
	for i, k := range l.AllowedRoutes.Kinds {
		c.referred(fmt.Sprintf("%s.allowedRoutes.kinds[%d]", at, i), orGroup(k.Group), &k.Kind, kinds...)
	}
}

// orGroup is Gateway API's own group where none is given.
func orGroup(g *gatewayv1.Group) *gatewayv1.Group {
	if g == nil {
		return ptr.To(gatewayv1.Group(GroupGatewayAPI))
	}
	return g
}

func (c *checker) listenerTLS(at string, l *gatewayv1.Listener) {
	if l.Protocol != gatewayv1.HTTPSProtocolType && l.Protocol != gatewayv1.TLSProtocolType {
		if l.TLS != nil {
			c.fail(at+".tls", fmt.Sprintf("a listener of protocol %s speaks plain text", l.Protocol), "remove it, or use HTTPS or TLS")
		}
		return
	}
	if l.TLS == nil {
		c.fail(at+".tls", "missing", "give certificateRefs, or mode: Passthrough for protocol TLS")
		return
	}
	mode := ptr.Deref(l.TLS.Mode, gatewayv1.TLSModeTerminate)
	c.word(at+".tls.mode", string(mode), "Terminate", "Passthrough")
	if mode == gatewayv1.TLSModePassthrough {
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			c.fail(at+".tls.mode", "what is passed through cannot be read as HTTP", "use Terminate, or protocol TLS with TLSRoutes")
		}
		if len(l.TLS.CertificateRefs) > 0 {
			c.fail(at+".tls.certificateRefs", "has no effect in mode Passthrough", "remove it, or use mode Terminate")
		}
		return
	}
	if len(l.TLS.CertificateRefs) == 0 {
		c.fail(at+".tls.certificateRefs", "missing", "name a Secret of type kubernetes.io/tls")
	}
	c.atMost(at+".tls.certificateRefs", len(l.TLS.CertificateRefs), maxCertificates)
	for i, r := range l.TLS.CertificateRefs {
		path := fmt.Sprintf("%s.tls.certificateRefs[%d]", at, i)
		c.named(path+".name", string(r.Name))
		c.referred(path, r.Group, r.Kind, Secret)
	}
}

func (c *checker) referenceGrant(g *gatewayv1.ReferenceGrant) {
	if len(g.Spec.From) == 0 {
		c.fail("spec.from", "missing", "say whose references are granted: group, kind and namespace")
	}
	if len(g.Spec.To) == 0 {
		c.fail("spec.to", "missing", "say what may be named: group and kind")
	}
	for i, f := range g.Spec.From {
		at := fmt.Sprintf("spec.from[%d]", i)
		c.referred(at, &f.Group, &f.Kind, HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, KubernetesGateway)
		c.dnsLabel(at+".namespace", string(f.Namespace))
	}
	for i, t := range g.Spec.To {
		at := fmt.Sprintf("spec.to[%d]", i)
		c.referred(at, &t.Group, &t.Kind, Service, Secret)
		if t.Name != nil {
			c.named(at+".name", string(*t.Name))
		}
	}
}

func (c *checker) backendTLSPolicy(p *gatewayv1.BackendTLSPolicy) {
	if len(p.Spec.TargetRefs) == 0 {
		c.fail("spec.targetRefs", "missing", "name a Service")
	}
	c.atMost("spec.targetRefs", len(p.Spec.TargetRefs), maxBackends)
	seen := map[string]int{}
	for i, t := range p.Spec.TargetRefs {
		at := fmt.Sprintf("spec.targetRefs[%d]", i)
		c.named(at+".name", string(t.Name))
		c.referred(at, &t.Group, &t.Kind, Service)
		id := string(t.Name) + "/" + string(ptr.Deref(t.SectionName, ""))
		if j, dup := seen[id]; dup {
			c.fail(at, fmt.Sprintf("is the same as targetRefs[%d]", j), "remove one of the two")
		}
		seen[id] = i
	}
	v := p.Spec.Validation
	if v.Hostname == "" {
		c.fail("spec.validation.hostname", "missing", "give the name that the certificate is for")
	} else {
		c.host("spec.validation.hostname", string(v.Hostname))
	}
	system := ptr.Deref(v.WellKnownCACertificates, "")
	c.word("spec.validation.wellKnownCACertificates", string(system), string(gatewayv1.WellKnownCACertificatesSystem))
	if (system != "") == (len(v.CACertificateRefs) > 0) {
		c.fail("spec.validation", "needs either caCertificateRefs or wellKnownCACertificates", "give exactly one of the two")
	}
	for i, r := range v.CACertificateRefs {
		at := fmt.Sprintf("spec.validation.caCertificateRefs[%d]", i)
		c.named(at+".name", string(r.Name))
		c.referred(at, &r.Group, &r.Kind, ConfigMap, Secret)
	}
	for i, s := range v.SubjectAltNames {
		at := fmt.Sprintf("spec.validation.subjectAltNames[%d]", i)
		c.word(at+".type", string(s.Type), "Hostname", "URI")
		switch {
		case s.Type == gatewayv1.HostnameSubjectAltNameType && (s.Hostname == "" || s.URI != ""):
			c.fail(at+".hostname", "must be set for type Hostname, and uri must not", "correct the two")
		case s.Type == gatewayv1.URISubjectAltNameType && (s.URI == "" || s.Hostname != ""):
			c.fail(at+".uri", "must be set for type URI, and hostname must not", "correct the two")
		case strings.HasPrefix(string(s.Hostname), "*."):
			c.fail(at+".hostname", "a pattern is not supported", "give the whole name")
		}
	}
}
