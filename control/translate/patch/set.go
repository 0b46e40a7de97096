package patch

import (
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
)

// Context is where in a proxy patches are applied, in Istio's words.
type Context string

// Contexts of an EnvoyFilter's patches besides ANY.
const (
	SidecarInbound  Context = "SIDECAR_INBOUND"
	SidecarOutbound Context = "SIDECAR_OUTBOUND"
	Gateway         Context = "GATEWAY"
)

// Set is the patches of a kind of proxy, in order; nil is one without any.
type Set struct {
	clusters, listeners, routes *part
}

// part is the patches that have to do with one type of resource, where those for a resource are found.
type part struct {
	index
	// sets has the results; nil of patches that are only compared.
	sets    *Sets
	gateway bool
	// tables are the patches for each route table that was asked for, by its name.
	tables map[string]*ofTable
	round  int
}

// Sets makes sets of patches, and keeps their parts. The zero value is ready; it is used by one goroutine at a time.
type Sets struct {
	decoded map[*model.Patch]*Patch
	// numbered is how many patches were decoded.
	numbered uint64
	lists    map[string]*list
	parts    map[partKey]*part
	results  map[made]*kept
	round    int
	// swept is how much was left by the last sweep.
	swept int
	// key is room for that of a list.
	key []byte
}

type partKey struct {
	of   string
	list *list
}

// Crowded says that much has been made since the last sweep.
func (s *Sets) Crowded() bool { return s.size() > 1000+2*s.swept }

func (s *Sets) size() int { return len(s.results) + len(s.decoded) + len(s.parts) }

// Of gives the set of patches of a context, nil when none has to do with it.
func (s *Sets) Of(context Context, patches []*model.Patch) (*Set, error) {
	if s.decoded == nil {
		s.decoded, s.lists, s.parts, s.results = map[*model.Patch]*Patch{}, map[string]*list{}, map[partKey]*part{}, map[made]*kept{}
	}
	var fit []*Patch
	for _, p := range patches {
		if p.Context != "ANY" && p.Context != string(context) || p.Context == "ANY" && context == SidecarInbound && addsWhole(p) {
			continue
		}
		one := s.decoded[p]
		if one == nil {
			var err error
			if one, err = New(p); err != nil {
				return nil, fmt.Errorf("%s %s: %w", p.Source.Key, p.Source.Path, err)
			}
			s.numbered++
			one.number = s.numbered
			s.decoded[p] = one
		}
		fit = append(fit, one)
	}
	if len(fit) == 0 {
		return nil, nil
	}
	about := func(what string, names ...string) *part {
		var of []*Patch
		for _, p := range fit {
			if slices.Contains(names, p.ApplyTo) {
				of = append(of, p)
			}
		}
		if len(of) == 0 {
			return nil
		}
		key := partKey{what, s.list(context == Gateway, of)}
		out := s.parts[key]
		if out == nil {
			out = newPart(s, context == Gateway, of)
			s.parts[key] = out
		}
		out.round = s.round
		return out
	}
	ofTables, ofListeners := []string{"ROUTE_CONFIGURATION", "VIRTUAL_HOST", "HTTP_ROUTE"}, []string{"LISTENER", "LISTENER_FILTER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER"}
	if context == SidecarInbound {
		// Servers' tables stand in their listeners.
		ofListeners = append(ofListeners, ofTables...)
	}
	return &Set{clusters: about("clusters", "CLUSTER"), listeners: about("listeners", ofListeners...), routes: about("routes", ofTables...)}, nil
}

// addsWhole says whether a patch adds a listener or a cluster. Without a context, a sidecar gets it once, as a client.
func addsWhole(p *model.Patch) bool {
	return (p.ApplyTo == "LISTENER" || p.ApplyTo == "CLUSTER") && adds(&Patch{Patch: p})
}

func newPart(sets *Sets, gateway bool, patches []*Patch) *part {
	return &part{sets: sets, gateway: gateway, index: newIndex(patches, (*Patch).word), tables: map[string]*ofTable{}}
}

// word is what a patch of clusters or listeners goes by.
func (p *Patch) word() (word, bool) {
	switch {
	case p.Cluster != nil && p.Cluster.Name != "":
		return word{byName, p.Cluster.Name}, true
	case p.Cluster != nil && p.Cluster.Service != "":
		return word{byService, p.Cluster.Service}, true
	case p.Listener != nil && p.Listener.Name != "":
		return word{byName, p.Listener.Name}, true
	}
	return word{}, false
}

// Mark has [Sets.Sweep] keep the results that are asked for from here on.
func (s *Sets) Mark() { s.round++ }

