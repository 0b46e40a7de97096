package resolve

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// global is a global namespace of a build.
type global struct {
	key    objects.Key
	object *objects.Object
	spec   *v1alpha1.GlobalNamespaceSpec
	model  *model.GlobalNamespace
	// services by short name; nil for a name that is not unique.
	services map[string]*model.Service
}

// mapping is the first mapping that covers a namespace of a cluster, or -1.
func (g *global) mapping(cluster, namespace string) int {
	return slices.IndexFunc(g.spec.Mappings, func(m v1alpha1.NamespaceMapping) bool {
		return Covers(m.Cluster, cluster) && Covers(m.Namespace, namespace)
	})
}

// names says whether a mapping covers any namespace of a cluster.
func (g *global) names(cluster string) bool {
	return slices.ContainsFunc(g.spec.Mappings, func(m v1alpha1.NamespaceMapping) bool { return Covers(m.Cluster, cluster) })
}

// Covers says whether a pattern, "*" for any characters, matches a name. The form check lets nothing else that
// path.Match takes for special into patterns, and names have no slash.
func Covers(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

func isPattern(s string) bool { return strings.Contains(s, "*") }

// ownership says which global namespace a namespace belongs to: the oldest of those that map it. It is the same in all
// clusters, because they have the same GlobalNamespace objects.
type ownership struct {
	// globals in force, the oldest first.
	globals []*global
	// refused are the others, and why.
	refused []refusal
	root    string
}

type refusal struct {
	key     objects.Key
	finding Finding
}

// newOwnership takes the GlobalNamespaces among objects whose form has been checked.
func newOwnership(settings model.Settings, objs []*objects.Object) *ownership {
	out := &ownership{root: settings.RootNamespace}
	var all []*global
	for _, o := range objs {
		if g, ok := o.Resource.(*v1alpha1.GlobalNamespace); ok {
			all = append(all, &global{key: o.Key(), object: o, spec: &g.Spec, services: map[string]*model.Service{}})
		}
	}
	slices.SortStableFunc(all, func(x, y *global) int {
		cx, cy := x.object.GetCreationTimestamp().Time, y.object.GetCreationTimestamp().Time
		return cmp.Or(compareAge(cx, cy), compareKeys(x.key, y.key))
	})
	for _, g := range all {
		if f := out.contradiction(settings, g); f != nil {
			out.refused = append(out.refused, refusal{g.key, *f})
			continue
		}
		out.globals = append(out.globals, g)
	}
	return out
}

// contradiction says why a global namespace cannot be in force beside the older ones; nil when it can.
func (w *ownership) contradiction(settings model.Settings, g *global) *Finding {
	const path = "spec.domain"
	d := g.spec.Domain
	if d == settings.Domain || strings.HasSuffix(d, "."+settings.Domain) || strings.HasSuffix(settings.Domain, "."+d) {
		return &Finding{Reason: "Conflict", Path: path,
			Problem: d + " overlaps the clusters' own domain " + settings.Domain, Remedy: `choose another, for example "acme.demo"`}
	}
	for _, older := range w.globals {
		if older.spec.Domain == d {
			return &Finding{Reason: "Conflict", Path: path,
				Problem: d + " is the domain of the older " + older.key.String(), Remedy: "choose another"}
		}
	}
	return nil
}

// of is the global namespace that a namespace of a cluster belongs to, or nil. The gateways' namespace, whose policies
// hold for the whole mesh, belongs to none.
func (w *ownership) of(cluster, namespace string) *global {
	if i := w.index(cluster, namespace); i >= 0 {
		return w.globals[i]
	}
	return nil
}

// index is where in globals that one is, or -1.
func (w *ownership) index(cluster, namespace string) int {
	if namespace == w.root {
		return -1
	}
	return slices.IndexFunc(w.globals, func(g *global) bool { return g.mapping(cluster, namespace) >= 0 })
}
