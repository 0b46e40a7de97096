package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/registry"
)

// Exports are the services that this cluster offers to any other cluster: those of the namespaces that global
// namespaces map. What it imports itself is not among them, nor what is kept to some
// namespaces (networking.istio.io/exportTo).
func Exports(mesh *model.Mesh) *registry.Exports { return new(Exporter).Exports(mesh) }

// Exporter gives the [Exports] of meshes, one after the other, each of which costs what it differs in from the one before. It must be of the same
// kept model (see [model.Differ]). The zero value is ready.
type Exporter struct {
	// mesh is the last one, and exports what was made of it.
	mesh    *model.Mesh
	exports *registry.Exports
}

// Exports of a mesh.
func (x *Exporter) Exports(mesh *model.Mesh) *registry.Exports {
	before := x.mesh
	if before == nil || before.Settings.DefaultMode != mesh.Settings.DefaultMode || before.Settings.RootNamespace != mesh.Settings.RootNamespace ||
		!slices.Equal(before.PeerModes, mesh.PeerModes) {
		// Which replicas take mutual TLS may be another matter for each.
		before = &model.Mesh{}
	}
	var set []*registry.Export
	var gone []registry.ExportName
	for _, p := range model.DifferInServices(before, mesh) {
		if p.Before != nil && p.Before.Exported() && (p.After == nil || !p.After.Exported()) {
			gone = append(gone, registry.ExportName{Namespace: p.Before.Namespace, Name: p.Before.Name})
		}
		if p.After != nil && p.After.Exported() {
			set = append(set, exported(mesh, p.After))
		}
	}
	if before == x.mesh {
		x.exports = x.exports.With(set, gone)
	} else {
		x.exports = x.exports.Replaced(set)
	}
	x.mesh = mesh
	return x.exports
}

// exported is a service as it is exported.
func exported(mesh *model.Mesh, s *model.Service) *registry.Export {
	e := &registry.Export{Namespace: s.Namespace, Name: s.Name, Identities: slices.Clone(s.Identities)}
	for _, p := range s.Ports {
		if p.Target != 0 || p.TargetName != "" {
			e.Ports = append(e.Ports, registry.ExportPort{Name: p.Name, Number: p.Number, Protocol: string(p.Protocol)})
		}
	}
	e.Groups = groups(mesh, s)
	return e
}

// groups counts the replicas of a service that clients of other clusters can use: ready ones whose proxy terminates
// mutual TLS, because the gateways between the clusters pass nothing else.
func groups(mesh *model.Mesh, s *model.Service) []registry.ExportGroup {
	found := map[string]*registry.ExportGroup{}
	for _, r := range s.Replicas {
		usable := slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool {
			target, ok := p.TargetOn(r)
			return ok && mesh.MutualTLS(r, target)
		})
		if !r.Ready || !usable {
			continue
		}
		var text strings.Builder
		for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
			fmt.Fprintf(&text, "%s=%s,", k, r.Labels[k])
		}
		g := found[text.String()]
		if g == nil {
			g = &registry.ExportGroup{Labels: r.Labels}
			found[text.String()] = g
		}
		g.Ready++
	}
	out := make([]registry.ExportGroup, 0, len(found))
	for _, k := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[k])
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
