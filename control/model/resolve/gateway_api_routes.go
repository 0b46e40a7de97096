package resolve

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// attach makes the set of a route of Gateway API that has nothing but where it is bound: to the servers of its parents that
// take it. It says so for each parent.
func (b *builder) attach(o *objects.Object, parents []gatewayv1.ParentReference, hostnames []gatewayv1.Hostname) *model.Routes {
	out := &model.Routes{Namespace: o.GetNamespace(), Name: o.GetName(), Ranked: true, Source: source(o)}
	for _, h := range hostnames {
		out.Hosts = append(out.Hosts, string(h))
	}
	if len(out.Hosts) == 0 {
		out.Hosts = []string{"*"}
	}
	for i, p := range parents {
		servers, problem := b.parent(o, fmt.Sprintf("spec.parentRefs[%d]", i), &p, out.Hosts)
		for _, s := range servers {
			if !slices.Contains(out.Gateways, s) {
				out.Gateways = append(out.Gateways, s)
			}
		}
		if problem != nil {
			b.report.missing(o.Key(), problem.Reason, problem.Path, problem.Problem, problem.Remedy)
		}
		b.said.points = append(b.said.points, servers)
		b.said.Parents = append(b.said.Parents, gatewayv1.RouteParentStatus{
			ParentRef: p, ControllerName: objects.GatewayController,
			Conditions: []metav1.Condition{
				said(o.GetGeneration(), string(gatewayv1.RouteConditionAccepted), problem, string(gatewayv1.RouteReasonAccepted)),
			},
		})
	}
	return out
}

// resolved completes what is said for each parent: whether all backends can be used.
func (b *builder) resolved(o *objects.Object) {
	for i := range b.said.Parents {
		p := &b.said.Parents[i]
		p.Conditions = append(p.Conditions,
			said(o.GetGeneration(), string(gatewayv1.RouteConditionResolvedRefs), b.unresolved, string(gatewayv1.RouteReasonResolvedRefs)))
	}
}

// parent finds the servers of a parent that take a route, and says why there are none.
func (b *builder) parent(o *objects.Object, at string, p *gatewayv1.ParentReference, hosts []string) ([]string, *Finding) {
	name := objects.GroupGatewayAPI + "/" + string(ptr.Deref(p.Namespace, gatewayv1.Namespace(o.GetNamespace()))) + "/" + string(p.Name)
	b.look(factGateway, name, "", "")
	g := b.m.gateways[name]
	if g == nil {
		return nil, &Finding{
			Reason: string(gatewayv1.RouteReasonNoMatchingParent), Path: at,
			Problem: fmt.Sprintf("there is no Gateway %s that Heddle serves", strings.TrimPrefix(name, objects.GroupGatewayAPI+"/")),
			Remedy:  "apply it with gatewayClassName " + GatewayClassName + ", or correct the name",
		}
	}
	var out []string
	var named, allowed bool
	for i := range g.Servers {
		s := &g.Servers[i]
		if p.SectionName != nil && string(*p.SectionName) != s.PortName || p.Port != nil && uint16(*p.Port) != s.Port {
			continue
		}
		named = true
		if !b.allows(g, s.Allowed, o) {
			continue
		}
		allowed = true
		if s.Protocol == model.ServerTCP || slices.ContainsFunc(hosts, func(h string) bool { return s.Serves(o.GetNamespace(), h) != "" }) {
			out = append(out, g.ServerName(s))
		}
	}
	switch {
	case !named:
		return nil, &Finding{
			Reason: string(gatewayv1.RouteReasonNoMatchingParent), Path: at,
			Problem: "the Gateway has no such listener", Remedy: "correct sectionName or port, or leave them out for all listeners",
		}
	case !allowed:
		return nil, &Finding{
			Reason: string(gatewayv1.RouteReasonNotAllowedByListeners), Path: at,
			Problem: fmt.Sprintf("no listener of the Gateway takes a %s of namespace %s", o.Kind.Kind, o.GetNamespace()),
			Remedy:  "extend the allowedRoutes of a listener with the right protocol",
		}
	case len(out) == 0:
		return nil, &Finding{
			Reason: string(gatewayv1.RouteReasonNoMatchingListenerHostname), Path: at,
			Problem: "no listener has one of the hostnames", Remedy: "extend the listener's hostname, or correct spec.hostnames",
		}
	}
	return out, nil
}

