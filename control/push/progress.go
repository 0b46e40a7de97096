package push

import (
	"maps"
	"slices"
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
	// Refused are proxies that refused the change that brought it, in their words; at most [maxRefused] of them.
	Refused []xds.Refusal
	// Failure says why the configuration with it could not be made; empty when it could.
	Failure string
	// Idle are the fields of patches that change nothing in any proxy, Broken what is left out and why, by field.
	Idle   []string
	Broken map[string][]string
}

// Running is how many proxies run it.
func (p Progress) Running() int { return max(p.Proxies-p.Waiting-len(p.Refused), 0) }

// maxRefused bounds the refusals that are kept for one object.
const maxRefused = 10

// Progress tells how far all objects got that any connected proxy uses, each in the version that the model in force was
// made of. An object counts as soon as the proxies that use it have acknowledged the version that brought it, whatever has
// been sent since.
func (p *Pusher) Progress() map[objects.Key]Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Progress, len(p.carried))
	clients := map[*group][]bool{}
	for _, g := range p.groups {
		if g.kind.Role == translate.Inbound || g.proxies == 0 {
			continue
		}
		uses := make([]bool, len(p.carried))
		sources := make([]int32, 0, len(g.sources))
		for n := range g.sources {
			uses[n] = true
			sources = append(sources, n)
		}
		clients[g] = uses
		p.count(all, g, sources)
	}
	// A sidecar has two groups, and counts once.
	others := map[*group]map[*group]bool{}
	for _, member := range p.proxies {
		if len(member.groups) == 2 {
			client, server := member.groups[0], member.groups[1]
			if others[server] == nil {
				others[server] = map[*group]bool{}
			}
			others[server][client] = true
		}
	}
	for server, with := range others {
		rest := slices.DeleteFunc(slices.Collect(maps.Keys(server.sources)), func(n int32) bool {
			for client := range with {
				if !clients[client][n] {
					return false
				}
			}
			return true
		})
		p.count(all, server, rest)
	}
	p.countPatches(all)
	out := make(map[objects.Key]Progress, len(p.carried))
	for i, c := range p.carried {
		all[i].Version = c.of
		out[c.key] = all[i]
	}
	return out
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

// count adds how far the proxies of a group are with these objects.
func (p *Pusher) count(all []Progress, g *group, sources []int32) {
	progress := p.server.Progress(g.group)
	for _, n := range sources {
		to, version := &all[n], p.carried[n].version
		to.Proxies += progress.Proxies
		to.Waiting += progress.Waiting(version)
		if to.Failure == "" {
			to.Failure = progress.Failure()
		}
		refused := progress.Refused(version)
		to.Refused = append(to.Refused, refused[:min(len(refused), maxRefused-len(to.Refused))]...)
	}
}
