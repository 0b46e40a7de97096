package push

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// sizes of the meshes that are measured: services, each with three endpoints, in twenty namespaces, and a hundred proxies.
var sizes = []int{1000, 10000}

const benchSpaces, benchProxies = 20, 100

func benchSpace(i int) string { return fmt.Sprintf("ns-%02d", i%benchSpaces) }

// large is a mesh of so many services, and a pusher with its proxies.
func large(b *testing.B, services int) (*town, *Pusher) {
	b.Helper()
	w := &town{settings: model.DefaultSettings("one"), objects: map[objects.Key]*objects.Object{}, replicas: map[string]registry.Instance{}}
	w.kept = resolve.New(w.settings)
	w.settled()
	for i := range services {
		s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: benchSpace(i), Name: fmt.Sprintf("s-%d", i)}}
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.Selector = corev1.ServiceTypeClusterIP, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), map[string]string{"app": s.Name}
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}}
		o := &objects.Object{Kind: objects.Service, Resource: s}
		w.objects[o.Key()], w.changed.Objects[o.Key()] = o, o
		for n := range 3 {
			w.setReplica(registry.Instance{
				Workload: objects.Key{Namespace: s.Namespace, Name: s.Name}, Name: fmt.Sprintf("%s-%d", s.Name, n), Labels: s.Spec.Selector,
				Address: netip.AddrFrom4([4]byte{10, 100 + byte(n), byte(i >> 8), byte(i)}), Ready: true,
			})
		}
	}
	p := New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), noDependencies(b), func(source xds.Source) *xds.Server {
		return xds.New(context.Background(), slog.New(slog.DiscardHandler), time.Now, prometheus.NewRegistry(), source, func() {})
	})
	for i := range benchProxies {
		name := fmt.Sprintf("s-%d", i)
		node := translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: name + "-0", Namespace: benchSpace(i), Domain: "cluster.local", Heddle: true, Labels: map[string]string{"app": name}}
		if err := p.Attach(&xds.Proxy{}, node.Proto(), false, func([]*xds.Group) {}); err != nil {
			b.Fatal(err)
		}
	}
	w.update(p)
	if got := p.mesh.Services; len(got) != services || len(got[7].Replicas) != 3 {
		b.Fatalf("%d services", len(got))
	}
	return w, p
}

// routes changes the routes of one service.
func (w *town) routes(b *testing.B, n int) {
	b.Helper()
	host := "s-7." + benchSpace(7)
	decoded, errs := objects.Decode(strings.NewReader(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: %s}\nspec: {hosts: [%s.svc.cluster.local], http: [{timeout: %ds, route: [{destination: {host: %s.svc.cluster.local}}]}]}\n",
		benchSpace(7), host, n%100+1, host)), "routes.yaml", "")
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	w.revision++
	o := decoded[0]
	o.Version = objects.Version(strconv.FormatInt(w.revision, 10))
	w.objects[o.Key()], w.changed.Objects[o.Key()], w.revised[o.Key()] = o, o, o.Version
}

// BenchmarkBuild is making the whole model.
func BenchmarkBuild(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, _ := large(b, n)
			b.ReportAllocs()
			for b.Loop() {
				w.mesh()
			}
		})
	}
}

// BenchmarkFirst is translating everything for the first time.
func BenchmarkFirst(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, p := large(b, n)
			b.ReportAllocs()
			for b.Loop() {
				mesh := p.mesh
				p.mesh, p.cache, p.packed = nil, translate.NewCache(), map[proto.Message][]packed{}
				p.Update(Update{Clients: mesh, Servers: mesh, Revision: 1})
			}
		})
	}
}

// BenchmarkRoutesModel is one VirtualService's change in the kept model alone.
func BenchmarkRoutesModel(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, _ := large(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.routes(b, i)
				c, _ := w.settled()
				w.kept.Update(c)
			}
		})
	}
}

// BenchmarkRoutes is one VirtualService's change, until everything that it makes is in the groups of a hundred proxies.
func BenchmarkRoutes(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, p := large(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.routes(b, i)
				w.update(p)
			}
		})
	}
}

// BenchmarkEndpoint is one endpoint's change.
func BenchmarkEndpoint(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, p := large(b, n)
			r := w.replicas[benchSpace(7)+"/s-7-0"]
			b.ReportAllocs()
			for b.Loop() {
				r.Ready = !r.Ready
				w.setReplica(r)
				w.update(p)
			}
		})
	}
}

// entry changes one of so many ServiceEntries: its endpoints, or with whole all that proxies know of it.
func (w *town) entry(b *testing.B, i, n int, whole bool) {
	b.Helper()
	port := 443
	if whole {
		port += n % 2
	}
	w.take(b, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e-%[1]d, namespace: %[2]s}\nspec: {hosts: [e-%[1]d.example.com], resolution: STATIC, ports: [{number: %[3]d, name: tls, protocol: TLS}], endpoints: [{address: 203.0.113.%[4]d}]}\n",
		i, benchSpace(i), port, n%250))
}

// take has one object changed.
func (w *town) take(b *testing.B, text string) {
	b.Helper()
	decoded, errs := objects.Decode(strings.NewReader(text), "bench.yaml", "")
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	w.revision++
	o := decoded[0]
	o.Version = objects.Version(strconv.FormatInt(w.revision, 10))
	o.SetCreationTimestamp(metav1.Unix(1, 0))
	w.objects[o.Key()], w.changed.Objects[o.Key()], w.revised[o.Key()] = o, o, o.Version
}

// BenchmarkEntries is one ServiceEntry's change among many, until everything that it makes is in the groups of a hundred proxies:
// of its endpoints, of its port, and of the Sidecar of a namespace.
func BenchmarkEntries(b *testing.B) {
	for _, n := range sizes {
		w, p := large(b, 100)
		for i := range n {
			w.entry(b, i, 0, false)
		}
		w.update(p)
		hosts := w.kept.GlobalHosts()
		if got := len(p.mesh.Services); got != n+100 || len(hosts) != n {
			b.Fatalf("%d services, %d addresses", got, len(hosts))
		}
		b.Run(fmt.Sprintf("endpoints/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.entry(b, 7, i+1, false)
				w.resend(p)
			}
		})
		b.Run(fmt.Sprintf("port/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.entry(b, 7, i+1, true)
				w.resend(p)
			}
		})
		b.Run(fmt.Sprintf("sidecar/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.take(b, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s, namespace: %s}\nspec: {egress: [{hosts: [\"./*\", \"*/e-%d.example.com\"]}]}\n", benchSpace(7), i%100))
				w.resend(p)
			}
		})
	}
}

// BenchmarkAdd is so many ServiceEntries at once, and one more.
func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprintf("all/%d", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				w, p := large(b, 100)
				for i := range n {
					w.entry(b, i, 0, false)
				}
				b.StartTimer()
				w.update(p)
			}
		})
		b.Run(fmt.Sprintf("one/%d", n), func(b *testing.B) {
			w, p := large(b, 100)
			for i := range n {
				w.entry(b, i, 0, false)
			}
			w.update(p)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.entry(b, n+i, 0, false)
				w.update(p)
			}
		})
	}
}

// resend has a pusher send what changed, where no host came or went.
func (w *town) resend(p *Pusher) {
	c, revised := w.settled()
	u := w.staged(w.kept.Update(c))
	u.Revision, u.Revised = w.revision, revised
	p.Update(u)
}
