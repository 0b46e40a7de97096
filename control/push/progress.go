package push

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/stage"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// Progress is how far one object got.
type Progress struct {
	// Version of the object that the model in force was made of.
	Version objects.Version
	// Proxies that use it and have acknowledged all there was once since they connected.
	Proxies int
	// Waiting of them have not acknowledged this version of the object yet.
	Waiting int
	// Refusing of them refused the change that brought it, Refused some of these, in their words; at most [maxRefused].
	Refusing int
	Refused  []xds.Refusal
	// Failure says why the configuration with it could not be made; empty when it could.
	Failure string
	// Idle are the fields of patches that change nothing in any proxy, Broken what is left out and why, by field.
	Idle   []string
	Broken map[string][]string
}

// Running is how many proxies run it.
func (p Progress) Running() int { return max(p.Proxies-p.Waiting-p.Refusing, 0) }

// maxRefused bounds the refusals that are kept for one object.
const maxRefused = 10

// use is that objects, by their place among those that are asked for, have a part in a group.
type use struct {
	group   *group
	objects []int
}

// Progress tells how far objects got, each in the version that the model in force was made of. An object counts as soon as the
// proxies that use it have acknowledged the version that brought it, whatever has been sent since. Of one that no connected proxy
// uses, nothing is known. It costs the objects that are asked for and the proxies that use them; these are asked while the model
// may change.
func (p *Pusher) Progress(of []objects.Key) map[objects.Key]Progress {
	all := make([]Progress, len(of))
	uses, versions := p.usesOf(of, all)
	for _, u := range uses {
		progress := p.server.Progress(u.group.group)
		for _, i := range u.objects {
			all[i].count(progress, versions[i])
		}
	}
	out := make(map[objects.Key]Progress, len(of))
	for i, key := range of {
		// Groups are in no order: of many refusals, the same ones are told each time.
		slices.SortFunc(all[i].Refused, func(a, b xds.Refusal) int {
			return cmp.Or(strings.Compare(a.Proxy, b.Proxy), strings.Compare(a.Reason, b.Reason))
		})
		all[i].Refusing = len(all[i].Refused)
		all[i].Refused = all[i].Refused[:min(len(all[i].Refused), maxRefused)]
		out[key] = all[i]
	}
	return out
}

// usesOf finds the groups that objects have a part in, and the changes that carried them. What is known without asking proxies is
// filled in.
func (p *Pusher) usesOf(of []objects.Key, all []Progress) ([]use, []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	versions := make([]int64, len(of))
	places := make(map[int32]int, len(of))
	filters := map[int32]int{}
	for i, key := range of {
		n, used := p.numbers[key]
		if !used {
			continue
		}
		places[n], versions[i], all[i].Version = i, p.carried[n].version, p.carried[n].of
		if key.Kind == objects.EnvoyFilter.Kind {
			filters[n] = i
		}
	}
	var uses []use
	for _, g := range p.groups {
		if g.proxies == 0 {
			continue
		}
		var in []int
		for n, i := range common(places, g.sources) {
			if !g.countedBeside(n) {
				in = append(in, i)
			}
		}
		if len(in) > 0 {
			uses = append(uses, use{g, in})
		}
	}
	for n, i := range filters {
		p.judged(n, &all[i])
	}
	return uses, versions
}

// common are the objects that are asked for and have a part in a group, with their places.
func common(places map[int32]int, sources map[int32]bool) map[int32]int {
	out := map[int32]int{}
	if len(sources) < len(places) {
		for n := range sources {
			if i, asked := places[n]; asked {
				out[n] = i
			}
		}
		return out
	}
	for n, i := range places {
		if sources[n] {
			out[n] = i
		}
	}
	return out
}

// countedBeside says of an object of a group of servers whether all of its proxies have it as clients: a sidecar has two groups,
// and counts once.
func (g *group) countedBeside(n int32) bool {
	if g.kind.Role != translate.Inbound {
		return false
	}
	for client := range g.beside {
		if !client.sources[n] {
			return false
		}
	}
	return true
}

// judged says of an EnvoyFilter which of its patches change nothing, and which are left out because they break something.
func (p *Pusher) judged(n int32, to *Progress) {
	key := p.carried[n].key
	states := map[string]*translate.PatchState{}
	for _, g := range p.groups {
		if g.proxies == 0 || !g.sources[n] {
			continue
		}
		for _, s := range g.patches {
			if s.Patch.Source.Key != key {
				continue
			}
			total := states[s.Patch.Source.Path]
			if total == nil {
				total = &translate.PatchState{Patch: s.Patch}
				states[s.Patch.Source.Path] = total
			}
			total.Changed += s.Changed
			total.Broken = append(total.Broken, s.Broken...)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(states)) {
		s := states[path]
		if len(s.Broken) > 0 {
			if to.Broken == nil {
				to.Broken = map[string][]string{}
			}
			slices.Sort(s.Broken)
			s.Broken = slices.Compact(s.Broken)
			to.Broken[path] = s.Broken[:min(len(s.Broken), translate.MaxBroken)]
		} else if s.Changed == 0 {
			to.Idle = append(to.Idle, path)
		}
	}
}

// Owed is what the connected proxies have not taken yet.
func (p *Pusher) Owed() []stage.Proxy {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]stage.Proxy, 0, len(p.proxies))
	for connected, member := range p.proxies {
		owes, current := p.server.Owes(connected)
		if !current {
			continue
		}
		one := stage.Proxy{ID: member.id, Owes: owes, Serves: member.node.Type == translate.Sidecar, Lag: secretsLag}
		out = append(out, one)
	}
	return out
}

// secretsLag is how long a proxy may go on with what it had after it has acknowledged something else. Both heddle-proxy and a
// stock Envoy acknowledge a listener that waits for secrets which its agent is still to give it, as the first one with TLS
// does; a stock Envoy, besides, acknowledges before its workers have it. Neither says when that is over.
const secretsLag = time.Second

// count adds how far the proxies of a group are with an object that a change carried.
func (to *Progress) count(progress xds.Progress, carried int64) {
	to.Proxies += progress.Proxies
	to.Waiting += progress.Waiting(carried)
	if failure := progress.Failure(); to.Failure == "" || failure != "" && failure < to.Failure {
		to.Failure = failure
	}
	to.Refused = append(to.Refused, progress.Refused(carried)...)
}
