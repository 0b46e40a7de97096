package translate

import (
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
)

// Concerns says whether a change of the model may make a difference to what a kind of proxy got as a server or gateway. When
// it says no, there is none.
func (r *Resources) Concerns(k Kind, root string, d *model.Difference) bool {
	if len(d.Globals)+len(d.PeerModes) > 0 || concernsFilters(k, d) {
		return true
	}
	selected := func(namespace string, selector map[string]string) bool {
		return (namespace == k.Namespace || namespace == root) && model.Selects(selector, k.Labels)
	}
	if slices.ContainsFunc(model.Both(d.Access), func(p *model.AccessPolicy) bool { return selected(p.Namespace, p.Selector) }) ||
		slices.ContainsFunc(model.Both(d.Authentications), func(a *model.Authentication) bool { return selected(a.Namespace, a.Selector) }) {
		return true
	}
	if slices.ContainsFunc(model.Both(d.Sidecars), func(s *model.Sidecar) bool { return s.FullName() == k.Scope }) {
		return true
	}
	if k.Role == Inbound {
		return slices.ContainsFunc(model.Both(d.Services), func(s *model.Service) bool {
			return s.Namespace == k.Namespace && s.Local() && model.Selects(s.Selector, k.Labels)
		})
	}
	between := model.Selects(eastWestLabels, k.Labels)
	return len(d.Gateways)+len(d.Credentials)+len(d.Anchors) > 0 ||
		slices.ContainsFunc(model.Both(d.Routes), func(r *model.Routes) bool {
			return slices.ContainsFunc(r.Gateways, func(name string) bool { return name != model.GatewayMesh }) ||
				slices.ContainsFunc(r.HTTP, func(h model.HTTPRoute) bool {
					return slices.ContainsFunc(h.Matches, func(m model.HTTPMatch) bool { return len(m.Scope.Gateways) > 0 })
				})
		}) ||
		slices.ContainsFunc(model.Both(d.BackendTLS), func(b *model.BackendTLS) bool {
			return slices.ContainsFunc(b.Targets, func(t model.BackendTarget) bool { return r.reads[t.Host] })
		}) ||
		slices.ContainsFunc(model.Both(d.Services), func(s *model.Service) bool { return r.reads[s.Host] || between && s.Exported() }) ||
		slices.ContainsFunc(model.Both(d.Destinations), func(p *model.DestinationPolicy) bool {
			return between || strings.HasPrefix(p.Host, "*") || r.reads[p.Host]
		})
}
