package push

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

func newPusher(t *testing.T) *Pusher {
	t.Helper()
	return pusherWith(t, noDependencies(t))
}

func pusherWith(t *testing.T, dependencies *registry.Dependencies) *Pusher {
	t.Helper()
	return New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), dependencies, func(source xds.Source) *xds.Server {
		return xds.New(t.Context(), slog.New(slog.DiscardHandler), time.Now, prometheus.NewRegistry(), source, func() {})
	})
}

// attached is a proxy as the server would attach it, with the groups that it was put into.
type attached struct {
	node  translate.Node
	proxy *xds.Proxy
}

func (p *Pusher) attach(t *testing.T, node translate.Node) attached {
	t.Helper()
	a := attached{node: node, proxy: &xds.Proxy{}}
	if err := p.Attach(a.proxy, node.Proto(), false, func([]*xds.Group) {}); err != nil {
		t.Fatal(err)
	}
	return a
}

// config is what a proxy is to be sent, by type and name: version and bytes.
func (p *Pusher) config(t *testing.T, a attached) map[string]string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]string{}
	for _, g := range p.proxies[a.proxy].groups {
		if g.group.Failed() != "" {
			t.Fatal(g.group.Failed())
		}
		mesh := p.mesh
		if g.kind.Role == translate.Inbound {
			mesh = p.served
		}
		made, err := translate.NewCache().Make(mesh, g.kind)
		if err != nil {
			t.Fatal(err)
		}
		for typ, names := range map[xds.Type][]string{
			xds.Clusters: names(made.Clusters), xds.Endpoints: names(made.Endpoints), xds.Listeners: names(made.Listeners),
			xds.Routes: names(made.Routes), xds.Secrets: names(made.Secrets),
		} {
			for _, name := range names {
				r := g.group.Resource(typ, name)
				if r == nil {
					t.Fatalf("%s %s is missing", typ, name)
				}
				m, err := r.Message()
				if err != nil {
					t.Fatal(err)
				}
				text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				out[typ.String()+" "+name] = r.Version() + " " + string(text)
			}
		}
		// And nothing else.
		if c := g.group.Change(nil); len(c.Removed) != len(made.Clusters)+len(made.Endpoints)+len(made.Listeners)+len(made.Routes)+len(made.Secrets) {
			var has []string
			for _, r := range c.Removed {
				has = append(has, r.Type().String()+" "+r.Name())
			}
			t.Fatalf("%s has %d resources: %q", g.kind.ID(), len(c.Removed), has)
		}
	}
	return out
}

func names[T proto.Message](all []T) []string {
	var out []string
	for _, m := range all {
		switch m := any(m).(type) {
		case interface{ GetName() string }:
			out = append(out, m.GetName())
		case interface{ GetClusterName() string }:
			out = append(out, m.GetClusterName())
		}
	}
	return out
}

// town is a changing mesh.
type town struct {
	t        *testing.T
	random   *rand.Rand
	settings model.Settings
	objects  map[objects.Key]*objects.Object
	replicas map[string]registry.Instance
	peers    []registry.Peer
	revision int64
	// kept is what a controller keeps, with what changed since it was asked last.
	kept    *resolve.Model
	changed resolve.Change
	revised map[objects.Key]objects.Version
	// former is what clients go by while a change is staged, or went by before.
	former   *model.Mesh
	switched bool
}

func newTown(t *testing.T, seed uint64) *town {
	w := &town{t: t, random: rand.New(rand.NewPCG(seed, seed+1)), settings: model.DefaultSettings("one"), objects: map[objects.Key]*objects.Object{}, replicas: map[string]registry.Instance{}}
	w.settings.Clusters = []string{"one", "two"}
	w.kept = resolve.New(w.settings)
	w.settled()
	return w
}

