package translate

import (
	"slices"

	"heddle.io/heddle/control/model"
)

// Concerns says whether a change of the model may make a difference to what a kind of proxy got as a server. When it says no,
// there is none.
func Concerns(k Kind, root string, d *model.Difference) bool {
	return concernsProxies(k, root, d) || concernsFilters(k, d) || slices.ContainsFunc(model.Both(d.Services), k.serves)
}

// serves says whether proxies of an inbound kind are behind a service.
func (k Kind) serves(s *model.Service) bool {
	return s.Namespace == k.Namespace && s.Local() && model.Selects(s.Selector, k.Labels)
}

// Former is a mesh that clients may still go by, beside the one that servers go by.
type Former struct {
	// services are those that differ.
	services []model.Pair[model.Service]
	// modes says that the rules for mutual TLS may differ.
	modes bool
}

// FormerOf compares a former mesh with the one that servers go by. It looks at all of both, by pointer; [Former.Concerns], at what differs.
func FormerOf(former, mesh *model.Mesh) Former {
	d := model.Differ(former, mesh)
	return Former{d.Services, len(d.PeerModes) > 0 || !sameDefaults(former, mesh)}
}

// Concerns says whether proxies of an inbound kind may have to accept something for clients of the former mesh that they do not accept
// anyway. When it says no, it makes no difference to them whether that mesh is accepted.
func (f Former) Concerns(k Kind) bool {
	return f.modes || slices.ContainsFunc(f.services, func(p model.Pair[model.Service]) bool {
		return p.Before != nil && k.serves(p.Before) && (p.After == nil || !k.serves(p.After) || !slices.Equal(p.Before.Ports, p.After.Ports))
	})
}

// sameDefaults says whether two meshes have the same rules for mutual TLS where no object has any.
func sameDefaults(x, y *model.Mesh) bool {
	return x.Settings.DefaultMode == y.Settings.DefaultMode && x.Settings.RootNamespace == y.Settings.RootNamespace
}

// concernsProxies says whether a change is of what holds for proxies as such, servers and gateways, whatever services there are.
func concernsProxies(k Kind, root string, d *model.Difference) bool {
	if len(d.Globals)+len(d.PeerModes) > 0 {
		return true
	}
	selected := func(namespace string, selector map[string]string) bool {
		return (namespace == k.Namespace || namespace == root) && model.Selects(selector, k.Labels)
	}
	return slices.ContainsFunc(model.Both(d.Access), func(p *model.AccessPolicy) bool { return selected(p.Namespace, p.Selector) }) ||
		slices.ContainsFunc(model.Both(d.Authentications), func(a *model.Authentication) bool { return selected(a.Namespace, a.Selector) }) ||
		slices.ContainsFunc(model.Both(d.Sidecars), func(s *model.Sidecar) bool { return s.FullName() == k.Scope })
}
