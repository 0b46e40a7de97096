package translate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// Client is what sidecars of one kind need to call services, kept by service, so that a change is made where it matters and
// nothing else is looked at. Make one with [Cache.Client]; it belongs to that cache.
type Client struct {
	// Shares are by the host of the service that brings them; foreign routes, for hosts that are no services, have "". Fixed is the
	// listener for what is captured, and the clusters behind it.
	base
	// needs are the hosts that a kind with a workload is limited to; the caller's.
	needs map[string]bool
	// tables are the routes of HTTP ports.
	tables map[uint16]*table
}

// table is the route table of a port.
type table struct {
	// rows are in the order of services.
	rows []row
	// mixed says that names of virtual hosts may clash: some stand for more than a service of this cluster.
	mixed bool
	// foreign are virtual hosts of no service.
	foreign []*routev3.VirtualHost
	// chains of the listener beside that for HTTP.
	chains   []*listenerv3.FilterChain
	listener *listenerv3.Listener
	routes   *routev3.RouteConfiguration
}

type row struct {
	service *model.Service
	// own is the virtual host of the service, host what is left of it where older ones have some of its names.
	own, host *routev3.VirtualHost
}

// Delta is what became of a configuration.
type Delta struct {
	// Set is new or takes the place of what had its name; endpoints are here with their cluster, whichever of both it is.
	Set *Resources
	// Clusters, Endpoints, Listeners, Routes and Secrets are the names of those that are gone. Endpoints go with their clusters; here
	// are those whose cluster stays and has none any more.
	Clusters, Endpoints, Listeners, Routes, Secrets []string
	// Added and Dropped are objects that have a part in the configuration now, and that had.
	Added, Dropped []objects.Key
}

// generator for one kind.
func (c *Cache) generator(mesh *model.Mesh, k Kind) *generator {
	return &generator{
		mesh: mesh, node: k.node(), kind: k.ID(), onDemand: k.Workload != "", scope: mesh.Sidecar(k.Scope), ports: k.Ports, cache: c, out: newResources(), reads: map[string]bool{},
		clusters: map[string]bool{}, portPolicies: map[string]model.PortPolicy{},
	}
}

// Client makes all of an [Outbound] kind. One with a workload is limited to the services with the hosts in needs and to those
// that cannot be asked for; the caller may change needs, and then has these made anew by [Cache.Remake].
func (c *Cache) Client(mesh *model.Mesh, k Kind, needs map[string]bool) (*Client, error) {
	c.enter(mesh)
	out := &Client{base: base{shares: newShares(), kind: k}, needs: needs, tables: map[uint16]*table{}}
	g := c.generator(mesh, k)
	g.needs = needs
	g.routeFilters = g.filtersOfRoutes()
	out.filters = g.filterFingerprint()
	if g.scope != nil {
		g.from(g.scope.Source)
	}
	g.blackhole()
	g.passthrough()
	g.outboundListener()
	out.fixed = g.out
	concerned := map[string]bool{"": true}
	for _, s := range mesh.Services {
		concerned[s.Host] = true
	}
	if _, err := out.remake(g, concerned, nil); err != nil {
		return nil, err
	}
	var err error
	out.patched, err = c.patchedFor(mesh, k)
	return out, err
}

// Kept is what proxies of one kind have, kept by what brings it: a [Client] or a [Gateway].
type Kept interface {
	// Resources are all of the configuration, in no order.
	Resources() *Resources
	// Patches says what became of the patches that the configuration was made with; the same list as long as it is the same.
	Patches() []PatchState

	apply(c *Cache, mesh *model.Mesh, d *model.Difference) (Delta, bool, error)
	// fork makes another one of what it has.
	fork(k Kind) Kept
	// plain is all of it without patches, and without what it was made of.
	plain() *Resources
	// parts are what a cache has made for it, before patches.
	parts(visit func(any))
	// common is what clients and gateways have in common.
	common() *base
}

// Apply makes a change of the model in the configuration. ok is false when that has to be made anew, because the change is of
// what concerns all of it; then the configuration is of no more use.
func (c *Cache) Apply(to Kept, mesh *model.Mesh, d *model.Difference) (delta Delta, ok bool, err error) {
	c.enter(mesh)
	return to.apply(c, mesh, d)
}

