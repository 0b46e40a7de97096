package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"heddle.io/heddle/control/model"
)

// Gateway is what gateways of one kind have, kept by virtual host, so that a change of routes, or of a service that they lead to, is
// made where it matters. Make one with [Cache.Gateway]; it belongs to that cache.
type Gateway struct {
	// Shares are by table and host; "" is that of listeners.
	base
	// tables by name.
	tables map[string]*edgeTable
}

// edgeTable is a route table that servers share.
type edgeTable struct {
	name    string
	port    uint16
	servers []boundServer
	// hosts of its virtual hosts, sorted, each at the place of its own.
	hosts  []string
	routes *routev3.RouteConfiguration
}

// edgePlace is where a virtual host of a gateway stands.
type edgePlace struct{ table, host string }

func (p edgePlace) String() string { return p.table + " " + p.host }

// Gateway makes all of an [Edge] kind.
func (c *Cache) Gateway(mesh *model.Mesh, k Kind) (*Gateway, error) {
	c.enter(mesh)
	out := &Gateway{base: base{shares: newShares(), kind: k}, tables: map[string]*edgeTable{}}
	g := c.generator(mesh, k)
	g.routeFilters = g.filtersOfRoutes()
	out.filters = g.filterFingerprint()
	g.begin()
	g.gateway()
	if g.isEastWest() {
		g.eastWest()
	}
	listeners := &share{}
	g.end(listeners)
	out.fixed = g.out
	out.fixed.Listeners, out.fixed.Endpoints, out.fixed.sources = nil, nil, nil
	for _, p := range listeners.clusters {
		out.fixed.Clusters = slices.DeleteFunc(out.fixed.Clusters, func(c *clusterv3.Cluster) bool { return c == p.cluster })
	}
	made := map[string]*share{"": listeners}
	hosts := map[string]map[string]*share{}
	for i := range g.tables {
		t := &g.tables[i]
		out.tables[t.name] = t
		hosts[t.name] = out.remake(g, t, nil, made)
	}
	delta := Delta{Set: newResources()}
	if err := out.put(g, made, &delta); err != nil {
		return nil, err
	}
	for _, t := range out.tables {
		out.settleTable(t, hosts[t.name])
	}
	var err error
	out.patched, err = c.patchedFor(mesh, k)
	return out, err
}

// remake makes the shares of virtual hosts of a table anew; of these hosts, with nil all. They are added to made, and returned by
// host, nil for one that is gone.
func (to *Gateway) remake(g *generator, t *edgeTable, hosts map[string]bool, made map[string]*share) map[string]*share {
	anew := map[string]*share{}
	now := g.edgeHosts(t.port, t.servers, hosts)
	for host := range hosts {
		if at := (edgePlace{t.name, host}); now[host] == nil && to.by[at.String()] != nil {
			made[at.String()], anew[host] = nil, nil
		}
	}
	for host, of := range now {
		at := edgePlace{t.name, host}
		g.begin()
		one := &share{at: at, edge: g.edgeHost(t.name, host, t.port, of)}
		g.end(one)
		made[at.String()], anew[host] = one, one
	}
	return anew
}

// put puts shares into the place of those before.
func (to *Gateway) put(g *generator, made map[string]*share, delta *Delta) error {
	if err := g.failed(); err != nil {
		return err
	}
	to.exchange(g, made, nil, delta)
	to.replace(made)
	return nil
}

// settleTable puts virtual hosts that were made anew into their table, and says whether it is another one by that.
func (to *Gateway) settleTable(t *edgeTable, anew map[string]*share) bool {
	routes := &routev3.RouteConfiguration{
		Name: t.name, ValidateClusters: flag(false), IgnorePortInHostMatching: true,
		MaxDirectResponseBodySizeBytes: count(maxDirectBody),
	}
	if t.routes != nil && len(t.hosts) > 0 {
		routes.VirtualHosts = slices.Clone(t.routes.VirtualHosts)
	}
	changed := t.routes == nil
	var arrived []string
	for host, now := range anew {
		at, known := slices.BinarySearch(t.hosts, host)
		switch {
		case now == nil && known:
			t.hosts, routes.VirtualHosts = slices.Delete(t.hosts, at, at+1), slices.Delete(routes.VirtualHosts, at, at+1)
			changed = true
		case now == nil:
		case known:
			changed = changed || routes.VirtualHosts[at] != now.edge
			routes.VirtualHosts[at] = now.edge
		default:
			arrived = append(arrived, host)
		}
	}
	if len(arrived) > 0 {
		changed = true
		t.hosts = append(t.hosts, arrived...)
		slices.Sort(t.hosts)
		routes.VirtualHosts = make([]*routev3.VirtualHost, 0, len(t.hosts))
		for _, host := range t.hosts {
			routes.VirtualHosts = append(routes.VirtualHosts, to.by[edgePlace{t.name, host}.String()].edge)
		}
	}
	if !changed {
		return false
	}
	if len(t.hosts) == 0 {
		// Nothing is routed: everything is answered with 404.
		routes.VirtualHosts = []*routev3.VirtualHost{{Name: fmt.Sprintf("blackhole:%d", t.port), Domains: []string{"*"}}}
	}
	t.routes = routes
	return true
}