// settled is what changed; nothing has afterwards.
func (w *town) settled() (resolve.Change, map[objects.Key]objects.Version) {
	c, revised := w.changed, w.revised
	w.changed, w.revised = resolve.Change{Objects: map[objects.Key]*objects.Object{}, Instances: map[string]*registry.Instance{}}, map[objects.Key]objects.Version{}
	return c, revised
}

// update has a pusher send what changed.
func (w *town) update(p *Pusher) {
	c, revised := w.settled()
	w.kept.Update(c)
	u := w.staged(w.kept.Update(resolve.Change{Addresses: addressed(w.kept.GlobalHosts())}))
	u.Revision, u.Revised = w.revision, revised
	p.Update(u)
}

// addressed gives hosts, which are sorted, their virtual addresses.
func addressed(hosts []string) map[string]netip.Addr {
	out, taken := map[string]netip.Addr{}, map[uint16]bool{}
	for _, h := range hosts {
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(h)) // A hash never fails to write.
		n := uint16(sum.Sum32())
		for taken[n] {
			n++
		}
		taken[n] = true
		out[h] = netip.AddrFrom4([4]byte{240, 240, byte(n >> 8), byte(n)})
	}
	return out
}

// staged is what is in force of a mesh.
func (w *town) staged(mesh *model.Mesh) Update {
	if w.former == nil {
		return Update{Clients: mesh, Servers: mesh}
	}
	servers := *mesh
	servers.Accepted = []*model.Mesh{w.former}
	if w.switched {
		return Update{Clients: mesh, Servers: &servers}
	}
	return Update{Clients: mesh.AsClientsOf(w.former), Servers: &servers}
}

// fresh is what a controller sends that has never seen anything else.
func (w *town) fresh(t *testing.T) *Pusher {
	p := newPusher(t)
	revised := map[objects.Key]objects.Version{}
	for key, o := range w.objects {
		revised[key] = o.Version
	}
	u := w.staged(w.mesh())
	u.Revision, u.Revised = w.revision, revised
	p.Update(u)
	return p
}

func (w *town) setReplica(i registry.Instance) {
	w.replicas[i.ID()], w.changed.Instances[i.ID()] = i, &i
}

var spaces = []string{"red", "green", "istio-system"}

func (w *town) put(text string) {
	w.t.Helper()
	decoded, errs := objects.Decode(strings.NewReader(text), "town.yaml", "")
	if len(errs) > 0 {
		w.t.Fatalf("%s: %v", text, errs)
	}
	w.revision++
	for _, o := range decoded {
		o.Version = objects.Version(strconv.FormatInt(w.revision, 10))
		o.SetCreationTimestamp(metav1.Unix(1, 0))
		if s, ok := o.Resource.(*corev1.Service); ok && s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte(len(s.Namespace)), s.Name[len(s.Name)-1]}).String()
		}
		w.objects[o.Key()], w.changed.Objects[o.Key()], w.revised[o.Key()] = o, o, o.Version
	}
}

func (w *town) pick(from ...string) string { return from[w.random.IntN(len(from))] }

func (w *town) service() string { return w.pick("s-0", "s-1", "s-2", "s-3") }

