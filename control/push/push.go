// Package push keeps what proxies are sent up to the model. For each kind of proxy that is connected there is a group of
// resources, made once and shared with other kinds where they are the same; a change makes what it changes, and tells the
// groups that have it.
package push

import (
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// Pusher holds the model in force and the groups that are made of it. It is the server's [xds.Source]. Make one with [New].
type Pusher struct {
	log     *slog.Logger
	metrics metrics
	server  *xds.Server

	// mu is held while resources are made, by whoever changes the model or makes the first group of a kind.
	mu sync.Mutex
	// mesh is what clients and gateways go by, served what servers do. Each has a cache, for they differ while a change is
	// staged.
	mesh, served   *model.Mesh
	cache, inbound *translate.Cache
	version        int64
	groups         map[string]*group
	// alike are those groups by what their kinds are without EnvoyFilters.
	alike map[string]map[*group]struct{}
	// pending are changes of groups that have been made and are still to come into force.
	pending []xds.Change
	proxies map[*xds.Proxy]*proxy
	// packed are the resources made of a message: of endpoints, one for each cluster that they are of.
	packed map[proto.Message][]packed
	// hosts are marshalled virtual hosts.
	hosts map[*routev3.VirtualHost]*xds.Part
	// swept is how many of both there were when those without use were forgotten last.
	swept int
	// numbers stand for the objects that have a part in anything, in the order of carried.
	numbers map[objects.Key]int32
	carried []carried
	// progressed are those of them whose progress may be another than when [Pusher.Changed] was asked last, recounted the groups of
	// which all are. order has what each change carried, the oldest first; what is carried by a later one stands there, too.
	progressed map[int32]struct{}
	recounted  map[*group]struct{}
	order      []carrying
	// versions of the objects that the model in force was made of.
	versions map[objects.Key]objects.Version
	// dependencies are what workloads were seen to use, needs the same of those that have a group.
	dependencies *registry.Dependencies
	needs        map[string]map[string]bool
	// destinations are the services at addresses that proxies ask for.
	destinations model.Destinations
}

// group is what the proxies of one kind get.
type group struct {
	kind    translate.Kind
	group   *xds.Group
	proxies int
	// counting are those of them that are known to count in [Progress].
	counting int
	// kept is what clients and gateways have, made what servers have; nil after a failure.
	kept translate.Kept
	made *translate.Resources
	// sources are the numbers of the objects that have a part in it.
	sources map[int32]bool
	// beside are the groups of clients that proxies of an inbound kind are in as well, with how many are.
	beside map[*group]int
	// patches are what became of those of EnvoyFilters.
	patches []translate.PatchState
}

// proxy is a connected one.
type proxy struct {
	id     string
	node   translate.Node
	groups []*group
	// counts says that it counts in [Progress], as [Pusher.Changed] heard last.
	counts bool
	// uses is what one asked for that gets what its workload was seen to use.
	uses uses
}

// packed is a message as a resource; cluster is that of endpoints.
type packed struct {
	resource, cluster *xds.Resource
}

// carried is since which version of the configuration a version of an object is in what proxies are sent.
type carried struct {
	key     objects.Key
	of      objects.Version
	version int64
}

// carrying is an object, by its number, that a version of the configuration brought.
type carrying struct {
	version int64
	number  int32
}

// New makes a pusher without a model: proxies that connect to its server wait for the first. Its server is made by start. What
// the pusher counts is in metrics.
func New(log *slog.Logger, metrics prometheus.Registerer, dependencies *registry.Dependencies, start func(xds.Source) *xds.Server) *Pusher {
	p := &Pusher{log: log, metrics: newMetrics(metrics), dependencies: dependencies, needs: map[string]map[string]bool{}, cache: translate.NewCache(), inbound: translate.NewCache(), groups: map[string]*group{}, alike: map[string]map[*group]struct{}{}, proxies: map[*xds.Proxy]*proxy{},
		packed: map[proto.Message][]packed{}, hosts: map[*routev3.VirtualHost]*xds.Part{}, numbers: map[objects.Key]int32{}, progressed: map[int32]struct{}{}, recounted: map[*group]struct{}{}, versions: map[objects.Key]objects.Version{}}
	p.server = start(p)
	return p
}

// Server that the proxies connect to.
func (p *Pusher) Server() *xds.Server { return p.server }

// Update is a change of what is in force.
type Update struct {
	// Clients is what clients and gateways go by, Servers what servers do. Each, and the one before it, must be of one kept
	// model: parts that they have in common are the same pointers.
	Clients, Servers *model.Mesh
	// Revision counts the changes that they were made of.
	Revision int64
	// Revised are the objects that changed since the update before, with their versions, empty for one that is gone.
	Revised map[objects.Key]objects.Version
	// Again are objects that come into force for further proxies, though they have not changed.
	Again []objects.Key
}

// Update puts a change into force, and gives its version.
func (p *Pusher) Update(u Update) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	started := time.Now()
	for key, r := range u.Revised {
		if p.versions[key] = r; r == "" {
			delete(p.versions, key)
		}
	}
	before, servedBefore := p.mesh, p.served
	p.mesh, p.served = u.Clients, u.Servers
	known := len(p.carried)
	var changes []xds.Change
	var moves []xds.Move
	why := causeConfig
	if whole := before == nil || !reflect.DeepEqual(before.Settings, p.mesh.Settings); whole {
		why = causeGlobal
		changes = p.changeAll(nil)
		p.pending = changes
		moves = p.regroup(nil)
	} else {
		clients := model.Differ(before, p.mesh)
		servers := clients
		if before != servedBefore || p.mesh != p.served {
			servers = model.Differ(servedBefore, p.served)
		}
		moves = p.arrived(clients.Services)
		accepted := slices.Equal(servedBefore.Accepted, p.served.Accepted)
		switch {
		case accepted && clients.EndpointsAlone() && servers.EndpointsAlone():
			why = causeEndpoint
			changes = p.renewEndpoints(&clients)
			if len(changes) == 0 && len(u.Revised)+len(u.Again) == 0 && u.Revision == p.server.Revision() {
				return p.version
			}
		default:
			changes = p.changeAll(&concern{&clients, &servers, p.formers(servedBefore)})
			p.pending = changes
			moves = append(moves, p.regroup(&clients)...)
		}
	}
	p.version = p.server.Update(u.Revision, changes, moves)
	p.pending = nil
	p.carry(known)
	for key, r := range u.Revised {
		if n, used := p.numbers[key]; used && p.carried[n].of != r {
			p.carried[n].of = r
			p.carryNow(n)
		}
	}
	for _, key := range u.Again {
		if n, used := p.numbers[key]; used {
			p.carryNow(n)
		}
	}
	if p.cache.Crowded() || p.inbound.Crowded() || p.crowded() {
		p.sweep()
	}
	p.trace(why, u, changes, moves, started)
	return p.version
}

