package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// clusters are the settings with all clusters of the mesh, and their authorities: certificates of others are not accepted.
// Of this cluster's own authority, the cluster itself knows best.
func (m *Model) clusters() model.Settings {
	settings := m.settings
	known, issuers := []string{settings.Cluster}, slices.Clone(settings.Issuers)
	if len(issuers) == 0 {
		issuers = []cluster.Issuer{{Cluster: settings.Cluster}}
	}
	add := func(name, membership string) {
		if !slices.Contains(known, name) {
			known = append(known, name)
			issuers = append(issuers, cluster.Issuer{Cluster: name, Membership: membership})
		}
	}
	for _, o := range sortedBy(m.clusterObjects, compareKeys) {
		if c, ok := o.Resource.(*v1alpha1.Cluster); ok {
			add(o.GetName(), c.Spec.Key)
		}
	}
	for _, name := range settings.Clusters {
		add(name, "")
	}
	slices.Sort(known)
	slices.SortFunc(issuers, cluster.Issuer.Compare)
	settings.Clusters, settings.Issuers = known, issuers
	return settings
}

// isCluster says whether the mesh has a cluster of that name.
func (b *builder) isCluster(name string) bool {
	b.look(factClusters, "", "", "")
	return slices.Contains(b.m.mesh.Settings.Clusters, name)
}

// globalState is what global namespaces come to.
type globalState struct {
	owners *ownership
	models []*model.GlobalNamespace
	// made are the services that they make or add to, by host.
	made map[string]*model.Service
	// canonical names of services by alias.
	canonical map[string]string
	// wanted are the hosts that need a virtual address of the global range.
	wanted []string
	// concerned are the objects about which something is said in a step.
	concerned [segments][]objects.Key
	public    publicParts
	// reordered says that one has another age, and so what it makes another place.
	reordered bool
	// credentials that public services need.
	credentials []*model.Credential
}

// settleGlobals puts global namespaces into force where something changed that they have to do with, and then the services.
func (m *Model) settleGlobals() {
	concerned := map[string]bool{}
	for host := range m.relocal {
		concerned[host] = true
	}
	if (m.globalsChanged || m.reshaped) && (len(m.globalObjects) > 0 || m.global.owners != nil) {
		for host := range m.global.made {
			concerned[host] = true
		}
		m.applyGlobals()
		for host := range m.global.made {
			concerned[host] = true
		}
	} else {
		for host := range m.relocal {
			if was := m.global.made[host]; was != nil {
				m.global.made[host] = withGlobal(m.localByHost(host), was)
			}
		}
		for at := range m.reoffered {
			if host := m.renewRemote(at); host != "" {
				concerned[host] = true
			}
		}
	}
	m.globalsChanged, m.reshaped = false, false
	clear(m.relocal)
	clear(m.reoffered)
	for host := range m.external.changed {
		concerned[host] = true
	}
	clear(m.external.changed)
	m.external.contest.reset()
	m.external.spread(concerned)
	for host := range concerned {
		m.settleService(host)
	}
}

// settleService puts a service into force as it is now.
func (m *Model) settleService(host string) {
	was, now := m.services[host], m.global.made[host]
	if now == nil {
		now = m.localByHost(host)
	}
	if len(m.external.byHost[host]) > 0 {
		m.external.contested[host] = true
	}
	if now == nil {
		now = m.entryFor(host)
	}
	if now = same(m, "service "+host, was, now); was == now {
		return
	}
	if was != nil {
		m.changed.services.drop(was)
	}
	delete(m.services, host)
	remote, names := m.remotes[host], was != nil && now != nil && reflect.DeepEqual(was.Aliases, now.Aliases)
	delete(m.remotes, host)
	if now != nil {
		m.changed.services.add(now)
		m.services[host] = now
		if len(now.Remote) > 0 {
			m.remotes[host] = true
		}
		if now.Local() {
			m.say(now.Source.Key, saidIdle, nil)
			if m.idle[now.Source.Key] && len(now.Remote) == 0 {
				recorder{m, saidIdle}.missing(now.Source.Key, "NoWorkload", "spec.selector", "selects no workload",
					"apply a Workload whose labels it selects, in the same namespace")
			}
		}
	}
	// Who looks at the services of other clusters asks which there are, and what they are called.
	if remote != m.remotes[host] || remote && !names {
		m.touch(fact{kind: factRemotes})
	}
	m.touch(fact{kind: factService, a: host})
}

