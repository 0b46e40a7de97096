//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// pages are two workloads that say which they are, and one that speaks TLS itself, in place of its certificate and key.
const pages = `apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: v1
kind: Namespace
metadata: { name: team, labels: { shared: "yes" } }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: one, namespace: shop, labels: { app: one } }
spec:
  command: [sh, -c, "mkdir -p /tmp/w/deep && cd /tmp/w && echo one > index.html && echo one deep > deep/index.html && exec python3 -m http.server 8080"]
  ports: [{ name: http, port: 8080 }]
  readiness: { tcp: { port: 8080 } }
---
apiVersion: v1
kind: Service
metadata: { name: one, namespace: shop }
spec: { selector: { app: one }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: two, namespace: team, labels: { app: two } }
spec:
  command: [sh, -c, "mkdir -p /tmp/w && cd /tmp/w && echo two > index.html && exec python3 -m http.server 8080"]
  ports: [{ name: http, port: 8080 }]
  readiness: { tcp: { port: 8080 } }
---
apiVersion: v1
kind: Service
metadata: { name: two, namespace: team }
spec: { selector: { app: two }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: bank, namespace: shop, labels: { app: bank } }
spec:
  command: [sh, -c, "echo \"$PAIR\" > /tmp/pair.pem && exec openssl s_server -accept 8443 -cert /tmp/pair.pem -key /tmp/pair.pem -quiet -www"]
  env:
  - name: PAIR
    value: |
%s
  ports: [{ name: tls, port: 8443 }]
  readiness: { tcp: { port: 8443 } }
---
apiVersion: v1
kind: Service
metadata: { name: bank, namespace: shop }
spec: { selector: { app: bank }, ports: [{ name: tls, port: 443, targetPort: 8443 }] }
---
apiVersion: v1
kind: Secret
metadata: { name: edge, namespace: shop }
type: kubernetes.io/tls
stringData:
  tls.crt: |
%s
  tls.key: |
%s
`

const pageRoutes = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: edge, namespace: shop }
spec:
  gatewayClassName: heddle
  listeners:
  - name: http
    port: 80
    protocol: HTTP
    hostname: "*.example.com"
    allowedRoutes: { namespaces: { from: Selector, selector: { matchLabels: { shared: "yes" } } } }
  - { name: own, port: 80, protocol: HTTP, hostname: one.example.com }
  - name: https
    port: 443
    protocol: HTTPS
    hostname: one.example.com
    tls: { certificateRefs: [{ name: edge }] }
  - { name: tls, port: 443, protocol: TLS, hostname: bank.example.com, tls: { mode: Passthrough } }
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: one, namespace: shop }
spec:
  parentRefs: [{ name: edge }]
  rules:
  - matches: [{ path: { value: /sub } }]
    filters:
    - { type: URLRewrite, urlRewrite: { path: { type: ReplacePrefixMatch, replacePrefixMatch: / } } }
    - { type: ResponseHeaderModifier, responseHeaderModifier: { set: [{ name: x-rule, value: "100%" }] } }
    backendRefs: [{ name: one, port: 80 }]
  - matches: [{ headers: [{ name: x-to, value: two }] }]
    backendRefs: [{ name: two, namespace: team, port: 80 }]
  - matches: [{ path: { type: Exact, value: /away } }]
    filters: [{ type: RequestRedirect, requestRedirect: { scheme: https, statusCode: 301 } }]
  - backendRefs: [{ name: one, port: 80 }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: two, namespace: team }