func (to *Client) apply(c *Cache, mesh *model.Mesh, d *model.Difference) (delta Delta, ok bool, err error) {
	if to.concernedWholly(d) {
		return Delta{}, false, nil
	}
	concerned := map[string]bool{}
	for _, s := range model.Both(d.Services) {
		concerned[s.Host] = true
		// Routes for a host that is no service have another place than those for one.
		if len(c.routes.names[s.Host]) > 0 {
			concerned[""] = true
		}
	}
	filtered := false
	for _, p := range d.Routes {
		for _, r := range model.Both([]model.Pair[model.Routes]{p}) {
			if !boundToMesh(r) || !r.ExportTo.In(to.kind.Namespace) {
				continue
			}
			filtered = filtered || asksForFilters(r)
			for _, h := range r.Hosts {
				if mesh.Service(h) == nil {
					concerned[""] = true
				}
				concerned[h] = true
			}
		}
	}
	for _, p := range model.Both(d.Destinations) {
		concerned[p.Host] = true
	}
	for host := range maps.Clone(concerned) {
		for reader := range to.readers[host] {
			concerned[reader] = true
		}
	}
	g := c.generator(mesh, to.kind)
	g.needs = to.needs
	if filtered {
		g.routeFilters = g.filtersOfRoutes()
		if g.filterFingerprint() != to.filters {
			return Delta{}, false, nil
		}
	}
	if delta, err = to.remake(g, concerned, model.Both(d.Anchors)); err != nil {
		return delta, true, err
	}
	ok, err = c.patch(to, mesh, d, &delta)
	return delta, ok, err
}

// Remake makes what services bring anew after a change of what is needed. ok is as for [Cache.Apply].
func (c *Cache) Remake(to *Client, mesh *model.Mesh, hosts []string) (delta Delta, ok bool, err error) {
	c.enter(mesh)
	concerned := map[string]bool{}
	for _, h := range hosts {
		concerned[h] = true
	}
	g := c.generator(mesh, to.kind)
	g.needs = to.needs
	if delta, err = to.remake(g, concerned, nil); err != nil {
		return delta, true, err
	}
	ok = to.patched.delta(&delta)
	return delta, ok, nil
}

// concernedWholly says whether a change is of what concerns more than single hosts.
func (c *Client) concernedWholly(d *model.Difference) bool {
	return len(d.Globals) > 0 || len(d.PeerModes) > 0 || anchorsAppear(d) ||
		slices.ContainsFunc(model.Both(d.Sidecars), func(s *model.Sidecar) bool { return s.FullName() == c.kind.Scope }) ||
		slices.ContainsFunc(model.Both(d.Destinations), func(p *model.DestinationPolicy) bool { return strings.HasPrefix(p.Host, "*") }) ||
		slices.ContainsFunc(model.Both(d.Routes), func(r *model.Routes) bool {
			return boundToMesh(r) && r.ExportTo.In(c.kind.Namespace) && slices.ContainsFunc(r.Hosts, func(h string) bool { return strings.HasPrefix(h, "*") })
		})
}

// remake makes the shares of these hosts anew, and the secrets with these anchors.
func (c *Client) remake(g *generator, concerned map[string]bool, anchors []*model.Anchors) (Delta, error) {
	delta := Delta{Set: newResources()}
	made := map[string]*share{}
	for host := range concerned {
		if host == "" {
			continue
		}
		var now *share
		if s := g.mesh.Service(host); s != nil && g.visible(s) {
			now = g.share(s)
		}
		if now != nil || c.by[host] != nil {
			made[host] = now
		}
	}
	if concerned[""] {
		made[""] = g.foreignShare()
	}
	if err := g.failed(); err != nil {
		return delta, err
	}
	c.exchange(g, made, anchors, &delta)
	ports := map[uint16]bool{}
	c.settleTables(g, made, ports, &delta)
	c.replace(made)
	// A table that is made of all shares needs them as they are now.
	for port := range ports {
		c.remakeTable(g, port, &delta)
	}
	return delta, g.failed()
}

func (r *Resources) addCluster(p *clusterPart) {
	r.Clusters = append(r.Clusters, p.cluster)
	if p.endpoints != nil {
		r.Endpoints = append(r.Endpoints, p.endpoints)
	}
}

// share makes what a service brings.
func (g *generator) share(s *model.Service) *share {
	g.begin()
	out := &share{service: s, hosts: map[uint16]*routev3.VirtualHost{}}
	g.serviceClusters(s)
	for _, p := range s.Ports {
		if p.Protocol.IsHTTP() {
			g.from(s.Source)
			out.hosts[p.Number] = g.serviceHost(s, p.Number)
		} else {
			g.outboundTCP(s, p)
		}
	}
	g.end(out)
	return out
}

// foreignShare makes what routes for hosts bring that are no services.
func (g *generator) foreignShare() *share {
	g.begin()
	out := &share{foreign: g.foreignHosts()}
	g.end(out)
	return out
}