// allows says whether a server takes routes like that object.
func (b *builder) allows(g *model.Gateway, a *model.AllowedRoutes, o *objects.Object) bool {
	if !slices.Contains(a.Kinds, o.Kind.Kind) {
		return false
	}
	switch a.From {
	case string(gatewayv1.NamespacesFromAll):
		return true
	case string(gatewayv1.NamespacesFromSame):
		return o.GetNamespace() == g.Namespace
	case string(gatewayv1.NamespacesFromSelector):
		b.look(factNamespace, o.GetNamespace(), "", "")
		selector, err := labels.Parse(a.Selector)
		if err != nil {
			return false
		}
		if e := b.m.entries[objects.Key{Kind: objects.Namespace.Kind, Name: o.GetNamespace()}]; e != nil && e.valid {
			// Every namespace has its name as a label, as in Kubernetes.
			return selector.Matches(namespaceLabels{e.object})
		}
	}
	return false
}

// namespaceLabels are those of a Namespace and the one that Kubernetes gives each.
type namespaceLabels struct{ *objects.Object }

const nameLabel = "kubernetes.io/metadata.name"

func (n namespaceLabels) Has(label string) bool {
	_, ok := n.Lookup(label)
	return ok
}

func (n namespaceLabels) Get(label string) string {
	v, _ := n.Lookup(label)
	return v
}

func (n namespaceLabels) Lookup(label string) (string, bool) {
	if label == nameLabel {
		return n.GetName(), true
	}
	v, ok := n.GetLabels()[label]
	return v, ok
}

// backend resolves a destination of Gateway API. What cannot be used is accepted, since it may come later, and answered with 500.
func (b *builder) backend(o *objects.Object, at string, r *gatewayv1.BackendObjectReference, weight *int32) model.Destination {
	namespace := string(ptr.Deref(r.Namespace, gatewayv1.Namespace(o.GetNamespace())))
	out := model.Destination{
		Host: string(r.Name) + "." + namespace + ".svc." + b.settings.Domain, Port: uint16(ptr.Deref(r.Port, 0)),
		Weight: uint32(ptr.Deref(weight, 1)),
	}
	wrong := func(reason gatewayv1.RouteConditionReason, path, problem, remedy string) {
		out.Missing = true
		b.report.missing(o.Key(), string(reason), path, problem, remedy)
		if b.unresolved == nil {
			b.unresolved = &Finding{Reason: string(reason), Path: path, Problem: problem, Remedy: remedy}
		}
	}
	until := "; until then requests are answered with 500"
	if o.Kind == objects.TLSRoute || o.Kind == objects.TCPRoute {
		until = "; until then connections are closed"
	}
	if !b.granted(o, namespace, objects.Service, string(r.Name)) {
		out.NotGranted = true
		wrong(gatewayv1.RouteReasonRefNotPermitted, at+".namespace", fmt.Sprintf("Service %s/%s is in another namespace", namespace, r.Name),
			fmt.Sprintf("apply a ReferenceGrant in namespace %s, from %ss of %s to Services%s", namespace, o.Kind.Kind, o.GetNamespace(), until))
		return out
	}
	s := b.serviceOf(out.Host)
	out.NotGranted = s != nil && !s.ExportTo.In(o.GetNamespace())
	switch {
	case s == nil || !s.ExportTo.In(o.GetNamespace()):
		wrong(gatewayv1.RouteReasonBackendNotFound, at+".name", fmt.Sprintf("there is no service %s", out.Host), "apply the Service, or correct the name"+until)
	case s.Port(out.Port) == nil:
		wrong(gatewayv1.RouteReasonBackendNotFound, at+".port", fmt.Sprintf("%s has no port %d", s.Host, out.Port), "use "+portList(s)+until)
	}
	return out
}

func (b *builder) tlsRoute(o *objects.Object, r *gatewayv1.TLSRoute) *attachments {
	out := b.attach(o, r.Spec.ParentRefs, r.Spec.Hostnames)
	for i, rule := range r.Spec.Rules {
		out.TCP = append(out.TCP, b.connections(o, fmt.Sprintf("spec.rules[%d]", i), rule.BackendRefs))
	}
	b.resolved(o)
	return inForce(out)
}

func (b *builder) tcpRoute(o *objects.Object, r *gatewayv1.TCPRoute) *attachments {
	out := b.attach(o, r.Spec.ParentRefs, nil)
	for i, rule := range r.Spec.Rules {
		out.TCP = append(out.TCP, b.connections(o, fmt.Sprintf("spec.rules[%d]", i), rule.BackendRefs))
	}
	b.resolved(o)
	return inForce(out)
}

func (b *builder) connections(o *objects.Object, at string, backends []gatewayv1.BackendRef) model.TCPRoute {
	route := model.TCPRoute{Source: source(o).At(at)}
	for j, r := range backends {
		route.Forward = append(route.Forward, b.backend(o, fmt.Sprintf("%s.backendRefs[%d]", at, j), &r.BackendObjectReference, r.Weight))
	}
	return route
}

// inForce are routes that some server takes, else nil.
func inForce(r *model.Routes) *attachments {
	if len(r.Gateways) == 0 {
		return nil
	}
	return &attachments{sets: []*model.Routes{r}}
}