// Sweep forgets all but these sets and the results that were asked for since [Sets.Mark].
func (s *Sets) Sweep(used []*Set) {
	if s.decoded == nil {
		return
	}
	for _, set := range used {
		for _, p := range []*part{set.clusters, set.listeners, set.routes} {
			if p != nil {
				p.round = s.round
			}
		}
	}
	decoded := make(map[*model.Patch]*Patch, len(s.decoded))
	maps.DeleteFunc(s.parts, func(key partKey, p *part) bool {
		if p.round != s.round {
			return true
		}
		key.list.round = s.round
		for _, one := range p.patches {
			decoded[one.Patch] = one
		}
		maps.DeleteFunc(p.tables, func(_ string, t *ofTable) bool {
			maps.DeleteFunc(t.made, func(_ *routev3.VirtualHost, k *kept) bool { return k == nil || k.round != s.round })
			return t.round != s.round
		})
		return false
	})
	maps.DeleteFunc(s.results, func(key made, k *kept) bool {
		if k.round != s.round {
			return true
		}
		key.list.round = s.round
		return false
	})
	maps.DeleteFunc(s.lists, func(_ string, l *list) bool { return l.round != s.round })
	s.decoded = decoded
	s.swept = s.size()
}

// Cluster gives what becomes of a cluster.
func (s *Set) Cluster(c *clusterv3.Cluster) Result[*clusterv3.Cluster] {
	if s == nil || s.clusters == nil {
		return Result[*clusterv3.Cluster]{Message: c}
	}
	return resultOf(s.clusters, keep(s.clusters, s.clusters.ofCluster(c), c, cluster), c)
}

// Listener gives what becomes of a listener.
func (s *Set) Listener(l *listenerv3.Listener) Result[*listenerv3.Listener] {
	if s == nil || s.listeners == nil {
		return Result[*listenerv3.Listener]{Message: l}
	}
	return resultOf(s.listeners, keep(s.listeners, s.listeners.ofListener(l), l, func(patches []*Patch, l *listenerv3.Listener) *Result[*listenerv3.Listener] {
		return listener(patches, s.listeners.gateway, l)
	}), l)
}

// Table gives what becomes of a route table. Its virtual hosts are the same messages as long as what they are made of is the
// same: of a large table, a change makes one anew.
func (s *Set) Table(t *routev3.RouteConfiguration) Result[*routev3.RouteConfiguration] {
	if s == nil || s.routes == nil {
		return Result[*routev3.RouteConfiguration]{Message: t}
	}
	of := s.routes.table(t.GetName())
	return *of.apply(t, func(h *routev3.VirtualHost) Result[*routev3.VirtualHost] {
		k, known := of.made[h]
		if !known {
			k = keep(s.routes, of.host(h), h, virtualHost)
			of.made[h] = k
		}
		return resultOf(s.routes, k, h)
	}, func(patches []*Patch, h *routev3.VirtualHost) Result[*routev3.VirtualHost] {
		return resultOf(s.routes, keep(s.routes, patches, h, virtualHost), h)
	})
}

// table finds the patches for one, which are found once.
func (p *part) table(name string) *ofTable {
	out := p.tables[name]
	if out == nil {
		out = newOfTable(p.patches, p.gateway, name)
		p.tables[name] = out
	}
	if p.sets != nil {
		out.round = p.sets.round
	}
	return out
}

// Use has [Sets.Sweep] keep what was made of these.
func (s *Set) Use(clusters []*clusterv3.Cluster, listeners []*listenerv3.Listener, tables []*routev3.RouteConfiguration) {
	for _, c := range clusters {
		s.Cluster(c)
	}
	for _, l := range listeners {
		s.Listener(l)
	}
	for _, t := range tables {
		s.Table(t)
	}
}

// Addition is a resource that a patch adds, always the same message.
type Addition[M proto.Message] struct {
	Patch   *model.Patch
	Message M
}

// Clusters are those that are added.
func (s *Set) Clusters() []Addition[*clusterv3.Cluster] {
	if s == nil {
		return nil
	}
	return additions[*clusterv3.Cluster](s.clusters)
}

// Listeners are those that are added.
func (s *Set) Listeners() []Addition[*listenerv3.Listener] {
	if s == nil {
		return nil
	}
	return additions[*listenerv3.Listener](s.listeners)
}

func additions[M proto.Message](p *part) []Addition[M] {
	if p == nil {
		return nil
	}
	var out []Addition[M]
	for _, one := range p.patches {
		if m, is := one.value.(M); is && addsWhole(one.Patch) {
			out = append(out, Addition[M]{one.Patch, m})
		}
	}
	return out
}
