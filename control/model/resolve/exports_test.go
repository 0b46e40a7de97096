package resolve

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

func replica(ordinal int, version string, change ...func(*registry.Instance)) registry.Instance {
	i := registry.Instance{
		Workload: objects.Key{Group: objects.GroupHeddle, Kind: "Workload", Namespace: "shop", Name: "cart"}, Name: fmt.Sprintf("cart-%d", ordinal),
		Address: netip.AddrFrom4([4]byte{10, 244, 0, byte(10 + ordinal)}), Labels: map[string]string{"app": "cart", "version": version},
		ServiceAccount: "default", Ready: true, Cluster: "cluster1", HasProxy: true,
	}
	for _, f := range change {
		f(&i)
	}
	return i
}

func TestExportsCountWhatOthersCanUse(t *testing.T) {
	mesh, _ := world(decode(t, twoClusters), []registry.Instance{
		replica(0, "v1"), replica(1, "v2"), replica(2, "v1"),
		replica(3, "v1", func(i *registry.Instance) { i.Ready = false }),
		replica(4, "v1", func(i *registry.Instance) { i.HasProxy = false }),
	}, offer("store", "mail"), offer("shop", "cart", func(e *registry.Export) {
		e.Ports = append(e.Ports, registry.ExportPort{Number: 9, Protocol: "TCP"})
	}))
	got := Exports(mesh).List()
	if len(got) != 1 || got[0].Name != "cart" || len(got[0].Ports) != 1 {
		t.Fatalf("got %+v, want the one service and port of this cluster", got)
	}
	counts := map[string]uint32{}
	for _, g := range got[0].Groups {
		counts[g.Labels["version"]] = g.Ready
	}
	if len(counts) != 2 || counts["v1"] != 2 || counts["v2"] != 1 {
		t.Errorf("got %+v", got[0].Groups)
	}
}

// TestExportsFollowTheModel: what was made of the mesh before counts as long as it says the same.
func TestExportsFollowTheModel(t *testing.T) {
	m := New(settings1())
	var x Exporter
	follows := func(what string, c Change) {
		t.Helper()
		mesh := m.Update(c)
		if got, want := x.Exports(mesh).List(), Exports(mesh).List(); !reflect.DeepEqual(got, want) || len(want) != 1 {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	put := func(what, text string) { t.Helper(); follows(what, Change{Objects: byKey(decode(t, text))}) }
	ready, not := replica(0, "v1"), replica(0, "v1", func(i *registry.Instance) { i.Ready = false })
	follows("the first", Change{Objects: byKey(decode(t, twoClusters)), Instances: map[string]*registry.Instance{ready.ID(): &ready}})
	follows("a replica that is not ready", Change{Instances: map[string]*registry.Instance{not.ID(): &not}})
	follows("a replica that is", Change{Instances: map[string]*registry.Instance{ready.ID(): &ready}})
	put("without mutual TLS", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: { name: plain }\nspec: { mtls: { mode: DISABLE } }\n")
	put("with it again", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: { name: plain }\nspec: { mtls: { mode: STRICT } }\n")
}

func TestExportsKeepWhatIsKeptHere(t *testing.T) {
	objs := append(decode(t, twoClusters), decode(t, `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: plain }
spec: { mtls: { mode: DISABLE } }
---
apiVersion: v1
kind: Service
metadata: { name: private, annotations: { networking.istio.io/exportTo: "." } }
spec: { selector: { app: cart }, clusterIP: 10.96.0.6, ports: [{ port: 80 }] }
`)...)
	mesh, _ := world(objs, []registry.Instance{replica(0, "v1")})
	got := Exports(mesh).List()
	if len(got) != 1 || got[0].Name != "cart" || len(got[0].Groups) != 0 {
		t.Errorf("got %+v, want cart without endpoints that speak mutual TLS", got)
	}
}

func TestSharedGoesToWhoHasAPart(t *testing.T) {
	objs := append(decode(t, twoClusters), decode(t, `
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: team, creationTimestamp: "2026-02-01T00:00:00Z" }
spec: { domain: team.demo, mappings: [{ cluster: "edge-*", namespace: "*" }, { cluster: cluster2, namespace: "*" }] }
`)...)
	exports := registry.NewExports([]registry.Export{{Namespace: "shop", Name: "b"}, {Namespace: "shop", Name: "a"}, {Namespace: "lab", Name: "c"}, {Namespace: "istio-system", Name: "d"}}...)
	sharing := NewSharing(settings1(), objs)
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{"cluster2", "cluster1", []string{"a", "b"}}, {"cluster2", "edge-7", []string{"c"}}, {"edge-7", "cluster2", []string{"c", "a", "b"}},
		{"cluster1", "edge-7", nil}, {"cluster9", "cluster1", nil},
	} {
		var got []string
		offer := sharing.Offer(exports, c.from, nil)
		for _, e := range offer.For(offer.Audience(c.to)).List() {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("from %s to %s: got %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

// BenchmarkExports is what the exports cost with each change of one of so many services.
func BenchmarkExports(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			mesh := &model.Mesh{Settings: model.DefaultSettings("one")}
			for i := range n {
				s := &model.Service{Namespace: "shop", Name: fmt.Sprintf("s-%05d", i), Host: fmt.Sprintf("s-%05d.shop.svc.cluster.local", i), Global: "acme", Ports: []model.ServicePort{{Name: "http", Number: 80, Target: 8080, Protocol: model.HTTP}}}
				for r := range 5 {
					s.Replicas = append(s.Replicas, &model.Replica{Namespace: "shop", Name: fmt.Sprintf("%s-%d", s.Name, r), Labels: map[string]string{"app": s.Name, "version": "v1"}, Ready: true, HasProxy: true})
				}
				mesh.Services = append(mesh.Services, s)
			}
			var x Exporter
			x.Exports(mesh)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				next := *mesh
				next.Services = slices.Clone(mesh.Services)
				one, r := *next.Services[7], *next.Services[7].Replicas[0]
				r.Ready = i%2 == 0
				one.Replicas = append([]*model.Replica{&r}, one.Replicas[1:]...)
				next.Services[7] = &one
				if got := x.Exports(&next).Get(registry.ExportName{Namespace: "shop", Name: one.Name}).Groups; len(got) != 1 || got[0].Ready != uint32(4+1-i%2) {
					b.Fatalf("%+v", got)
				}
			}
		})
	}
}
