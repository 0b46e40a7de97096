package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"heddle.io/heddle/control/model"
)

// edgeHost is what a virtual host of a gateway is made of.
type edgeHost struct {
	// inOrder are sets that follow each other, with the names of the servers that they are bound to, ranked those whose most
	// specific match holds.
	inOrder []boundSet
	ranked  []*model.Routes
	// redirectHTTPS answers every request with a redirect to https.
	redirectHTTPS bool
}

type boundSet struct {
	set    *model.Routes
	server string
}

// edgeHosts are the hosts of servers that share a table; of those, with nil all.
func (g *generator) edgeHosts(port uint16, servers []boundServer, those map[string]bool) map[string]*edgeHost {
	hosts := map[string]*edgeHost{}
	wanted := func(host string) bool { return those == nil || those[host] }
	of := func(host string) *edgeHost {
		if hosts[host] == nil {
			hosts[host] = &edgeHost{}
		}
		return hosts[host]
	}
	for _, s := range servers {
		for _, r := range g.routesFor(s, those) {
			holds := func(h model.HTTPRoute) bool { return r.Ranked || g.anyInScope(&h, r, port, s.name()) }
			if !slices.ContainsFunc(r.HTTP, holds) {
				continue
			}
			for _, h := range r.Hosts {
				host := s.server.Serves(r.Namespace, h)
				if host == "" || !wanted(host) || othersHost(servers, s, host) {
					continue
				}
				if to := of(host); !r.Ranked {
					to.inOrder = append(to.inOrder, boundSet{r, s.name()})
				} else if !slices.Contains(to.ranked, r) {
					to.ranked = append(to.ranked, r)
				}
			}
		}
	}
	if len(servers) > 1 {
		// What is for a listener's host alone must not be answered by another's routes for all hosts.
		for _, s := range servers {
			if s.server.Allowed != nil && wanted(s.server.Hosts[0].Host) {
				of(s.server.Hosts[0].Host)
			}
		}
	}
	for _, s := range servers {
		if !s.server.RedirectHTTPS {
			continue
		}
		for _, h := range s.server.Hosts {
			if wanted(h.Host) {
				of(h.Host).redirectHTTPS = true
			}
		}
		for host, to := range hosts {
			to.redirectHTTPS = to.redirectHTTPS || slices.ContainsFunc(s.server.Hosts, func(h model.ServerHost) bool { return coversHost(h.Host, host) })
		}
	}
	return hosts
}

// edgeHost is the virtual host of a host in a table.
func (g *generator) edgeHost(table, host string, port uint16, of *edgeHost) *routev3.VirtualHost {
	// Servers' own order does not tell which set is the older.
	if len(of.ranked) > 1 {
		at := g.ages()
		slices.SortFunc(of.ranked, func(a, b *model.Routes) int { return cmp.Compare(at[a], at[b]) })
	}
	inputs := make([]any, 0, 2*len(of.inOrder)+2*len(of.ranked))
	// The clusters that the routes lead to are the proxy's, whoever made the virtual host.
	use := func(h *model.HTTPRoute) {
		g.destinationClusters(h.Forward)
		for i := range h.Mirrors {
			g.destinationClusters([]model.Destination{h.Mirrors[i].To})
		}
		for i := range h.Forward {
			s := g.service(h.Forward[i].Host)
			inputs = append(inputs, s != nil && hasOwnNames(s))
		}
	}
	for _, b := range of.inOrder {
		g.from(b.set.Source)
		inputs = append(inputs, b.set, b.server)
		for i := range b.set.HTTP {
			if g.anyInScope(&b.set.HTTP[i], b.set, port, b.server) {
				use(&b.set.HTTP[i])
			}
		}
	}
	for _, r := range of.ranked {
		g.from(r.Source)
		inputs = append(inputs, r)
		for i := range r.HTTP {
			use(&r.HTTP[i])
		}
	}
	key := hostKey{port: port, kind: g.kind, table: table, redirectHTTPS: of.redirectHTTPS}
	return memo(g, within(g.cache.hosts, host), key, inputs, func() *routev3.VirtualHost {
		out := &routev3.VirtualHost{
			Name: fmt.Sprintf("%s:%d", host, port), Domains: []string{host}, IncludeRequestAttemptCount: true,
		}
		for _, b := range of.inOrder {
			out.Routes = append(out.Routes, g.routes(b.set, port, b.server, host)...)
		}
		out.Routes = uncovered(append(out.Routes, g.rankedRoutes(of.ranked, port, host)...))
		if of.redirectHTTPS {
			out.RequireTls = routev3.VirtualHost_ALL
		}
		return out
	})
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
