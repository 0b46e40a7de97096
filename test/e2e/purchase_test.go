//go:build e2e

package e2e

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

// The whole product: a browser buys two products; the order is in checkout's log, the cart was in Redis, and every call
// of the footer has an identity.
func TestBrowserBuysTwoProducts(t *testing.T) {
	browser := harness.OpenBrowser(t)
	address := shop(t)
	harness.Walk(t, browser, chromedp.Navigate(address+"/product/potted-fern"), chromedp.Click(chromedp.CSS("#add-to-cart")), chromedp.WaitVisible(chromedp.CSS("#go-to-checkout")))
	redis := here.ReplicaOf(t, "redis-cart")
	keys, err := redis.InNetwork("redis-cli", "--scan")
	if err != nil {
		t.Fatalf("%v: %s", err, keys)
	}
	if strings.TrimSpace(keys) == "" {
		t.Error("Redis holds no cart although the browser put a product into one")
	}
	harness.Walk(t, browser, chromedp.Navigate(address+"/cart"), chromedp.Click(chromedp.CSS("#empty-cart")), chromedp.WaitVisible(chromedp.CSS("#cart-empty")))

	bought := harness.Buy(t, browser, address, "rainy-teapot", "speckled-mug")
	harness.Screenshot(t, browser, "order")
	if !strings.HasPrefix(bought.Number, "LS-") {
		t.Errorf("order number %q", bought.Number)
	}
	harness.Eventually(t, 10*time.Second, "order "+bought.Number+" in checkout's log", func() error {
		if log := must(t, "logs", "checkoutservice", "-n", harness.ShopSpace); !strings.Contains(log, bought.Number) {
			return fmt.Errorf("not in the log:\n%.2000s", log)
		}
		return nil
	})
	if len(bought.Calls) < 5 {
		t.Errorf("the footer lists %d calls: %+v", len(bought.Calls), bought.Calls)
	}
	for _, call := range bought.Calls {
		if call.Service == "frontend" {
			continue // The visitor has no identity; the gateway's call to the frontend is the page itself.
		}
		if !strings.HasPrefix(call.Client, meshIdentity) || !strings.HasPrefix(call.Server, meshIdentity) {
			t.Errorf("call without identities: %+v", call)
		}
	}
	harness.Walk(t, browser, chromedp.Navigate(address+"/"), chromedp.WaitVisible(chromedp.CSS("[data-testid=shelf]")))
	harness.Screenshot(t, browser, "shop")
}

// What Istio's dashboards read must be there, with the identities of both ends.
func TestIstioMetricsNameBothEnds(t *testing.T) {
	status, _, err := harness.Fetch(shop(t) + "/")
	if err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	harness.Eventually(t, 15*time.Second, "istio_requests_total of the product catalogue", func() error {
		stats := here.ReplicaOf(t, "productcatalogservice").ProxyStats(t)
		for line := range strings.Lines(stats) {
			if strings.HasPrefix(line, "istio_requests_total{") && strings.Contains(line, `reporter="destination"`) &&
				strings.Contains(line, `source_principal="spiffe://cluster.local/ns/pinnacle/sa/frontend"`) && strings.Contains(line, `connection_security_policy="mutual_tls"`) &&
				strings.Contains(line, `destination_service="productcatalogservice.pinnacle.svc.cluster.local"`) {
				return nil
			}
		}
		return fmt.Errorf("no such series in\n%.3000s", harness.OnlyLines(stats, "istio_requests_total"))
	})
}

// afterName is the rest of the line that a name stands in.
func afterName(text, name string) string {
	_, rest, _ := strings.Cut(text, name)
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// checkoutservice's sidecar becomes a stock Envoy, driven by the same controller; an order passes through it.
func TestStockEnvoyAsSidecar(t *testing.T) {
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("HEDDLE_TEST_ENVOY: %v; make test-e2e sets it", err)
	}
	t.Cleanup(func() {
		must(t, "apply", "-f", "../../demo/boutique/manifests/")
		must(t, "check")
	})
	here.SetProxy(t, "checkoutservice", envoy)
	harness.Eventually(t, 60*time.Second, "checkoutservice behind Envoy", func() error {
		r := here.ReplicaOf(t, "checkoutservice")
		program, err := r.ProxyProgram()
		if err != nil {
			return err
		}
		if !strings.HasSuffix(program, "/envoy") || r.State.Phase != "Ready" {
			return fmt.Errorf("proxy is %s, phase %s", program, r.State.Phase)
		}
		return nil
	})
	// Envoy refuses plaintext as our proxy does, by the same counter.
	if out := must(t, "check"); !strings.Contains(afterName(out, "checkoutservice-0 plaintext"), "the proxy counted it as refused") {
		t.Errorf("plaintext to a stock Envoy:\n%s", out)
	}
	bought := harness.Buy(t, harness.OpenBrowser(t), shop(t), "heron-lamp")
	if log := must(t, "logs", "checkoutservice", "-n", harness.ShopSpace); !strings.Contains(log, bought.Number) {
		t.Errorf("order %s is not in checkout's log", bought.Number)
	}
	for _, call := range bought.Calls {
		if call.Service == "checkoutservice" && call.Client != meshIdentity+"frontend" {
			t.Errorf("Envoy saw %q as checkout's client", call.Client)
		}
	}
}
