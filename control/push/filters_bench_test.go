package push

import (
	"fmt"
	"testing"
)

// oneCluster is an EnvoyFilter with a patch of one cluster, for one workload; allClusters has it for every cluster, of all proxies.
const (
	oneCluster = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f, namespace: ns-07}\nspec: {workloadSelector: {labels: {app: %s}}, configPatches: [" +
		"{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: s-9.ns-09.svc.cluster.local}}, patch: {operation: MERGE, value: {connect_timeout: %ds}}}]}\n"
	allClusters = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f, namespace: istio-system}\nspec: {configPatches: [" +
		"{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: MERGE, value: {connect_timeout: %ds}}}]}\n"
)

// BenchmarkFilters is an EnvoyFilter's change, until all that it makes is in the groups of a hundred proxies: its patch of one cluster
// for one workload, that filter coming and going, and a patch of every cluster of all proxies.
func BenchmarkFilters(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("change/%d", n), func(b *testing.B) {
			w, p := large(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.take(b, fmt.Sprintf(oneCluster, "s-7", i%100+1))
				w.resend(p)
			}
		})
		b.Run(fmt.Sprintf("come-and-go/%d", n), func(b *testing.B) {
			w, p := large(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				other := "s-none"
				if i%2 == 0 {
					other = "s-7"
				}
				w.take(b, fmt.Sprintf(oneCluster, other, 3))
				w.resend(p)
			}
		})
		b.Run(fmt.Sprintf("every-cluster/%d", n), func(b *testing.B) {
			w, p := large(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.take(b, fmt.Sprintf(allClusters, i%100+1))
				w.resend(p)
			}
		})
	}
}