// carry has objects that came to have a part in something, the known ones not among them, be carried by the version in force.
func (p *Pusher) carry(known int) {
	for n := known; n < len(p.carried); n++ {
		p.carryNow(int32(n))
	}
}

// concern is what a change of the model is about: what differs of what clients and gateways go by, of what servers go by, and between
// that and the meshes that servers came to accept besides, or ceased to.
type concern struct {
	clients, servers *model.Difference
	formers          []translate.Former
}

// formers are the meshes that servers came to accept besides, or ceased to.
func (p *Pusher) formers(before *model.Mesh) []translate.Former {
	var out []translate.Former
	for _, former := range slices.Concat(before.Accepted, p.served.Accepted) {
		if !slices.Contains(before.Accepted, former) || !slices.Contains(p.served.Accepted, former) {
			out = append(out, translate.FormerOf(former, p.served))
		}
	}
	return out
}

// changeAll makes what a change makes a difference to, in all groups; everything with nil.
func (p *Pusher) changeAll(c *concern) []xds.Change {
	var changes []xds.Change
	for id, g := range p.groups {
		if g.proxies == 0 {
			p.flush(g)
			p.leave(id, g)
			continue
		}
		if change := p.changeOf(g, c); !change.Nothing() {
			changes = append(changes, change)
		}
	}
	return changes
}

// changeOf makes what a change makes a difference to in a group; everything with nil.
func (p *Pusher) changeOf(g *group, c *concern) xds.Change {
	defer p.judge(g)
	if g.group.Failed() != "" {
		p.recount(g)
	}
	if c != nil && g.kept != nil {
		delta, ok, err := p.cache.Apply(g.kept, p.mesh, c.clients)
		if err != nil {
			return p.failed(g, err)
		}
		if ok {
			change, err := p.apply(g, delta)
			if err != nil {
				return p.failed(g, err)
			}
			return change
		}
	}
	if c != nil && g.made != nil && !p.concerns(g.kind, c) {
		return xds.Change{Group: g.group, Failure: g.group.Failed()}
	}
	resources, sources, err := p.make(g)
	if err != nil {
		return p.failed(g, err)
	}
	p.renumber(g, sources)
	return g.group.Change(resources)
}