spec:
  parentRefs: [{ name: edge, namespace: shop }]
  hostnames: [two.example.com, one.example.com]
  rules:
  - backendRefs: [{ name: two, port: 80 }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: { name: bank, namespace: shop }
spec:
  parentRefs: [{ name: edge, sectionName: tls }]
  hostnames: [bank.example.com]
  rules:
  - backendRefs: [{ name: bank, port: 443 }]
`

const pageGrant = `apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: { name: shop, namespace: team }
spec:
  from: [{ group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop }]
  to: [{ group: "", kind: Service, name: two }]
`

// edgeAnswer is what came of a request to the ingress of an isolated cluster.
type edgeAnswer struct {
	status  int
	body    string
	headers http.Header
	names   []string
}

// askEdge asks the ingress of a cluster for a host's path.
func askEdge(t *testing.T, address, scheme, host, path string, headers ...string) (edgeAnswer, error) {
	t.Helper()
	dial := net.JoinHostPort(address, map[string]string{"http": "80", "https": "443"}[scheme])
	client := &http.Client{
		Timeout:       5 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, dial)
			},
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host},
		},
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+host+path, nil)
	if err != nil {
		return edgeAnswer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := client.Do(request)
	if err != nil {
		return edgeAnswer{}, err
	}
	body, err := io.ReadAll(answer.Body)
	out := edgeAnswer{status: answer.StatusCode, body: strings.TrimSpace(string(body)), headers: answer.Header}
	if answer.TLS != nil {
		out.names = answer.TLS.PeerCertificates[0].DNSNames
	}
	return out, errors.Join(err, answer.Body.Close())
}

// Requests come in through HTTPRoutes by host, path and header, and TLS connections through a TLSRoute with the
// application's own certificate, behind a gateway of heddle-proxy and behind a stock Envoy.
func TestGatewayAPI(t *testing.T) {
	bothGateways(t, gatewayAPI)
}

func gatewayAPI(t *testing.T, flags []string) {
	const name = "e2e-gateway-api"
	c := harness.Cluster(name)
	t.Cleanup(func() { must(t, "down", "--name", name) })
	must(t, append([]string{"up", "--name", name, "--isolated"}, flags...)...)
	bank, bankKey, _ := keyPair(t, "bank.example.com")
	edge, edgeKey, _ := keyPair(t, "one.example.com")
	write := func(manifest string) {
		t.Helper()
		c.Must(t, "apply", "-f", harness.WriteFile(t, manifest), "--cluster", name)
	}
	write(fmt.Sprintf(pages, "  "+strings.ReplaceAll(indent(bank+bankKey), "\n", "\n  "), indent(edge), indent(edgeKey)))
	write(pageRoutes)
	address := c.Address(t).String()

	eventually := func(what, scheme, host, path string, want func(edgeAnswer) bool, headers ...string) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, what, func() error {
			got, err := askEdge(t, address, scheme, host, path, headers...)
			if err == nil && !want(got) {
				err = fmt.Errorf("%d %q %v %v", got.status, got.body, got.headers, got.names)
			}
			return err
		})
	}
	says := func(status int, body string) func(edgeAnswer) bool {
		return func(a edgeAnswer) bool { return a.status == status && (body == "" || a.body == body) }
	}
	eventually("a host of a listener of its own", "http", "one.example.com", "/", says(200, "one"))
	eventually("a host of another namespace", "http", "two.example.com", "/", says(200, "two"))
	eventually("the same host over TLS", "https", "one.example.com", "/", func(a edgeAnswer) bool {
		return says(200, "one")(a) && len(a.names) == 1 && a.names[0] == "one.example.com"
	})
	eventually("TLS that is passed through", "https", "bank.example.com", "/", func(a edgeAnswer) bool {
		return a.status == 200 && len(a.names) == 1 && a.names[0] == "bank.example.com"
	})
	eventually("a prefix that is taken away", "http", "one.example.com", "/sub/deep/", func(a edgeAnswer) bool {
		return says(200, "one deep")(a) && a.headers.Get("x-rule") == "100%"
	})
	eventually("a whole path that is taken away", "http", "one.example.com", "/sub", says(200, "one"))
	eventually("a path that only begins alike", "http", "one.example.com", "/subway", says(404, ""))
	eventually("a redirect", "http", "one.example.com", "/away", func(a edgeAnswer) bool {
		return a.status == 301 && a.headers.Get("Location") == "https://one.example.com/away"
	})
	eventually("a host that nobody has routes for", "http", "three.example.com", "/", says(404, ""))
	eventually("a backend of another namespace without a grant", "http", "one.example.com", "/", says(500, ""), "x-to", "two")
	write(pageGrant)
	eventually("a backend of another namespace", "http", "one.example.com", "/", says(200, "two"), "x-to", "two")

	// What is said of the objects is the API's.
	harness.Eventually(t, 30*time.Second, "statuses", func() error {
		out, err := c.Heddle("get", "gateways.gateway.networking.k8s.io", "edge", "-n", "shop", "-o", "yaml")
		if err != nil {
			return err
		}
		if strings.Count(out, "type: Programmed") != 5 || strings.Contains(out, `status: "Unknown"`) || strings.Count(out, "attachedRoutes: 1") != 4 {
			return errors.New(out)
		}
		return nil
	})
	harness.Eventually(t, 30*time.Second, "the route's status", func() error {
		out, err := c.Heddle("get", "httproute", "one", "-n", "shop", "-o", "yaml")
		if err == nil && (!strings.Contains(out, "controllerName: heddle.io/gateway-controller") || strings.Contains(out, `status: "False"`)) {
			err = errors.New(out)
		}
		return err
	})
	// Without the route nothing is served any more.
	c.Must(t, "delete", "tlsroute", "bank", "-n", "shop")
	harness.Eventually(t, 30*time.Second, "the bank is gone", func() error {
		if got, err := askEdge(t, address, "https", "bank.example.com", "/"); err == nil {
			return fmt.Errorf("answered %d", got.status)
		}
		return nil
	})
}
