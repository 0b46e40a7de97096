//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

const meshIdentity = "spiffe://cluster.local/ns/pinnacle/sa/"

// The whole product: a browser buys two products; the order is in checkout's log, the cart was in Redis, and every call
// of the footer has an identity.
func TestBrowserBuysTwoProducts(t *testing.T) {
	browser := openBrowser(t)
	address := shop(t)
	walk(t, browser, chromedp.Navigate(address+"/product/potted-fern"), chromedp.Click(chromedp.CSS("#add-to-cart")), chromedp.WaitVisible(chromedp.CSS("#go-to-checkout")))
	redis := replicaOf(t, "redis-cart")
	keys, err := inNetwork(t, redis, "redis-cli", "--scan")
	if err != nil {
		t.Fatalf("%v: %s", err, keys)
	}
	if strings.TrimSpace(keys) == "" {
		t.Error("Redis holds no cart although the browser put a product into one")
	}
	walk(t, browser, chromedp.Navigate(address+"/cart"), chromedp.Click(chromedp.CSS("#empty-cart")), chromedp.WaitVisible(chromedp.CSS("#cart-empty")))

	bought := buy(t, browser, address, "rainy-teapot", "speckled-mug")
	screenshot(t, browser, "order")
	if !strings.HasPrefix(bought.number, "LS-") {
		t.Errorf("order number %q", bought.number)
	}
	eventually(t, 10*time.Second, "order "+bought.number+" in checkout's log", func() error {
		if log := must(t, "logs", "checkoutservice", "-n", shopSpace); !strings.Contains(log, bought.number) {
			return fmt.Errorf("not in the log:\n%.2000s", log)
		}
		return nil
	})
	if len(bought.calls) < 5 {
		t.Errorf("the footer lists %d calls: %+v", len(bought.calls), bought.calls)
	}
	for _, call := range bought.calls {
		if call.Service == "frontend" {
			continue // The visitor has no identity; the gateway's call to the frontend is the page itself.
		}
		if !strings.HasPrefix(call.Client, meshIdentity) || !strings.HasPrefix(call.Server, meshIdentity) {
			t.Errorf("call without identities: %+v", call)
		}
	}
	walk(t, browser, chromedp.Navigate(address+"/"), chromedp.WaitVisible(chromedp.CSS("[data-testid=shelf]")))
	screenshot(t, browser, "shop")
}

// What Istio's dashboards read must be there, with the identities of both ends.
func TestIstioMetricsNameBothEnds(t *testing.T) {
	status, _, err := fetch(shop(t) + "/")
	if err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	eventually(t, 15*time.Second, "istio_requests_total of the product catalogue", func() error {
		stats := proxyStats(t, replicaOf(t, "productcatalogservice"))
		for line := range strings.Lines(stats) {
			if strings.HasPrefix(line, "istio_requests_total{") && strings.Contains(line, `reporter="destination"`) &&
				strings.Contains(line, `source_principal="spiffe://cluster.local/ns/pinnacle/sa/frontend"`) && strings.Contains(line, `connection_security_policy="mutual_tls"`) &&
				strings.Contains(line, `destination_service="productcatalogservice.pinnacle.svc.cluster.local"`) {
				return nil
			}
		}
		return fmt.Errorf("no such series in\n%.3000s", onlyLines(stats, "istio_requests_total"))
	})
}

// checkoutservice's sidecar becomes a stock Envoy, driven by the same controller; an order passes through it.
func TestStockEnvoyAsSidecar(t *testing.T) {
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("HEDDLE_TEST_ENVOY: %v; make test-e2e sets it", err)
	}
	const workload = "checkoutservice"
	before := must(t, "get", "workload", workload, "-n", shopSpace, "-o", "json")
	var object map[string]any
	if err := json.Unmarshal([]byte(before), &object); err != nil {
		t.Fatal(err)
	}
	metadata := map[string]any{"name": workload, "namespace": shopSpace, "labels": object["metadata"].(map[string]any)["labels"],
		"annotations": map[string]string{"heddle.io/proxy-path": envoy}}
	manifest, err := json.Marshal(map[string]any{"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": metadata, "spec": object["spec"]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		must(t, "apply", "-f", "../../demo/boutique/manifests/")
		must(t, "check", "--wait", "60s")
	})
	must(t, "apply", "-f", writeFile(t, string(manifest)))
	eventually(t, 60*time.Second, "checkoutservice behind Envoy", func() error {
		r := replicaOf(t, "checkoutservice")
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.State.ProxyPID))
		if err != nil {
			return err
		}
		if !strings.HasSuffix(program, "/envoy") || r.State.Phase != "Ready" {
			return fmt.Errorf("proxy is %s, phase %s", program, r.State.Phase)
		}
		return nil
	})
	bought := buy(t, openBrowser(t), shop(t), "heron-lamp")
	if log := must(t, "logs", "checkoutservice", "-n", shopSpace); !strings.Contains(log, bought.number) {
		t.Errorf("order %s is not in checkout's log", bought.number)
	}
	for _, call := range bought.calls {
		if call.Service == "checkoutservice" && call.Client != meshIdentity+"frontend" {
			t.Errorf("Envoy saw %q as checkout's client", call.Client)
		}
	}
}

func onlyLines(text, prefix string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			out.WriteString(line)
		}
	}
	return out.String()
}