// change makes one at random, and says whether it was one of endpoints alone.
func (w *town) change() bool {
	ns, s := w.pick(spaces...), w.service()
	host := s + "." + w.pick(spaces...) + ".svc.cluster.local"
	switch w.random.IntN(21) {
	case 16, 17:
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: %s}\nspec: {hosts: [%s], exportTo: [%q], location: MESH_INTERNAL, %s ports: [{name: http, number: %s, protocol: HTTP}, {name: tls, number: 443, protocol: %s}], %s}\n",
			s, ns, w.pick("www.example.com", s+".example.com", host, "'*.example.com', www.example.com"), w.pick("*", ".", "green"), w.pick("", "addresses: [192.0.2.7],", "addresses: [198.51.100.0/24],"), w.pick("80", "90"), w.pick("TLS", "HTTPS"),
			w.pick("resolution: NONE", "resolution: DNS, endpoints: [{address: a.example.net}]", "resolution: STATIC, endpoints: [{address: 203.0.113.1}]", "resolution: STATIC, workloadSelector: {labels: {app: "+s+"}}")))
	case 18:
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: %s}\nspec: {address: 203.0.113.%d, labels: {app: %s}, serviceAccount: %q}\n",
			s, ns, w.random.IntN(9), s, w.pick("", "x")))
	case 19:
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: %s, namespace: %s}\nspec: {%s egress: [{hosts: [%q, %q]}], outboundTrafficPolicy: {mode: %s}}\n",
			s, ns, w.pick("", "workloadSelector: {labels: {app: "+s+"}},", "workloadSelector: {labels: {app: "+s+"}}, ingress: [{port: {number: 8080, protocol: "+w.pick("HTTP", "TCP")+", name: web}, defaultEndpoint: '127.0.0.1:9090'}],"),
			w.pick("./*", "*/*", "green/*", "*/"+host), w.pick("istio-system/*", "*/*.example.com"), w.pick("ALLOW_ANY", "REGISTRY_ONLY")))
	case 0:
		w.put(fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s, annotations: {networking.istio.io/exportTo: %q}}\n"+
			"spec: {selector: {app: %s}, ports: [{name: %s, port: %s, targetPort: %s}]}\n",
			s, ns, w.pick("*", ".", "red", "*"), s, w.pick("http", "tcp", "grpc"), w.pick("80", "90"), w.pick("8080", "web")))
	case 1:
		w.put(fmt.Sprintf("apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: {name: %s, namespace: %s, labels: {app: %s}}\n"+
			"spec: {serviceAccount: %s, command: [x], ports: [{name: web, port: 8080}]}\n", s, ns, s, w.pick("default", s)))
	case 2, 3:
		match := w.pick("", "match: [{sourceLabels: {app: s-1}}], ", "match: [{sourceNamespace: red}], ", "match: [{uri: {prefix: /x}}], ")
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: %s}\n"+
			"spec: {hosts: [%q], gateways: [%s], exportTo: [%q], http: [{%stimeout: %ds, %s route: [{destination: {host: %s, subset: %q}}]}]}\n",
			s, ns, w.pick(host, "www.example.com", "*.green.svc.cluster.local"), w.pick("mesh", "istio-system/edge", "mesh, istio-system/edge"), w.pick("*", "."), match,
			w.random.IntN(3), w.pick("", "fault: {abort: {httpStatus: 500, percentage: {value: 1}}},"), s+"."+ns+".svc.cluster.local", w.pick("", "", "v1")))
	case 4, 5:
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: %s, namespace: %s}\n"+
			"spec: {host: %q, exportTo: [%q], %s trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}}}, subsets: [{name: v1, labels: {version: v1}}]}\n",
			s, ns, w.pick(host, "*.red.svc.cluster.local"), w.pick("*", "."), w.pick("", "workloadSelector: {matchLabels: {app: s-2}},"), 1+w.random.IntN(3)))
	case 6:
		w.put(fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: %s, namespace: %s}\nspec: {%s mtls: {mode: %s}}\n",
			s, ns, w.pick("", "selector: {matchLabels: {app: s-0}},"), w.pick("STRICT", "PERMISSIVE", "DISABLE")))
	case 7:
		w.put(fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: %s}\nspec: {selector: {matchLabels: {app: %s}}, action: %s, rules: [{}]}\n",
			s, ns, w.service(), w.pick("ALLOW", "DENY")))
	case 8:
		w.put("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: istio-system}\n" +
			"spec: {selector: {istio: ingressgateway}, servers: [{port: {number: " + w.pick("80", "8080") + ", name: http, protocol: HTTP}, hosts: ['*']}]}\n")
	case 9:
		w.put("apiVersion: heddle.io/v1alpha1\nkind: GlobalNamespace\nmetadata: {name: g}\nspec: {domain: acme.demo, mappings: [{cluster: '*', namespace: " + w.pick("red", "green") + "}]}\n")
	case 10:
		if keys := slices.Collect(maps.Keys(w.objects)); len(keys) > 0 {
			slices.SortFunc(keys, func(a, b objects.Key) int { return strings.Compare(a.String(), b.String()) })
			key := keys[w.random.IntN(len(keys))]
			delete(w.objects, key)
			w.changed.Objects[key], w.revised[key] = nil, ""
			w.revision++
		}
	case 11:
		w.setReplica(w.instance(ns, s, w.random.IntN(3)))
	case 13:
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: %s, namespace: %s}\nspec: {%s priority: %s, configPatches: [%s, %s]}\n",
			s, ns, w.pick("", "workloadSelector: {labels: {app: "+w.service()+"}},", "workloadSelector: {labels: {istio: ingressgateway}},"), w.pick("0", "1"), w.patch(host), w.patch(host)))
	case 14:
		w.peers = []registry.Peer{w.abroad()}
		w.changed.Peers = &w.peers
	case 12:
		id := ns + "/" + fmt.Sprintf("%s-%d", s, w.random.IntN(3))
		delete(w.replicas, id)
		w.changed.Instances[id] = nil
	default:
		i, known := w.replicas[ns+"/"+fmt.Sprintf("%s-%d", s, w.random.IntN(3))]
		if !known {
			return false
		}
		i.Ready = !i.Ready
		i.Locality.Zone = w.pick("", "east")
		w.setReplica(i)
		return true
	}
	return false
}

