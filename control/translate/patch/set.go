package patch

import (
	"fmt"
	"slices"
	"strings"

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

// Set is the patches of a kind of proxy, in order; nil is one without any. Those of each type of resource are kept together with what they made of each:
// kinds that have the same ones share the results.
type Set struct {
	clusters, listeners, routes *part
	gateway                     bool
}

// part is the patches that have to do with one type of resource. made is by the message before; hosts are the virtual hosts of
// each table.
type part struct {
	patches []*Patch
	round   int
	made    map[proto.Message]*kept
	hosts   map[hostKey]*kept
	// adds are the resources that are added, always the same messages.
	adds []proto.Message
	// added are the virtual hosts that are added to each table.
	added map[additionKey]*routev3.VirtualHost
}

type additionKey struct {
	table string
	patch *Patch
}

type hostKey struct {
	table string
	host  *routev3.VirtualHost
}

type kept struct {
	round  int
	result any
}

// Shares says for which types of resources two sets have the same patches and add none; nil is a set without any.
func (s *Set) Shares(o *Set) (clusters, listeners, routes bool) {
	if s == nil {
		s = &Set{}
	}
	if o == nil {
		o = &Set{}
	}
	same := func(x, y *part) bool { return x == y && (x == nil || len(x.adds) == 0) }
	return same(s.clusters, o.clusters), same(s.listeners, o.listeners), same(s.routes, o.routes)
}

// Sets makes sets of patches, and keeps their parts. The zero value is ready; it is used by one goroutine at a time.
type Sets struct {
	decoded map[*model.Patch]*Patch
	parts   map[string]*part
	round   int
	// swept is how many results were left by the last sweep.
	swept int
}

// Crowded says that many results have been made since the last sweep.
func (s *Sets) Crowded() bool { return s.results() > 1000+2*s.swept }

func (s *Sets) results() int {
	out := 0
	for _, p := range s.parts {
		out += len(p.made) + len(p.hosts)
	}
	return out
}

// Of gives the set of patches of a context, nil when none has to do with it.
func (s *Sets) Of(context Context, patches []*model.Patch) (*Set, error) {
	if s.decoded == nil {
		s.decoded, s.parts = map[*model.Patch]*Patch{}, map[string]*part{}
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
			s.decoded[p] = one
		}
		fit = append(fit, one)
	}
	if len(fit) == 0 {
		return nil, nil
	}
	about := func(context Context, names ...string) *part {
		var of []*Patch
		key := strings.Builder{}
		key.WriteString(string(context))
		for _, p := range fit {
			if slices.Contains(names, p.ApplyTo) {
				of = append(of, p)
				fmt.Fprintf(&key, " %p", p)
			}
		}
		if len(of) == 0 {
			return nil
		}
		out := s.parts[key.String()]
		if out == nil {
			out = newPart(of)
			s.parts[key.String()] = out
		}
		out.round = s.round
		return out
	}
	return &Set{
		gateway: context == Gateway, clusters: about("clusters", "CLUSTER"),
		listeners: about("listeners "+context, "LISTENER", "LISTENER_FILTER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER", "ROUTE_CONFIGURATION", "VIRTUAL_HOST", "HTTP_ROUTE"),
		routes:    about("routes "+context, "ROUTE_CONFIGURATION", "VIRTUAL_HOST", "HTTP_ROUTE"),
	}, nil
}

// addsWhole says whether a patch adds a listener or a cluster. Without a context, a sidecar gets it once, as a client.
func addsWhole(p *model.Patch) bool {
	return (p.ApplyTo == "LISTENER" || p.ApplyTo == "CLUSTER") && adds(&Patch{Patch: p})
}

func newPart(of []*Patch) *part {
	out := &part{
		patches: of, made: map[proto.Message]*kept{}, hosts: map[hostKey]*kept{},
		added: map[additionKey]*routev3.VirtualHost{},
	}
	for _, p := range of {
		if addsWhole(p.Patch) {
			out.adds = append(out.adds, proto.Clone(p.value))
		}
	}
	return out
}

