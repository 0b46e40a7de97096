package resolve

import (
	"fmt"
	"strings"
	"testing"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// manifests are so many objects: services with their workloads.
func manifests(b *testing.B, from, count int) []store.Write {
	b.Helper()
	var text strings.Builder
	for i := from; i < from+count/2; i++ {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s-%[1]d, namespace: ns-%[2]d}\nspec: {selector: {app: s-%[1]d}, ports: [{name: http, port: 80}]}\n"+
			"---\napiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: {name: s-%[1]d, namespace: ns-%[2]d, labels: {app: s-%[1]d}}\nspec: {command: [x], ports: [{name: http, port: 80}]}\n", i, i%20)
	}
	all, errs := objects.Decode(strings.NewReader(text.String()), "bench.yaml", "")
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	out := make([]store.Write, 0, len(all))
	for _, o := range all {
		out = append(out, store.Write{Key: o.Key(), Object: o})
	}
	return out
}

func admitted(b *testing.B, m *Model, writes []store.Write) []store.Write {
	b.Helper()
	made, _, errs := m.Admit(writes)
	if len(errs) > 0 {
		b.Fatal(errs[0])
	}
	return made
}

// BenchmarkApplyOne is admitting one VirtualService to a mesh of five thousand objects.
func BenchmarkApplyOne(b *testing.B) {
	m := New(model.DefaultSettings("one"))
	change := Change{Objects: map[objects.Key]*objects.Object{}}
	for _, w := range admitted(b, m, manifests(b, 0, 5000)) {
		change.Objects[w.Key] = w.Object
	}
	m.Update(change)
	all, errs := objects.Decode(strings.NewReader("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: ns-7}\nspec: {hosts: [s-7], http: [{route: [{destination: {host: s-7}}]}]}\n"), "bench.yaml", "")
	if len(errs) > 0 {
		b.Fatal(errs)
	}
	b.ReportAllocs()
	for b.Loop() {
		admitted(b, m, []store.Write{{Key: all[0].Key(), Object: all[0]}})
	}
}

// BenchmarkApplyExpressions is admitting a VirtualService with so many regular expressions in place of the one that is there: to look
// at it by itself is nearly all of it, and is to be done once.
func BenchmarkApplyExpressions(b *testing.B) {
	for _, n := range []int{10, 1000} {
		var text strings.Builder
		text.WriteString("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: ns-7}\nspec:\n  hosts: [s-7]\n  http:\n")
		for i := range n {
			fmt.Fprintf(&text, "  - {match: [{uri: {regex: '/svc%05d/v[0-9]+/users/[^/]+(/.*)?'}}], route: [{destination: {host: s-7}}]}\n", i)
		}
		decode := func() *objects.Object {
			all, errs := objects.Decode(strings.NewReader(text.String()), "bench.yaml", "")
			if len(errs) > 0 {
				b.Fatal(errs)
			}
			return all[0]
		}
		m, o := New(model.DefaultSettings("one")), decode()
		m.Update(Change{Objects: map[objects.Key]*objects.Object{o.Key(): decode()}})
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				admitted(b, m, []store.Write{{Key: o.Key(), Object: o}})
			}
		})
		b.Run(fmt.Sprintf("%d/form", n), func(b *testing.B) {
			for b.Loop() {
				objects.FormOf(o)
			}
		})
	}
}

// BenchmarkApplyBatch is admitting five thousand objects at once to an empty mesh.
func BenchmarkApplyBatch(b *testing.B) {
	m, writes := New(model.DefaultSettings("one")), manifests(b, 0, 5000)
	b.ReportAllocs()
	for b.Loop() {
		admitted(b, m, writes)
	}
}

// BenchmarkListeners is one Gateway's change among so many that share proxies and a port, each with a host of its own.
func BenchmarkListeners(b *testing.B) {
	gateway := func(i, n int) *objects.Object {
		all, errs := objects.Decode(strings.NewReader(fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g-%[1]d, namespace: ns-0}\nspec: {gatewayClassName: heddle, listeners: [{name: l%[2]d, port: 443, protocol: TLS, hostname: h-%[1]d.example.com, tls: {mode: Passthrough}}]}\n", i, n)), "bench.yaml", "")
		if len(errs) > 0 {
			b.Fatal(errs)
		}
		return all[0]
	}
	for _, n := range []int{100, 10000} {
		m := New(model.DefaultSettings("one"))
		change := Change{Objects: map[objects.Key]*objects.Object{}}
		for i := range n {
			o := gateway(i, 0)
			change.Objects[o.Key()] = o
		}
		m.Update(change)
		if got := len(m.Mesh().Gateways); got != n {
			b.Fatalf("%d gateways", got)
		}
		two := [2]*objects.Object{gateway(7, 0), gateway(7, 1)}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m.Update(Change{Objects: map[objects.Key]*objects.Object{two[0].Key(): two[i%2]}})
			}
		})
	}
}

// BenchmarkStatusRound is asking for the statuses of all HTTPRoutes of one Gateway, as the controller does after a change to find those
// that are to be written.
func BenchmarkStatusRound(b *testing.B) {
	for _, n := range []int{50, 5000} {
		m := New(model.DefaultSettings("one"))
		var text strings.Builder
		text.WriteString("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: ns-0}\nspec: {gatewayClassName: heddle, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}\n")
		for i := range n {
			fmt.Fprintf(&text, "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r-%[1]d, namespace: ns-0}\nspec: {parentRefs: [{name: edge}], hostnames: [h-%[1]d.example.com], rules: [{backendRefs: [{name: gone, port: 80}]}]}\n", i)
		}
		all, errs := objects.Decode(strings.NewReader(text.String()), "bench.yaml", "")
		if len(errs) > 0 {
			b.Fatal(errs)
		}
		m.Update(Change{Objects: byKey(all)})
		report := m.Report()
		if got := report.Status(all[0].Key()).Listeners[0].AttachedRoutes; int(got) != n {
			b.Fatalf("%d routes are attached", got)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, o := range all {
					report.Status(o.Key())
				}
			}
		})
	}
}