// abroad is what another cluster offers, in which mostly no more is new than who is behind it.
func (w *town) abroad() registry.Peer {
	out := registry.Peer{Cluster: "two", Reachable: w.random.IntN(8) > 0, Gateways: []netip.AddrPort{netip.MustParseAddrPort(w.pick("198.51.100.7:15443", "198.51.100.8:15443"))}}
	if len(w.peers) > 0 {
		out.Services = w.peers[0].Services
	}
	e := &registry.Export{Namespace: w.pick("red", "green"), Name: w.service(), Ports: []registry.ExportPort{{Name: "http", Number: 80, Protocol: "HTTP"}}}
	e.Groups = []registry.ExportGroup{{Labels: map[string]string{"version": w.pick("v1", "v2")}, Ready: uint32(w.random.IntN(3))}}
	e.Identities = []string{w.settings.Identity(e.Namespace, w.pick("x", "default", "default"))}
	if w.random.IntN(8) == 0 {
		out.Services = out.Services.With(nil, []registry.ExportName{e.Key()})
	} else {
		out.Services = out.Services.With([]*registry.Export{e}, nil)
	}
	return out
}

// patch of an EnvoyFilter; some of them break what they change.
func (w *town) patch(host string) string {
	return w.pick(
		"{applyTo: CLUSTER, match: {cluster: {service: "+host+"}}, patch: {operation: MERGE, value: {connect_timeout: "+w.pick("1s", "2s")+"}}}",
		"{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: "+host+"}}, patch: {operation: REMOVE}}",
		"{applyTo: CLUSTER, match: {context: "+w.pick("ANY", "SIDECAR_OUTBOUND")+"}, patch: {operation: ADD, value: {name: "+w.pick("more", "outbound|80||"+host)+", connect_timeout: 1s}}}",
		"{applyTo: CLUSTER, patch: {operation: MERGE, value: {name: "+w.pick("broken", "other")+"}}}",
		"{applyTo: CLUSTER, match: {cluster: {name: "+w.pick("more", "BlackHoleCluster", "outbound|80||"+host)+"}}, patch: {operation: "+w.pick("REMOVE", "MERGE, value: {connect_timeout: 3s}")+"}}",
		"{applyTo: LISTENER, match: {context: "+w.pick("ANY", "SIDECAR_OUTBOUND", "GATEWAY")+"}, patch: {operation: ADD, value: {name: "+w.pick("mine", "0.0.0.0_80", "virtualOutbound")+
			", address: {socket_address: {address: 127.0.0.1, port_value: 999}}, filter_chains: [{filters: [{name: envoy.filters.network.tcp_proxy, "+
			"typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: x, cluster: more}}]}]}}}",
		"{applyTo: HTTP_FILTER, match: {context: "+w.pick("ANY", "SIDECAR_INBOUND", "GATEWAY")+", listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}, "+
			"patch: {operation: "+w.pick("INSERT_BEFORE", "INSERT_AFTER")+", value: {name: envoy.filters.http.cors, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}}}",
		"{applyTo: LISTENER, match: {listener: {portNumber: "+w.pick("80", "90")+"}}, patch: {operation: "+w.pick("REMOVE", "MERGE, value: {per_connection_buffer_limit_bytes: 5}")+"}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: '"+host+":80'}}}, patch: {operation: "+w.pick("REMOVE", "MERGE, value: {include_request_attempt_count: true}")+"}}",
		"{applyTo: LISTENER, match: {listener: {portNumber: 90}}, patch: {operation: MERGE, value: {address: {socket_address: {address: 0.0.0.0, port_value: 80}}}}}",
		"{applyTo: CLUSTER, match: {cluster: {portNumber: "+w.pick("80", "90")+", subset: "+w.pick("v1", "''")+"}}, patch: {operation: "+w.pick("REMOVE", "MERGE, value: {connect_timeout: 4s}")+"}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: '"+host+":80'}}}, patch: {operation: MERGE, value: {domains: [more.example]}}}",
		"{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {domainName: "+w.pick("more.example", host)+"}}}, patch: {operation: INSERT_FIRST, value: {name: late, match: {path: /late}, direct_response: {status: 419}}}}",
		"{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {name: '80'}}, patch: {operation: ADD, value: {name: more, domains: ["+w.pick("more.example", host)+"]}}}",
		"{applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {action: ROUTE}}}}, patch: {operation: INSERT_FIRST, value: {name: early, match: {path: /early}, direct_response: {status: 418}}}}",
		"{applyTo: ROUTE_CONFIGURATION, patch: {operation: MERGE, value: {most_specific_header_mutations_wins: true}}}",
	)
}

