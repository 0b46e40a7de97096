package xds

import (
	"maps"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Group is a set of resources that the same proxies get. A proxy is in one group or several, which have no name of a type
// in common. Make one with [NewGroup]; [Server.Update] changes it.
type Group struct {
	// The server's lock guards these.
	resources [typeCount]map[string]*Resource
	members   map[*Proxy]struct{}
	failure   string
}

// NewGroup makes a group with these resources; failure is as in [Change].
func NewGroup(resources []*Resource, failure string) *Group {
	g := &Group{members: map[*Proxy]struct{}{}, failure: failure}
	for t := range g.resources {
		g.resources[t] = map[string]*Resource{}
	}
	for _, r := range resources {
		g.resources[r.typ][r.Name()] = r
	}
	return g
}

// With makes a group that has what this one would have after a change, and no members. Only who calls [Server.Update] may ask.
func (g *Group) With(change Change) *Group {
	out := &Group{members: map[*Proxy]struct{}{}}
	for t := range g.resources {
		out.resources[t] = maps.Clone(g.resources[t])
	}
	out.apply(change, 0)
	return out
}

// Resource finds a resource, or nil. Only who calls [Server.Update] may ask.
func (g *Group) Resource(t Type, name string) *Resource { return g.resources[t][name] }

// Change is what has to become of the group for it to have these resources, and no others. Only who calls [Server.Update]
// may ask.
func (g *Group) Change(resources []*Resource) Change {
	out := Change{Group: g}
	var count [typeCount]int
	for _, r := range resources {
		count[r.typ]++
		switch old := g.resources[r.typ][r.Name()]; {
		case old == r:
		case old == nil:
			count[r.typ]--
			out.Set = append(out.Set, r)
		case old.Version() != r.Version():
			out.Set = append(out.Set, r)
		default:
			out.Same = append(out.Same, r)
		}
	}
	for t, had := range g.resources {
		// As many as before of those before: none is gone.
		if count[t] == len(had) {
			continue
		}
		kept := make(map[string]bool, len(had))
		for _, r := range resources {
			if r.typ == Type(t) {
				kept[r.Name()] = true
			}
		}
		for name, r := range had {
			if !kept[name] {
				out.Removed = append(out.Removed, r)
			}
		}
	}
	return out
}

// Failed says why the group does not have what it should have; empty when it has. Only who calls [Server.Update] may ask.
func (g *Group) Failed() string { return g.failure }

// Nothing says whether the change makes no difference.
func (c Change) Nothing() bool {
	return len(c.Set)+len(c.Removed)+len(c.Same) == 0 && c.Failure == c.Group.failure
}

// Change is what becomes of a group.
type Change struct {
	Group *Group
	// Set are resources that are new or differ from those of their name.
	Set []*Resource
	// Removed are gone.
	Removed []*Resource
	// Same say what those of their name said, and take their place without being sent.
	Same []*Resource
	// Failure, when not empty, says why the group does not have what it should have; it keeps what it had.
	Failure string
}

// Move puts a proxy into other groups.
type Move struct {
	Proxy  *Proxy
	Groups []*Group
}

// Source knows which groups a proxy belongs to. The server calls it for each stream.
type Source interface {
	// Attach finds the groups of a proxy that connected and passes them to join once; until join has returned, none of
	// them may change. Fresh says that the proxy has nothing from another stream. An error leaves the proxy without
	// configuration; it is shown by [Server.Nodes].
	Attach(p *Proxy, node *core.Node, fresh bool, join func([]*Group)) error
	// Demand tells of listeners that a proxy came to ask for by name, and then of those that it has given up, on the incremental
	// protocol. A name is asked for once until it is given up, and at most 8192 are at a time. The server answers those
	// that there are none of when the proxy has acknowledged what the call changed.
	Demand(p *Proxy, asked, givenUp []string)
	// Detach says that a proxy left. It is called once, also after an error.
	Detach(p *Proxy)
}

// changed are the names of what changed in a group, or differs between two; all its members share it, or all who go from one to the other.
type changed struct {
	version int64
	names   [typeCount][]string
}

// note tells a group's members. The server's lock is held for writing.
func (g *Group) note(c *changed) {
	for p := range g.members {
		p.note(c)
	}
}

// apply puts a change into force. The server's lock is held for writing.
func (g *Group) apply(change Change, version int64) {
	c := &changed{version: version}
	for _, r := range change.Set {
		g.resources[r.typ][r.Name()] = r
		c.names[r.typ] = append(c.names[r.typ], r.Name())
	}
	for _, r := range change.Removed {
		delete(g.resources[r.typ], r.Name())
		c.names[r.typ] = append(c.names[r.typ], r.Name())
	}
	for _, r := range change.Same {
		g.resources[r.typ][r.Name()] = r
	}
	g.failure = change.Failure
	if len(change.Set)+len(change.Removed) > 0 {
		g.note(c)
	}
}

// move puts a proxy into other groups, and tells it what is different there: what [Server.Update] has found out for others that go
// from one group to another is not looked for again. The server's lock is held for writing.
func (p *Proxy) move(groups []*Group, version int64, known map[journey]*changed) {
	before := p.groups
	for _, g := range before {
		delete(g.members, p)
	}
	p.groups = groups
	for _, g := range groups {
		g.members[p] = struct{}{}
	}
	var asked [typeCount]bool
	for t := range typeCount {
		// Who asks later is sent what there is then.
		asked[t] = p.asks(t)
	}
	// Each group takes the place of one with resources of the same names, and most proxies change one of theirs.
	for i := range max(len(before), len(groups)) {
		j := journey{asked: asked}
		if i < len(before) {
			j.from = before[i]
		}
		if i < len(groups) {
			j.to = groups[i]
		}
		if j.from == j.to {
			continue
		}
		if known[j] == nil {
			known[j] = j.changed(version)
		}
		p.note(known[j])
	}
}

// journey is a move from one group to another, of a proxy that asks for these types; either may be nil.
type journey struct {
	from, to *Group
	asked    [typeCount]bool
}

// changed are the names of what is different where it leads.
func (j journey) changed(version int64) *changed {
	c := &changed{version: version}
	for t := range typeCount {
		if !j.asked[t] {
			continue
		}
		from, to := j.from.named(t), j.to.named(t)
		for name, r := range to {
			if old := from[name]; old != r && (old == nil || old.Version() != r.Version()) {
				c.names[t] = append(c.names[t], name)
			}
		}
		for name := range from {
			if to[name] == nil {
				c.names[t] = append(c.names[t], name)
			}
		}
	}
	return c
}

// named are the group's resources of a type; nil has none.
func (g *Group) named(t Type) map[string]*Resource {
	if g == nil {
		return nil
	}
	return g.resources[t]
}

// asks says whether the proxy has asked for a type. The server's lock is held for writing.
func (p *Proxy) asks(t Type) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.types[t].asked
}

func find(groups []*Group, t Type, name string) *Resource {
	for _, g := range groups {
		if r := g.resources[t][name]; r != nil {
			return r
		}
	}
	return nil
}