// concerns says whether a change may make a difference to what a kind of proxy has as a server.
func (p *Pusher) concerns(k translate.Kind, c *concern) bool {
	return translate.Concerns(k, p.mesh.Settings.RootNamespace, c.servers) || slices.ContainsFunc(c.formers, func(f translate.Former) bool { return f.Concerns(k) })
}

// failed says that what a group should have could not be made.
func (p *Pusher) failed(g *group, err error) xds.Change {
	p.log.Error("proxies keep their configuration: the new one could not be made", "kind", g.kind.ID(), "error", err)
	p.metrics.failures.Inc()
	// What it has is not what the model says: it is made from nothing the next time.
	g.kept, g.made = nil, nil
	p.recount(g)
	return xds.Change{Group: g.group, Failure: err.Error()}
}

// apply makes of what became of a configuration what becomes of its group.
func (p *Pusher) apply(g *group, delta translate.Delta) (xds.Change, error) {
	change := xds.Change{Group: g.group}
	resources, err := p.pack(delta.Set)
	if err != nil {
		return change, err
	}
	for _, r := range resources {
		switch old := g.group.Resource(r.Type(), r.Name()); {
		case old == r:
		case old != nil && old.Version() == r.Version():
			change.Same = append(change.Same, r)
		default:
			change.Set = append(change.Set, r)
		}
	}
	remove := func(t xds.Type, names []string) {
		for _, name := range names {
			if r := g.group.Resource(t, name); r != nil {
				change.Removed = append(change.Removed, r)
			}
		}
	}
	remove(xds.Clusters, delta.Clusters)
	remove(xds.Endpoints, slices.Concat(delta.Clusters, delta.Endpoints))
	remove(xds.Listeners, delta.Listeners)
	remove(xds.Routes, delta.Routes)
	remove(xds.Secrets, delta.Secrets)
	for _, key := range delta.Dropped {
		if n, known := p.numbers[key]; known {
			delete(g.sources, n)
			p.progressed[n] = struct{}{}
		}
	}
	p.number(g, delta.Added)
	return change, nil
}

// regroup puts proxies into other groups that a change made to be of other kinds; all are looked at with nil.
func (p *Pusher) regroup(d *model.Difference) []xds.Move {
	var moves []xds.Move
	replicas := map[string]bool{}
	if d != nil {
		if !translate.MayRegroup(d) {
			return nil
		}
		for _, r := range model.Both(d.Replicas) {
			replicas[r.Namespace+"/"+r.Name] = true
		}
	}
	for connected, member := range p.proxies {
		if d != nil && !replicas[member.node.Namespace+"/"+member.node.Name] && !translate.Regroups(d, p.mesh.Settings.RootNamespace, member.node) {
			continue
		}
		if groups := p.groupsOf(member.node); !slices.Equal(groups, member.groups) {
			p.enter(member, groups)
			moves = append(moves, xds.Move{Proxy: connected, Groups: shared(groups)})
		}
	}
	return moves
}

// crowded says that many messages have been packed since the last sweep, and most may be of no use any more.
func (p *Pusher) crowded() bool { return len(p.packed)+len(p.hosts) > 2*p.swept+10000 }

// sweep forgets what no group has any more.
func (p *Pusher) sweep() {
	var kept []translate.Kept
	servers := map[string]*translate.Resources{}
	p.cache.Mark()
	p.inbound.Mark()
	used, hosts := make(map[proto.Message][]packed, len(p.packed)), make(map[*routev3.VirtualHost]*xds.Part, len(p.hosts))
	for id, g := range p.groups {
		made := g.made
		switch {
		case g.kept != nil:
			made = g.kept.Resources()
			kept = append(kept, g.kept)
		case made == nil:
			continue
		default:
			servers[id] = made
		}
		made.Each(func(m proto.Message) {
			for _, one := range p.packed[m] {
				// Endpoints stay as long as some group has them with that cluster.
				if one.cluster == nil || g.group.Resource(xds.Clusters, one.cluster.Name()) == one.cluster {
					if !slices.Contains(used[m], one) {
						used[m] = append(used[m], one)
					}
				}
			}
			if table, is := m.(*routev3.RouteConfiguration); is {
				for _, h := range table.VirtualHosts {
					if one, is := p.hosts[h]; is {
						hosts[h] = one
					}
				}
			}
		})
	}
	p.cache.Sweep(kept, nil)
	p.inbound.Sweep(nil, servers)
	p.packed, p.hosts, p.swept = used, hosts, len(used)+len(hosts)
	p.sweepNumbers()
}

