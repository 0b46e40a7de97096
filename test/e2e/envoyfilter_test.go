//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/test/e2e/harness"
)

// rateLimit is the example of Istio's documentation, for the shop's pages, and beside it a patch that matches nothing.
const rateLimit = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: { name: filter-local-ratelimit-svc, namespace: pinnacle }
spec:
  workloadSelector: { labels: { app: frontend } }
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_INBOUND
      listener: { filterChain: { filter: { name: envoy.filters.network.http_connection_manager } } }
    patch:
      operation: INSERT_BEFORE
      value:
        name: envoy.filters.http.local_ratelimit
        typed_config:
          "@type": type.googleapis.com/udpa.type.v1.TypedStruct
          type_url: type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
          value:
            stat_prefix: http_local_rate_limiter
            token_bucket: { max_tokens: 4, tokens_per_fill: 4, fill_interval: 3600s }
            filter_enabled: { runtime_key: local_rate_limit_enabled, default_value: { numerator: 100, denominator: HUNDRED } }
            filter_enforced: { runtime_key: local_rate_limit_enforced, default_value: { numerator: 100, denominator: HUNDRED } }
            response_headers_to_add:
            - append_action: OVERWRITE_IF_EXISTS_OR_ADD
              header: { key: x-local-rate-limit, value: "true" }
  - applyTo: CLUSTER
    match: { context: SIDECAR_OUTBOUND, cluster: { service: nowhere.example.com } }
    patch: { operation: MERGE, value: { connect_timeout: 1s } }
`

// A limit that is put into a sidecar by an EnvoyFilter holds, is gone with it, and the status names the patch that changes
// nothing.
func TestLocalRateLimitByEnvoyFilter(t *testing.T) {
	bothProxies(t, func(t *testing.T) {
		address := shop(t)
		ask := func() (int, string, error) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/_healthz", nil)
			if err != nil {
				return 0, "", err
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return 0, "", err
			}
			return answer.StatusCode, answer.Header.Get("X-Local-Rate-Limit"), answer.Body.Close()
		}
		// Connections that were begun before a change go on as they were for a while.
		steady := func(what string, want int, header string) {
			t.Helper()
			harness.Eventually(t, 60*time.Second, what, func() error {
				for i := range 20 {
					status, got, err := ask()
					if err != nil {
						return fmt.Errorf("request %d: %w", i, err)
					}
					if status != want || got != header {
						return fmt.Errorf("request %d: status %d, header %q", i, status, got)
					}
				}
				return nil
			})
		}
		apply(t, rateLimit)
		steady("requests above the limit are refused", http.StatusTooManyRequests, "true")
		harness.Eventually(t, 30*time.Second, "the status names the patch that changes nothing", func() error {
			out := must(t, "get", "envoyfilter", "filter-local-ratelimit-svc", "-n", "pinnacle", "-o", "yaml")
			if !strings.Contains(out, "path: spec.configPatches[1]") || !strings.Contains(out, "changes nothing in any connected proxy") ||
				strings.Contains(out, "path: spec.configPatches[0]") || !strings.Contains(out, "reason: Programmed") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		// It goes for good when the test is over.
		withoutPatches, _, _ := strings.Cut(rateLimit, "  configPatches:")
		must(t, "apply", "-f", harness.WriteFile(t, withoutPatches+"  priority: 1\n"))
		steady("requests are answered without the limit", http.StatusOK, "")
	})
}

// What a proxy refuses that a patch put into it is told with the EnvoyFilter, and it goes on with what it had.
func TestEnvoyFilterThatAProxyRefuses(t *testing.T) {
	address := shop(t)
	t.Cleanup(func() { must(t, "check", "--wait", "90s") })
	apply(t, `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: { name: lua, namespace: pinnacle }
spec:
  workloadSelector: { labels: { app: frontend } }
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_INBOUND
      listener: { filterChain: { filter: { name: envoy.filters.network.http_connection_manager } } }
    patch:
      operation: INSERT_FIRST
      value:
        name: lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: { inline_string: "function envoy_on_request(h) end" }
`)
	harness.Eventually(t, 30*time.Second, "the status says who refused it", func() error {
		out := must(t, "get", "envoyfilter", "lua", "-n", "pinnacle", "-o", "yaml")
		if !strings.Contains(out, "reason: Refused") || !strings.Contains(out, "pinnacle/frontend-0 refused") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	answer, err := http.Get(address + "/_healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("the shop answers %s", answer.Status)
	}
}

// A cluster that a sidecar refuses is missing alone: the sidecar starts, and serves with the others.
func TestSidecarStartsWithoutTheClusterThatItRefuses(t *testing.T) {
	address := shop(t)
	t.Cleanup(func() { must(t, "check", "--wait", "90s") })
	apply(t, `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: { name: maglev, namespace: pinnacle }
