package translate

import (
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
)

// byHost finds the parts of a model that are for a service without going over all of them: those for its names, and those
// for patterns, in the model's order.
type byHost[T any] struct {
	all      []*T
	names    map[string][]*T
	patterns []*T
	// places of the parts among all; nil before anybody asks.
	places map[*T]int
}

// apply makes a change of the parts; all are those after it.
func (b *byHost[T]) apply(all []*T, change []model.Pair[T], hosts func(*T) []string) {
	if b.names == nil {
		b.names = map[string][]*T{}
	}
	b.place(all)
	for _, p := range change {
		if p.Before != nil {
			for _, h := range hosts(p.Before) {
				without := func(list []*T) []*T {
					return slices.DeleteFunc(slices.Clone(list), func(one *T) bool { return one == p.Before })
				}
				if strings.HasPrefix(h, "*") {
					b.patterns = without(b.patterns)
				} else if b.names[h] = without(b.names[h]); len(b.names[h]) == 0 {
					delete(b.names, h)
				}
			}
		}
	}
	for _, p := range change {
		if p.After != nil {
			for _, h := range hosts(p.After) {
				if strings.HasPrefix(h, "*") {
					b.patterns = append(slices.Clip(b.patterns), p.After)
				} else {
					b.names[h] = append(slices.Clip(b.names[h]), p.After)
				}
			}
		}
	}
}

// place has all be others. Places are kept where each part that is new has that of another; where they moved, they are found again when
// they are asked for.
func (b *byHost[T]) place(all []*T) {
	was := b.all
	if b.all = all; len(was) != len(all) {
		b.places = nil
	}
	if b.places == nil {
		return
	}
	for i := range all {
		if was[i] != all[i] {
			delete(b.places, was[i])
		}
	}
	for i := range all {
		if was[i] != all[i] {
			b.places[all[i]] = i
		}
	}
}

func (b *byHost[T]) of(s *model.Service) []*T {
	if len(b.patterns)+len(s.Aliases) == 0 && len(b.names[s.Host]) < 2 {
		return b.names[s.Host]
	}
	found := slices.Concat(b.patterns, b.names[s.Host])
	for _, a := range s.Aliases {
		found = append(found, b.names[a.Host]...)
	}
	return b.sorted(found)
}

// sorted puts parts into the order in which all are.
func (b *byHost[T]) sorted(found []*T) []*T {
	if len(found) < 2 {
		return found
	}
	if b.places == nil {
		b.places = make(map[*T]int, len(b.all))
		for i, one := range b.all {
			b.places[one] = i
		}
	}
	slices.SortFunc(found, func(x, y *T) int { return b.places[x] - b.places[y] })
	return slices.Compact(found)
}

// meshRoutes finds the routes for a service that hold for sidecars of the node's namespace: the most specific host wins,
// then the oldest.
func (g *generator) meshRoutes(s *model.Service) *model.Routes {
	var best *model.Routes
	bestRank := 0
	for _, r := range g.cache.routes.of(s) {
		if r.Ranked || !r.ExportTo.In(g.node.Namespace) {
			continue
		}
		for _, h := range r.Hosts {
			if rank, ok := s.Matches(h); ok && rank > bestRank {
				best, bestRank = r, rank
			}
		}
	}
	return best
}

// attachedTo are the ranked sets of routes for a port of a service that hold for sidecars of the node's namespace, the oldest
// first: its own, else those that are for all.
func (g *generator) attachedTo(s *model.Service, port uint16) []*model.Routes {
	var own, all []*model.Routes
	for _, r := range g.cache.routes.of(s) {
		switch {
		case r.OfService() != s.Host || !slices.Contains(r.Ports, port) || !r.ExportTo.In(g.node.Namespace):
		case r.ExportTo.Limited:
			own = append(own, r)
		default:
			all = append(all, r)
		}
	}
	if len(own) > 0 {
		return own
	}
	return all
}

// destination finds the policy in force for the node towards a service, or nil.
func (g *generator) destination(s *model.Service) *model.DestinationPolicy {
	return g.mesh.DestinationAmong(g.cache.policies.of(s), g.node.Namespace, g.node.Labels, s)
}

// service finds a service of another name than that which is worked on.
func (g *generator) service(host string) *model.Service {
	if g.reads != nil {
		g.reads[host] = true
	}
	return g.mesh.Service(host)
}

// acceptsMore says whether something has to be accepted for clients of a former mesh that is not accepted anyway: by other rules for
// mutual TLS, or on ports that services led to there and do not now.
func (g *generator) acceptsMore(former *model.Mesh, were, are []*model.Service) bool {
	return !sameDefaults(former, g.mesh) || !slices.Equal(former.PeerModes, g.mesh.PeerModes) || slices.ContainsFunc(were, func(was *model.Service) bool {
		return !slices.ContainsFunc(are, func(is *model.Service) bool {
			return is == was || is.Host == was.Host && slices.Equal(is.Ports, was.Ports)
		})
	})
}

// serverInputs are the parts of the model that a sidecar's inbound configuration is made of.
func (g *generator) serverInputs() []any {
	out := []any{g.scope}
	served := g.servedServices()
	for i, services := range served {
		var former *model.Mesh
		if i > 0 {
			if former = g.mesh.Accepted[i-1]; !g.acceptsMore(former, services, served[0]) {
				continue
			}
		}
		// Whose services they are makes a difference.
		out = append(out, len(services))
		for _, s := range services {
			out = append(out, s)
		}
		if former != nil {
			out = append(out, former.Settings.DefaultMode, former.Settings.RootNamespace)
			for _, p := range former.PeerModes {
				out = append(out, p)
			}
		}
	}
	for _, p := range g.mesh.AccessFor(g.node.Namespace, g.node.Labels) {
		out = append(out, p)
	}
	for _, a := range g.mesh.AuthenticationsFor(g.node.Namespace, g.node.Labels) {
		out = append(out, a)
	}
	return out
}