// make makes all resources of a group.
func (p *Pusher) make(g *group) ([]*xds.Resource, []objects.Key, error) {
	var made *translate.Resources
	switch g.kind.Role {
	case translate.Inbound:
		var err error
		if made, err = p.inbound.Make(p.served, g.kind); err != nil {
			return nil, nil, err
		}
		g.made = made
	case translate.Outbound:
		client, err := p.cache.Client(p.mesh, g.kind, p.needed(g.kind))
		if err != nil {
			return nil, nil, err
		}
		g.kept, made = client, client.Resources()
	case translate.Edge:
		gateway, err := p.cache.Gateway(p.mesh, g.kind)
		if err != nil {
			return nil, nil, err
		}
		g.kept, made = gateway, gateway.Resources()
	}
	resources, err := p.pack(made)
	return resources, made.Sources(), err
}

// number notes objects that have a part in a group.
func (p *Pusher) number(g *group, sources []objects.Key) {
	for _, key := range sources {
		n, known := p.numbers[key]
		if !known {
			n = int32(len(p.carried))
			p.numbers[key] = n
			p.carried = append(p.carried, carried{key: key, of: p.versions[key]})
		}
		if !g.sources[n] {
			g.sources[n] = true
			p.progressed[n] = struct{}{}
		}
	}
}

