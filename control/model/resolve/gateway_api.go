package resolve

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// GatewayClassName is the class that exists without an object.
const GatewayClassName = "heddle"

// gatewayClass says whose a class is; it is no part of the mesh.
func (b *builder) gatewayClass(o *objects.Object, g *gatewayv1.GatewayClass) {
	if g.Spec.ControllerName != objects.GatewayController {
		b.report.missing(o.Key(), "Waiting", "spec.controllerName", fmt.Sprintf("no controller here is called %s", g.Spec.ControllerName),
			"use "+objects.GatewayController)
	}
}

// ofHeddle says whether Gateways of a class are for Heddle's gateways, and if not, why.
func (b *builder) ofHeddle(class string) string {
	b.look(factClass, class, "", "")
	e := b.m.entries[objects.Key{Group: objects.GatewayClass.Group, Kind: objects.GatewayClass.Kind, Name: class}]
	if e == nil || !e.valid {
		if class == GatewayClassName {
			return ""
		}
		return fmt.Sprintf("there is no GatewayClass %s", class)
	}
	if c, ok := e.object.Resource.(*gatewayv1.GatewayClass); ok && c.Spec.ControllerName != objects.GatewayController {
		return fmt.Sprintf("GatewayClass %s is of the controller %s", class, c.Spec.ControllerName)
	}
	return ""
}

// ingressService is the name of the Service that Istio gives its ingress gateway.
const ingressService = "istio-ingressgateway"

// ServedByIngress says whether a Gateway of Gateway API is served by the ingress gateway that every cluster has: it names no
// address, or that gateway's Service.
func ServedByIngress(g *gatewayv1.Gateway, domain string) bool {
	return len(g.Spec.Addresses) == 0 ||
		strings.TrimSuffix(g.Spec.Addresses[0].Value, ".svc."+domain) == ingressService+"."+cluster.GatewayNamespace
}

// kubernetesGateway makes a Gateway of Gateway API, nil while nothing can serve it.
func (b *builder) kubernetesGateway(o *objects.Object, g *gatewayv1.Gateway) *model.Gateway {
	if why := b.ofHeddle(string(g.Spec.GatewayClassName)); why != "" {
		b.report.missing(o.Key(), "NoGatewayClass", "spec.gatewayClassName", why, "use class "+GatewayClassName)
		return nil
	}
	out := &model.Gateway{
		Group: objects.GroupGatewayAPI, Namespace: o.GetNamespace(), Name: o.GetName(), Source: source(o),
	}
	out.Selector = b.servedBy(o, g)
	for i := range g.Spec.Listeners {
		l := &g.Spec.Listeners[i]
		server, status := b.listener(o, fmt.Sprintf("spec.listeners[%d]", i), l)
		out.Servers = append(out.Servers, server)
		b.said.Listeners = append(b.said.Listeners, status)
	}
	if out.Selector == nil {
		return nil
	}
	return out
}

// servedBy are the labels of the gateway proxies that serve a Gateway, nil for none.
func (b *builder) servedBy(o *objects.Object, g *gatewayv1.Gateway) map[string]string {
	if ServedByIngress(g, b.settings.Domain) {
		return ingressLabels
	}
	host, path := g.Spec.Addresses[0].Value, "spec.addresses[0].value"
	s := b.serviceOf(b.fullName(host, o.GetNamespace()))
	switch {
	case s == nil:
		b.report.missing(o.Key(), string(gatewayv1.GatewayReasonAddressNotUsable), path, fmt.Sprintf("there is no service %s", host),
			"name the Service whose workloads are the gateway, or leave addresses out for the ingress gateway")
	case len(s.Selector) == 0:
		b.report.missing(o.Key(), string(gatewayv1.GatewayReasonAddressNotUsable), path, fmt.Sprintf("%s selects no workloads", s.Host), "name another Service")
	case !b.selectsGateway(s.Selector):
		b.report.missing(o.Key(), string(gatewayv1.GatewayReasonAddressNotUsable), path, fmt.Sprintf("no gateway has the labels that %s selects", s.Host), "name another Service")
	default:
		return s.Selector
	}
	return nil
}

func (b *builder) listener(o *objects.Object, at string, l *gatewayv1.Listener) (model.Server, gatewayv1.ListenerStatus) {
	server := model.Server{
		Port: uint16(l.Port), PortName: string(l.Name), Source: source(o).At(at),
		Hosts:   []model.ServerHost{{Host: orAny(string(ptr.Deref(l.Hostname, "")))}},
		Allowed: allowedRoutes(l),
	}
	status := gatewayv1.ListenerStatus{Name: l.Name, SupportedKinds: []gatewayv1.RouteGroupKind{}}
	for _, k := range server.Allowed.Kinds {
		status.SupportedKinds = append(status.SupportedKinds, gatewayv1.RouteGroupKind{
			Group: ptr.To(gatewayv1.Group(objects.GroupGatewayAPI)), Kind: gatewayv1.Kind(k),
		})
	}
	if a := l.AllowedRoutes; a != nil && a.Namespaces != nil && a.Namespaces.Selector != nil && server.Allowed.Selector == "" {
		b.report.note(o.Key(), at+".allowedRoutes.namespaces.selector", "has no effect without from: Selector")
	}
	var problem *Finding
	switch l.Protocol {
	case gatewayv1.HTTPSProtocolType:
		server.Protocol = model.ServerHTTPS
	case gatewayv1.TLSProtocolType:
		server.Protocol = model.ServerTLSByName
	case gatewayv1.TCPProtocolType:
		server.Protocol = model.ServerTCP
	default:
		server.Protocol = model.ServerHTTP
	}
	if l.TLS != nil && ptr.Deref(l.TLS.Mode, gatewayv1.TLSModeTerminate) == gatewayv1.TLSModeTerminate {
		server.TLS, problem = b.listenerTLS(o, at+".tls", l, server.Hosts[0].Host)
	}
	generation := o.GetGeneration()
	status.Conditions = []metav1.Condition{
		said(generation, string(gatewayv1.ListenerConditionAccepted), nil, string(gatewayv1.ListenerReasonAccepted)),
		{
			Type: string(gatewayv1.ListenerConditionConflicted), Status: metav1.ConditionFalse, ObservedGeneration: generation,
			Reason: string(gatewayv1.ListenerReasonNoConflicts), Message: "no other listener has its port and host",
		},
		said(generation, string(gatewayv1.ListenerConditionResolvedRefs), problem, string(gatewayv1.ListenerReasonResolvedRefs)),
	}
	return server, status
}

