package patch

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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

// Set is the patches of a kind of proxy, in order. Those of each type of resource are kept together with what they made of each:
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
	added map[string][]*routev3.VirtualHost
}

type hostKey struct {
	table string
	host  *routev3.VirtualHost
}

type kept struct {
	round  int
	result any
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
		added: map[string][]*routev3.VirtualHost{},
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

// Cluster gives what becomes of a cluster.
func (s *Set) Cluster(c *clusterv3.Cluster) *Result[*clusterv3.Cluster] {
	p := s.clusters
	if p == nil {
		return &Result[*clusterv3.Cluster]{Message: c}
	}
	return keep(p.made, p.round, proto.Message(c), func() *Result[*clusterv3.Cluster] { return cluster(p.patches, c) })
}

// Listener gives what becomes of a listener.
func (s *Set) Listener(l *listenerv3.Listener) *Result[*listenerv3.Listener] {
	p := s.listeners
	if p == nil {
		return &Result[*listenerv3.Listener]{Message: l}
	}
	return keep(p.made, p.round, proto.Message(l), func() *Result[*listenerv3.Listener] { return listener(p.patches, s.gateway, l) })
}

// Addition is a resource that a patch adds.
type Addition[M proto.Message] struct {
	Patch   *model.Patch
	Message M
}

// Clusters are those that are added.
func (s *Set) Clusters() []Addition[*clusterv3.Cluster] {
	return additions[*clusterv3.Cluster](s.clusters)
}

// Listeners are those that are added.
func (s *Set) Listeners() []Addition[*listenerv3.Listener] {
	return additions[*listenerv3.Listener](s.listeners)
}

func additions[M proto.Message](p *part) []Addition[M] {
	if p == nil {
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

// Table gives what becomes of a route table. Its virtual hosts are changed one by one, and are the same messages as long as what
// they are made of is the same: of a large table, a change makes one anew.
func (s *Set) Table(t *routev3.RouteConfiguration) *Result[*routev3.RouteConfiguration] {
	p := s.routes
	if p == nil {
		return &Result[*routev3.RouteConfiguration]{Message: t}
	}
	name, gateway := t.GetName(), s.gateway
	bare := WithoutHosts(t)
	top := run(bare, (*routev3.RouteConfiguration).GetName, p.patches, func(a *attempt, original *routev3.RouteConfiguration) (*routev3.RouteConfiguration, bool, error) {
		out := clone[*routev3.RouteConfiguration](&Patch{value: original})
		return out, true, head(a, gateway, out)
	})
	out := &Result[*routev3.RouteConfiguration]{Message: t, Outcome: top.Outcome}
	hosts := make([]*routev3.VirtualHost, 0, len(t.VirtualHosts))
	for _, h := range t.VirtualHosts {
		one := keep(p.hosts, p.round, hostKey{name, h}, func() *Result[*routev3.VirtualHost] {
			return run(h, func(*routev3.VirtualHost) string { return h.GetName() }, p.patches, func(a *attempt, original *routev3.VirtualHost) (*routev3.VirtualHost, bool, error) {
				return virtualHost(a, gateway, name, clone[*routev3.VirtualHost](&Patch{value: original}))
			})
		})
		if !one.Removed {
			hosts = append(hosts, one.Message)
		}
		out.add(one.Outcome)
	}
	hosts = append(hosts, top.Message.GetVirtualHosts()...)
	hosts = append(hosts, p.addedTo(gateway, name, hosts, &out.Outcome)...)
	if out.Nothing() {
		return out
	}
	out.Message = WithoutHosts(top.Message)
	out.Message.VirtualHosts = hosts
	return out
}

// addedTo are the virtual hosts that are added to a table, but for those whose names or domains others have: proxies refuse two.
func (p *part) addedTo(gateway bool, table string, hosts []*routev3.VirtualHost, outcome *Outcome) []*routev3.VirtualHost {
	var out []*routev3.VirtualHost
	var taken map[string]bool
	for i, one := range p.patches {
		if one.ApplyTo != "VIRTUAL_HOST" || !adds(one) || !matchesTable(one, gateway, table) {
			continue
		}
		if taken == nil {
			taken = map[string]bool{}
			for _, h := range hosts {
				occupy(taken, h)
			}
		}
		id := fmt.Sprintf("%s %d", table, i)
		if p.added[id] == nil {
			p.added[id] = []*routev3.VirtualHost{clone[*routev3.VirtualHost](one)}
		}
		h := p.added[id][0]
		if name := clash(taken, h); name != "" {
			outcome.add(Outcome{Broken: map[*model.Patch]string{one.Patch: fmt.Sprintf("%s: there is a virtual host for %s already", table, name)}})
			continue
		}
		occupy(taken, h)
		out = append(out, h)
		outcome.add(Outcome{Changed: []*model.Patch{one.Patch}})
	}
	return out
}

func occupy(taken map[string]bool, h *routev3.VirtualHost) {
	taken["name "+h.GetName()] = true
	for _, d := range h.GetDomains() {
		taken[strings.ToLower(d)] = true
	}
}

func clash(taken map[string]bool, h *routev3.VirtualHost) string {
	if taken["name "+h.GetName()] {
		return h.GetName()
	}
	for _, d := range h.GetDomains() {
		if taken[strings.ToLower(d)] {
			return d
		}
	}
	return ""
}

// WithoutHosts is a route table with all but its virtual hosts; what is in it is shared.
func WithoutHosts(t *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	hosts := (&routev3.RouteConfiguration{}).ProtoReflect().Descriptor().Fields().ByName("virtual_hosts")
	out := &routev3.RouteConfiguration{}
	t.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Number() != hosts.Number() {
			out.ProtoReflect().Set(f, v)
		}
		return true
	})
	return out
}
