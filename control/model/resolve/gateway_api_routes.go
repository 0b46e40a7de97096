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

// attach makes the sets of a route of Gateway API for its parents: one for all servers of Gateways that take it, one for each
// Service. It says of each parent whether it takes the route, and has the rules made for the sets.
func (b *builder) attach(o *objects.Object, parents []gatewayv1.ParentReference, hostnames []gatewayv1.Hostname, rules func(*model.Routes)) *attachments {
	edge := &model.Routes{Namespace: o.GetNamespace(), Name: o.GetName(), Ranked: true, Source: source(o)}
	for _, h := range hostnames {
		edge.Hosts = append(edge.Hosts, string(h))
	}
	if len(edge.Hosts) == 0 {
		edge.Hosts = []string{"*"}
	}
	var mesh []*model.Routes
	var ofService []bool
	for i, p := range parents {
		at := fmt.Sprintf("spec.parentRefs[%d]", i)
		var points []string
		var problem *Finding
		service := ptr.Deref(p.Kind, "") == gatewayv1.Kind(objects.Service.Kind)
		if ofService = append(ofService, service); service {
			var to *model.Routes
			if to, problem = b.serviceParent(o, at, &p); to != nil {
				points = pointsOf(to)
				mesh = mergeService(mesh, to)
			}
		} else {
			points, problem = b.parent(o, at, &p, edge.Hosts)
			for _, s := range points {
				if !slices.Contains(edge.Gateways, s) {
					edge.Gateways = append(edge.Gateways, s)
				}
			}
		}
		if problem != nil {
			b.report.missing(o.Key(), problem.Reason, problem.Path, problem.Problem, problem.Remedy)
		}
		b.said.points = append(b.said.points, points)
		b.said.Parents = append(b.said.Parents, gatewayv1.RouteParentStatus{
			ParentRef: p, ControllerName: objects.GatewayController,
			Conditions: []metav1.Condition{
				said(o.GetGeneration(), string(gatewayv1.RouteConditionAccepted), problem, string(gatewayv1.RouteReasonAccepted)),
			},
		})
	}
	out := &attachments{}
	if slices.Contains(ofService, false) {
		b.hostnamesUnserved(o, edge)
		rules(edge)
		b.resolved(o, ofService, false)
		if len(edge.Gateways) > 0 {
			out.sets = append(out.sets, edge)
		}
	}
	if slices.Contains(ofService, true) {
		if len(hostnames) > 0 && !slices.Contains(ofService, false) {
			b.report.note(o.Key(), "spec.hostnames", "has no effect for a Service as parent, whose names are the hosts; match the header Host instead")
		}
		b.forSidecars, b.unresolved = true, nil
		var all model.Routes
		rules(&all)
		b.forSidecars = false
		b.resolved(o, ofService, true)
		for _, r := range mesh {
			r.HTTP, r.TCP = all.HTTP, all.TCP
			out.sets = append(out.sets, r)
		}
	}
	if len(out.sets) == 0 {
		return nil
	}
	return out
}

// resolved completes what is said for the parents that are Services, or for the others: whether all backends can be used.
func (b *builder) resolved(o *objects.Object, ofService []bool, services bool) {
	for i := range b.said.Parents {
		if p := &b.said.Parents[i]; ofService[i] == services {
			p.Conditions = append(p.Conditions,
				said(o.GetGeneration(), string(gatewayv1.RouteConditionResolvedRefs), b.unresolved, string(gatewayv1.RouteReasonResolvedRefs)))
		}
	}
}

// serviceParent makes the set of a route whose parent is a Service: in its own namespace, for all callers, in another one for those of
// the route's namespace (GEP-1294). It has no rules yet. nil for none, and says why.
func (b *builder) serviceParent(o *objects.Object, at string, p *gatewayv1.ParentReference) (*model.Routes, *Finding) {
	namespace := string(ptr.Deref(p.Namespace, gatewayv1.Namespace(o.GetNamespace())))
	host := string(p.Name) + "." + namespace + ".svc." + b.settings.Domain
	wrong := func(problem, remedy string) (*model.Routes, *Finding) {
		return nil, &Finding{Reason: string(gatewayv1.RouteReasonNoMatchingParent), Path: at, Problem: problem, Remedy: remedy}
	}
	s := b.serviceOf(host)
	if s == nil || !s.ExportTo.In(o.GetNamespace()) {
		return wrong(fmt.Sprintf("there is no service %s", host), "apply the Service, or correct the name")
	}
	out := &model.Routes{
		Namespace: o.GetNamespace(), Name: o.GetName(), Hosts: []string{s.Host}, Gateways: []string{model.GatewayMesh}, Ranked: true, Source: source(o),
	}
	if namespace != o.GetNamespace() {
		out.ExportTo = model.Visibility{Limited: true, Namespaces: []string{o.GetNamespace()}}
	}
	named := false
	for _, port := range s.Ports {
		if p.SectionName != nil && string(*p.SectionName) != port.Name || p.Port != nil && uint16(*p.Port) != port.Number {
			continue
		}
		if named = true; port.Protocol.IsHTTP() == (o.Kind != objects.TCPRoute) {
			out.Ports = append(out.Ports, port.Number)
		}
	}
	switch {
	case !named:
		return wrong("the Service has no such port", "correct sectionName or port: "+portList(s))
	case len(out.Ports) == 0 && o.Kind == objects.TCPRoute:
		return wrong("no such port of the Service speaks TCP", "use an HTTPRoute or GRPCRoute")
	case len(out.Ports) == 0:
		return wrong("no such port of the Service speaks HTTP", "name it http or grpc, or give it appProtocol, or use a TCPRoute")
	}
	slices.Sort(out.Ports)
	return out, nil
}

// mergeService adds a set to those of other parents, of which one may be the same Service with other ports.
func mergeService(all []*model.Routes, r *model.Routes) []*model.Routes {
	for _, other := range all {
		if other.Hosts[0] == r.Hosts[0] {
			other.Ports = append(other.Ports, r.Ports...)
			slices.Sort(other.Ports)
			other.Ports = slices.Compact(other.Ports)
			return all
		}
	}
	return append(all, r)
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
	if !b.forSidecars && !b.granted(o, namespace, objects.Service, string(r.Name)) {
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
	return b.attach(o, r.Spec.ParentRefs, r.Spec.Hostnames, func(to *model.Routes) {
		for i, rule := range r.Spec.Rules {
			to.TCP = append(to.TCP, b.connections(o, fmt.Sprintf("spec.rules[%d]", i), rule.BackendRefs))
		}
	})
}

func (b *builder) tcpRoute(o *objects.Object, r *gatewayv1.TCPRoute) *attachments {
	return b.attach(o, r.Spec.ParentRefs, nil, func(to *model.Routes) {
		for i, rule := range r.Spec.Rules {
			to.TCP = append(to.TCP, b.connections(o, fmt.Sprintf("spec.rules[%d]", i), rule.BackendRefs))
		}
	})
}

func (b *builder) connections(o *objects.Object, at string, backends []gatewayv1.BackendRef) model.TCPRoute {
	route := model.TCPRoute{Source: source(o).At(at)}
	for j, r := range backends {
		route.Forward = append(route.Forward, b.backend(o, fmt.Sprintf("%s.backendRefs[%d]", at, j), &r.BackendObjectReference, r.Weight))
	}
	return route
}
