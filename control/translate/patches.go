package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate/patch"
)

// FilterRef is an EnvoyFilter as far as it is for a kind of proxy.
type FilterRef struct {
	Namespace, Name string
	// Without are the numbers of its patches that are for other proxies.
	Without []int
}

// String tells them apart: no name holds a "!".
func (f FilterRef) String() string {
	out := "filter=" + f.Namespace + "/" + f.Name
	for _, n := range f.Without {
		out += fmt.Sprintf("!%d", n)
	}
	return out
}

// context of a role, in the words of EnvoyFilter.
func (r Role) context() patch.Context {
	switch r {
	case Inbound:
		return patch.SidecarInbound
	case Edge:
		return patch.Gateway
	}
	return patch.SidecarOutbound
}

// filtersFor are the EnvoyFilters that are for a proxy in a role, in the order in which they are applied.
func filtersFor(mesh *model.Mesh, node Node, role Role) []FilterRef {
	var out []FilterRef
	for _, f := range mesh.EnvoyFilters {
		if !f.Selects(mesh.Settings.RootNamespace, node.Namespace, node.Labels) {
			continue
		}
		ref := FilterRef{Namespace: f.Namespace, Name: f.Name}
		for i, p := range f.Patches {
			if p.Context != "ANY" && p.Context != string(role.context()) || !node.matches(p.Proxy) {
				ref.Without = append(ref.Without, i)
			}
		}
		if len(ref.Without) < len(f.Patches) {
			out = append(out, ref)
		}
	}
	return out
}

// matches compares what the node says of itself. A proxy that tells no version matches none.
func (n Node) matches(m *model.PatchProxy) bool {
	if m == nil {
		return true
	}
	if !m.MatchesVersion(n.Version) {
		return false
	}
	if len(m.Metadata) == 0 {
		return true
	}
	told := n.Proto().GetMetadata().GetFields()
	for key, value := range m.Metadata {
		if got, known := told[key]; !known || got.GetStringValue() != value {
			return false
		}
	}
	return true
}

// concernsFilters says whether a change is of EnvoyFilters that a kind has.
func concernsFilters(k Kind, d *model.Difference) bool {
	return slices.ContainsFunc(model.Both(d.EnvoyFilters), func(f *model.EnvoyFilter) bool {
		return slices.ContainsFunc(k.Filters, func(r FilterRef) bool { return r.Namespace == f.Namespace && r.Name == f.Name })
	})
}

// resource is one by type and name.
type resource struct {
	of   resourceType
	name string
}

type resourceType string

const (
	clusters  resourceType = "cluster"
	listeners resourceType = "listener"
	tables    resourceType = "routes"
)

func (r resource) String() string { return string(r.of) + " " + r.name }

// patched makes the patches of a kind in its resources, and keeps what became of each. nil makes none.
type patched struct {
	set *patch.Set
	// patches are all of the kind, sources their objects.
	patches []*model.Patch
	sources []objects.Key
	// outcomes of resources that patches had to do with; tallies are what they come to for each patch.
	outcomes map[resource]patch.Outcome
	tallies  map[*model.Patch]*tally
	// added are the resources that patches add and that have a place.
	added map[resource]proto.Message
	// states are what became of each patch, nil when outcomes have changed since they were counted.
	states []PatchState
}

func newPatched() *patched {
	return &patched{outcomes: map[resource]patch.Outcome{}, tallies: map[*model.Patch]*tally{}, added: map[resource]proto.Message{}}
}

func (c *Cache) patchedFor(mesh *model.Mesh, k Kind) (*patched, error) {
	if len(k.Filters) == 0 {
		return nil, nil
	}
	out := newPatched()
	for _, ref := range k.Filters {
		f := c.filters[objects.Key{Namespace: ref.Namespace, Name: ref.Name}]
		if f == nil {
			// The proxies of the kind are about to be of another.
			continue
		}
		out.sources = append(out.sources, f.Source.Key)
		for i, p := range f.Patches {
			if !slices.Contains(ref.Without, i) {
				out.patches = append(out.patches, p)
			}
		}
	}
	var err error
	out.set, err = c.patches.Of(k.Role.context(), out.patches)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.ID(), err)
	}
	return out, nil
}

