package resolve

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// sidecar makes what limits workloads' proxies.
func (b *builder) sidecar(o *objects.Object, s *networkingv1.Sidecar) *model.Sidecar {
	out := &model.Sidecar{
		Namespace: o.GetNamespace(), Name: o.GetName(), Selector: s.Spec.GetWorkloadSelector().GetLabels(), Source: source(o),
	}
	for _, l := range s.Spec.Egress {
		for _, h := range l.Hosts {
			ns, host, _ := strings.Cut(h, "/")
			out.Egress = append(out.Egress, model.EgressHost{Namespace: ns, Host: strings.ToLower(strings.TrimSuffix(host, "."))})
		}
	}
	for _, l := range s.Spec.Ingress {
		p := entryPort(&networking.ServicePort{Number: l.Port.Number, Name: l.Port.Name, Protocol: l.Port.Protocol})
		// Its form was checked.
		target, _ := objects.SidecarEndpoint(l.DefaultEndpoint)
		out.Ingress = append(out.Ingress, model.IngressPort{Number: p.Number, Name: p.Name, Protocol: p.Protocol, Target: target})
	}
	if p := s.Spec.OutboundTrafficPolicy; p != nil {
		block := p.Mode == networking.OutboundTrafficPolicy_REGISTRY_ONLY
		out.BlockUnknown = &block
	}
	if len(out.Selector) > 0 {
		b.sidecarWorkloads(o, out)
	} else {
		out.Selector = nil
	}
	return out
}

func (b *builder) sidecarWorkloads(o *objects.Object, s *model.Sidecar) {
	if len(b.workloadsIn(s.Namespace, s.Selector))+len(b.replicasIn(s.Namespace, s.Selector)) == 0 {
		b.report.missing(o.Key(), "NoWorkload", "spec.workloadSelector", "selects no workload", "apply a Workload with these labels, in the same namespace")
	}
}

// setSidecar takes note of a Sidecar that is there, or not any more.
func (m *Model) setSidecar(s *model.Sidecar, there bool) {
	m.changed.sidecars.set(s, there)
	if len(s.Selector) == 0 {
		if m.sidecars[s.Namespace] == nil {
			m.sidecars[s.Namespace] = map[objects.Key]*model.Sidecar{}
		}
		if delete(m.sidecars[s.Namespace], s.Source.Key); there {
			m.sidecars[s.Namespace][s.Source.Key] = s
		}
		m.rescoped[s.Namespace] = true
	}
	m.say(s.Source.Key, saidConflict, nil)
}

// settleSidecarConflicts says which Sidecars an older one for the same namespace keeps out of force.
func (m *Model) settleSidecarConflicts() {
	for namespace := range m.rescoped {
		all, report := sortedBy(m.sidecars[namespace], m.age), recorder{m, saidConflict}
		for i, s := range all {
			if m.say(s.Source.Key, saidConflict, nil); i > 0 {
				report.refuse(s.Source.Key, "Conflict", "spec", fmt.Sprintf("the older %s is for the whole namespace already", all[0].Source.Key),
					"delete one of the two, or give this one a workloadSelector")
			}
		}
		if len(all) == 0 {
			delete(m.sidecars, namespace)
		}
	}
	clear(m.rescoped)
}
