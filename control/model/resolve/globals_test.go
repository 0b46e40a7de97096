package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

const twoClusters = `
apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: cluster1 }
---
apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: cluster2 }
---
apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: boutique, creationTimestamp: "2026-01-01T00:00:00Z" }
spec:
  domain: acme.demo
  mappings: [{ cluster: cluster1, namespace: shop }, { cluster: cluster2, namespace: shop }, { cluster: cluster2, namespace: store }]
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: cart, namespace: shop, labels: { app: cart } }
spec: { command: [serve], ports: [{ port: 7070 }] }
---
apiVersion: v1
kind: Service
metadata: { name: cart, namespace: shop }
spec: { selector: { app: cart }, clusterIP: 10.96.0.5, ports: [{ name: grpc, port: 7070 }] }
`

var boutique = objects.Key{Group: objects.GroupHeddle, Kind: "GlobalNamespace", Name: "boutique"}

func settings1() model.Settings { return model.DefaultSettings("cluster1") }

func offer(namespace, name string, change ...func(*registry.Export)) registry.Peer {
	e := registry.Export{
		Namespace: namespace, Name: name, Ports: []registry.ExportPort{{Name: "grpc", Number: 7070, Protocol: "HTTP2"}},
		Identities: []string{"spiffe://cluster.local/ns/" + namespace + "/sa/default"}, Groups: []registry.ExportGroup{{Ready: 1}},
	}
	for _, f := range change {
		f(&e)
	}
	return registry.Peer{
		Cluster: "cluster2", Reachable: true, Gateways: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.3:15443")}, Services: registry.NewExports(e),
	}
}

// world builds the mesh of cluster1 with an address for every host that wants one.
func world(objs []*objects.Object, instances []registry.Instance, peers ...registry.Peer) (*model.Mesh, *Report) {
	addresses := map[string]netip.Addr{}
	next := settings1().Globals.Addr()
	for _, h := range GlobalHosts(settings1(), objs, peers) {
		next = next.Next()
		addresses[h] = next
	}
	return Mesh(settings1(), objs, Runtime{Instances: instances, Peers: peers, Addresses: addresses})
}

func unresolved(r *Report, key objects.Key) string {
	var out []string
	for _, f := range r.Unresolved(key) {
		out = append(out, f.Reason+": "+f.String())
	}
	return strings.Join(out, "\n")
}

func TestWhatOtherClustersOffer(t *testing.T) {
	objs := decode(t, twoClusters)
	for _, c := range []struct {
		name string
		peer registry.Peer
		// host of the service that has the peer's endpoints, and what is said of the global namespace.
		host, says string
	}{
		{"the same service", offer("shop", "cart"), "cart.shop.svc.cluster.local", ""},
		{"one that is not here", offer("store", "mail"), "mail.store.svc.cluster.local", ""},
		{"the name in another namespace", offer("store", "cart"), "cart.store.svc.cluster.local", "Collision: spec.mappings: service cart is in cluster1/shop and in cluster2/store"},
		{"a namespace that is not mapped", offer("vault", "secret"), "", ""},
		{"no namespace", offer("../x", "mail"), "", ""},
		{"no name", offer("shop", "a.b"), "", `BadExport: spec.mappings: cluster cluster2 offers the service "a.b" in namespace "shop", but that is no service's name`},
		{"no ports", offer("shop", "mail", func(e *registry.Export) { e.Ports = nil }), "", "it has no ports"},
		{"port zero", offer("shop", "mail", func(e *registry.Export) { e.Ports[0].Number = 0 }), "", "its port 0 cannot be"},
		{"a port twice", offer("shop", "mail", func(e *registry.Export) { e.Ports = append(e.Ports, e.Ports[0]) }), "", "its port 7070 cannot be"},
		{"a proxy's port", offer("shop", "mail", func(e *registry.Export) { e.Ports[0].Number = 15006 }), "", "its port 15006 is one of the proxies' own"},
		{"another protocol", offer("shop", "mail", func(e *registry.Export) { e.Ports[0].Protocol = "UDP" }), "", `its port 7070 speaks "UDP"`},
		{"a cluster that is not of the mesh", func() registry.Peer { p := offer("shop", "cart"); p.Cluster = "cluster3"; return p }(), "", ""},
		{"this very cluster", func() registry.Peer { p := offer("shop", "mail"); p.Cluster = "cluster1"; return p }(), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			mesh, report := world(objs, nil, c.peer)
			host := ""
			for _, s := range mesh.Services {
				if len(s.Remote) > 0 {
					host += s.Host
				}
			}
			if host != c.host {
				t.Errorf("its endpoints are those of %q, want %q", host, c.host)
			}
			if says := unresolved(report, boutique); !strings.Contains(says, c.says) || c.says == "" && says != "" {
				t.Errorf("it is said %q, want %q", says, c.says)
			}
		})
	}
}

