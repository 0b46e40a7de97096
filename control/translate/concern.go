package translate

import (
	"slices"

	"heddle.io/heddle/control/model"
)

// Concerns says whether a change of the model may make a difference to what a kind of proxy got as a server. When it says no,
// there is none.
func Concerns(k Kind, root string, d *model.Difference) bool {
	return concernsProxies(k, root, d) || slices.ContainsFunc(model.Both(d.Services), func(s *model.Service) bool {
		return s.Namespace == k.Namespace && s.Local() && model.Selects(s.Selector, k.Labels)
	})
}

// concernsProxies says whether a change is of what holds for proxies as such, servers and gateways, whatever services there are.
func concernsProxies(k Kind, root string, d *model.Difference) bool {
	if len(d.Globals)+len(d.PeerModes) > 0 || concernsFilters(k, d) {
		return true
	}
	selected := func(namespace string, selector map[string]string) bool {
		return (namespace == k.Namespace || namespace == root) && model.Selects(selector, k.Labels)
	}
	return slices.ContainsFunc(model.Both(d.Access), func(p *model.AccessPolicy) bool { return selected(p.Namespace, p.Selector) }) ||
		slices.ContainsFunc(model.Both(d.Authentications), func(a *model.Authentication) bool { return selected(a.Namespace, a.Selector) }) ||
		slices.ContainsFunc(model.Both(d.Sidecars), func(s *model.Sidecar) bool { return s.FullName() == k.Scope })
}
