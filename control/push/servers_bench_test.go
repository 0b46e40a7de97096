package push

import (
	"fmt"
	"net/netip"
	"testing"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// BenchmarkAccepted is that servers come to accept another mesh besides, and cease to, as for each service that comes, among so many
// kinds of servers.
func BenchmarkAccepted(b *testing.B) {
	for _, servers := range []int{100, 1000} {
		b.Run(fmt.Sprint(servers), func(b *testing.B) {
			w, p := large(b, 1000)
			for i := range servers {
				name := fmt.Sprintf("s-%d", i)
				node := translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: name + "-0", Namespace: benchSpace(i), Domain: "cluster.local", Heddle: true, Labels: map[string]string{"app": name}}
				if err := p.Attach(&xds.Proxy{}, node.Proto(), false, func([]*xds.Group) {}); err != nil {
					b.Fatal(err)
				}
			}
			w.update(p)
			former := p.mesh
			w.take(b, "apiVersion: v1\nkind: Service\nmetadata: {name: s-0, namespace: "+benchSpace(0)+"}\nspec: {clusterIP: 10.96.0.0, selector: {app: s-0}, ports: [{name: http, port: 81, targetPort: 8081}]}\n")
			w.update(p)
			mesh := p.mesh
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i++ {
				both := *mesh
				if i%2 == 0 {
					both.Accepted = []*model.Mesh{former}
				}
				p.Update(Update{Clients: mesh, Servers: &both, Revision: i})
			}
		})
	}
}

// BenchmarkAttach is a proxy of a kind that there is, beside so many services with routes and a policy each.
func BenchmarkAttach(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, p := large(b, n)
			for i := range n {
				w.take(b, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d-%d, namespace: %s}\nspec: {host: s-%[1]d.%[2]s.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: 100}}}}\n", i, benchSpace(i)))
				w.take(b, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r-%d, namespace: %s}\nspec: {hosts: [s-%[1]d.%[2]s.svc.cluster.local], http: [{route: [{destination: {host: s-%[1]d.%[2]s.svc.cluster.local}}]}]}\n", i, benchSpace(i)))
			}
			w.update(p)
			node := translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: "s-1-0", Namespace: benchSpace(1), Domain: "cluster.local", Heddle: true, Labels: map[string]string{"app": "s-1"}}
			b.ReportAllocs()
			for b.Loop() {
				x := &xds.Proxy{}
				if err := p.Attach(x, node.Proto(), false, func([]*xds.Group) {}); err != nil {
					b.Fatal(err)
				}
				p.Detach(x)
			}
		})
	}
}

// BenchmarkFirstOfNamespace is the first client of a namespace among so many services with a policy each, without and with a policy for a
// pattern beside them.
func BenchmarkFirstOfNamespace(b *testing.B) {
	for _, n := range []int{1000, 4000} {
		for _, pattern := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/pattern=%v", n, pattern), func(b *testing.B) {
				w, p := large(b, n)
				for i := range n {
					w.take(b, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d-%d, namespace: %s}\nspec: {host: s-%[1]d.%[2]s.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: 100}}}}\n", i, benchSpace(i)))
				}
				if pattern {
					w.take(b, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: all, namespace: istio-system}\nspec: {host: '*.local', trafficPolicy: {connectionPool: {tcp: {maxConnections: 10}}}}\n")
				}
				w.update(p)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, err := p.cache.Make(p.mesh, translate.Kind{Role: translate.Outbound, Namespace: fmt.Sprintf("y-%d", i), Heddle: true}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