func (w *town) instance(ns, s string, n int) registry.Instance {
	return registry.Instance{
		Workload: objects.Key{Group: "heddle.io", Kind: "Workload", Namespace: ns, Name: s}, Name: fmt.Sprintf("%s-%d", s, n),
		Address: netip.AddrFrom4([4]byte{10, 244, byte(len(ns)), byte(10*int(s[2]-'0') + n)}), Ready: true, HasProxy: true, Cluster: "one",
		Labels: map[string]string{"app": s, "version": w.pick("v1", "v2")}, ServiceAccount: "default", Ports: []registry.Port{{Name: "web", Number: 8080}},
	}
}

func (w *town) mesh() *model.Mesh {
	all := slices.Collect(maps.Values(w.objects))
	runtime := resolve.Runtime{Peers: w.peers, Addresses: addressed(resolve.GlobalHosts(w.settings, all, w.peers))}
	for _, id := range slices.Sorted(maps.Keys(w.replicas)) {
		runtime.Instances = append(runtime.Instances, w.replicas[id])
	}
	mesh, _ := resolve.Mesh(w.settings, all, runtime)
	return mesh
}

// consistent says that a group has what its configuration says: kinds are made of one another, also of one that nobody is of any more.
func (p *Pusher) consistent(t *testing.T, g *group) {
	t.Helper()
	if g.kept == nil {
		return
	}
	// Making all of it makes all patches anew.
	patches := g.kept.Patches()
	all, err := p.pack(g.kept.Resources())
	if err != nil {
		t.Fatal(err)
	}
	if anew := g.kept.Patches(); !reflect.DeepEqual(patches, anew) {
		t.Fatalf("of the patches of %s it says\n%+v\nand they are\n%+v", g.kind.ID(), patches, anew)
	}
	if c := g.group.Change(all); len(c.Set)+len(c.Removed) > 0 {
		t.Fatalf("%s has not what its configuration says: %d resources differ, %d are too many", g.kind.ID(), len(c.Set), len(c.Removed))
	}
}