// tally is of one patch: how many resources it changed, and why it was left out of others.
type tally struct {
	changed int
	broken  map[resource]string
}

// keep puts the outcome of a resource in place of the one before.
func (p *patched) keep(id resource, outcome patch.Outcome) {
	p.drop(id)
	if outcome.Nothing() {
		return
	}
	p.states = nil
	p.outcomes[id] = outcome
	for _, one := range outcome.Changed {
		p.tally(one).changed++
	}
	for one, why := range outcome.Broken {
		p.tally(one).broken[id] = why
	}
}

// drop forgets the outcome of a resource.
func (p *patched) drop(id resource) {
	was, known := p.outcomes[id]
	if !known {
		return
	}
	p.states = nil
	delete(p.outcomes, id)
	for _, one := range was.Changed {
		p.tally(one).changed--
	}
	for one := range was.Broken {
		delete(p.tally(one).broken, id)
	}
}

func (p *patched) dropAll(of resourceType, names []string) {
	for _, name := range names {
		p.drop(resource{of, name})
	}
}

func (p *patched) tally(one *model.Patch) *tally {
	t := p.tallies[one]
	if t == nil {
		t = &tally{broken: map[resource]string{}}
		p.tallies[one] = t
	}
	return t
}

// all makes the patches in all resources.
func (p *patched) all(r *Resources) {
	if p == nil {
		return
	}
	clear(p.outcomes)
	clear(p.tallies)
	clear(p.added)
	p.states = nil
	for _, key := range p.sources {
		r.sources[key] = true
	}
	r.patched = append(r.patched, p)
	if p.set == nil {
		return
	}
	plain := *r
	gone, _ := p.existing(r)
	r.dropEndpoints(gone)
	r.take(p.addedTo(&plain))
}

type named interface {
	proto.Message
	GetName() string
}

func names[M named](all []M) map[string]bool {
	out := make(map[string]bool, len(all))
	for _, m := range all {
		out[m.GetName()] = true
	}
	return out
}

// addNew adds a resource, unless there is one of its name.
func addNew[M named](p *patched, all []M, a patch.Addition[M], taken map[string]bool, of resourceType) []M {
	name := a.Message.GetName()
	id := resource{of, name}
	outcome := p.outcomes[id]
	if taken[name] {
		broken := maps.Clone(outcome.Broken)
		if broken == nil {
			broken = map[*model.Patch]string{}
		}
		broken[a.Patch] = fmt.Sprintf("there is a %s already", id)
		outcome.Broken = broken
		p.keep(id, outcome)
		return all
	}
	taken[name], p.added[id] = true, a.Message
	outcome.Changed = append(slices.Clip(outcome.Changed), a.Patch)
	p.keep(id, outcome)
	return append(all, a.Message)
}

// existing makes the patches in resources that are there, and gives the names of the clusters and listeners that went.
func (p *patched) existing(r *Resources) (goneClusters, goneListeners []string) {
	r.Clusters, goneClusters = existing(p, r.Clusters, clusters, (*patch.Set).Cluster)
	r.Listeners, goneListeners = existing(p, r.Listeners, listeners, (*patch.Set).Listener)
	r.Routes, _ = existing(p, r.Routes, tables, (*patch.Set).Table)
	return goneClusters, goneListeners
}

func existing[M named](p *patched, all []M, of resourceType, patched func(*patch.Set, M) patch.Result[M]) (kept []M, gone []string) {
	kept = make([]M, 0, len(all))
	for _, m := range all {
		result := patched(p.set, m)
		if p.keep(resource{of, m.GetName()}, result.Outcome); result.Removed {
			gone = append(gone, m.GetName())
		} else {
			kept = append(kept, result.Message)
		}
	}
	return kept, gone
}

