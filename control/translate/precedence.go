package translate

import (
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
)

// byHost finds the parts of a model that are for a service without going over all of them: those for its names, and those
// for patterns, in the model's order.
type byHost[T any] struct {
	all      []T
	names    map[string][]int
	patterns []int
}

func indexByHost[T any](all []T, hosts func(T) []string) *byHost[T] {
	out := &byHost[T]{all: all, names: map[string][]int{}}
	for i, one := range all {
		for _, h := range hosts(one) {
			if strings.HasPrefix(h, "*") {
				out.patterns = append(out.patterns, i)
			} else {
				out.names[h] = append(out.names[h], i)
			}
		}
	}
	return out
}

func (b *byHost[T]) of(s *model.Service) []T {
	found := slices.Concat(b.patterns, b.names[s.Host])
	for _, a := range s.Aliases {
		found = append(found, b.names[a.Host]...)
	}
	slices.Sort(found)
	found = slices.Compact(found)
	out := make([]T, len(found))
	for i, n := range found {
		out[i] = b.all[n]
	}
	return out
}

// meshRoutes finds the routes for a service that hold for sidecars of the node's namespace: the most specific host wins,
// then the oldest.
func (g *generator) meshRoutes(s *model.Service) *model.Routes {
	if g.routesByHost == nil {
		usable := slices.DeleteFunc(slices.Clone(g.mesh.Routes), func(r *model.Routes) bool {
			return !r.ExportTo.In(g.node.Namespace) || !boundToMesh(r)
		})
		g.routesByHost = indexByHost(usable, func(r *model.Routes) []string { return r.Hosts })
	}
	var best *model.Routes
	bestRank := 0
	for _, r := range g.routesByHost.of(s) {
		for _, h := range r.Hosts {
			if rank, ok := s.Matches(h); ok && rank > bestRank {
				best, bestRank = r, rank
			}
		}
	}
	return best
}

// destination finds the policy in force for the node towards a service, or nil.
func (g *generator) destination(s *model.Service) *model.DestinationPolicy {
	if g.policiesByHost == nil {
		g.policiesByHost = indexByHost(g.mesh.Destinations, func(d *model.DestinationPolicy) []string { return []string{d.Host} })
	}
	return g.mesh.DestinationAmong(g.policiesByHost.of(s), g.node.Namespace, g.node.Labels, s)
}

// serverInputs are the parts of the model that a sidecar's inbound configuration is made of.
func (g *generator) serverInputs() []any {
	var out []any
	for _, services := range g.servedServices() {
		// Whose services they are makes a difference.
		out = append(out, len(services))
		for _, s := range services {
			out = append(out, s)
		}
	}
	for _, former := range g.mesh.Accepted {
		for _, p := range former.PeerModes {
			out = append(out, p)
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
