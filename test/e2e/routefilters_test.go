//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"heddle.io/heddle/test/e2e/harness"
)

// A fault of a route is seen by its caller, who goes on without the answer, and by nobody else.
func TestFaultOfOneRoute(t *testing.T) {
	address := shop(t)
	browser := harness.OpenBrowser(t)
	apply(t, `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: no-ads, namespace: pinnacle }
spec:
  hosts: [adservice.pinnacle.svc.cluster.local]
  http:
  - fault: { abort: { grpcStatus: RESOURCE_EXHAUSTED, percentage: { value: 100 } } }
    route: [{ destination: { host: adservice.pinnacle.svc.cluster.local } }]
`)
	harness.Eventually(t, 20*time.Second, "calls of the adservice fail", func() error {
		harness.Walk(t, browser, chromedp.Navigate(address+"/product/rainy-teapot"), chromedp.WaitVisible(chromedp.CSS("#add-to-cart")))
		for _, call := range harness.MeshCalls(t, browser) {
			if call.Service == "adservice" && strings.Contains(call.Status, "ResourceExhausted") {
				return nil
			}
		}
		return fmt.Errorf("calls: %+v", harness.MeshCalls(t, browser))
	})
	for _, call := range harness.MeshCalls(t, browser) {
		if call.Service != "adservice" && call.Status != "OK" && call.Status != "200" {
			t.Errorf("another call failed too: %+v", call)
		}
	}
}

// The ingress gateway answers preflight requests itself, and marks the application's answers.
func TestCORSAtTheIngress(t *testing.T) {
	address := shop(t)
	apply(t, `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: api, namespace: pinnacle }
spec:
  hosts: [api.example.com]
  gateways: [frontend-gateway]
  http:
  - corsPolicy:
      allowOrigins: [{ exact: "https://shop.example.com" }]
      allowMethods: [GET, PUT]
      maxAge: 60s
    route: [{ destination: { host: frontend.pinnacle.svc.cluster.local, port: { number: 80 } } }]
`)
	ask := func(method, origin string) (int, http.Header, error) {
		request, err := http.NewRequestWithContext(t.Context(), method, address+"/", nil)
		if err != nil {
			return 0, nil, err
		}
		request.Host = "api.example.com"
		request.Header.Set("Origin", origin)
		if method == http.MethodOptions {
			request.Header.Set("Access-Control-Request-Method", "PUT")
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, nil, err
		}
		return answer.StatusCode, answer.Header, answer.Body.Close()
	}
	const allowed = "Access-Control-Allow-Origin"
	harness.Eventually(t, 20*time.Second, "a preflight's answer", func() error {
		status, h, err := ask(http.MethodOptions, "https://shop.example.com")
		if err != nil {
			return err
		}
		if status != 200 || h.Get(allowed) != "https://shop.example.com" ||
			h.Get("Access-Control-Allow-Methods") != "GET,PUT" || h.Get("Access-Control-Max-Age") != "60" {
			return fmt.Errorf("%d %v", status, h)
		}
		return nil
	})
	for origin, want := range map[string]string{
		"https://shop.example.com":  "https://shop.example.com",
		"https://other.example.com": "",
	} {
		status, h, err := ask(http.MethodGet, origin)
		if err != nil {
			t.Fatal(err)
		}
		if status != 200 || h.Get(allowed) != want {
			t.Errorf("%s: %d, %s %q; want %q", origin, status, allowed, h.Get(allowed), want)
		}
	}
}