func (to *Gateway) apply(c *Cache, mesh *model.Mesh, d *model.Difference) (delta Delta, ok bool, err error) {
	if to.concernedWholly(mesh.Settings.RootNamespace, d) {
		return Delta{}, false, nil
	}
	g := c.generator(mesh, to.kind)
	concerned, filtered, ok := to.concerned(d)
	if !ok {
		return Delta{}, false, nil
	}
	if filtered {
		g.routeFilters = g.filtersOfRoutes()
		if g.filterFingerprint() != to.filters {
			return Delta{}, false, nil
		}
	}
	delta = Delta{Set: newResources()}
	made := map[string]*share{}
	anew := map[string]map[string]*share{}
	for table, hosts := range concerned {
		anew[table] = to.remake(g, to.tables[table], hosts, made)
	}
	if err := to.put(g, made, &delta); err != nil {
		return delta, true, err
	}
	for table, hosts := range anew {
		if t := to.tables[table]; to.settleTable(t, hosts) {
			delta.Set.Routes = append(delta.Set.Routes, t.routes)
		}
	}
	ok, err = c.patch(to, mesh, d, &delta)
	return delta, ok, err
}

// concernedWholly says whether a change is of what concerns more than single virtual hosts.
func (to *Gateway) concernedWholly(root string, d *model.Difference) bool {
	between := model.Selects(eastWestLabels, to.kind.Labels)
	return concernsProxies(to.kind, root, d) || len(d.Gateways)+len(d.Credentials)+len(d.Anchors) > 0 ||
		between && (len(d.Destinations) > 0 || slices.ContainsFunc(model.Both(d.Services), (*model.Service).Exported)) ||
		slices.ContainsFunc(model.Both(d.Destinations), func(p *model.DestinationPolicy) bool { return strings.HasPrefix(p.Host, "*") })
}

// concerned are the hosts, by table, that a change is of; filtered says that it is of routes which need a filter. It is not ok when
// listeners are concerned.
func (to *Gateway) concerned(d *model.Difference) (hosts map[string]map[string]bool, filtered, ok bool) {
	hosts = map[string]map[string]bool{}
	add := func(at edgePlace) {
		if hosts[at.table] == nil {
			hosts[at.table] = map[string]bool{}
		}
		hosts[at.table][at.host] = true
	}
	for _, r := range model.Both(d.Routes) {
		if !slices.ContainsFunc(r.Gateways, func(name string) bool { return name != model.GatewayMesh }) || !r.ExportTo.In(to.kind.Namespace) {
			continue
		}
		if len(r.TCP) > 0 {
			// Connections are passed on by listeners.
			return nil, false, false
		}
		filtered = filtered || asksForFilters(r)
		for _, t := range to.tables {
			for _, s := range t.servers {
				if !slices.Contains(r.Gateways, s.name()) {
					continue
				}
				for _, h := range r.Hosts {
					if host := s.server.Serves(r.Namespace, h); host != "" {
						add(edgePlace{t.name, host})
					}
				}
			}
		}
	}
	read := map[string]bool{}
	for _, s := range model.Both(d.Services) {
		read[s.Host] = true
	}
	for _, p := range model.Both(d.Destinations) {
		read[p.Host] = true
	}
	for _, b := range model.Both(d.BackendTLS) {
		for _, t := range b.Targets {
			read[t.Host] = true
		}
	}
	for host := range read {
		for name := range to.readers[host] {
			if name == "" {
				return nil, false, false
			}
			add(to.by[name].at)
		}
	}
	return hosts, filtered, true
}

// attachedAt are the servers that routes are bound to, with each of their hosts.
func attachedAt(r *model.Routes) []string {
	var out []string
	for i, name := range r.Gateways {
		if name == model.GatewayMesh || slices.Contains(r.Gateways[:i], name) {
			continue
		}
		for j, h := range r.Hosts {
			if !slices.Contains(r.Hosts[:j], h) {
				out = append(out, attachedTo(name, h))
			}
		}
	}
	return out
}

func attachedTo(server, host string) string { return server + " " + host }

// routesFor are the routes that are bound to a server, in the mesh's order, that may be for these hosts; all with nil.
func (g *generator) routesFor(s boundServer, hosts map[string]bool) []*model.Routes {
	if hosts == nil {
		return g.routesOf(s)
	}
	found := map[*model.Routes]bool{}
	for host := range hosts {
		for _, pattern := range covering(host) {
			for _, r := range g.cache.attached.names[attachedTo(s.name(), pattern)] {
				if r.ExportTo.In(g.node.Namespace) {
					found[r] = true
				}
			}
		}
	}
	return g.cache.attached.sorted(slices.Collect(maps.Keys(found)))
}

// covering are a host and the patterns that cover all of it (see [model.CoversHost]).
func covering(host string) []string {
	out := []string{host}
	if host == "*" {
		return out
	}
	for rest := strings.TrimPrefix(host, "*."); ; {
		_, after, more := strings.Cut(rest, ".")
		if !more {
			return append(out, "*")
		}
		rest = after
		out = append(out, "*."+rest)
	}
}

// Resources implements [Kept].
func (to *Gateway) Resources() *Resources { return to.all(to.plain()) }

func (to *Gateway) plain() *Resources {
	out := to.base.plain()
	for _, t := range to.tables {
		out.Routes = append(out.Routes, t.routes)
	}
	return out
}

func (to *Gateway) fork(k Kind) Kept {
	out := &Gateway{base: to.base.fork(k), tables: make(map[string]*edgeTable, len(to.tables))}
	for name, t := range to.tables {
		one := *t
		one.hosts = slices.Clone(t.hosts)
		out.tables[name] = &one
	}
	return out
}

func (to *Gateway) parts(visit func(any)) {
	to.fixed.eachPart(visit)
	to.eachPart(visit)
}
