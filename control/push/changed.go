package push

import (
	"cmp"
	"slices"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// Changed are the objects whose [Pusher.Progress] may be another than when it was asked last, but for how many proxies there are and
// how many of them wait, as long as there are any. It costs what changed: proxies that answered, the objects carried by what they
// answered, and all objects of a group that has its first proxy, or has lost the last.
func (p *Pusher) Changed() []objects.Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ranges []xds.Range
	for _, s := range p.server.ProgressChanges() {
		if member := p.proxies[s.Proxy]; member != nil && s.Whole {
			by := 0
			if member.counts != s.Counts {
				if by = -1; s.Counts {
					by = 1
				}
			}
			member.counts = s.Counts
			for _, g := range member.groups {
				was := g.counting
				if g.counting += by; was == 0 || g.counting == 0 {
					p.recount(g)
				}
			}
		}
		ranges = append(ranges, s.Changes...)
	}
	p.answered(ranges)
	for g := range p.recounted {
		p.flush(g)
	}
	if len(p.progressed) == 0 {
		return nil
	}
	out := make([]objects.Key, 0, len(p.progressed))
	for n := range p.progressed {
		out = append(out, p.carried[n].key)
	}
	p.progressed = map[int32]struct{}{}
	return out
}

// answered has the objects count as progressed that are carried by these changes. Many proxies answer the same: each change is looked at once.
func (p *Pusher) answered(ranges []xds.Range) {
	slices.SortFunc(ranges, func(a, b xds.Range) int { return cmp.Compare(a.From, b.From) })
	next := 0
	for _, r := range ranges {
		if r.From == 0 {
			// Before the first change, too: what is carried by none.
			for n, c := range p.carried {
				if c.version == 0 {
					p.progressed[int32(n)] = struct{}{}
				}
			}
		}
		at, _ := slices.BinarySearchFunc(p.order, r.From, func(c carrying, version int64) int { return cmp.Compare(c.version, version) })
		for next = max(next, at); next < len(p.order) && p.order[next].version <= r.To; next++ {
			if c := p.order[next]; p.carried[c.number].version == c.version {
				p.progressed[c.number] = struct{}{}
			}
		}
	}
}

// carryNow has an object be carried by the version in force.
func (p *Pusher) carryNow(n int32) {
	p.progressed[n] = struct{}{}
	if p.carried[n].version == p.version {
		return
	}
	p.carried[n].version = p.version
	if p.order = append(p.order, carrying{p.version, n}); len(p.order) > 2*len(p.carried)+100 {
		p.order = slices.DeleteFunc(p.order, func(c carrying) bool { return p.carried[c.number].version != c.version })
	}
}

// recount has all objects of a group count as progressed.
func (p *Pusher) recount(g *group) { p.recounted[g] = struct{}{} }

// flush ends what [Pusher.recount] began.
func (p *Pusher) flush(g *group) {
	if _, is := p.recounted[g]; !is {
		return
	}
	delete(p.recounted, g)
	for n := range g.sources {
		p.progressed[n] = struct{}{}
	}
}

// renumber notes which objects have a part in a group now; the others have none any more.
func (p *Pusher) renumber(g *group, sources []objects.Key) {
	was := g.sources
	g.sources = make(map[int32]bool, len(sources))
	for _, key := range sources {
		if n, known := p.numbers[key]; known && was[n] {
			g.sources[n] = true
		}
	}
	for n := range was {
		if !g.sources[n] {
			p.progressed[n] = struct{}{}
		}
	}
	p.number(g, sources)
}

// sweepNumbers forgets the numbers of objects that have a part in nothing any more, once that is told.
func (p *Pusher) sweepNumbers() {
	old, numbers := p.carried, map[int32]int32{}
	renumbered := func(n int32) int32 {
		to, known := numbers[n]
		if !known {
			to = int32(len(p.carried))
			numbers[n], p.numbers[old[n].key] = to, to
			p.carried = append(p.carried, old[n])
		}
		return to
	}
	p.carried, p.numbers = nil, map[objects.Key]int32{}
	for g := range p.recounted {
		p.flush(g)
	}
	for _, g := range p.groups {
		sources := make(map[int32]bool, len(g.sources))
		for n := range g.sources {
			sources[renumbered(n)] = true
		}
		g.sources = sources
	}
	progressed := make(map[int32]struct{}, len(p.progressed))
	for n := range p.progressed {
		progressed[renumbered(n)] = struct{}{}
	}
	p.progressed = progressed
	order := p.order[:0]
	for _, c := range p.order {
		if to, known := numbers[c.number]; known {
			order = append(order, carrying{c.version, to})
		}
	}
	p.order = order
}

// accompany notes that a proxy of an inbound kind more or less is in a group of clients as well, and says whether it is the first or was
// the last one.
func (g *group) accompany(client *group, by int) bool {
	if g.beside == nil {
		g.beside = map[*group]int{}
	}
	was := g.beside[client]
	if g.beside[client] += by; g.beside[client] == 0 {
		delete(g.beside, client)
	}
	return was == 0 || was+by == 0
}

// judge has the EnvoyFilters count as progressed of which a patch came to something else in a group.
func (p *Pusher) judge(g *group) {
	var now []translate.PatchState
	switch {
	case g.kept != nil:
		now = g.kept.Patches()
	case g.made != nil:
		now = g.made.Patches()
	}
	was := g.patches
	g.patches = now
	if slices.EqualFunc(was, now, sameState) {
		return
	}
	filters := map[objects.Key]bool{}
	for _, s := range slices.Concat(was, now) {
		filters[s.Patch.Source.Key] = true
	}
	for key := range filters {
		if n, used := p.numbers[key]; used {
			p.progressed[n] = struct{}{}
		}
	}
}

// sameState says whether the same is said of a patch.
func sameState(a, b translate.PatchState) bool {
	return a.Patch == b.Patch && (a.Changed == 0) == (b.Changed == 0) && slices.Equal(a.Broken, b.Broken)
}