spec:
  workloadSelector: { labels: { app: frontend } }
  configPatches:
  - applyTo: CLUSTER
    match: { context: SIDECAR_OUTBOUND, cluster: { service: adservice.pinnacle.svc.cluster.local } }
    patch: { operation: MERGE, value: { lb_policy: MAGLEV } }
`)
	harness.Eventually(t, 30*time.Second, "the status says who refused what", func() error {
		out := must(t, "get", "envoyfilter", "maglev", "-n", "pinnacle", "-o", "yaml")
		if !strings.Contains(out, "pinnacle/frontend-0 refused") || !strings.Contains(out, "adservice.pinnacle.svc.cluster.local].lb_policy:") {
			return errors.New(out)
		}
		return nil
	})
	before := here.ReplicaOf(t, "frontend")
	kill(t, before.State.ProxyPID)
	harness.Eventually(t, 20*time.Second, "another sidecar", func() error {
		if now := here.ReplicaOf(t, "frontend").State; now.Phase != "Ready" || now.ProxyPID == before.State.ProxyPID {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	harness.Eventually(t, 10*time.Second, "the shop", harness.Works(address+"/"))
	var proxies []client.ProxyStatus
	if err := json.Unmarshal([]byte(must(t, "proxy", "status", "-o", "json")), &proxies); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, proxy := range proxies {
		if proxy.Namespace == before.Namespace && proxy.Name == before.State.Name {
			states = proxy.Types
		}
	}
	if states["CDS"] != "NACK" || states["LDS"] != "SYNCED" || states["EDS"] != "SYNCED" {
		t.Errorf("the new sidecar's configuration: %v", states)
	}
}

// answersItself has the ingress gateway answer every request itself.
const answersItself = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: edge, namespace: default }
spec:
  selector: { istio: ingressgateway }
  servers: [{ port: { number: 80, name: http, protocol: HTTP }, hosts: ["*"] }]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: edge, namespace: default }
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{ directResponse: { status: 200 } }]
`

// A hundred expressions that an EnvoyFilter puts into the ingress gateway, written as they came, each refuse the cookies that
// they describe and no others.
func TestRulesForCookies(t *testing.T) {
	bothGateways(t, rulesForCookies)
	t.Run("Hyperscan", func(t *testing.T) { rulesForCookies(t, []string{"--regex-engine", "hyperscan"}) })
}

func rulesForCookies(t *testing.T, flags []string) {
	const name = "e2e-cookie-rules"
	c := harness.Cluster(name)
	t.Cleanup(func() { must(t, "down", "--name", name) })
	must(t, append([]string{"up", "--name", name, "--isolated"}, flags...)...)
	address := c.Address(t).String()
	expect := func(cookie string, want int) error {
		got, err := askEdge(t, address, "http", "shop.example.com", "/", "Cookie", cookie)
		if err == nil && got.status != want {
			err = fmt.Errorf("cookie %q: status %d, want %d", cookie, got.status, want)
		}
		return err
	}
	malformed := func(first, second int) string {
		return fmt.Sprintf("session=1; note=malform%02d and req%02d; theme=dark", first, second)
	}
	c.Must(t, "apply", "-f", harness.WriteFile(t, answersItself), "--cluster", name)
	harness.Eventually(t, 60*time.Second, "without rules every cookie is taken", func() error {
		return expect(malformed(42, 42), http.StatusOK)
	})
	c.Must(t, "apply", "-f", "../fixtures/envoyfilter-rbac-hyperscan.yaml", "--cluster", name)
	harness.Eventually(t, 60*time.Second, "a malformed cookie is refused", func() error {
		return expect(malformed(42, 42), http.StatusForbidden)
	})
	for i := range 100 {
		if err := errors.Join(
			expect(malformed(i, i), http.StatusForbidden),
			expect(malformed(i, (i+1)%100), http.StatusOK),
			// Far more first words than any engine but the portable one is to find.
			expect(strings.Repeat(fmt.Sprintf("malform%02d", (i+1)%100), 100)+fmt.Sprintf(" req%02d", i), http.StatusOK),
		); err != nil {
			t.Error(err)
		}
	}
	for cookie, want := range map[string]int{
		"":                            http.StatusOK,
		"session=1; theme=dark":       http.StatusOK,
		"malform07request07":          http.StatusOK, // Nothing is between the words.
		"malform07;request07":         http.StatusForbidden,
		"a=req07 malform07":           http.StatusOK,
		"a=malform07 reques07":        http.StatusOK,
		"a=malform07 malform99 req99": http.StatusForbidden,
	} {
		if err := expect(cookie, want); err != nil {
			t.Error(err)
		}
	}
}
