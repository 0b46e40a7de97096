package translate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
)

// attachedWorld is a kept model and the cache of translation that follows it.
type attachedWorld struct {
	t     testing.TB
	model *resolve.Model
	cache *translate.Cache
	mesh  *model.Mesh
}

func newAttachedWorld(t testing.TB) *attachedWorld {
	w := &attachedWorld{t: t, model: resolve.New(model.DefaultSettings("one")), cache: translate.NewCache()}
	w.mesh = w.model.Mesh()
	return w
}

// apply decodes objects and puts them into the model, and gives what differs.
func (w *attachedWorld) apply(manifests string, gone ...objects.Key) model.Difference {
	w.t.Helper()
	return w.update(w.decode(manifests), gone...)
}

func (w *attachedWorld) decode(manifests string) []*objects.Object {
	w.t.Helper()
	decoded, errs := objects.Decode(strings.NewReader(manifests), "world.yaml", "")
	if len(errs) > 0 {
		w.t.Fatal(errs[0])
	}
	return decoded
}

func (w *attachedWorld) update(objs []*objects.Object, gone ...objects.Key) model.Difference {
	w.t.Helper()
	change := resolve.Change{Objects: map[objects.Key]*objects.Object{}}
	for _, o := range objs {
		change.Objects[o.Key()] = o
	}
	for _, key := range gone {
		change.Objects[key] = nil
	}
	before := w.mesh
	w.mesh = w.model.Update(change)
	return model.Differ(before, w.mesh)
}

func serviceManifest(i int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: s-%d, namespace: ns-%d}\nspec: {clusterIP: 10.96.%d.%d, selector: {app: s}, ports: [{name: http, port: 80}, {name: tcp, port: 90}]}\n", i, i%20, i>>8, i&255)
}

// attachedManifest is an HTTPRoute for a Service, of its own namespace or another one.
func attachedManifest(i, of, seconds int) string {
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r-%[1]d, namespace: ns-%[2]d, creationTimestamp: '2026-01-01T00:00:00Z'}\nspec: {parentRefs: [{group: '', kind: Service, name: s-%[3]d, namespace: ns-%[4]d}], rules: [{timeouts: {request: %[5]ds}, backendRefs: [{name: s-%[3]d, namespace: ns-%[4]d, port: 80}]}]}\n",
		i, i%20, of, of%20, seconds)
}

