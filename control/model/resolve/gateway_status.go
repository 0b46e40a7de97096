package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// What a Gateway's status has beside its conditions, and what these say of its listeners (GatewayStatus of Gateway API).

// maxAddresses is Gateway API's bound of status.addresses.
const maxAddresses = 16

// addGateway completes the status of a Gateway: its listeners with what others' objects do to them, its addresses, and what its own
// conditions say of the listeners.
func (m *Model) addGateway(e *keptObject, g *gatewayv1.Gateway, to *objects.Status) {
	s := &e.sections
	part, served := e.part.(*model.Gateway)
	overlapping := overlaps64(g.Spec.Listeners)
	var notAccepted, notResolved []Finding
	for i := range to.Listeners {
		l := &to.Listeners[i]
		l.Conditions = slices.Clone(l.Conditions)
		if served {
			l.AttachedRoutes = int32(m.attached.at(part.ServerName(&part.Servers[i])))
		}
		conflict, conflicted := s.conflicts[string(l.Name)]
		if conflicted {
			notAccepted = append(notAccepted, conflict)
		}
		for j := range l.Conditions {
			c := &l.Conditions[j]
			switch {
			case c.Type == string(gatewayv1.ListenerConditionResolvedRefs) && c.Status == metav1.ConditionFalse:
				notResolved = append(notResolved, Finding{Reason: string(gatewayv1.GatewayReasonListenersNotResolved), Problem: fmt.Sprintf("listener %s: %s", l.Name, c.Message)})
			case !conflicted:
			case c.Type == string(gatewayv1.ListenerConditionAccepted):
				*c = said(c.ObservedGeneration, c.Type, &conflict, "")
			case c.Type == string(gatewayv1.ListenerConditionConflicted):
				c.Status, c.Reason, c.Message = metav1.ConditionTrue, conflict.Reason, conflict.String()
			}
		}
		if other, does := overlapping[l.Name]; does {
			l.Conditions = append(l.Conditions, metav1.Condition{
				Type: string(gatewayv1.ListenerConditionOverlappingTLSConfig), Status: metav1.ConditionTrue, ObservedGeneration: e.object.GetGeneration(),
				Reason:  string(gatewayv1.ListenerReasonOverlappingHostnames),
				Message: fmt.Sprintf("listener %s has the same port and a hostname in common: over a connection that was made for one of them, clients may send requests for the other", other),
			})
		}
	}
	if !served {
		for i := range to.Listeners {
			c := &to.Listeners[i].Conditions[0]
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(gatewayv1.ListenerReasonPending), "no gateway serves it"
		}
		return
	}
	to.Addresses = m.addressesOf(g, part)
	generation := e.object.GetGeneration()
	if len(notAccepted) > 0 {
		notAccepted[0].Reason = string(gatewayv1.GatewayReasonListenersNotValid)
		to.Conditions[0] = condition(objects.ConditionAccepted, generation, notAccepted, "", "")
		if len(notAccepted) < len(to.Listeners) {
			// The others are in force.
			to.Conditions[0].Status = metav1.ConditionTrue
		}
	}
	to.Conditions[1] = condition(objects.ConditionResolvedRefs, generation, notResolved, string(gatewayv1.GatewayReasonResolvedRefs), "everything that it names exists")
}

// addressesOf a Gateway that is served: the host that its spec names, or where the ingress gateway's replicas are that are ready.
func (m *Model) addressesOf(g *gatewayv1.Gateway, part *model.Gateway) []gatewayv1.GatewayStatusAddress {
	if len(g.Spec.Addresses) > 0 {
		return []gatewayv1.GatewayStatusAddress{{Type: ptr.To(gatewayv1.HostnameAddressType), Value: g.Spec.Addresses[0].Value}}
	}
	replicas, _ := m.replicas.in("", part.Selector)
	var ready []netip.Addr
	for _, r := range replicas {
		if r.Ready {
			ready = append(ready, r.Address)
		}
	}
	slices.SortFunc(ready, netip.Addr.Compare)
	return AddressesOf(ready)
}

// AddressesOf gives addresses in a Gateway's form, at most as many as it may have.
func AddressesOf(all []netip.Addr) []gatewayv1.GatewayStatusAddress {
	var out []gatewayv1.GatewayStatusAddress
	for _, a := range all[:min(len(all), maxAddresses)] {
		out = append(out, gatewayv1.GatewayStatusAddress{Type: ptr.To(gatewayv1.IPAddressType), Value: a.String()})
	}
	return out
}

// overlaps64 are the listeners with TLS, of the 64 at the most that a Gateway has, which share their port and a host with
// another one, and which one.
func overlaps64(all []gatewayv1.Listener) map[gatewayv1.SectionName]gatewayv1.SectionName {
	out := map[gatewayv1.SectionName]gatewayv1.SectionName{}
	for i := range all {
		for j := range all {
			a, b := &all[i], &all[j]
			if i == j || a.Port != b.Port || a.TLS == nil || b.TLS == nil || out[a.Name] != "" {
				continue
			}
			x, y := orAny(string(ptr.Deref(a.Hostname, ""))), orAny(string(ptr.Deref(b.Hostname, "")))
			if model.CoversHost(x, y) || model.CoversHost(y, x) {
				out[a.Name] = b.Name
			}
		}
	}
	return out
}

// hostnamesUnserved notes hostnames of a route that no listener serves which it is attached to: they are ignored, as the API has it.
func (b *builder) hostnamesUnserved(o *objects.Object, r *model.Routes) {
	if len(r.Gateways) == 0 {
		return
	}
	for i, h := range r.Hosts {
		if h != "*" && !slices.ContainsFunc(r.Gateways, func(name string) bool { return b.serves(name, o.GetNamespace(), h) }) {
			b.report.note(o.Key(), fmt.Sprintf("spec.hostnames[%d]", i), "has no effect: no listener that the route is attached to has it")
		}
	}
}

// serves says whether the server of a gateway by that name (see [model.Gateway.ServerName]) serves a host.
func (b *builder) serves(name, namespace, host string) bool {
	g := b.m.gateways[name[:strings.LastIndexByte(name, '/')]]
	return g != nil && slices.ContainsFunc(g.Servers, func(s model.Server) bool { return g.ServerName(&s) == name && s.Serves(namespace, host) != "" })
}