func TestAClusterSpeaksForItsOwnNamespaceOnly(t *testing.T) {
	mesh, _ := world(decode(t, twoClusters), nil, offer("shop", "cart", func(e *registry.Export) {
		e.Identities = []string{
			"spiffe://cluster.local/ns/shop/sa/cart", "spiffe://cluster.local/ns/bank/sa/teller", "spiffe://other/ns/shop/sa/cart", "spiffe://cluster.local/ns/shop",
		}
	}))
	s := mesh.Service("cart.shop.svc.cluster.local")
	if got := s.Homes("cluster1"); len(got) != 2 || got[0].Cluster != "cluster1" || !slices.Equal(got[0].Identities, []string{"spiffe://cluster.local/ns/shop/sa/default"}) ||
		got[1].Cluster != "cluster2" || !slices.Equal(got[1].Identities, []string{"spiffe://cluster.local/ns/shop/sa/cart"}) {
		t.Errorf("accepted are %v", got)
	}
	// What is told on must not come back as this cluster's own.
	if got := Exports(mesh).List()[0].Identities; !slices.Equal(got, []string{"spiffe://cluster.local/ns/shop/sa/default"}) {
		t.Errorf("exported are %v", got)
	}
}

func TestWithoutAddressAServiceWaits(t *testing.T) {
	objs, peer := decode(t, twoClusters), offer("store", "mail")
	if got := GlobalHosts(settings1(), objs, []registry.Peer{peer}); !slices.Equal(got, []string{"mail.store.svc.cluster.local"}) {
		t.Errorf("wanted are %v", got)
	}
	mesh, report := Mesh(settings1(), objs, Runtime{Peers: []registry.Peer{peer}})
	if mesh.Service("mail.store.svc.cluster.local") != nil || !strings.Contains(unresolved(report, boutique), "NoAddress") {
		t.Errorf("got %v: %s", mesh.Services, unresolved(report, boutique))
	}
}

