package translate

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate/patch"
)

// Cache keeps the parts of configurations under what they were made of, so that all kinds of proxies share them, and a new
// model costs what differs in it. Parts of the model are compared by pointer: a model that replaces another must have the
// same parts where nothing changed (see [model.Differ]). What a part is made of beside its key and inputs must be the
// same for the whole mesh; when that changes, everything is made anew.
//
// A message that the cache gave out is shared and must not be changed; as long as nothing changes, it is the same message.
// A cache is used by one goroutine at a time.
type Cache struct {
	mesh *model.Mesh
	// epoch is one more with each change of what holds for the whole mesh.
	epoch int
	// misses are parts that were made under a new key since [Cache.Sweep], which left so many.
	misses, swept int

	// clusters and virtual hosts of each service, by its host.
	clusters  map[string]memories[clusterKey, *clusterPart]
	hosts     map[string]memories[hostKey, *routev3.VirtualHost]
	listeners memories[listenerKey, *listenerv3.Listener]
	// fixed clusters have no service.
	fixed memories[string, *clusterv3.Cluster]
	// anchors are secrets with the intermediates of clusters.
	anchors memories[string, *tlsv3.Secret]
	// routes bound to sidecars and policies, by host.
	routes byHost[model.Routes]
	// attached are the routes bound to gateways, by server and host (see [attachedAt]).
	attached byHost[model.Routes]
	policies byHost[model.DestinationPolicy]
	askers   askers
	// unknown are the virtual hosts for hosts that nobody has a route for: refused, and passed through.
	unknown map[bool]*routev3.VirtualHost
	// filters are the EnvoyFilters by namespace and name, patches what theirs have made.
	filters map[objects.Key]*model.EnvoyFilter
	patches patch.Sets
	// servers are what each inbound kind gets, before patches, by its ID.
	servers memories[string, *Resources]
}

// NewCache makes an empty cache.
func NewCache() *Cache {
	return &Cache{
		unknown: map[bool]*routev3.VirtualHost{}, filters: map[objects.Key]*model.EnvoyFilter{},
		clusters: map[string]memories[clusterKey, *clusterPart]{}, hosts: map[string]memories[hostKey, *routev3.VirtualHost]{},
		listeners: memories[listenerKey, *listenerv3.Listener]{},
		anchors:   memories[string, *tlsv3.Secret]{},
		fixed:     memories[string, *clusterv3.Cluster]{}, servers: memories[string, *Resources]{},
	}
}

type memories[K comparable, V any] map[K]*memory[V]

// memory is one part, with what it was made of.
type memory[V any] struct {
	epoch   int
	inputs  []any
	value   V
	sources []objects.Key
}

// clusterKey is one of a service's clusters: for clients, under the policy that is in force for them, or for the gateways
// between clusters.
type clusterKey struct {
	port     uint16
	subset   string
	policy   *model.DestinationPolicy
	tls      *model.BackendTLS
	labels   string
	exported bool
}

// clusterPart is a cluster with its endpoints; nil for one that needs none.
type clusterPart struct {
	cluster   *clusterv3.Cluster
	endpoints *endpointv3.ClusterLoadAssignment
	// assign makes the endpoints anew, of the service as it is then.
	assign func(*generator, *model.Service) *endpointv3.ClusterLoadAssignment
	// rules of the port.
	rules model.PortPolicy
	// anchors that its TLS names; none without the mesh's.
	anchors anchorSet
}

type listenerKey struct {
	name         string
	heddle, ipv6 bool
	// blocks says that unknown destinations are refused.
	blocks bool
}

type hostKey struct {
	port uint16
	// kind, when not empty, is the only one that the virtual host is for; else it is for all namespaces but the
	// service's own, or for that one.
	kind string
	own  bool
	// table is that of a gateway, empty for sidecars; redirectHTTPS has it answer with redirects alone.
	table         string
	redirectHTTPS bool
}

// memo gives a part that was made of the same, or makes it. The objects behind it become sources.
func memo[K comparable, V any](g *generator, of memories[K, V], key K, inputs []any, produce func() V) V {
	c := g.cache
	m := of[key]
	if m == nil {
		c.misses++
	}
	if m == nil || m.epoch != c.epoch || !slices.Equal(m.inputs, inputs) {
		before := g.out.sources
		g.out.sources = map[objects.Key]bool{}
		m = &memory[V]{epoch: c.epoch, inputs: inputs, value: produce(), sources: slices.Collect(maps.Keys(g.out.sources))}
		g.out.sources = before
		of[key] = m
	}
	for _, key := range m.sources {
		g.out.sources[key] = true
	}
	return m.value
}