// localByHost is this cluster's service of that name, without what global namespaces add.
func (m *Model) localByHost(host string) *model.Service {
	name, rest, _ := strings.Cut(host, ".")
	namespace, _, _ := strings.Cut(rest, ".")
	if s := m.local[namespace][name]; s != nil && s.Host == host {
		return s
	}
	return nil
}

// quiet takes back all that was said in a step.
func (m *Model) quiet(segment int) {
	for _, key := range m.global.concerned[segment] {
		m.say(key, segment, nil)
	}
	m.global.concerned[segment] = nil
}

// applyGlobals puts the global namespaces into force: which namespaces of this cluster they map, which services of other
// clusters they bring here, and under which names all of them are called.
func (m *Model) applyGlobals() {
	m.quiet(saidGlobal)
	g, before := &m.global, m.global.canonical
	g.owners = newOwnership(m.settings, sortedBy(m.globalObjects, compareKeys))
	g.canonical, g.wanted = map[string]string{}, nil
	b := &builder{m: m, settings: m.settings, report: recorder{m, saidGlobal}, working: map[string]*model.Service{}}
	for _, r := range g.owners.refused {
		b.report.refuse(r.key, r.finding.Reason, r.finding.Path, r.finding.Problem, r.finding.Remedy)
	}
	local := slices.Sorted(maps.Keys(m.inhabited))
	var models []*model.GlobalNamespace
	known := map[string]*model.GlobalNamespace{}
	for _, old := range g.models {
		known[old.Name] = old
	}
	for _, one := range g.owners.globals {
		one.model = &model.GlobalNamespace{Name: one.key.Name, Domain: one.spec.Domain, Source: source(one.object)}
		for _, ns := range local {
			if g.owners.of(m.settings.Cluster, ns) == one {
				one.model.Namespaces = append(one.model.Namespaces, ns)
			}
		}
		one.model = same(m, "global "+one.model.Name, known[one.model.Name], one.model)
		delete(known, one.model.Name)
		models = append(models, one.model)
		b.mappings(one, local)
	}
	for name, gone := range known {
		same(m, "global "+name, gone, nil)
	}
	g.models = models
	offered := b.offers()
	for _, one := range g.owners.globals {
		b.imports(one, offered[one])
		b.externals(one)
	}
	g.made = b.working
	slices.Sort(g.wanted)
	g.wanted = slices.Compact(g.wanted)
	for alias, host := range g.canonical {
		if before[alias] != host {
			m.renamed(alias)
		}
	}
	for alias := range before {
		if g.canonical[alias] == "" {
			m.renamed(alias)
		}
	}
	m.publicChanged = true
}

// renamed says that a name stands for something else than before.
func (m *Model) renamed(alias string) {
	m.touch(fact{kind: factName, a: alias})
	if len(m.external.byHost[alias]) > 0 {
		m.external.changed[alias] = true
	}
}

// localIn are this cluster's services in a namespace, sorted, to be added to.
func (b *builder) localIn(namespace string) []*model.Service {
	in := b.m.local[namespace]
	out := make([]*model.Service, 0, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		s := *in[name]
		b.working[s.Host] = &s
		out = append(out, &s)
	}
	return out
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
		if owner := b.m.global.owners.of(b.settings.Cluster, ns); i >= 0 && owner != nil && owner != g {
			b.report.missing(g.key, "AlreadyMapped", fmt.Sprintf("spec.mappings[%d]", i),
				fmt.Sprintf("namespace %s of %s belongs to the older %s", ns, b.settings.Cluster, owner.key),
				"map it in one global namespace only")
		}
	}
}

// summary says in a global namespace's status what it does here.
func (b *builder) summary(g *global, here, there int) {
	if len(g.model.Namespaces) == 0 {
		b.report.inform(g.key, "spec.mappings", fmt.Sprintf("maps no namespace of %s", b.settings.Cluster))
		return
	}
	b.report.inform(g.key, "spec.mappings", fmt.Sprintf("maps these namespaces of %s: %s; services here: %d, in other clusters: %d",
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
func (p *publicParts) defaultDeny(g *global) {
	if !g.spec.DefaultDeny {
		return
	}
	for _, ns := range g.model.Namespaces {
		p.access = append(p.access, &model.AccessPolicy{
			Namespace: ns, Name: madeBy(g), Action: model.Allow, Source: g.model.Source.At("spec.defaultDeny"),
		})
	}
}

// madeBy names what a global namespace brings about; no object can be called so.
func madeBy(g *global) string { return "globalnamespace:" + g.key.Name }
