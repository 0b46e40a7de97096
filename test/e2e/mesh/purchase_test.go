//go:build e2e

package mesh

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"heddle.io/heddle/test/e2e/harness"
)

const meshIdentity = "spiffe://cluster.local/ns/pinnacle/sa/"

// bought has a browser buy a product and proves the order: its number is in the log of the primary's checkoutservice.
func bought(t *testing.T, products ...string) harness.Order {
	t.Helper()
	order := harness.Buy(t, harness.OpenBrowser(t), shop(t), products...)
	if !strings.HasPrefix(order.Number, "LS-") {
		t.Errorf("order number %q", order.Number)
	}
	harness.Eventually(t, 10*time.Second, "order "+order.Number+" in the log of cluster1's checkoutservice", func() error {
		if log := primary.Must(t, "logs", "checkoutservice", "-n", harness.ShopSpace); !strings.Contains(log, order.Number) {
			return fmt.Errorf("not in the log:\n%.2000s", log)
		}
		return nil
	})
	return order
}

// The product's main job: a browser buys in a shop whose services run in two clusters.
func TestBrowserBuysAcrossClusters(t *testing.T) {
	browser, address := harness.OpenBrowser(t), shop(t)
	harness.Walk(t, browser, chromedp.Navigate(address+"/product/potted-fern"), chromedp.Click(chromedp.CSS("#add-to-cart")), chromedp.WaitVisible(chromedp.CSS("#go-to-checkout")))
	keys, err := member.ReplicaOf(t, "redis-cart").InNetwork("redis-cli", "--scan")
	if err != nil || strings.TrimSpace(keys) == "" {
		t.Errorf("cluster2's Redis holds no cart although the browser put a product into one: %q, %v", keys, err)
	}
	order := bought(t, "rainy-teapot", "speckled-mug")
	clusters := map[string]bool{}
	for _, call := range order.Calls {
		if call.Service == "frontend" {
			continue // The visitor has no identity; the gateway's call to the frontend is the page itself.
		}
		if !strings.HasPrefix(call.Client, meshIdentity) || !strings.HasPrefix(call.Server, meshIdentity) {
			t.Errorf("call without identities: %+v", call)
		}
		clusters[call.ServerCluster] = true
		if call.Service == "checkoutservice" && (call.ClientCluster != "cluster2" || call.ServerCluster != "cluster1") {
			t.Errorf("the call from the frontend to checkout should go from cluster2 to cluster1: %+v", call)
		}
	}
	if !clusters["cluster1"] || !clusters["cluster2"] {
		t.Errorf("the footer does not show both clusters: %v in %+v", clusters, order.Calls)
	}
}

// series finds a metric line with all parts.
func series(stats, name string, parts ...string) bool {
	for line := range strings.Lines(stats) {
		found := strings.HasPrefix(line, name+"{")
		for _, p := range parts {
			found = found && strings.Contains(line, p)
		}
		if found {
			return true
		}
	}
	return false
}

// Both ends of a call between clusters count it, with both identities, both clusters and mutual TLS.
func TestMetricsAcrossClusters(t *testing.T) {
	bought(t, "heron-lamp")
	for _, c := range []struct {
		cluster  harness.Cluster
		workload string
		parts    []string
	}{
		{primary, "checkoutservice", []string{`reporter="destination"`, `source_workload="frontend"`, `source_cluster="cluster2"`, `destination_cluster="cluster1"`,
			`source_principal="` + meshIdentity + `frontend"`, `connection_security_policy="mutual_tls"`}},
		{member, "frontend", []string{`reporter="source"`, `destination_service="checkoutservice.pinnacle.svc.cluster.local"`, `source_cluster="cluster2"`, `destination_cluster="cluster1"`,
			`destination_principal="` + meshIdentity + `checkoutservice"`}},
		{member, "cartservice", []string{`reporter="destination"`, `source_workload="checkoutservice"`, `source_cluster="cluster1"`, `destination_cluster="cluster2"`,
			`source_principal="` + meshIdentity + `checkoutservice"`, `connection_security_policy="mutual_tls"`}},
	} {
		harness.Eventually(t, 15*time.Second, "metrics of "+c.workload, func() error {
			stats := c.cluster.ReplicaOf(t, c.workload).ProxyStats(t)
			if !series(stats, "istio_requests_total", c.parts...) {
				return fmt.Errorf("no series with %v in\n%.4000s", c.parts, harness.OnlyLines(stats, "istio_requests_total"))
			}
			return nil
		})
	}
}

// The shop's manifests of the published procedures, as they are, beside the workloads.
func TestFixturesApplyUnchanged(t *testing.T) {
	const fixtures = "../../fixtures/"
	t.Cleanup(func() { harness.Cluster("").Must(t, "apply", "-f", harness.Split); checked(t) })
	primary.Must(t, "apply", "--cluster", string(primary), "-f", fixtures+"boutique/cluster1-services.yaml", "-f", fixtures+"istio-strict-mtls.yaml")
	member.Must(t, "apply", "--cluster", string(member), "-f", fixtures+"boutique/cluster2-services.yaml", "-f", fixtures+"boutique/cluster2-gateway.yaml", "-f", fixtures+"istio-strict-mtls.yaml")
	checked(t)
	bought(t, "rainy-teapot")
}

// Stock Envoys as sidecars on both sides of a call between clusters.
func TestStockEnvoyAsSidecarOnBothSides(t *testing.T) {
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("HEDDLE_TEST_ENVOY: %v; make test-e2e sets it", err)
	}
	t.Cleanup(func() { harness.Cluster("").Must(t, "apply", "-f", harness.Split); checked(t) })
	for _, side := range []struct {
		cluster  harness.Cluster
		workload string
	}{{primary, "checkoutservice"}, {member, "frontend"}} {
		side.cluster.SetProxy(t, side.workload, envoy)
		harness.Eventually(t, 60*time.Second, side.workload+" behind Envoy", func() error {
			r := side.cluster.ReplicaOf(t, side.workload)
			program, err := r.ProxyProgram()
			if err == nil && (!strings.HasSuffix(program, "/envoy") || r.State.Phase != "Ready") {
				err = fmt.Errorf("proxy is %s, phase %s", program, r.State.Phase)
			}
			return err
		})
	}
	order := bought(t, "heron-lamp")
	for _, call := range order.Calls {
		if call.Service == "checkoutservice" && call.Client != meshIdentity+"frontend" {
			t.Errorf("Envoy saw %q as checkout's client", call.Client)
		}
	}
}