// Sweep forgets all but these sets and the results that are asked for by ask, which asks for all that are in use.
func (s *Sets) Sweep(used []*Set, ask func()) {
	s.round++
	for _, set := range used {
		for _, p := range []*part{set.clusters, set.listeners, set.routes} {
			if p != nil {
				p.round = s.round
			}
		}
	}
	ask()
	for key, p := range s.parts {
		if p.round != s.round {
			delete(s.parts, key)
			continue
		}
		sweep(p.made, s.round)
		sweep(p.hosts, s.round)
	}
	decoded := map[*model.Patch]*Patch{}
	for _, p := range s.parts {
		for _, one := range p.patches {
			decoded[one.Patch] = one
		}
	}
	if s.decoded != nil {
		s.decoded = decoded
	}
	s.swept = s.results()
}

func sweep[K comparable](all map[K]*kept, round int) {
	for key, k := range all {
		if k.round != round {
			delete(all, key)
		}
	}
}

// keep gives the result that was made of a message before, or makes it.
func keep[K comparable, M proto.Message](all map[K]*kept, round int, key K, make func() *Result[M]) *Result[M] {
	if k := all[key]; k != nil {
		if out, ok := k.result.(*Result[M]); ok {
			k.round = round
			return out
		}
	}
	out := make()
	all[key] = &kept{round: round, result: out}
	return out
}

// few patches are compared with each resource that they may change. With more of them it is kept that none does.
const few = 16

// mayChange says whether one of these patches may do so.
func mayChange(patches []*Patch, may func(*Patch) bool) bool {
	return len(patches) > few || slices.ContainsFunc(patches, may)
}

// Cluster gives what becomes of a cluster.
func (s *Set) Cluster(c *clusterv3.Cluster) Result[*clusterv3.Cluster] {
	if s == nil || s.clusters == nil || !mayChange(s.clusters.patches, func(p *Patch) bool { return changesCluster(p, c) }) {
		return Result[*clusterv3.Cluster]{Message: c}
	}
	p := s.clusters
	return *keep(p.made, p.round, proto.Message(c), func() *Result[*clusterv3.Cluster] { return cluster(p.patches, c) })
}

// Listener gives what becomes of a listener.
func (s *Set) Listener(l *listenerv3.Listener) Result[*listenerv3.Listener] {
	if s == nil || s.listeners == nil || !mayChange(s.listeners.patches, func(p *Patch) bool { return mayChangeListener(p, l) }) {
		return Result[*listenerv3.Listener]{Message: l}
	}
	p := s.listeners
	return *keep(p.made, p.round, proto.Message(l), func() *Result[*listenerv3.Listener] { return listener(p.patches, s.gateway, l) })
}

// Addition is a resource that a patch adds.
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
	if p == nil || len(p.adds) == 0 {
		return nil
	}
	var out []Addition[M]
	i := 0
	for _, one := range p.patches {
		if addsWhole(one.Patch) {
			if m, ok := p.adds[i].(M); ok {
				out = append(out, Addition[M]{one.Patch, m})
			}
			i++
		}
	}
	return out
}

// Table gives what becomes of a route table. Its virtual hosts are the same messages as long as what they are made of is the
// same: of a large table, a change makes one anew.
func (s *Set) Table(t *routev3.RouteConfiguration) Result[*routev3.RouteConfiguration] {
	if s == nil || s.routes == nil || !slices.ContainsFunc(s.routes.patches, func(p *Patch) bool { return matchesTable(p, s.gateway, t.GetName()) }) {
		return Result[*routev3.RouteConfiguration]{Message: t}
	}
	return *table(s.routes.patches, s.gateway, t, s.routes)
}

func (p *part) host(table string, h *routev3.VirtualHost, make func() *Result[*routev3.VirtualHost]) *Result[*routev3.VirtualHost] {
	return keep(p.hosts, p.round, hostKey{table, h}, make)
}

func (p *part) addition(table string, one *Patch) *routev3.VirtualHost {
	key := additionKey{table, one}
	if p.added[key] == nil {
		p.added[key] = clone[*routev3.VirtualHost](one)
	}
	return p.added[key]
}
