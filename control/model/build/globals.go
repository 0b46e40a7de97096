package build

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// clusters finds all clusters of the mesh, and their authorities: certificates of others are not accepted. Of this
// cluster's own authority, the cluster itself knows best.
func (b *builder) clusters(sorted []*objects.Object) {
	known, issuers := []string{b.settings.Cluster}, slices.Clone(b.settings.Issuers)
	if len(issuers) == 0 {
		issuers = []cluster.Issuer{{Cluster: b.settings.Cluster}}
	}
	add := func(name, membership string) {
		if !slices.Contains(known, name) {
			known = append(known, name)
			issuers = append(issuers, cluster.Issuer{Cluster: name, Membership: membership})
		}
	}
	for _, o := range sorted {
		if c, ok := o.Resource.(*v1alpha1.Cluster); ok {
			add(o.GetName(), c.Spec.Key)
		}
	}
	for _, name := range b.settings.Clusters {
		add(name, "")
	}
	slices.Sort(known)
	slices.SortFunc(issuers, cluster.Issuer.Compare)
	b.mesh.Settings.Clusters, b.mesh.Settings.Issuers = known, issuers
}

// isCluster says whether the mesh has a cluster of that name.
func (b *builder) isCluster(name string) bool { return slices.Contains(b.mesh.Settings.Clusters, name) }

// globals puts the global namespaces into force: which namespaces of this cluster they map, which services of other
// clusters they bring here, and under which names all of them are called.
func (b *builder) globals(sorted []*objects.Object, runtime Runtime) {
	b.owners = newOwnership(b.settings, sorted)
	for _, r := range b.owners.refused {
		b.report.refuse(r.key, r.finding.Reason, r.finding.Path, r.finding.Problem, r.finding.Remedy)
	}
	local := b.localNamespaces(sorted)
	for _, g := range b.owners.globals {
		g.model = &model.GlobalNamespace{Name: g.key.Name, Domain: g.spec.Domain, Source: source(g.object)}
		for _, ns := range local {
			if b.owners.of(b.settings.Cluster, ns) == g {
				g.model.Namespaces = append(g.model.Namespaces, ns)
			}
		}
		b.mesh.Globals = append(b.mesh.Globals, g.model)
		b.mappings(g, local)
	}
	for _, g := range b.owners.globals {
		b.imports(g, runtime)
		b.externals(g, runtime.Addresses)
	}
}

// localNamespaces are those that are declared, and those that services and workloads are in; sorted.
func (b *builder) localNamespaces(sorted []*objects.Object) []string {
	var out []string
	for _, o := range sorted {
		switch o.Kind {
		case objects.Namespace:
			out = append(out, o.GetName())
		case objects.Service, objects.Workload:
			out = append(out, o.GetNamespace())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mappings notes what a global namespace maps here, and what it names in vain.
func (b *builder) mappings(g *global, local []string) {
	for i, m := range g.spec.Mappings {
		at := fmt.Sprintf("spec.mappings[%d]", i)
		if !isPattern(m.Cluster) && !b.isCluster(m.Cluster) {
			b.report.missing(g.key, "NoCluster", at+".cluster", fmt.Sprintf("there is no cluster %s in the mesh", m.Cluster),
				"join it, or correct the name")
		}
		if !Covers(m.Cluster, b.settings.Cluster) {
			continue
		}
		if m.Namespace == b.settings.RootNamespace {
			b.report.missing(g.key, "NotMapped", at+".namespace",
				fmt.Sprintf("%s is the gateways' namespace and cannot be mapped", m.Namespace), "map another namespace")
		} else if !isPattern(m.Namespace) && !isPattern(m.Cluster) && !slices.Contains(local, m.Namespace) {
			b.report.missing(g.key, "NoNamespace", at+".namespace",
				fmt.Sprintf("there is no namespace %s in %s", m.Namespace, m.Cluster), "apply the Namespace, or correct the name")
		}
	}
	for _, ns := range local {
		i := g.mapping(b.settings.Cluster, ns)
		if owner := b.owners.of(b.settings.Cluster, ns); i >= 0 && owner != nil && owner != g {
			b.report.missing(g.key, "AlreadyMapped", fmt.Sprintf("spec.mappings[%d]", i),
				fmt.Sprintf("namespace %s of %s belongs to the older %s", ns, b.settings.Cluster, owner.key),
				"map it in one global namespace only")
		}
	}
}

// summary says in a global namespace's status what it does here.
func (b *builder) summary(g *global, here, there int) {
	if len(g.model.Namespaces) == 0 {
		b.report.tell(g.key, "spec.mappings", fmt.Sprintf("maps no namespace of %s", b.settings.Cluster))
		return
	}
	b.report.tell(g.key, "spec.mappings", fmt.Sprintf("maps these namespaces of %s: %s; services here: %d, in other clusters: %d",
		b.settings.Cluster, strings.Join(g.model.Namespaces, ", "), here, there))
}

// members see what belongs to the global namespace: workloads of its namespaces here, and gateways.
func (b *builder) members(g *global) model.Visibility {
	v := model.Visibility{Limited: true, Namespaces: append([]string{b.settings.RootNamespace}, g.model.Namespaces...)}
	slices.Sort(v.Namespaces)
	return v
}

// Defaults of api/v1alpha1.OutlierDetection.
const (
	outlierErrors   = 5
	outlierInterval = time.Second
	outlierEjection = 5 * time.Second
	outlierPercent  = 100
)

// outlier is the detection of failing endpoints for a service that runs in so many clusters. In one cluster alone there
// is none unless it was asked for, as for any other service; over several, it is what failover rests on.
func outlier(o *v1alpha1.OutlierDetection, clusters int) *model.Outlier {
	if o == nil {
		if clusters < 2 {
			return nil
		}
		o = &v1alpha1.OutlierDetection{}
	}
	never, errors := uint32(0), uint32(cmp.Or(o.ConsecutiveErrors, outlierErrors))
	out := &model.Outlier{
		// Answers of the application, 500 among them, eject nothing.
		Consecutive5xx: &never, ConsecutiveGateway: &errors, Interval: outlierInterval, BaseEjection: outlierEjection,
		MaxEjectionPercent: uint32(cmp.Or(o.MaxEjectionPercent, outlierPercent)),
	}
	if o.Interval != nil {
		out.Interval = o.Interval.Duration
	}
	if o.BaseEjectionTime != nil {
		out.BaseEjection = o.BaseEjectionTime.Duration
	}
	return out
}

// defaultDeny refuses what no policy allows, in every namespace that the global namespace maps here.
func (b *builder) defaultDeny(g *global) {
	if !g.spec.DefaultDeny {
		return
	}
	for _, ns := range g.model.Namespaces {
		b.mesh.Access = append(b.mesh.Access, &model.AccessPolicy{
			Namespace: ns, Name: madeBy(g), Action: model.Allow, Source: g.model.Source.At("spec.defaultDeny"),
		})
	}
}

// madeBy names what a global namespace brings about; no object can be called so.
func madeBy(g *global) string { return "globalnamespace:" + g.key.Name }