func orAny(host string) string {
	if host == "" {
		return "*"
	}
	return host
}

// said is a condition that holds unless there is a problem.
func said(generation int64, typ string, problem *Finding, good string) metav1.Condition {
	if problem == nil {
		message := "in force"
		if typ == objects.ConditionResolvedRefs {
			message = "everything that it names exists"
		}
		return condition(typ, generation, nil, good, message)
	}
	return condition(typ, generation, []Finding{*problem}, good, "")
}

func allowedRoutes(l *gatewayv1.Listener) *model.AllowedRoutes {
	out := &model.AllowedRoutes{From: string(gatewayv1.NamespacesFromSame)}
	for _, k := range objects.RouteKinds(l.Protocol) {
		out.Kinds = append(out.Kinds, k.Kind)
	}
	if l.AllowedRoutes == nil {
		return out
	}
	if n := l.AllowedRoutes.Namespaces; n != nil {
		out.From = string(ptr.Deref(n.From, gatewayv1.NamespacesFromSame))
		if s, err := metav1.LabelSelectorAsSelector(n.Selector); err == nil && out.From == string(gatewayv1.NamespacesFromSelector) {
			out.Selector = s.String()
		}
	}
	if kinds := l.AllowedRoutes.Kinds; len(kinds) > 0 {
		out.Kinds = slices.DeleteFunc(out.Kinds, func(k string) bool {
			return !slices.ContainsFunc(kinds, func(r gatewayv1.RouteGroupKind) bool { return string(r.Kind) == k })
		})
	}
	return out
}

// listenerTLS reads the certificates of a listener. The first is shown to all clients; each further one to those who ask for
// a name that it is for and that none before it is for.
func (b *builder) listenerTLS(o *objects.Object, at string, l *gatewayv1.Listener, host string) (*model.ServerTLS, *Finding) {
	out := &model.ServerTLS{}
	var first *Finding
	taken := map[string]bool{}
	for i, r := range l.TLS.CertificateRefs {
		path := fmt.Sprintf("%s.certificateRefs[%d]", at, i)
		namespace := string(ptr.Deref(r.Namespace, gatewayv1.Namespace(o.GetNamespace())))
		if !b.granted(o, namespace, objects.Secret, string(r.Name)) {
			problem := Finding{
				Reason: string(gatewayv1.ListenerReasonRefNotPermitted), Path: path,
				Problem: fmt.Sprintf("Secret %s/%s is in another namespace", namespace, r.Name),
				Remedy:  fmt.Sprintf("apply a ReferenceGrant in namespace %s, from Gateways of %s to Secrets", namespace, o.GetNamespace()),
			}
			b.report.missing(o.Key(), problem.Reason, problem.Path, problem.Problem, problem.Remedy)
			if first == nil {
				first = &problem
			}
			continue
		}
		credential, problem := b.credentialIn(o.Key(), path, namespace, string(r.Name), false)
		if problem != nil {
			if problem.Reason = string(gatewayv1.ListenerReasonInvalidCertificateRef); first == nil {
				first = problem
			}
			continue
		}
		c := model.Certificate{Namespace: namespace, Name: string(r.Name)}
		names := certificateNames(credential)
		if len(out.Certificates) > 0 {
			for _, n := range names {
				if !taken[n] && (model.CoversHost(host, n) || model.CoversHost(n, host)) {
					c.Hosts = append(c.Hosts, n)
				}
			}
			if len(c.Hosts) == 0 {
				b.report.note(o.Key(), path, "never shown: its names are not the listener's, or those of a certificate before it")
				continue
			}
		}
		for _, n := range names {
			taken[n] = true
		}
		out.Certificates = append(out.Certificates, c)
	}
	return out, first
}

// granted says whether an object may name one of another namespace: a ReferenceGrant there allows it.
func (b *builder) granted(o *objects.Object, namespace string, kind *objects.Kind, name string) bool {
	if namespace == o.GetNamespace() {
		return true
	}
	b.look(factGrants, namespace, "", "")
	for _, g := range b.m.grants[namespace] {
		from := slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
			return string(f.Group) == o.Kind.Group && string(f.Kind) == o.Kind.Kind && string(f.Namespace) == o.GetNamespace()
		})
		to := slices.ContainsFunc(g.Spec.To, func(t gatewayv1.ReferenceGrantTo) bool {
			return string(t.Group) == kind.Group && string(t.Kind) == kind.Kind && (t.Name == nil || *t.Name == "" || string(*t.Name) == name)
		})
		if from && to {
			return true
		}
	}
	return false
}
