package resolve

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// sections of a status that Gateway API's kinds have beside the conditions that all have.
type sections struct {
	Listeners []gatewayv1.ListenerStatus
	Parents   []gatewayv1.RouteParentStatus
	Ancestors []gatewayv1.PolicyAncestorStatus
	// points are where a route is attached, for each of the parents.
	points [][]string
	// conflicts of listeners with older Gateways' on the same port, by listener; keptOut says of a route which others keep it out of
	// a point.
	conflicts, keptOut map[string]Finding
}

// addSections completes a status with what only others' objects tell: how many routes each listener has, and conflicts.
func (m *Model) addSections(e *keptObject, to *objects.Status) {
	s := &e.sections
	to.Listeners, to.Parents, to.Ancestors = slices.Clone(s.Listeners), s.Parents, s.Ancestors
	if problems := m.found(e.object.Key()).unresolved; e.valid && e.part == nil && makesPart(e.object.Kind) && len(problems) > 0 {
		// It names nothing that would use it, or that it could use.
		to.Conditions[0] = condition(objects.ConditionAccepted, e.object.GetGeneration(), problems[:1], "", "")
	}
	if len(s.keptOut) > 0 && len(s.points) > 0 {
		m.addKeptOut(e, to)
	}
	switch r := e.object.Resource.(type) {
	case *gatewayv1.GatewayClass:
		addClass(r, to)
	case *gatewayv1.Gateway:
		m.addGateway(e, r, to)
	case *gatewayv1.BackendTLSPolicy:
		m.addPolicy(e, to)
	}
}

// makesPart says whether objects of a kind of Gateway API are parts of the mesh once they are accepted. A GatewayClass is none,
// and is not accepted when it is another controller's.
func makesPart(k *objects.Kind) bool {
	return k.Group == objects.GroupGatewayAPI && k != objects.ReferenceGrant
}

// grant takes note of a ReferenceGrant that is there, or not any more.
func (m *Model) grant(key objects.Key, o *objects.Object, there bool) {
	in := m.grants[key.Namespace]
	if delete(in, key); there {
		if in == nil {
			in = map[objects.Key]*gatewayv1.ReferenceGrant{}
			m.grants[key.Namespace] = in
		}
		if g, ok := o.Resource.(*gatewayv1.ReferenceGrant); ok {
			in[key] = g
		}
	}
	if len(in) == 0 {
		delete(m.grants, key.Namespace)
	}
	m.touch(fact{kind: factGrants, a: key.Namespace})
}

// setServers takes note of the ports of a gateway that is there, or not any more.
func (m *Model) setServers(g *model.Gateway, there bool) {
	for i := range g.Servers {
		port := g.Servers[i].Port
		of := m.servers[port]
		if delete(of, g.FullName()); there {
			if of == nil {
				of = map[string]*model.Gateway{}
				m.servers[port] = of
			}
			of[g.FullName()] = g
		}
		if len(of) == 0 {
			delete(m.servers, port)
		}
		m.reserved[port] = true
	}
}

// MergeStatus puts a new status in place of an old one. A condition whose status did not change keeps its transition time.
func MergeStatus(old, fresh objects.Status, now metav1.Time) objects.Status {
	fresh = fresh.DeepCopy()
	fresh.Conditions = MergeConditions(old.Conditions, fresh.Conditions, now)
	for i := range fresh.Listeners {
		l := &fresh.Listeners[i]
		of := find(old.Listeners, func(o gatewayv1.ListenerStatus) bool { return o.Name == l.Name })
		// What is said only while it is true does not stay.
		of.Conditions = slices.DeleteFunc(slices.Clone(of.Conditions), func(c metav1.Condition) bool {
			return c.Type == string(gatewayv1.ListenerConditionOverlappingTLSConfig) &&
				!slices.ContainsFunc(l.Conditions, func(now metav1.Condition) bool { return now.Type == c.Type })
		})
		l.Conditions = MergeConditions(of.Conditions, l.Conditions, now)
	}
	for i := range fresh.Parents {
		p := &fresh.Parents[i]
		of := find(old.Parents, func(o gatewayv1.RouteParentStatus) bool { return reflect.DeepEqual(o.ParentRef, p.ParentRef) })
		p.Conditions = MergeConditions(of.Conditions, p.Conditions, now)
	}
	for i := range fresh.Ancestors {
		a := &fresh.Ancestors[i]
		of := find(old.Ancestors, func(o gatewayv1.PolicyAncestorStatus) bool { return reflect.DeepEqual(o.AncestorRef, a.AncestorRef) })
		a.Conditions = MergeConditions(of.Conditions, a.Conditions, now)
	}
	return fresh
}

func find[T any](all []T, is func(T) bool) T {
	var none T
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return none
}

// Programmed completes the sections of a Gateway's status with the condition that holds for all of it; nil for none.
func Programmed(to *objects.Status, programmed *metav1.Condition) {
	if programmed == nil {
		return
	}
	for i := range to.Listeners {
		l, c := &to.Listeners[i], *programmed
		for _, other := range l.Conditions {
			wanted := other.Type == string(gatewayv1.ListenerConditionAccepted) || other.Type == string(gatewayv1.ListenerConditionResolvedRefs)
			if wanted && other.Status != metav1.ConditionTrue {
				c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(gatewayv1.ListenerReasonInvalid), other.Message
			}
		}
		l.Conditions = append(slices.Clip(l.Conditions), c)
	}
}
