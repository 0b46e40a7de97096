package push

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// withPeers is a mesh of so many other clusters that export so many services each, the same ones everywhere, and a pusher with
// the proxies of one namespace that uses them.
func withPeers(b *testing.B, peers, services int) (*town, *Pusher, []registry.Peer) {
	b.Helper()
	w := &town{settings: model.DefaultSettings("one"), objects: map[objects.Key]*objects.Object{}, replicas: map[string]registry.Instance{}}
	w.kept = resolve.New(w.settings)
	w.settled()
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: heddle.io/v1alpha1\nkind: GlobalNamespace\nmetadata: {name: boutique}\nspec: {domain: boutique.demo, mappings: [{cluster: '*', namespace: shop}]}\n")
	var others []registry.Peer
	for i := range peers {
		name := fmt.Sprintf("peer-%02d", i)
		fmt.Fprintf(&text, "---\napiVersion: heddle.io/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec: {key: \"%064d\"}\n", name, i)
		p := registry.Peer{Cluster: name, Reachable: true, Gateways: []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 15443)}}
		var all []registry.Export
		for s := range services {
			all = append(all, *exported(s, 3))
		}
		p.Services = registry.NewExports(all...)
		others = append(others, p)
	}
	decoded, errs := objects.Decode(strings.NewReader(text.String()), "clusters.yaml", "")
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	for _, o := range decoded {
		w.objects[o.Key()], w.changed.Objects[o.Key()] = o, o
	}
	w.changed.Peers = &others
	p := New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), noDependencies(b), func(source xds.Source) *xds.Server {
		return xds.New(context.Background(), slog.New(slog.DiscardHandler), time.Now, prometheus.NewRegistry(), source, func() {})
	})
	node := translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: "a-0", Namespace: "shop", Domain: "cluster.local", Heddle: true, Labels: map[string]string{"app": "a"}}
	if err := p.Attach(&xds.Proxy{}, node.Proto(), false, func([]*xds.Group) {}); err != nil {
		b.Fatal(err)
	}
	w.update(p)
	if got := p.mesh.Services; len(got) != services || len(got[7].Remote) != peers {
		b.Fatalf("%d services", len(got))
	}
	return w, p, others
}

func exported(i int, ready uint32) *registry.Export {
	name := fmt.Sprintf("s-%05d", i)
	return &registry.Export{Namespace: "shop", Name: name, Ports: []registry.ExportPort{{Name: "http", Number: 80, Protocol: "HTTP"}},
		Identities: []string{"spiffe://cluster.local/ns/shop/sa/" + name}, Groups: []registry.ExportGroup{{Labels: map[string]string{"app": name}, Ready: ready}}}
}

// BenchmarkEndpointAbroad is one endpoint's readiness in one of so many other clusters that export so many services each, from
// what federation says to what proxies are sent.
func BenchmarkEndpointAbroad(b *testing.B) {
	for _, peers := range []int{1, 10, 50} {
		for _, services := range []int{100, 5000} {
			b.Run(fmt.Sprintf("peers=%d/services=%d", peers, services), func(b *testing.B) {
				w, p, others := withPeers(b, peers, services)
				change := func(i int) {
					others = slices.Clone(others)
					others[0].Services = others[0].Services.With([]*registry.Export{exported(7, uint32(1+i%2))}, nil)
				}
				b.Run("model", func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						b.StopTimer()
						change(i)
						b.StartTimer()
						w.kept.Update(resolve.Change{Peers: &others})
					}
				})
				b.Run("push", func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						b.StopTimer()
						change(i)
						b.StartTimer()
						mesh := w.kept.Update(resolve.Change{Peers: &others})
						p.Update(Update{Clients: mesh, Servers: mesh, Revision: w.revision})
					}
				})
			})
		}
	}
}