func TestNames(t *testing.T) {
	mesh, _ := world(decode(t, twoClusters), nil, offer("store", "mail"))
	var got []string
	for _, n := range Names(mesh) {
		got = append(got, fmt.Sprint(n.Host, n.Addresses, n.Visible.In("shop"), n.Visible.In("istio-system"), n.Visible.In("default")))
	}
	want := []string{
		"cart.acme.demo[10.96.0.5] true true false", "cart.shop.svc.cluster.local[10.96.0.5] true true true",
		"mail.acme.demo[240.240.0.1] true true false", "mail.shop.svc.cluster.local[240.240.0.1] true true false",
		"mail.store.svc.cluster.local[240.240.0.1] true true false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestTheOldestGlobalNamespaceHasIt(t *testing.T) {
	young := `
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: a-younger, creationTimestamp: "2026-02-01T00:00:00Z" }
spec: { domain: %s, mappings: [{ cluster: "*", namespace: "*" }] }
`
	key := objects.Key{Group: objects.GroupHeddle, Kind: "GlobalNamespace", Name: "a-younger"}
	objs := append(decode(t, twoClusters), decode(t, fmt.Sprintf(young, "other.demo"))...)
	mesh, report := world(objs, nil, offer("store", "mail"), offer("den", "fox"))
	if s := mesh.Service("mail.store.svc.cluster.local"); s == nil || s.Global != "boutique" {
		t.Errorf("the service is %+v", s)
	}
	if says := unresolved(report, key); !strings.Contains(says, "namespace shop of cluster1 belongs to the older GlobalNamespace/boutique") {
		t.Errorf("it is said %q", says)
	}
	objs = append(decode(t, twoClusters), decode(t, fmt.Sprintf(young, "acme.demo"))...)
	mesh, report = world(objs, nil)
	if f := report.Refused(key); len(f) != 1 || !strings.Contains(f[0].Problem, "the older GlobalNamespace/boutique") || len(mesh.Globals) != 1 {
		t.Errorf("got %v", f)
	}
	for _, d := range []string{"cluster.local", "local.cluster.local", "x.svc.cluster.local"} {
		_, report := world(decode(t, fmt.Sprintf(young, d)), nil)
		if f := report.Refused(key); len(f) != 1 || f[0].Path != "spec.domain" {
			t.Errorf("%s: got %v", d, f)
		}
	}
}

func TestDestinationsUnderAnyName(t *testing.T) {
	const rules = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: %s }
spec: { host: %s, trafficPolicy: { loadBalancer: { simple: RANDOM } } }
`
	for _, host := range []string{"mail.acme.demo", "mail", "mail.shop", "mail.shop.svc.cluster.local", "mail.store", "mail.store.svc.cluster.local", `"*.acme.demo"`} {
		objs := append(decode(t, twoClusters), decode(t, fmt.Sprintf(rules, "mail", host))...)
		mesh, report := world(objs, nil, offer("store", "mail"))
		if d := mesh.Destination("shop", nil, mesh.Service("mail.store.svc.cluster.local")); d == nil || d.Policy.Balance != model.Random {
			t.Errorf("%s: got %+v: %s", host, d, unresolved(report, objs[len(objs)-1].Key()))
		}
	}
}

func TestPortsThatOnlyAnotherClusterHas(t *testing.T) {
	more := func(e *registry.Export) { e.Ports = append(e.Ports, registry.ExportPort{Number: 22, Protocol: "TCP"}) }
	mesh, report := world(decode(t, twoClusters), nil, offer("shop", "cart", more))
	s := mesh.Service("cart.shop.svc.cluster.local")
	if s.Port(22) != nil || len(s.Ports) != 1 || len(s.Remote) != 1 || !slices.Equal(s.Remote[0].Ports, []uint16{7070}) {
		t.Errorf("got %+v", s)
	}
	if w := report.Warnings(boutique); len(w) != 1 || !strings.Contains(w[0].Message, "port 22 of cart.shop.svc.cluster.local is there in cluster2 only") {
		t.Errorf("it is said %+v", w)
	}
	mesh, _ = world(decode(t, twoClusters), nil, offer("shop", "mail", more))
	if s := mesh.Service("mail.shop.svc.cluster.local"); s == nil || s.Port(22) == nil {
		t.Errorf("got %+v", s)
	}
}

func TestOutlierDefaults(t *testing.T) {
	for _, c := range []struct {
		name string
		peer []registry.Peer
		want bool
	}{{"one cluster", nil, false}, {"two clusters", []registry.Peer{offer("shop", "cart")}, true}} {
		mesh, _ := world(decode(t, twoClusters), nil, c.peer...)
		o := mesh.Service("cart.shop.svc.cluster.local").Outlier
		if (o != nil) != c.want || o != nil && *o.ConsecutiveGateway != 5 {
			t.Errorf("%s: got %+v", c.name, o)
		}
	}
}