// settleTables changes the tables that virtual hosts changed in. Tables that must be gone through as a whole are added to
// ports.
func (c *Client) settleTables(g *generator, made map[string]*share, ports map[uint16]bool, delta *Delta) {
	_, foreign := made[""]
	changed := map[uint16][]row{}
	for host, now := range made {
		old := c.by[host]
		if now != nil {
			for port, h := range now.hosts {
				if old == nil || old.hosts[port] != h || old.service != now.service {
					changed[port] = append(changed[port], row{service: now.service, own: h})
				}
			}
		}
		if old != nil {
			for port := range old.hosts {
				if now == nil || now.hosts[port] == nil {
					changed[port] = append(changed[port], row{service: old.service})
				}
			}
			for port := range old.chains {
				ports[port] = true
			}
		}
		if now != nil {
			for port := range now.chains {
				ports[port] = true
			}
		}
	}
	for port, rows := range changed {
		t := c.tables[port]
		if t == nil || len(rows) > len(t.rows)/4 {
			ports[port] = true
			continue
		}
		t.rows = slices.Clone(t.rows)
		same := true
		for _, r := range rows {
			at, known := slices.BinarySearchFunc(t.rows, r.service, func(x row, s *model.Service) int { return model.CompareServices(x.service, s) })
			mixed := t.mixed || r.own != nil && isMixed(r.service)
			switch {
			case known && r.own != nil && t.rows[at].own == t.rows[at].host && slices.Equal(t.rows[at].own.Domains, r.own.Domains):
				same = same && t.rows[at].own == r.own
				t.rows[at] = row{r.service, r.own, r.own}
			case mixed:
				ports[port] = true
			case known && r.own == nil:
				same, t.rows = false, slices.Delete(t.rows, at, at+1)
			case known:
				same, t.rows[at] = false, row{r.service, r.own, r.own}
			default:
				same, t.rows = false, slices.Insert(t.rows, at, row{r.service, r.own, r.own})
			}
		}
		if len(t.rows) == 0 {
			ports[port] = true
		}
		if !ports[port] && !same && (!foreign || port != foreignPort) {
			t.routes = g.routeTable(port, t.rows, t.foreign)
			delta.Set.Routes = append(delta.Set.Routes, t.routes)
		}
	}
	if foreign && c.tables[foreignPort] != nil {
		ports[foreignPort] = true
	}
}

// remakeTable goes through all virtual hosts of a port.
func (c *Client) remakeTable(g *generator, port uint16, delta *Delta) {
	t := &table{}
	var chained []*share
	for _, s := range c.by {
		if h := s.hosts[port]; h != nil {
			t.rows = append(t.rows, row{service: s.service, own: h})
		}
		if len(s.chains[port]) > 0 {
			chained = append(chained, s)
		}
	}
	slices.SortFunc(chained, func(x, y *share) int { return model.CompareServices(x.service, y.service) })
	for _, s := range chained {
		t.chains = append(t.chains, s.chains[port]...)
	}
	name, old := fmt.Sprint(port), c.tables[port]
	if len(t.rows) == 0 && old != nil && old.routes != nil {
		delta.Routes = append(delta.Routes, name)
	}
	if len(t.rows)+len(t.chains) == 0 {
		if old != nil {
			delete(c.tables, port)
			delta.Listeners = append(delta.Listeners, g.wildcardName(port))
		}
		return
	}
	slices.SortFunc(t.rows, func(x, y row) int { return model.CompareServices(x.service, y.service) })
	taken := map[string]bool{}
	// A ServiceEntry of any namespace may be called like another's Service in short: the Service keeps its names.
	for _, entries := range []bool{false, true} {
		for i := range t.rows {
			r := &t.rows[i]
			if isEntry := r.service.External != nil && r.service.External.Entry != nil; isEntry != entries {
				continue
			}
			r.host = withoutTaken(r.own, taken)
			t.mixed = t.mixed || r.host != r.own || isMixed(r.service)
		}
	}
	if port == foreignPort && c.by[""] != nil {
		for _, h := range c.by[""].foreign {
			if h = withoutTaken(h, taken); len(h.Domains) > 0 {
				t.foreign = append(t.foreign, h)
			}
		}
		t.mixed = t.mixed || len(c.by[""].foreign) > 0
	}
	if old == nil || (len(old.rows) == 0) != (len(t.rows) == 0) || !slices.Equal(old.chains, t.chains) {
		if g.routeFilters == nil {
			g.routeFilters = g.filtersOfRoutes()
		}
		t.listener = g.outboundPort(port, len(t.rows) > 0, t.chains)
		delta.Set.Listeners = append(delta.Set.Listeners, t.listener)
	} else {
		t.listener = old.listener
	}
	if len(t.rows) > 0 {
		t.routes = g.routeTable(port, t.rows, t.foreign)
		delta.Set.Routes = append(delta.Set.Routes, t.routes)
	}
	c.tables[port] = t
}

