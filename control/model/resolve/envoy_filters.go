package resolve

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	networkingv1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// gatewayNameLabel is on the proxies of a Gateway of the Gateway API (GEP-1762).
const gatewayNameLabel = "gateway.networking.k8s.io/gateway-name"

// inOrder is the order in which EnvoyFilters are applied.
func (m *Model) inOrder(x, y *model.EnvoyFilter) int {
	return model.ComparePriority(m.settings.RootNamespace, x, y, compareAge(m.createdOf(x.Source.Key), m.createdOf(y.Source.Key)))
}

func (b *builder) envoyFilter(o *objects.Object, r *networkingv1alpha3.EnvoyFilter) *model.EnvoyFilter {
	out := &model.EnvoyFilter{Namespace: o.GetNamespace(), Name: o.GetName(), Priority: r.Spec.GetPriority(), Source: source(o)}
	if labels := r.Spec.GetWorkloadSelector().GetLabels(); len(labels) > 0 {
		out.Selectors = []map[string]string{labels}
		if !b.selectsWorkload(out.Namespace, labels) {
			b.report.missing(o.Key(), "NoWorkload", "spec.workloadSelector", "selects no workload and no gateway",
				"correct the labels, or apply the Workload")
		}
	}
	for _, ref := range r.Spec.GetTargetRefs() {
		out.Selectors = append(out.Selectors, map[string]string{gatewayNameLabel: ref.GetName()})
	}
	if len(r.Spec.GetConfigPatches()) == 0 {
		b.report.note(o.Key(), "spec.configPatches", "is empty: nothing is changed")
	}
	for i, p := range r.Spec.GetConfigPatches() {
		path := fmt.Sprintf("spec.configPatches[%d]", i)
		value, err := objects.PatchValue(p)
		if err != nil {
			// Its form was checked when it was admitted.
			b.report.refuse(o.Key(), "Invalid", path+".patch.value", err.Error(), "correct it")
			continue
		}
		out.Patches = append(out.Patches, patch(p, value, out.Source.At(path)))
	}
	return out
}

func patch(p *networking.EnvoyFilter_EnvoyConfigObjectPatch, value []byte, from model.Source) *model.Patch {
	out := &model.Patch{
		ApplyTo: p.GetApplyTo().String(), Context: p.GetMatch().GetContext().String(), Operation: p.GetPatch().GetOperation().String(), Source: from,
	}
	if p.GetPatch().GetOperation() != networking.EnvoyFilter_Patch_REMOVE {
		out.Value = value
	}
	if class := p.GetPatch().GetFilterClass(); class != networking.EnvoyFilter_Patch_UNSPECIFIED {
		out.FilterClass = class.String()
	}
	if m := p.GetMatch().GetProxy(); m.GetProxyVersion() != "" || len(m.GetMetadata()) > 0 {
		out.Proxy = model.NewPatchProxy(m.GetProxyVersion(), m.GetMetadata())
	}
	if m := p.GetMatch().GetListener(); m != nil {
		chain := m.GetFilterChain()
		out.Listener = &model.PatchListener{
			Name: m.GetName(), Port: m.GetPortNumber(), ListenerFilter: m.GetListenerFilter(), Chain: chain.GetName(), ServerName: chain.GetSni(),
			Transport: chain.GetTransportProtocol(), ChainPort: chain.GetDestinationPort(), Filter: chain.GetFilter().GetName(),
			HTTPFilter: chain.GetFilter().GetSubFilter().GetName(),
		}
		if all := chain.GetApplicationProtocols(); all != "" {
			out.Listener.Protocols = strings.Split(all, ",")
		}
	}
	if m := p.GetMatch().GetRouteConfiguration(); m != nil {
		out.Routes = &model.PatchRoutes{
			Name: m.GetName(), Port: m.GetPortNumber(), PortName: m.GetPortName(), Gateway: m.GetGateway(), Host: m.GetVhost().GetName(),
			Domain: m.GetVhost().GetDomainName(), ByRoute: m.GetVhost().GetRoute() != nil, Route: m.GetVhost().GetRoute().GetName(),
		}
		if action := m.GetVhost().GetRoute().GetAction(); action != networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ANY {
			out.Routes.Action = action.String()
		}
	}
	if m := p.GetMatch().GetCluster(); m != nil {
		out.Cluster = &model.PatchCluster{Name: m.GetName(), Service: m.GetService(), Subset: m.GetSubset(), Port: m.GetPortNumber()}
	}
	return out
}