// dropEndpoints takes away the endpoints of clusters that went.
func (r *Resources) dropEndpoints(clusters []string) {
	if len(clusters) == 0 {
		return
	}
	gone := make(map[string]bool, len(clusters))
	for _, name := range clusters {
		gone[name] = true
	}
	kept := r.Endpoints[:0:0]
	for _, e := range r.Endpoints {
		if !gone[e.GetClusterName()] {
			kept = append(kept, e)
		}
	}
	r.Endpoints = kept
}

// delta makes the patches in what changed. It is false when that has to do with resources that patches add: all is made anew
// then.
func (p *patched) delta(d *Delta) bool {
	if p == nil || p.set == nil {
		return true
	}
	p.dropAll(clusters, d.Clusters)
	p.dropAll(listeners, d.Listeners)
	p.dropAll(tables, d.Routes)
	if d.touchesAny(additions(p.set)) {
		return false
	}
	p.settle(d)
	return true
}

// touchesAny says whether any of these resources comes, changes or goes.
func (d *Delta) touchesAny(added map[resource]bool) bool {
	if len(added) == 0 {
		return false
	}
	cluster, listener := func(name string) bool { return added[resource{clusters, name}] }, func(name string) bool { return added[resource{listeners, name}] }
	return slices.ContainsFunc(d.Clusters, cluster) || slices.ContainsFunc(d.Listeners, listener) ||
		slices.ContainsFunc(d.Set.Clusters, func(c *clusterv3.Cluster) bool { return cluster(c.GetName()) }) ||
		slices.ContainsFunc(d.Set.Listeners, func(l *listenerv3.Listener) bool { return listener(l.GetName()) })
}

// settle makes the patches in what is set.
func (p *patched) settle(d *Delta) {
	goneClusters, goneListeners := p.existing(d.Set)
	d.Set.dropEndpoints(goneClusters)
	d.Clusters, d.Listeners = append(d.Clusters, goneClusters...), append(d.Listeners, goneListeners...)
}

// PatchState is what became of a patch in the configuration of a kind of proxy.
type PatchState struct {
	Patch *model.Patch
	// Changed counts the resources that it changed.
	Changed int
	// Broken says why it was left out, of a few resources.
	Broken []string
}

// MaxBroken bounds what is said of one patch.
const MaxBroken = 3

// Patches says what became of the patches that the configuration was made with.
func (r *Resources) Patches() []PatchState {
	if len(r.patched) == 1 {
		return r.patched[0].counted()
	}
	// Of several kinds, as [Proxy] makes them.
	at := map[*model.Patch]int{}
	var out []PatchState
	for _, p := range r.patched {
		for _, s := range p.counted() {
			i, known := at[s.Patch]
			if !known {
				i = len(out)
				at[s.Patch], out = i, append(out, PatchState{Patch: s.Patch})
			}
			out[i].Changed += s.Changed
			out[i].Broken = append(out[i].Broken, s.Broken[:min(len(s.Broken), MaxBroken-len(out[i].Broken))]...)
		}
	}
	return out
}

// counted are the states of all patches, of which a kind without any has none.
func (p *patched) counted() []PatchState {
	if p == nil {
		return nil
	}
	if p.states != nil {
		return p.states
	}
	out := make([]PatchState, 0, len(p.patches))
	known := make(map[*model.Patch]bool, len(p.patches))
	for _, one := range p.patches {
		if known[one] {
			continue
		}
		known[one] = true
		state := PatchState{Patch: one}
		if t := p.tallies[one]; t != nil {
			state.Changed = t.changed
			ids := slices.SortedFunc(maps.Keys(t.broken), func(x, y resource) int { return cmp.Or(cmp.Compare(x.of, y.of), cmp.Compare(x.name, y.name)) })
			for _, id := range ids[:min(len(ids), MaxBroken)] {
				state.Broken = append(state.Broken, t.broken[id])
			}
		}
		out = append(out, state)
	}
	p.states = out
	return out
}
