package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"heddle.io/heddle/control/model"
)

// gatewayRoutes makes the route table of servers that share it. Routes of several sets for one host follow each other,
// the oldest set first, but those for everything go last. Those of sets that are ranked follow, the most specific first.
func (g *generator) gatewayRoutes(name string, port uint16, servers []boundServer) {
	hosts := map[string]*routev3.VirtualHost{}
	var order []string
	add := func(host string, routes []*routev3.Route) {
		v := hosts[host]
		if v == nil {
			v = &routev3.VirtualHost{
				Name: fmt.Sprintf("%s:%d", host, port), Domains: []string{host}, IncludeRequestAttemptCount: true,
			}
			hosts[host] = v
			order = append(order, host)
		}
		v.Routes = append(v.Routes, routes...)
	}
	ranked := ranking{}
	for _, s := range servers {
		for _, r := range g.routesOf(s) {
			if len(r.HTTP) == 0 {
				continue
			}
			for _, h := range r.Hosts {
				host := s.server.Serves(r.Namespace, h)
				if host == "" || othersHost(servers, s, host) {
					continue
				}
				if r.Ranked {
					g.from(r.Source)
					ranked.add(host, r)
				} else if routes := g.routes(r, port, s.name(), host); len(routes) > 0 {
					g.from(r.Source)
					add(host, routes)
				}
			}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(ranked)) {
		sets := ranked[host]
		// Servers' own order does not tell which set is the older.
		if len(sets) > 1 {
			at := g.ages()
			slices.SortFunc(sets, func(a, b *model.Routes) int { return cmp.Compare(at[a], at[b]) })
		}
		add(host, g.rankedRoutes(sets, port, host))
	}
	if len(servers) > 1 {
		// What is for a listener's host alone must not be answered by another's routes for all hosts.
		for _, s := range servers {
			if s.server.Allowed != nil {
				add(s.server.Hosts[0].Host, nil)
			}
		}
	}
	for _, s := range servers {
		if !s.server.RedirectHTTPS {
			continue
		}
		for _, h := range s.server.Hosts {
			add(h.Host, nil)
			hosts[h.Host].RequireTls = routev3.VirtualHost_ALL
		}
		for host, v := range hosts {
			if slices.ContainsFunc(s.server.Hosts, func(h model.ServerHost) bool { return coversHost(h.Host, host) }) {
				v.RequireTls = routev3.VirtualHost_ALL
			}
		}
	}
	table := &routev3.RouteConfiguration{
		Name: name, ValidateClusters: flag(false), IgnorePortInHostMatching: true,
		MaxDirectResponseBodySizeBytes: count(maxDirectBody),
	}
	slices.Sort(order)
	for _, host := range order {
		v := hosts[host]
		v.Routes = uncovered(v.Routes)
		table.VirtualHosts = append(table.VirtualHosts, v)
	}
	if len(table.VirtualHosts) == 0 {
		// Nothing is routed: everything is answered with 404.
		table.VirtualHosts = []*routev3.VirtualHost{{
			Name: fmt.Sprintf("blackhole:%d", port), Domains: []string{"*"},
		}}
	}
	g.out.Routes = append(g.out.Routes, table)
}

func coversHost(pattern, host string) bool {
	_, ok := model.MatchesHost(pattern, host)
	return ok || strings.HasPrefix(host, "*.") && strings.HasPrefix(pattern, "*.") && strings.HasSuffix(host, pattern[1:])
}

// othersHost says whether a host is that of another server of the port, whose hosts are narrower: of servers that say which
// routes they take, each has its hosts for itself.
func othersHost(servers []boundServer, s boundServer, host string) bool {
	if s.server.Allowed == nil {
		return false
	}
	own := s.server.Hosts[0].Host
	return slices.ContainsFunc(servers, func(o boundServer) bool {
		if o.server.Allowed == nil || o.server.Hosts[0].Host == own {
			return false
		}
		other := o.server.Hosts[0].Host
		return model.CoversHost(own, other) && model.CoversHost(other, host)
	})
}

// ranking has the sets of routes of each host whose most specific match holds, in the mesh's order.
type ranking map[string][]*model.Routes

func (r ranking) add(host string, set *model.Routes) {
	if !slices.Contains(r[host], set) {
		r[host] = append(r[host], set)
	}
}

// uncovered are the routes of several sets for a host, one set after the other: those for everything go last, and what stands
// behind one of them is dropped, since it could never be reached.
func uncovered(all []*routev3.Route) []*routev3.Route {
	slices.SortStableFunc(all, func(a, b *routev3.Route) int { return cmp.Compare(catchAll(a), catchAll(b)) })
	if i := slices.IndexFunc(all, func(r *routev3.Route) bool { return catchAll(r) == 1 }); i >= 0 {
		return all[:i+1]
	}
	return all
}

// rankedRoutes are the routes of several sets for a host, which are sorted by age, the most specific first (see
// [model.CompareMatches]).
func (g *generator) rankedRoutes(sets []*model.Routes, port uint16, host string) []*routev3.Route {
	type candidate struct {
		route *model.HTTPRoute
		match *model.HTTPMatch
	}
	var all []candidate
	for _, set := range sets {
		for i := range set.HTTP {
			for j := range set.HTTP[i].Matches {
				all = append(all, candidate{&set.HTTP[i], &set.HTTP[i].Matches[j]})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return model.CompareMatches(a.match, b.match) })
	out := make([]*routev3.Route, 0, len(all))
	for _, c := range all {
		for _, m := range stripped(c.route, *c.match) {
			out = append(out, g.route(c.route, m, host, port))
		}
	}
	return out
}

// ages are the places of the mesh's routes, the oldest first.
func (g *generator) ages() map[*model.Routes]int {
	if g.routeAges == nil {
		g.routeAges = make(map[*model.Routes]int, len(g.mesh.Routes))
		for i, r := range g.mesh.Routes {
			g.routeAges[r] = i
		}
	}
	return g.routeAges
}

// stripped are the matches that stand for one: two where a prefix of segments becomes "/", since Envoy replaces just what is
// matched, and "/a" and "/a/b" are to become "/" and "/b".
func stripped(h *model.HTTPRoute, m model.HTTPMatch) []model.HTTPMatch {
	strips := h.Redirect != nil && h.Redirect.PathPrefix == "/" || h.Rewrite != nil && h.Rewrite.Path == "/"
	if !strips || m.Path == nil || m.Path.Kind != model.Segments {
		return []model.HTTPMatch{m}
	}
	whole, below := m, m
	whole.Path = &model.StringMatch{Kind: model.Exact, Value: m.Path.Value}
	below.Path = &model.StringMatch{Kind: model.Prefix, Value: m.Path.Value + "/"}
	return []model.HTTPMatch{whole, below}
}

// catchAll is 1 for a route that matches everything.
func catchAll(r *routev3.Route) int {
	m := r.Match
	if m.GetPrefix() == "/" && len(m.Headers) == 0 && len(m.QueryParameters) == 0 && len(m.DynamicMetadata) == 0 {
		return 1
	}
	return 0
}
