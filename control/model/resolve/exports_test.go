package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

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
	got := Exports(mesh)
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
	got := Exports(mesh)
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
	exports := []registry.Export{{Namespace: "shop", Name: "b"}, {Namespace: "shop", Name: "a"}, {Namespace: "lab", Name: "c"}, {Namespace: "istio-system", Name: "d"}}
	sharing := NewSharing(settings1(), objs)
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{"cluster2", "cluster1", []string{"a", "b"}}, {"cluster2", "edge-7", []string{"c"}}, {"edge-7", "cluster2", []string{"c", "a", "b"}},
		{"cluster1", "edge-7", nil}, {"cluster9", "cluster1", nil},
	} {
		var got []string
		offer := sharing.Offer(exports, c.from)
		for _, e := range offer.For(offer.Audience(c.to)) {
			got = append(got, e.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("from %s to %s: got %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