func sidecarOf(t testing.TB, mesh *model.Mesh, namespace string) translate.Kind {
	t.Helper()
	kinds, err := translate.Kinds(mesh, translate.Node{
		Type: translate.Sidecar, Namespace: namespace, Name: "x-0", Address: netip.MustParseAddr("10.244.0.9"), Domain: "cluster.local", Heddle: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		if k.Role == translate.Outbound {
			return k
		}
	}
	t.Fatal("a sidecar is no client")
	return translate.Kind{}
}

// TestAttachedRoutesFollowChanges changes routes of Services, of producers and consumers, of HTTP and TCP, beside VirtualServices,
// of Gateways, and the Services. What a client that is kept has must be what a fresh one gets, and so with a gateway.
func TestAttachedRoutesFollowChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	w := newAttachedWorld(t)
	one := func() (string, *objects.Key) {
		i, of := random.IntN(8), random.IntN(4)
		space := fmt.Sprintf("ns-%d", random.IntN(4))
		text := ""
		switch random.IntN(9) {
		case 7:
			text = strings.Replace(serviceManifest(of), "name: http, ", fmt.Sprintf("name: %s, ", []string{"http", "http2", "grpc"}[random.IntN(3)]), 1)
		case 8:
			text = fmt.Sprintf("---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: ns-%[1]d}\nspec: {host: s-%[1]d.ns-%[1]d.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {connectTimeout: %[2]ds}}}}\n", of, 1+random.IntN(5))
		case 5:
			text = listenerManifest(i, 1+random.IntN(9))
		case 6:
			text = fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: m-%d, namespace: %s}\nspec: {parentRefs: [{name: edge, namespace: ns-0}], hostnames: [h-%d.example.com, '*.example.com'], rules: [{matches: [{path: {value: /m%d}}], filters: [{type: RequestMirror, requestMirror: {backendRef: {name: s-%d, port: 80}}}], backendRefs: [{name: s-%d, port: 80}, {name: s-%d, port: 80, weight: %d}]}]}\n", i, space, of, random.IntN(3), of, of, random.IntN(4), random.IntN(3))
		case 0:
			text = serviceManifest(of)
		case 1:
			text = fmt.Sprintf("---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v-%d, namespace: %s}\nspec: {hosts: [s-%d.ns-%d.svc.cluster.local], http: [{match: [{uri: {prefix: /v}}], route: [{destination: {host: s-%d.ns-%d.svc.cluster.local, port: {number: 80}}}]}]}\n", i, space, of, of, of, of)
		case 2:
			text = fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {name: t-%d, namespace: %s}\nspec: {parentRefs: [{group: '', kind: Service, name: s-%d, namespace: ns-%d, port: 90}], rules: [{backendRefs: [{name: s-%d, namespace: ns-%d, port: 90}]}]}\n", i, space, of, of, random.IntN(4), of)
		case 3:
			text = fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: g-%d, namespace: %s}\nspec: {parentRefs: [{group: '', kind: Service, name: s-%d, namespace: ns-%d}, {group: '', kind: Service, name: s-%d, namespace: ns-%d, port: 80}], rules: [{backendRefs: [{name: s-%d, namespace: ns-%d, port: 80}]}]}\n",
				[]string{"GRPCRoute", "HTTPRoute"}[random.IntN(2)], i, space, of, of, of^1, of^1, of, of)
		default:
			text = attachedManifest(i, of, 1+random.IntN(9))
		}
		if random.IntN(4) == 0 {
			key := w.decode(text)[0].Key()
			return "", &key
		}
		return text, nil
	}
	w.apply(strings.Replace(edgeManifest, "listeners: [", "listeners: [{name: narrow, port: 80, protocol: HTTP, hostname: '*.example.com', allowedRoutes: {namespaces: {from: All}}}, "+
		"{name: one, port: 80, protocol: HTTP, hostname: h-1.example.com, allowedRoutes: {namespaces: {from: All}}}, ", 1))
	clients := map[string]*translate.Client{}
	var gateway *translate.Gateway
	delivered := map[string]proto.Message{}
	routed, followed := 0, 0
	for round := range 400 {
		text, gone := one()
		var d model.Difference
		if gone != nil {
			d = w.apply("", *gone)
		} else {
			d = w.apply(text)
		}
		for _, space := range []string{"ns-0", "ns-1", "ns-9"} {
			kind := sidecarOf(t, w.mesh, space)
			kept, ok := clients[space], false
			if kept != nil {
				var err error
				if _, ok, err = w.cache.Apply(kept, w.mesh, &d); err != nil {
					t.Fatal(err)
				}
			}
			fresh, err := translate.NewCache().Client(w.mesh, kind, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				if kept, err = w.cache.Client(w.mesh, kind, nil); err != nil {
					t.Fatal(err)
				}
				clients[space] = kept
			}
			same(t, round, space, messages(kept.Resources()), messages(fresh.Resources()))
		}
		edge := edgeKind(t, w.mesh)
		ok := false
		if gateway != nil {
			delta, follows, err := w.cache.Apply(gateway, w.mesh, &d)
			if err != nil {
				t.Fatal(err)
			}
			if ok = follows; ok {
				followed++
				deliver(delivered, delta)
			}
		}
		if !ok {
			var err error
			if gateway, err = w.cache.Gateway(w.mesh, edge); err != nil {
				t.Fatal(err)
			}
			delivered = messages(gateway.Resources())
		}
		fresh, err := translate.NewCache().Make(w.mesh, edge)
		if err != nil {
			t.Fatal(err)
		}
		same(t, round, "the gateway", messages(gateway.Resources()), messages(fresh))
		same(t, round, "the gateway, as it is told", delivered, messages(fresh))
		for _, r := range w.mesh.Routes {
			if r.OfService() != "" {
				routed++
			}
		}
	}
	if followed < 300 {
		t.Errorf("the gateway followed %d changes of 400", followed)
	}
	if routed < 400 {
		t.Fatalf("%d attached routes in all rounds: too few to show anything", routed)
	}
}

// deliver makes a delta in what was delivered before.
func deliver(to map[string]proto.Message, d translate.Delta) {
	for _, name := range d.Clusters {
		delete(to, "cluster "+name)
		delete(to, "endpoints "+name)
	}
	for _, name := range d.Endpoints {
		delete(to, "endpoints "+name)
	}
	for _, name := range d.Listeners {
		delete(to, "listener "+name)
	}
	for _, name := range d.Routes {
		delete(to, "routes "+name)
	}
	maps.Copy(to, messages(d.Set))
}

