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
