package translate

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate/patch"
)

// Fork makes the configuration of a kind that differs from another's in its EnvoyFilters alone (see [Kind.Plain]), of what that one has,
// which must be up to date with the mesh. Delta is what is different.
func (c *Cache) Fork(of Kept, mesh *model.Mesh, k Kind) (Kept, Delta, error) {
	c.enter(mesh)
	out, delta := of.fork(k), Delta{Set: newResources()}
	// As long as nothing else changes, it cannot be that all has to be made anew.
	_, err := c.repatch(out, mesh, &delta)
	return out, delta, err
}

// patch makes the patches in what a change of the model has set, and all of them that are another after it. It is not ok when all has to
// be made anew.
func (c *Cache) patch(to Kept, mesh *model.Mesh, d *model.Difference, delta *Delta) (ok bool, err error) {
	if concernsFilters(to.common().kind, d) {
		return c.repatch(to, mesh, delta)
	}
	return to.common().patched.delta(delta), nil
}

// repatch makes the patches that are in force now, after a change of what there is without them. The delta is of that change, and comes
// to hold what other patches make another, too. It is not ok when all has to be made anew.
func (c *Cache) repatch(of Kept, mesh *model.Mesh, d *Delta) (ok bool, err error) {
	b := of.common()
	was := b.patched
	if b.patched, err = c.patchedFor(mesh, b.kind); err != nil {
		return false, err
	}
	return b.patched.renew(was, of.plain(), d), nil
}

// renew makes the patches in what a change has set, and in what they make another of than those before. Plain is all that there is
// without patches, after the change.
func (p *patched) renew(was *patched, plain *Resources, d *Delta) bool {
	if p == nil {
		p = newPatched()
	}
	if was == nil {
		was = newPatched()
	}
	d.Added = append(d.Added, missing(p.sources, was.sources)...)
	d.Dropped = append(d.Dropped, missing(was.sources, p.sources)...)
	added := additions(p.set, was.set)
	if d.touchesAny(added) {
		return false
	}
	differs := p.set.Since(was.set)
	p.inherit(was, added, d)
	again := &Resources{}
	again.Clusters = differing(p, was, plain.Clusters, d.Set.Clusters, clusters, (*patch.Set).Cluster, added, differs.Clusters(), differs.Cluster)
	again.Listeners = differing(p, was, plain.Listeners, d.Set.Listeners, listeners, (*patch.Set).Listener, added, differs.Listeners(), differs.Listener)
	again.Routes = differing(p, was, plain.Routes, d.Set.Routes, tables, (*patch.Set).Table, added, differs.Tables(), differs.Table)
	if changed := names(again.Clusters); len(changed) > 0 {
		for _, e := range plain.Endpoints {
			if changed[e.ClusterName] {
				again.Endpoints = append(again.Endpoints, e)
			}
		}
	}
	d.Set.take(again)
	p.settle(d)
	// What becomes of those that patches add stands beside what became of those that are there.
	p.exchangeAdded(was, plain, p.addedTo(plain), d)
	return true
}

// additions are the resources that the patches of some sets add. What became of those that are there is made anew beside them.
func additions(sets ...*patch.Set) map[resource]bool {
	out := map[resource]bool{}
	for _, set := range sets {
		for _, a := range set.Clusters() {
			out[resource{clusters, a.Message.GetName()}] = true
		}
		for _, a := range set.Listeners() {
			out[resource{listeners, a.Message.GetName()}] = true
		}
	}
	return out
}

// inherit takes over what became of resources before, but for those that are gone and those that patches add.
func (p *patched) inherit(was *patched, added map[resource]bool, d *Delta) {
	for id, outcome := range was.outcomes {
		if !added[id] {
			p.keep(id, outcome)
		}
	}
	p.dropAll(clusters, d.Clusters)
	p.dropAll(listeners, d.Listeners)
	p.dropAll(tables, d.Routes)
}

// differing are the resources of which patches make something else than those before did, but for those that are set anyway. What becomes
// of each that may differ is kept.
func differing[M interface {
	comparable
	named
}](p, was *patched, all, set []M, of resourceType, patched func(*patch.Set, M) patch.Result[M], added map[resource]bool, any bool, may func(M) bool) []M {
	if !any && len(added) == 0 {
		return nil
	}
	done := names(set)
	var out []M
	for _, m := range all {
		id := resource{of, m.GetName()}
		if !may(m) && !added[id] {
			continue
		}
		before, now := patched(was.set, m), patched(p.set, m)
		p.keep(id, now.Outcome)
		if !done[m.GetName()] && (before.Removed != now.Removed || before.Message != now.Message) {
			out = append(out, m)
		}
	}
	return out
}

// addedTo makes the resources that patches add to these.
func (p *patched) addedTo(plain *Resources) *Resources {
	out := &Resources{}
	if all := p.set.Clusters(); len(all) > 0 {
		taken := left(p, plain.Clusters, (*patch.Set).Cluster)
		for _, a := range all {
			out.Clusters = addNew(p, out.Clusters, a, taken, clusters)
		}
	}
	if all := p.set.Listeners(); len(all) > 0 {
		taken := left(p, plain.Listeners, (*patch.Set).Listener)
		for _, a := range all {
			out.Listeners = addNew(p, out.Listeners, a, taken, listeners)
		}
	}
	return out
}

// left are the names of those that patches do not remove.
func left[M named](p *patched, all []M, of func(*patch.Set, M) patch.Result[M]) map[string]bool {
	out := make(map[string]bool, len(all))
	for _, m := range all {
		if !of(p.set, m).Removed {
			out[m.GetName()] = true
		}
	}
	return out
}

// exchangeAdded has the resources that patches add take the place of those that patches before added.
func (p *patched) exchangeAdded(was *patched, plain, added *Resources, d *Delta) {
	if len(was.added)+len(p.added) == 0 {
		return
	}
	for _, c := range added.Clusters {
		if was.added[resource{clusters, c.Name}] != proto.Message(c) {
			d.Set.Clusters = append(d.Set.Clusters, c)
			// Those of a cluster whose place it takes are of no use.
			d.Endpoints = append(d.Endpoints, c.Name)
		}
	}
	for _, l := range added.Listeners {
		if was.added[resource{listeners, l.Name}] != proto.Message(l) {
			d.Set.Listeners = append(d.Set.Listeners, l)
		}
	}
	d.Clusters = slices.DeleteFunc(d.Clusters, func(name string) bool { return p.added[resource{clusters, name}] != nil })
	d.Listeners = slices.DeleteFunc(d.Listeners, func(name string) bool { return p.added[resource{listeners, name}] != nil })
	// Those that are left of their name have it again.
	leftClusters := sync.OnceValue(func() map[string]bool { return left(p, plain.Clusters, (*patch.Set).Cluster) })
	leftListeners := sync.OnceValue(func() map[string]bool { return left(p, plain.Listeners, (*patch.Set).Listener) })
	for id := range was.added {
		switch {
		case p.added[id] != nil:
		case id.of == clusters && !leftClusters()[id.name]:
			d.Clusters = append(d.Clusters, id.name)
		case id.of == listeners && !leftListeners()[id.name]:
			d.Listeners = append(d.Listeners, id.name)
		}
	}
}

// missing are those that are not among the others.
func missing(all, others []objects.Key) []objects.Key {
	known := make(map[objects.Key]bool, len(others))
	for _, key := range others {
		known[key] = true
	}
	var out []objects.Key
	for _, key := range all {
		if !known[key] {
			out = append(out, key)
		}
	}
	return out
}
