package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// Of several BackendTLSPolicies for a Service, or for one of its ports, the oldest holds. The status of each is by the Gateways
// whose routes lead to its targets (PolicyAncestorStatus).

// maxAncestors is Gateway API's bound of status.ancestors.
const maxAncestors = 16

// settlePolicies says which policies older ones for the same target keep out.
func (m *Model) settlePolicies() {
	concerned := map[objects.Key]*model.BackendTLS{}
	for host := range m.retargeted {
		maps.Copy(concerned, m.backendTLS[host])
	}
	clear(m.retargeted)
	for key, p := range concerned {
		e := m.entries[key]
		if e == nil {
			continue
		}
		m.forgetConflicts(key)
		for _, t := range p.Targets {
			first := p
			for other, o := range m.backendTLS[t.Host] {
				if slices.Contains(o.Targets, t) && m.age(other, first.Source.Key) < 0 {
					first = o
				}
			}
			if first == p {
				continue
			}
			f := Finding{
				Reason: string(gatewayv1.PolicyReasonConflicted), Path: "spec.targetRefs",
				Problem: fmt.Sprintf("the older %s is for %s already", first.Source.Key, targetName(t)), Remedy: "delete one of the two, or name another port by sectionName",
			}
			if e.sections.keptOut == nil {
				e.sections.keptOut = map[string]Finding{}
			}
			e.sections.keptOut[targetName(t)] = f
			recorder{m, saidConflict}.missing(key, f.Reason, f.Path, f.Problem, f.Remedy)
		}
	}
}

func targetName(t model.BackendTarget) string {
	if t.Port == 0 {
		return t.Host
	}
	return fmt.Sprintf("%s:%d", t.Host, t.Port)
}

// addPolicy completes the status of a policy: what older ones keep it out of, and the Gateways that it holds for.
func (m *Model) addPolicy(e *keptObject, to *objects.Status) {
	p, is := e.part.(*model.BackendTLS)
	if !is {
		return
	}
	var out []Finding
	gateways := map[string]bool{}
	for _, t := range p.Targets {
		if f, kept := e.sections.keptOut[targetName(t)]; kept {
			out = append(out, f)
		}
		for g := range m.attached.users[t.Host] {
			gateways[g] = true
		}
	}
	if len(gateways) > 0 {
		conditions := to.Ancestors[0].Conditions
		to.Ancestors = nil
		for _, name := range slices.Sorted(maps.Keys(gateways))[:min(len(gateways), maxAncestors)] {
			namespace, name, _ := strings.Cut(strings.TrimPrefix(name, objects.GroupGatewayAPI+"/"), "/")
			to.Ancestors = append(to.Ancestors, gatewayv1.PolicyAncestorStatus{
				AncestorRef: gatewayv1.ParentReference{
					Group: ptr.To(gatewayv1.Group(objects.GroupGatewayAPI)), Kind: ptr.To(gatewayv1.Kind(objects.KubernetesGateway.Kind)),
					Namespace: ptr.To(gatewayv1.Namespace(namespace)), Name: gatewayv1.ObjectName(name),
				},
				ControllerName: objects.GatewayController, Conditions: conditions,
			})
		}
	}
	if len(out) == 0 {
		return
	}
	to.Ancestors = slices.Clone(to.Ancestors)
	for i := range to.Ancestors {
		a := &to.Ancestors[i]
		a.Conditions = slices.Clone(a.Conditions)
		a.Conditions[0] = keptOutOf(a.Conditions[0], out, len(out) == len(p.Targets))
	}
	if len(out) == len(p.Targets) {
		to.Conditions[0] = condition(objects.ConditionAccepted, e.object.GetGeneration(), out, "", "")
	}
}

// keptOutOf is the condition Accepted of something that others keep out, at all places or at some.
func keptOutOf(c metav1.Condition, out []Finding, all bool) metav1.Condition {
	if all {
		return condition(c.Type, c.ObservedGeneration, out, "", "")
	}
	for _, f := range out {
		c.Message += ", but not everywhere: " + f.String()
	}
	return c
}
