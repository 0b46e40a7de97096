package push

import (
	"fmt"
	"testing"
)

// envoyFilter is an EnvoyFilter with one patch.
func envoyFilter(namespace, name, selector, patch string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: %s, namespace: %s}\nspec: {%s configPatches: [%s]}\n", name, namespace, selector, patch)
}

// root is the namespace whose filters are for all proxies.
const root = "istio-system"

func selects(app string) string { return fmt.Sprintf("workloadSelector: {labels: {app: %s}},", app) }

// timeout is a patch of a service's cluster; of all clusters without one.
func timeout(service int, seconds int) string {
	of := ""
	if service >= 0 {
		of = fmt.Sprintf(", cluster: {service: s-%d.%s.svc.cluster.local}", service, benchSpace(service))
	}
	return fmt.Sprintf("{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND%s}, patch: {operation: MERGE, value: {connect_timeout: %ds}}}", of, seconds)
}

// early is a patch of a service's routes.
func early(service int) string {
	return fmt.Sprintf("{applyTo: HTTP_ROUTE, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: 's-%d.%s.svc.cluster.local:80'}}}, "+
		"patch: {operation: INSERT_FIRST, value: {name: early, match: {path: /early}, direct_response: {status: 418}}}}", service, benchSpace(service))
}

// BenchmarkFilters is an EnvoyFilter's change, until all that it makes is in the groups of a hundred proxies: its patch of one cluster
// for one workload, that filter coming and going, and a patch of every cluster of all proxies.
func BenchmarkFilters(b *testing.B) {
	for _, n := range sizes {
		change := func(what string, text func(i int) string) {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
				w, p := large(b, n)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					w.take(b, text(i))
					w.resend(p)
				}
			})
		}
		change("change", func(i int) string { return envoyFilter(benchSpace(7), "f", selects("s-7"), timeout(9, i%100+1)) })
		change("come-and-go", func(i int) string {
			return envoyFilter(benchSpace(7), "f", selects([]string{"s-7", "s-none"}[i%2]), timeout(9, 3))
		})
		change("every-cluster", func(i int) string { return envoyFilter(root, "f", "", timeout(-1, i%100+1)) })
	}
}

// BenchmarkManyFilters is one change among so many EnvoyFilters, in a mesh of a thousand services and a hundred proxies: of a
// VirtualService beside patches of all services' routes, of one filter among those of all services' clusters, and of the one that is
// for every cluster where each workload has one of its own, too.
func BenchmarkManyFilters(b *testing.B) {
	const services = 1000
	for _, n := range []int{1, 100, 1000} {
		among := func(what string, each func(i int) string, change func(w *town, i int)) {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
				w, p := large(b, services)
				for i := range n {
					w.take(b, each(i))
				}
				w.resend(p)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					change(w, i)
					w.resend(p)
				}
			})
		}
		among("routes", func(i int) string { return envoyFilter(root, fmt.Sprintf("f-%d", i), "", early(i)) },
			func(w *town, i int) { w.routes(b, i) })
		among("one-of", func(i int) string { return envoyFilter(root, fmt.Sprintf("f-%d", i), "", timeout(i, 1)) },
			func(w *town, i int) { w.take(b, envoyFilter(root, "f-0", "", timeout(0, i%100+2))) })
		if n > benchProxies {
			continue
		}
		among("own-and-all", func(i int) string {
			return envoyFilter(benchSpace(i), fmt.Sprintf("f-%d", i), selects(fmt.Sprintf("s-%d", i)), timeout(i, 1))
		}, func(w *town, i int) { w.take(b, envoyFilter(root, "f", "", timeout(-1, i%100+1))) })
	}
}