// enter notes which model is translated now.
func (c *Cache) enter(mesh *model.Mesh) {
	if c.mesh == mesh {
		return
	}
	if c.mesh == nil {
		c.mesh = &model.Mesh{}
	}
	d := model.Differ(c.mesh, mesh)
	c.routes.apply(mesh.Routes, d.Routes, func(r *model.Routes) []string {
		if !boundToMesh(r) {
			return nil
		}
		return r.Hosts
	})
	c.attached.apply(mesh.Routes, d.Routes, attachedAt)
	c.askers.apply(d.Routes, d.Destinations)
	c.policies.apply(mesh.Destinations, d.Destinations, func(p *model.DestinationPolicy) []string { return []string{p.Host} })
	for _, f := range d.EnvoyFilters {
		if f.Before != nil {
			delete(c.filters, objects.Key{Namespace: f.Before.Namespace, Name: f.Before.Name})
		}
		if f.After != nil {
			c.filters[objects.Key{Namespace: f.After.Namespace, Name: f.After.Name}] = f.After
		}
	}
	if !reflect.DeepEqual(c.mesh.Settings, mesh.Settings) || !slices.Equal(c.mesh.PeerModes, mesh.PeerModes) || anchorsAppear(&d) {
		c.epoch++
		clear(c.unknown)
	}
	c.mesh = mesh
}

// Make makes the resources of one kind of proxy.
func (c *Cache) Make(mesh *model.Mesh, k Kind) (*Resources, error) {
	c.enter(mesh)
	g := c.generator(mesh, k)
	switch k.Role {
	case Outbound:
		client, err := c.Client(mesh, k, nil)
		if err != nil {
			return nil, err
		}
		g.out = client.Resources()
	case Inbound:
		g.out.add(memo(g, c.servers, g.kind, g.serverInputs(), func() *Resources {
			g.inbound()
			made := g.out
			g.out = newResources()
			return made
		}))
		if err := g.failed(); err != nil {
			return nil, err
		}
	case Edge:
		gateway, err := c.Gateway(mesh, k)
		if err != nil {
			return nil, err
		}
		g.out = gateway.Resources()
	}
	if k.Role == Inbound {
		patched, err := c.patchedFor(mesh, k)
		if err != nil {
			return nil, err
		}
		if patched != nil {
			plain := *g.out
			g.out.plain = &plain
		}
		patched.all(g.out)
	}
	g.out.sort()
	return g.out, nil
}

// failed gives the error of what could not be made. Nothing that was made meanwhile may be taken for good.
func (g *generator) failed() error {
	if g.err == nil {
		return nil
	}
	g.cache.epoch++
	return fmt.Errorf("%s: %w", g.kind, g.err)
}

// Assignment is what became of the endpoints of a cluster.
type Assignment struct {
	Before, After *endpointv3.ClusterLoadAssignment
}

// Assign makes the endpoints anew of a service whose replicas changed, for all kinds of proxies. The mesh must be the last
// one with the service after the change in place of the one before it, which differ in their replicas only.
func (c *Cache) Assign(mesh *model.Mesh, before, after *model.Service) []Assignment {
	c.enter(mesh)
	g := &generator{mesh: mesh, cache: c}
	var out []Assignment
	for _, m := range c.clusters[before.Host] {
		m.replace(before, after)
		if p := m.value; p.assign != nil {
			if now := p.assign(g, after); !proto.Equal(p.endpoints, now) {
				out = append(out, Assignment{Before: p.endpoints, After: now})
				p.endpoints = now
			}
		}
	}
	for _, m := range c.hosts[before.Host] {
		m.replace(before, after)
	}
	return out
}

// replace says that a part would be made of the other service just the same.
func (m *memory[V]) replace(before, after *model.Service) {
	for i, input := range m.inputs {
		if input == any(before) {
			m.inputs[i] = after
		}
	}
}

// within gives a service's memories.
func within[K comparable, V any](of map[string]memories[K, V], host string) memories[K, V] {
	if of[host] == nil {
		of[host] = memories[K, V]{}
	}
	return of[host]
}

// clusterPart gives a cluster of a service with its endpoints, and adds both to what is made.
func (g *generator) clusterPart(s *model.Service, key clusterKey, produce func() *clusterPart) *clusterPart {
	p := memo(g, within(g.cache.clusters, s.Host), key, []any{s, g.mesh.Global(s.Global)}, produce)
	g.parts = append(g.parts, p)
	g.out.addCluster(p)
	return p
}

// fixedCluster gives a cluster that has no service, and adds it to what is made. The name tells all that it depends on
// beside what holds for the whole mesh.
func (g *generator) fixedCluster(name string, produce func() *clusterv3.Cluster) {
	g.out.Clusters = append(g.out.Clusters, memo(g, g.cache.fixed, name, nil, produce))
}
