// Package push keeps what proxies are sent up to the model. For each kind of proxy that is connected there is a group of
// resources, made once and shared with other kinds where they are the same; a change makes what it changes, and tells the
// groups that have it.
package push

import (
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// Pusher holds the model in force and the groups that are made of it. It is the server's [xds.Source]. Make one with [New].
type Pusher struct {
	log    *slog.Logger
	server *xds.Server

	// mu is held while resources are made, by whoever changes the model or makes the first group of a kind.
	mu      sync.Mutex
	mesh    *model.Mesh
	cache   *translate.Cache
	groups  map[string]*group
	proxies map[*xds.Proxy]*proxy
	packed  map[proto.Message]packed
	// numbers stand for the objects that have a part in anything, in the order of carried.
	numbers map[objects.Key]int32
	carried []carried
	// versionOf gives the version of an object that the model in force was made of.
	versionOf func(objects.Key) objects.Version
}

// group is what the proxies of one kind get.
type group struct {
	kind    translate.Kind
	group   *xds.Group
	proxies int
	// sources are the numbers of the objects that have a part in it.
	sources []int32
}

// proxy is a connected one.
type proxy struct {
	node   translate.Node
	groups []*group
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

// New makes a pusher without a model: proxies that connect to its server wait for the first. Its server is made by start.
func New(log *slog.Logger, start func(xds.Source) *xds.Server) *Pusher {
	p := &Pusher{log: log, cache: translate.NewCache(), groups: map[string]*group{}, proxies: map[*xds.Proxy]*proxy{},
		packed: map[proto.Message]packed{}, numbers: map[objects.Key]int32{}}
	p.server = start(p)
	return p
}

// Server that the proxies connect to.
func (p *Pusher) Server() *xds.Server { return p.server }

// Update puts a model into force. It is made of so many changes as revision counts, and of each object's version as versionOf
// says, which is asked as long as the model is in force. The parts that it has in common with the one before are replaced by those.
func (p *Pusher) Update(mesh *model.Mesh, revision int64, versionOf func(objects.Key) objects.Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	started := time.Now()
	p.mesh, p.versionOf = mesh.Reuse(p.mesh), versionOf
	before, numbers := p.packed, p.numbers
	p.packed, p.numbers = make(map[proto.Message]packed, len(before)), make(map[objects.Key]int32, len(numbers))
	old := p.carried
	p.carried = make([]carried, 0, len(old))
	var changes []xds.Change
	for id, g := range p.groups {
		if g.proxies == 0 {
			delete(p.groups, id)
			continue
		}
		change := xds.Change{Group: g.group}
		resources, sources, failure := p.make(g.kind, before)
		if failure == "" {
			change = g.group.Change(resources)
		} else {
			p.log.Error("proxies keep their configuration: the new one could not be made", "kind", id, "error", failure)
			for _, n := range g.sources {
				sources = append(sources, old[n].key)
			}
		}
		g.sources, change.Failure = p.number(sources), failure
		if !change.Nothing() {
			changes = append(changes, change)
		}
	}
	var moves []xds.Move
	for connected, member := range p.proxies {
		groups := p.groupsOf(member.node)
		same := len(groups) == len(member.groups)
		for i := range groups {
			same = same && groups[i] == member.groups[i]
		}
		if !same {
			p.enter(member, groups)
			moves = append(moves, xds.Move{Proxy: connected, Groups: shared(groups)})
		}
	}
	version := p.server.Update(revision, changes, moves)
	for i := range p.carried {
		c := &p.carried[i]
		c.version = version
		if n, known := numbers[c.key]; known && old[n].of == c.of {
			c.version = old[n].version
		}
	}
	p.cache.Sweep()
	p.trace("model", version, changes, len(moves), started)
}

// trace says what a push was for and about.
func (p *Pusher) trace(cause string, version int64, changes []xds.Change, moves int, started time.Time) {
	set, removed := 0, 0
	for _, c := range changes {
		set, removed = set+len(c.Set), removed+len(c.Removed)
	}
	p.log.Debug("pushed", "cause", cause, "version", version, "groups", len(changes), "changed", set, "removed", removed,
		"moved", moves, "took", time.Since(started))
}

// make makes the resources of a kind; failure says why it could not.
func (p *Pusher) make(k translate.Kind, before map[proto.Message]packed) (resources []*xds.Resource, sources []objects.Key, failure string) {
	made, err := p.cache.Make(p.mesh, k)
	if err == nil {
		resources, err = p.pack(made, before)
	}
	if err != nil {
		return nil, nil, err.Error()
	}
	return resources, made.Sources(), ""
}

// number gives objects their numbers.
func (p *Pusher) number(sources []objects.Key) []int32 {
	out := make([]int32, 0, len(sources))
	for _, key := range sources {
		n, known := p.numbers[key]
		if !known {
			n = int32(len(p.carried))
			p.numbers[key] = n
			p.carried = append(p.carried, carried{key: key, of: p.versionOf(key)})
		}
		out = append(out, n)
	}
	return out
}

// pack gives messages as resources: those of messages that were packed before, and else new ones.
func (p *Pusher) pack(made *translate.Resources, before map[proto.Message]packed) ([]*xds.Resource, error) {
	var out []*xds.Resource
	clusters := make(map[string]*xds.Resource, len(made.Clusters))
	one := func(t xds.Type, name string, m proto.Message, cluster *xds.Resource) (*xds.Resource, error) {
		got, ok := p.packed[m]
		if !ok {
			got, ok = before[m]
		}
		if !ok || got.cluster != cluster {
			r, err := xds.NewResource(t, name, m, cluster)
			if err != nil {
				return nil, err
			}
			got = packed{resource: r, cluster: cluster}
		}
		p.packed[m] = got
		out = append(out, got.resource)
		return got.resource, nil
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
		if _, err := one(xds.Routes, m.Name, m, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// groupsOf are the groups of a proxy; those that are not there yet are made.
func (p *Pusher) groupsOf(node translate.Node) []*group {
	// The type was checked when the node was read.
	kinds, _ := translate.Kinds(p.mesh, node)
	groups := make([]*group, 0, len(kinds))
	for _, k := range kinds {
		g := p.groups[k.ID()]
		if g == nil {
			resources, sources, failure := p.make(k, p.packed)
			g = &group{kind: k, group: xds.NewGroup(resources, failure), sources: p.number(sources)}
			p.groups[k.ID()] = g
		}
		groups = append(groups, g)
	}
	return groups
}

// enter puts a proxy into groups instead of those that it was in.
func (p *Pusher) enter(member *proxy, groups []*group) {
	for _, g := range member.groups {
		g.proxies--
	}
	member.groups = groups
	for _, g := range groups {
		g.proxies++
	}
}

func shared(groups []*group) []*xds.Group {
	out := make([]*xds.Group, 0, len(groups))
	for _, g := range groups {
		out = append(out, g.group)
	}
	return out
}

// Attach implements [xds.Source].
func (p *Pusher) Attach(connected *xds.Proxy, node *core.Node, join func([]*xds.Group)) error {
	parsed, err := translate.ParseNode(node)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	member := &proxy{node: parsed}
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
		p.enter(member, nil)
		delete(p.proxies, connected)
	}
}
