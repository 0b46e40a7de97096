package translate

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
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
		p = &patched{}
	}
	if was == nil {
		was = &patched{}
	}
	d.Added = append(d.Added, missing(p.sources, was.sources)...)
	d.Dropped = append(d.Dropped, missing(was.sources, p.sources)...)
	if p.adds(d) || was.adds(d) {
		return false
	}
	again := &Resources{}
	clusters, listeners, routes := p.set.Shares(was.set)
	if clusters {
		p.inherit(was, "cluster ", d.Clusters)
	} else {
		again.Clusters = differing(p, was, plain.Clusters, d.Set.Clusters, "cluster ", (*patch.Set).Cluster)
		changed := names(again.Clusters)
		for _, e := range plain.Endpoints {
			if changed[e.ClusterName] {
				again.Endpoints = append(again.Endpoints, e)
			}
		}
	}
	if listeners {
		p.inherit(was, "listener ", d.Listeners)
	} else {
		again.Listeners = differing(p, was, plain.Listeners, d.Set.Listeners, "listener ", (*patch.Set).Listener)
	}
	if routes {
		p.inherit(was, "routes ", d.Routes)
	} else {
		again.Routes = differing(p, was, plain.Routes, d.Set.Routes, "routes ", (*patch.Set).Table)
	}
	d.Set.take(again)
	p.settle(d)
	// What becomes of those that patches add stands beside what became of those that are there.
	p.exchangeAdded(was, plain, p.addedTo(plain), d)
	return true
}

// differing are the resources of which patches make something else than those before did, but for those that are set anyway. What becomes
// of each is kept.
func differing[M interface {
	comparable
	named
}](p, was *patched, all, set []M, kind string, of func(*patch.Set, M) patch.Result[M]) []M {
	done := names(set)
	var out []M
	for _, m := range all {
		before, now := of(was.set, m), of(p.set, m)
		if !now.Nothing() {
			p.keep(kind+m.GetName(), now.Outcome)
		}
		if !done[m.GetName()] && (before.Removed != now.Removed || before.Message != now.Message) {
			out = append(out, m)
		}
	}
	return out
}

// inherit takes over what the same patches made of a type of resources, but for those that are gone.
func (p *patched) inherit(was *patched, kind string, gone []string) {
	for id, outcome := range was.outcomes {
		if strings.HasPrefix(id, kind) {
			p.keep(id, outcome)
		}
	}
	for _, name := range gone {
		p.drop(kind + name)
	}
}

// addedTo makes the resources that patches add to these.
func (p *patched) addedTo(plain *Resources) *Resources {
	out := &Resources{}
	if all := p.set.Clusters(); len(all) > 0 {
		taken := left(p, plain.Clusters, (*patch.Set).Cluster)
		for _, a := range all {
			out.Clusters = addNew(p, out.Clusters, a, taken, "cluster ")
		}
	}
	if all := p.set.Listeners(); len(all) > 0 {
		taken := left(p, plain.Listeners, (*patch.Set).Listener)
		for _, a := range all {
			out.Listeners = addNew(p, out.Listeners, a, taken, "listener ")
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
		if was.added["cluster "+c.Name] != proto.Message(c) {
			d.Set.Clusters = append(d.Set.Clusters, c)
			// Those of a cluster whose place it takes are of no use.
			d.Endpoints = append(d.Endpoints, c.Name)
		}
	}
	for _, l := range added.Listeners {
		if was.added["listener "+l.Name] != proto.Message(l) {
			d.Set.Listeners = append(d.Set.Listeners, l)
		}
	}
	stays := func(id string) bool { return p.added[id] != nil }
	d.Clusters = slices.DeleteFunc(d.Clusters, func(name string) bool { return stays("cluster " + name) })
	d.Listeners = slices.DeleteFunc(d.Listeners, func(name string) bool { return stays("listener " + name) })
	var clusters, listeners map[string]bool
	for id, m := range was.added {
		if stays(id) {
			continue
		}
		switch m := m.(type) {
		case *clusterv3.Cluster:
			if clusters == nil {
				clusters = left(p, plain.Clusters, (*patch.Set).Cluster)
			}
			if !clusters[m.Name] {
				d.Clusters = append(d.Clusters, m.Name)
			}
		case *listenerv3.Listener:
			if listeners == nil {
				listeners = left(p, plain.Listeners, (*patch.Set).Listener)
			}
			if !listeners[m.Name] {
				d.Listeners = append(d.Listeners, m.Name)
			}
		}
	}
}

// missing are those that are not among the others.
func missing(all, others []objects.Key) []objects.Key {
	var out []objects.Key
	for _, key := range all {
		if !slices.Contains(others, key) {
			out = append(out, key)
		}
	}
	return out
}
