//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// What a CUSTOM policy matches is decided by its provider, which here is the shop itself: it finds a product, and does not
// find another one. What it does not match is decided by nobody.
func TestCustomPolicies(t *testing.T) {
	address := shop(t)
	apply(t, `apiVersion: v1
kind: ConfigMap
metadata: { name: istio, namespace: istio-system }
data:
  mesh: |
    extensionProviders:
    - name: finds
      envoyExtAuthzHttp:
        service: frontend.pinnacle.svc.cluster.local
        port: 80
        pathPrefix: "/product/rainy-teapot?"
    - name: does-not-find
      envoyExtAuthzHttp:
        service: pinnacle/frontend.pinnacle.svc.cluster.local
        port: 80
        pathPrefix: "/product/no-such-product?"
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: yes, namespace: istio-system }
spec:
  selector: { matchLabels: { istio: ingressgateway } }
  action: CUSTOM
  provider: { name: finds }
  rules: [{ when: [{ key: "request.headers[x-ask]", values: ["yes"] }] }]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: not-found, namespace: istio-system }
spec:
  selector: { matchLabels: { istio: ingressgateway } }
  action: CUSTOM
  provider: { name: does-not-find }
  rules: [{ when: [{ key: "request.headers[x-ask]", values: ["no"] }] }]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: nobody, namespace: istio-system }
spec:
  selector: { matchLabels: { istio: ingressgateway } }
  action: CUSTOM
  provider: { name: nobody }
  rules: [{ when: [{ key: "request.headers[x-ask]", values: ["nobody"] }] }]
`)
	ask := func(whom string) (int, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/", nil)
		if err != nil {
			return 0, err
		}
		if whom != "" {
			request.Header.Set("X-Ask", whom)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	for _, c := range []struct {
		whom string
		want int
	}{{"no", http.StatusNotFound}, {"nobody", http.StatusForbidden}, {"yes", http.StatusOK}, {"", http.StatusOK}} {
		harness.Eventually(t, 20*time.Second, fmt.Sprintf("an answer to a request that asks %q", c.whom), func() error {
			status, err := ask(c.whom)
			if err == nil && status != c.want {
				return fmt.Errorf("status %d, want %d", status, c.want)
			}
			return err
		})
	}
}
