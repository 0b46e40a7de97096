// Package translate turns the model into Envoy's xDS resources for one proxy. Everything here is a pure function of the
// model and the node, so that a plan can be computed without touching anything. Names and shapes are Istio's, so that
// Istio users' tools find what they look for.
package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// Resources are everything one proxy gets over xDS, each list sorted by name.
type Resources struct {
	Listeners []*listenerv3.Listener
	Clusters  []*clusterv3.Cluster
	Routes    []*routev3.RouteConfiguration
	Endpoints []*endpointv3.ClusterLoadAssignment
	Secrets   []*tlsv3.Secret

	// sources are the objects that have a part in the configuration.
	sources map[objects.Key]bool
	// patched is what became of the patches of EnvoyFilters, in each role.
	patched []*patched
	// plain is what it is without patches, where there are any.
	plain *Resources
}

// Proxy makes the configuration of one proxy from nothing, as tests and the golden scenarios have it; the controller shares what
// proxies of one kind have, by a [Cache].
func Proxy(mesh *model.Mesh, node Node) (*Resources, error) {
	kinds, err := Kinds(mesh, node)
	if err != nil {
		return nil, err
	}
	all, cache := newResources(), NewCache()
	for _, k := range kinds {
		r, err := cache.Make(mesh, k)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node.ID(), err)
		}
		all.add(r)
	}
	all.sort()
	return all, nil
}

func newResources() *Resources { return &Resources{sources: map[objects.Key]bool{}} }

// take takes over the messages of other resources.
func (r *Resources) take(o *Resources) {
	r.Listeners, r.Clusters, r.Routes = append(r.Listeners, o.Listeners...), append(r.Clusters, o.Clusters...), append(r.Routes, o.Routes...)
	r.Endpoints, r.Secrets = append(r.Endpoints, o.Endpoints...), append(r.Secrets, o.Secrets...)
}

// add takes over what other resources hold.
func (r *Resources) add(o *Resources) {
	r.take(o)
	maps.Copy(r.sources, o.sources)
	r.patched = append(r.patched, o.patched...)
}

// generator makes the configuration of one kind of proxy. The first error ends it: messages that cannot be packed are faults of
// this package, since the model is valid.
type generator struct {
	mesh *model.Mesh
	node Node
	// kind's ID.
	kind string
	// scope limits what the proxy gets, nil for nothing.
	scope *model.Sidecar
	// onDemand limits it to services with the hosts in needs.
	onDemand bool
	needs    map[string]bool
	// tables are those of a gateway, which are still to be made.
	tables []edgeTable
	// chains are for listeners on all addresses, by port.
	chains map[uint16][]*listenerv3.FilterChain
	// ports that the workload names.
	ports []model.ReplicaPort
	out   *Resources
	err   error
	cache *Cache
	// reads are the hosts of services that were looked up, nil for nobody to ask.
	reads map[string]bool
	// parts are the clusters made so far, with their endpoints.
	parts []*clusterPart
	// clusters made so far, by name.
	clusters map[string]bool
	// portPolicies in force, by the name of the cluster.
	portPolicies map[string]model.PortPolicy
	// routeFilters are the same for every connection manager of the proxy that has routes.
	routeFilters []*hcmv3.HttpFilter
	// bound are the routes of each server of a gateway, once somebody asked.
	bound map[string][]*model.Routes
	// routeAges are the places of the mesh's routes, once somebody asked.
	routeAges map[*model.Routes]int
	// backends are the policies for TLS from a gateway to services, once somebody asked.
	backends map[model.BackendTarget]*model.BackendTLS
}

// from notes that an object has a part in the configuration.
func (g *generator) from(s model.Source) {
	if s.Key.Kind != "" {
		g.out.sources[s.Key] = true
	}
}

func (r *Resources) sort() {
	slices.SortFunc(r.Listeners, func(a, b *listenerv3.Listener) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Clusters, func(a, b *clusterv3.Cluster) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Routes, func(a, b *routev3.RouteConfiguration) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Endpoints, func(a, b *endpointv3.ClusterLoadAssignment) int {
		return cmp.Compare(a.ClusterName, b.ClusterName)
	})
	slices.SortFunc(r.Secrets, func(a, b *tlsv3.Secret) int { return cmp.Compare(a.Name, b.Name) })
}

// Sources lists the objects that have a part in the configuration, in no order.
func (r *Resources) Sources() []objects.Key {
	keys := make([]objects.Key, 0, len(r.sources))
	for k := range r.sources {
		keys = append(keys, k)
	}
	return keys
}

// Each visits all resources.
func (r *Resources) Each(visit func(proto.Message)) {
	each(r.Clusters, visit)
	each(r.Endpoints, visit)
	each(r.Secrets, visit)
	each(r.Listeners, visit)
	each(r.Routes, visit)
}

func each[M proto.Message](all []M, visit func(proto.Message)) {
	for _, m := range all {
		visit(m)
	}
}