func same(t *testing.T, round int, whose string, is, want map[string]proto.Message) {
	t.Helper()
	if len(is) != len(want) {
		t.Fatalf("round %d, %s: %d resources, want %d", round, whose, len(is), len(want))
	}
	for name, m := range want {
		if !proto.Equal(is[name], m) {
			t.Fatalf("round %d, %s: %s is\n%v\nwant\n%v", round, whose, name, is[name], m)
		}
	}
}

func messages(r *translate.Resources) map[string]proto.Message {
	out := map[string]proto.Message{}
	for _, m := range r.Clusters {
		out["cluster "+m.Name] = m
	}
	for _, m := range r.Listeners {
		out["listener "+m.Name] = m
	}
	for _, m := range r.Routes {
		out["routes "+m.Name] = m
	}
	for _, m := range r.Endpoints {
		out["endpoints "+m.ClusterName] = m
	}
	return out
}

// BenchmarkRouteOfService is one change of an HTTPRoute for a Service, from the object to what sidecars get, among so many Services that
// all have one.
func BenchmarkRouteOfService(b *testing.B) {
	for _, n := range []int{50, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newAttachedWorld(b)
			var text strings.Builder
			for i := range n {
				text.WriteString(serviceManifest(i) + attachedManifest(i, i, 1))
			}
			w.apply(text.String())
			kind := sidecarOf(b, w.mesh, "ns-1")
			client, err := w.cache.Client(w.mesh, kind, nil)
			if err != nil {
				b.Fatal(err)
			}
			two := [2][]*objects.Object{w.decode(attachedManifest(7, 7, 2)), w.decode(attachedManifest(7, 7, 3))}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				d := w.update(two[i%2])
				delta, ok, err := w.cache.Apply(client, w.mesh, &d)
				if err != nil || !ok || len(delta.Set.Routes) != 1 || len(delta.Set.Clusters) != 0 {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

// listenerManifest is an HTTPRoute with a host of its own for the one Gateway there is.
func listenerManifest(i, seconds int) string {
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r-%[1]d, namespace: ns-%[2]d, creationTimestamp: '2026-01-01T00:00:00Z'}\nspec: {parentRefs: [{name: edge, namespace: ns-0}], hostnames: [h-%[1]d.example.com], rules: [{timeouts: {request: %[3]ds}, backendRefs: [{name: s-%[1]d, port: 80}]}]}\n",
		i, i%20, seconds)
}

const edgeManifest = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: ns-0}\nspec: {gatewayClassName: heddle, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}\n"

func edgeKind(t testing.TB, mesh *model.Mesh) translate.Kind {
	t.Helper()
	kinds, err := translate.Kinds(mesh, translate.Node{
		Type: translate.Router, Namespace: "istio-system", Name: "istio-ingressgateway-0", Address: netip.MustParseAddr("10.244.0.9"), Domain: "cluster.local", Heddle: true,
		Labels: map[string]string{"app": "istio-ingressgateway", "istio": "ingressgateway"},
	})
	if err != nil || len(kinds) != 1 {
		t.Fatal(kinds, err)
	}
	return kinds[0]
}

// BenchmarkRouteOfGateway is one change of an HTTPRoute, from the object to what the gateway gets, among so many that are attached to
// one listener.
func BenchmarkRouteOfGateway(b *testing.B) {
	for _, n := range []int{50, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newAttachedWorld(b)
			var services, routes strings.Builder
			for i := range n {
				services.WriteString(serviceManifest(i))
				routes.WriteString(listenerManifest(i, 1))
			}
			w.apply(services.String())
			w.apply(edgeManifest + routes.String())
			kind := edgeKind(b, w.mesh)
			gateway, err := w.cache.Gateway(w.mesh, kind)
			if err != nil {
				b.Fatal(err)
			}
			two := [2][]*objects.Object{w.decode(listenerManifest(7, 2)), w.decode(listenerManifest(7, 3))}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				d := w.update(two[i%2])
				delta, ok, err := w.cache.Apply(gateway, w.mesh, &d)
				if err != nil || !ok || len(delta.Set.Routes) != 1 || len(delta.Set.Clusters) != 0 || len(delta.Set.Routes[0].VirtualHosts) < n {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