// pack gives messages as resources: those of messages that were packed before, and else new ones.
func (p *Pusher) pack(made *translate.Resources) ([]*xds.Resource, error) {
	var out []*xds.Resource
	clusters := make(map[string]*xds.Resource, len(made.Clusters))
	one := func(t xds.Type, name string, m proto.Message, cluster *xds.Resource) (*xds.Resource, error) {
		all := p.packed[m]
		at := slices.IndexFunc(all, func(one packed) bool { return one.cluster == cluster })
		if at < 0 {
			r, err := xds.NewResource(t, name, m, cluster)
			if err != nil {
				return nil, err
			}
			at, all = len(all), append(all, packed{resource: r, cluster: cluster})
			p.packed[m] = all
		}
		out = append(out, all[at].resource)
		return all[at].resource, nil
	}
	for _, m := range made.Clusters {
		r, err := one(xds.Clusters, m.Name, m, nil)
		if err != nil {
			return nil, err
		}
		clusters[m.Name] = r
	}
	for _, m := range made.Endpoints {
		// Clusters ask for endpoints under their own name.
		if _, err := one(xds.Endpoints, m.ClusterName, m, clusters[m.ClusterName]); err != nil {
			return nil, err
		}
	}
	for _, m := range made.Secrets {
		if _, err := one(xds.Secrets, m.Name, m, nil); err != nil {
			return nil, err
		}
	}
	for _, m := range made.Listeners {
		if _, err := one(xds.Listeners, m.Name, m, nil); err != nil {
			return nil, err
		}
	}
	for _, m := range made.Routes {
		// Each kind has its own, and a new one with each change: it is not worth keeping.
		r, err := p.packTable(m)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// groupsOf are the groups of a proxy; those that are not there yet are made.
func (p *Pusher) groupsOf(node translate.Node) []*group {
	kinds := p.kindsOf(node)
	groups := make([]*group, 0, len(kinds))
	for _, k := range kinds {
		g := p.groups[k.ID()]
		if g == nil {
			g = p.found(k)
		}
		groups = append(groups, g)
	}
	return groups
}

// found makes the group of a kind: of that of a kind which differs in its EnvoyFilters alone, where there is one, and else from nothing.
func (p *Pusher) found(k translate.Kind) *group {
	g := &group{kind: k, sources: map[int32]bool{}}
	if !p.fork(g) {
		failure := ""
		resources, sources, err := p.make(g)
		if err != nil {
			p.log.Error("proxies get no configuration: it could not be made", "kind", k.ID(), "error", err)
			p.metrics.failures.Inc()
			g.kept, g.made, failure = nil, nil, err.Error()
		}
		g.group = xds.NewGroup(resources, failure)
		p.number(g, sources)
	}
	p.judge(g)
	p.groups[k.ID()] = g
	plain := k.Plain()
	if p.alike[plain] == nil {
		p.alike[plain] = map[*group]struct{}{}
	}
	p.alike[plain][g] = struct{}{}
	return g
}

// leave forgets a group.
func (p *Pusher) leave(id string, g *group) {
	delete(p.groups, id)
	plain := g.kind.Plain()
	if delete(p.alike[plain], g); len(p.alike[plain]) == 0 {
		delete(p.alike, plain)
	}
}

// fork makes what a group has of what one has whose kind differs in its EnvoyFilters alone. It is false when there is none, or when that
// fails: then it is made from nothing, which says why.
func (p *Pusher) fork(g *group) bool {
	for like := range p.alike[g.kind.Plain()] {
		if like.kept == nil {
			continue
		}
		kept, delta, err := p.cache.Fork(like.kept, p.mesh, g.kind)
		if err != nil {
			return false
		}
		g.kept, g.group, g.sources = kept, like.group, maps.Clone(like.sources)
		if at := slices.IndexFunc(p.pending, func(c xds.Change) bool { return c.Group == like.group }); at >= 0 {
			g.group = g.group.With(p.pending[at])
		}
		change, err := p.apply(g, delta)
		if err != nil {
			g.kept, g.sources = nil, map[int32]bool{}
			return false
		}
		g.group = g.group.With(change)
		return true
	}
	return false
}

// enter puts a proxy into groups instead of those that it was in.
func (p *Pusher) enter(member *proxy, groups []*group) {
	// One that comes or goes makes a difference to whether there are any; what its answers make, the server says. Of one that moves, the
	// answers are about other objects from here on.
	moves := len(member.groups) > 0 && len(groups) > 0
	for _, g := range member.groups {
		g.proxies--
		if member.counts {
			g.counting--
		}
		if moves || g.counting == 0 {
			p.recount(g)
		}
	}
	for _, side := range []struct {
		of []*group
		by int
	}{{member.groups, -1}, {groups, 1}} {
		if server, client := inRole(side.of, translate.Inbound), inRole(side.of, translate.Outbound); server != nil && client != nil && server.accompany(client, side.by) {
			p.recount(server)
		}
	}
	member.groups = groups
	for _, g := range groups {
		if moves || g.counting == 0 {
			p.recount(g)
		}
		g.proxies++
		if member.counts {
			g.counting++
		}
	}
	if member.observed() == "" {
		// From here on it does not say what it uses: what it could not do without would not be known.
		member.node.OnDemand = false
	}
}

// inRole is that of a proxy's groups which has a role; nil when it has none.
func inRole(groups []*group, role translate.Role) *group {
	for _, g := range groups {
		if g.kind.Role == role {
			return g
		}
	}
	return nil
}

func shared(groups []*group) []*xds.Group {
	out := make([]*xds.Group, 0, len(groups))
	for _, g := range groups {
		out = append(out, g.group)
	}
	return out
}

// Attach implements [xds.Source].
func (p *Pusher) Attach(connected *xds.Proxy, node *core.Node, fresh bool, join func([]*xds.Group)) error {
	parsed, err := translate.ParseNode(node)
	if err != nil {
		p.metrics.failures.Inc()
		return err
	}
	// One that begins with nothing can be told to say what it uses, before it uses anything.
	parsed.OnDemand = parsed.OnDemand || fresh && parsed.Heddle && parsed.Workload != ""
	p.mu.Lock()
	defer p.mu.Unlock()
	member := &proxy{id: parsed.ID(), node: parsed}
	p.proxies[connected] = member
	if p.mesh != nil {
		p.enter(member, p.groupsOf(parsed))
	}
	join(shared(member.groups))
	return nil
}

// Detach implements [xds.Source].
func (p *Pusher) Detach(connected *xds.Proxy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if member := p.proxies[connected]; member != nil {
		// Groups that nobody is in are forgotten at the next change of the model: many who leave come back.
		p.dependencies.Release(member.uses.workload, slices.Collect(maps.Keys(member.uses.hosts)))
		p.enter(member, nil)
		delete(p.proxies, connected)
	}
}