// TestChangesGiveWhatAFreshStartGives makes changes of all sorts at random. After each, what proxies are sent must be, byte by
// byte, what a pusher that has never seen anything else sends.
func TestChangesGiveWhatAFreshStartGives(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 500
	}
	w := newTown(t, 1)
	p := newPusher(t)
	var nodes []translate.Node
	for _, ns := range spaces[:2] {
		for _, s := range []string{"s-0", "s-1", "s-2"} {
			nodes = append(nodes, translate.Node{
				Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: s + "-0", Namespace: ns, Domain: "cluster.local",
				Labels: map[string]string{"app": s, "version": "v1"}, Heddle: s != "s-2",
			})
		}
	}
	for _, labels := range []map[string]string{{"istio": "ingressgateway"}, {"istio": "eastwestgateway"}} {
		nodes = append(nodes, translate.Node{
			Type: translate.Router, Address: netip.MustParseAddr("10.0.0.2"), Name: labels["istio"], Namespace: "istio-system", Domain: "cluster.local",
			Labels: labels, Heddle: true,
		})
	}
	var all []attached
	for _, n := range nodes {
		all = append(all, p.attach(t, n))
	}
	alone, staged := 0, 0
	for round := range rounds {
		// Every other change or so, one that is staged begins, goes on, or is over.
		if w.random.IntN(4) == 0 {
			switch {
			case w.former == nil:
				w.former, w.switched = w.kept.Mesh(), false
			case !w.switched:
				w.switched = true
			default:
				w.former = nil
			}
		}
		if w.former != nil {
			staged++
		}
		if w.change() {
			alone++
		}
		// Moves are the server's to make, and these proxies are not its own; who is where is known all the same.
		w.update(p)
		for _, g := range p.groups {
			p.consistent(t, g)
		}
		if round%7 == 0 {
			p.sweep()
		}
		if round%10 != 0 {
			continue
		}
		fresh := w.fresh(t)
		for _, a := range all {
			got, want := p.config(t, a), fresh.config(t, fresh.attach(t, a.node))
			if !maps.Equal(got, want) {
				for key := range want {
					if got[key] != want[key] {
						t.Errorf("%s is\n%q\nwant\n%q", key, got[key], want[key])
					}
				}
				t.Fatalf("after %d changes, %s is sent %d resources, want %d", round, a.node.ID(), len(got), len(want))
			}
		}
	}
	// Groups that the last change left without proxies are forgotten at the next one.
	p.changeAll(&concern{&model.Difference{}, &model.Difference{}, nil})
	p.sweep()
	fresh := w.fresh(t)
	for _, a := range all {
		fresh.attach(t, a.node)
	}
	// Listeners with chains are made for each kind, and shared with kinds that were made of it: that is up to their order.
	for what, of := range map[string][2]int{"messages": {len(p.packed), len(fresh.packed)}, "virtual hosts": {len(p.hosts), len(fresh.hosts)}} {
		if got, want := of[0], of[1]; got < want || got > want+want/10 {
			t.Errorf("after a sweep, %d %s are kept, %d are in use", got, what, want)
		}
	}
	if alone < rounds/50 || staged < rounds/3 || staged > rounds*9/10 {
		t.Errorf("%d changes were of endpoints alone, %d staged", alone, staged)
	}
}

// noDependencies are those of workloads that were never seen.
func noDependencies(t testing.TB) *registry.Dependencies {
	t.Helper()
	d, err := registry.OpenDependencies(filepath.Join(t.TempDir(), "dependencies.db"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