// isMixed says whether a service has names besides those of a service of this cluster, which may be others' names too.
func isMixed(s *model.Service) bool { return s.External != nil || len(s.Aliases) > 0 }

// foreignPort is where hosts that are no services get their routes, as in Istio.
const foreignPort = 80

// routeTable makes the route table of an outbound HTTP port.
func (g *generator) routeTable(port uint16, rows []row, foreign []*routev3.VirtualHost) *routev3.RouteConfiguration {
	hosts := make([]*routev3.VirtualHost, 0, len(rows)+len(foreign)+1)
	for _, r := range rows {
		if len(r.host.Domains) == 0 {
			continue // Others have all of its names.
		}
		hosts = append(hosts, r.host)
	}
	block := g.blocksUnknown()
	if g.cache.unknown[block] == nil {
		g.cache.unknown[block] = g.unknownHost()
	}
	hosts = append(append(hosts, foreign...), g.cache.unknown[block])
	return &routev3.RouteConfiguration{
		Name:                           fmt.Sprint(port),
		ValidateClusters:               flag(false),
		MaxDirectResponseBodySizeBytes: count(maxDirectBody),
		VirtualHosts:                   hosts,
	}
}

// visible says whether the node's clients get a service.
func (g *generator) visible(s *model.Service) bool {
	return s.ExportTo.In(g.node.Namespace) && g.scope.Sees(g.node.Namespace, s) && (!g.onDemand || g.needs[s.Host] || !s.Addressed())
}

// blocksUnknown says whether what goes to unknown destinations is refused.
func (g *generator) blocksUnknown() bool {
	if g.scope != nil && g.scope.BlockUnknown != nil {
		return *g.scope.BlockUnknown
	}
	return g.mesh.Settings.BlockUnknown
}

// unknown is where connections to unknown destinations go.
func (g *generator) unknown() string {
	if g.blocksUnknown() {
		return clusterBlackhole
	}
	return clusterPassthrough
}

// How heddle-proxy is told to ask for the listener of each destination, and how long a connection waits for the answer: as long
// as Envoy waits for a cluster that it discovers on demand.
const (
	metaOnDemand    = "heddle.on_demand"
	onDemandTimeout = "5s"
)

// outboundListener makes the listener for what the application sends. It accepts everything that is captured and hands it to
// the listener of its original destination; those are never bound.
func (g *generator) outboundListener() {
	unknown, key := g.unknown(), listenerOutbound
	var metadata *corev3.Metadata
	if g.onDemand {
		key += " on demand"
		metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{metaOnDemand: {Fields: map[string]*structpb.Value{
			"timeout": structpb.NewStringValue(onDemandTimeout),
		}}}}
	}
	g.clientListener(key, func() *listenerv3.Listener {
		return &listenerv3.Listener{
			Name:     listenerOutbound,
			Metadata: metadata,
			// Redirected connections of the host itself arrive on loopback; nobody else may use the proxy as a relay.
			Address:          socketAddress(g.loopback(), PortOutbound),
			UseOriginalDst:   flag(true),
			TrafficDirection: corev3.TrafficDirection_OUTBOUND,
			FilterChains: []*listenerv3.FilterChain{{
				Name:             chainOutboundBlackhole,
				FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: count(PortOutbound)},
				Filters:          g.tcpFilters(clusterBlackhole, nil, clusterBlackhole),
			}},
			DefaultFilterChain: &listenerv3.FilterChain{
				Name:    chainOutboundCatchAll,
				Filters: g.tcpFilters(unknown, nil, unknown),
			},
		}
	})
}

// Resources implements [Kept].
func (c *Client) Resources() *Resources { return c.all(c.plain()) }

func (c *Client) plain() *Resources {
	out := c.base.plain()
	for _, t := range c.tables {
		if out.Listeners = append(out.Listeners, t.listener); t.routes != nil {
			out.Routes = append(out.Routes, t.routes)
		}
	}
	return out
}

func (c *Client) fork(k Kind) Kept {
	out := &Client{base: c.base.fork(k), needs: c.needs, tables: make(map[uint16]*table, len(c.tables))}
	for port, t := range c.tables {
		// A change makes the rows anew.
		one := *t
		out.tables[port] = &one
	}
	return out
}
