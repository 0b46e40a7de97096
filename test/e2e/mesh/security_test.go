//go:build e2e

package mesh

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// order sends a marker through both clusters: the shop's frontend gives the customer's street to checkout in the other
// cluster, which gives it to shipping and email there. The visitor's own leg to the ingress is plain HTTP by design.
func order(t *testing.T, marker string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	visitor := &http.Client{Jar: jar, Timeout: 20 * time.Second}
	post := func(path string, fields url.Values) string {
		t.Helper()
		response, err := visitor.PostForm(shop(t)+path, fields)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		page, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v: %.2000s", path, response.Status, err, page)
		}
		return string(page)
	}
	post("/cart", url.Values{"product_id": {"rainy-teapot"}, "quantity": {"1"}})
	if page := post("/cart/checkout", form(marker)); !strings.Contains(page, "LS-") {
		t.Fatalf("no order number in\n%.2000s", page)
	}
}

// form is the checkout's.
func form(marker string) url.Values {
	return url.Values{"email": {"someone@example.com"}, "street_address": {marker}, "zip_code": {"94043"}, "city": {"Mountain View"}, "state": {"CA"}, "country": {"United States"},
		"credit_card_number": {"4432801561520454"}, "credit_card_expiration_month": {"1"}, "credit_card_expiration_year": {"2039"}, "credit_card_cvv": {"672"}}
}

// spies are captures on the link between the clusters and on the bridges of their workloads.
type spies map[string]*harness.Capture

func startSpies(t *testing.T) spies {
	t.Helper()
	// The machine itself is the visitor; its leg is left out.
	const filter = "tcp and not host 198.18.0.1"
	return spies{
		"the link":          harness.StartCapture(t, "heddle-wan", filter),
		"cluster1's bridge": harness.StartCaptureIn(t, "heddle-cluster1", "heddle-cluster1", filter),
		"cluster2's bridge": harness.StartCaptureIn(t, "heddle-cluster2", "heddle-cluster2", filter),
	}
}

func (s spies) stop(t *testing.T) map[string][]byte {
	t.Helper()
	seen := map[string][]byte{}
	for where, c := range s {
		seen[where] = c.Stop(t)
	}
	return seen
}

func TestCapturesDoNotSeeTheMarker(t *testing.T) {
	const hidden = "zq7street4hidden"
	watching := startSpies(t)
	order(t, hidden)
	for where, packets := range watching.stop(t) {
		if harness.Saw(packets, hidden) {
			t.Errorf("the marker crossed %s in the clear although mutual TLS is strict", where)
		}
	}
	// The positive controls: with plain text between the workloads of a cluster, the same captures must find a marker;
	// on the link, where nothing but the ingress speaks plain text, a visitor from the other cluster is one.
	harness.Cluster("").Must(t, "apply", "-f", harness.WriteFile(t, plainInside))
	t.Cleanup(func() {
		harness.Cluster("").Must(t, "apply", "-f", harness.Split)
		for _, c := range []harness.Cluster{primary, member} {
			c.Must(t, "delete", "destinationrule", "plain-inside", "-n", harness.ShopSpace)
		}
		checked(t)
	})
	attempt := 0
	harness.Eventually(t, 60*time.Second, "the markers in the clear", func() error {
		attempt++
		street, visitor := fmt.Sprintf("zq7street4shown%d", attempt), fmt.Sprintf("zq7visitor4shown%d", attempt)
		watching := startSpies(t)
		order(t, street)
		if out, err := primary.Inside("curl", "-sS", "--fail", "--max-time", "10", "-o", "/dev/null", shop(t)+"/?q="+visitor); err != nil {
			t.Errorf("visitor from the other cluster: %v: %s", err, out)
		}
		seen := watching.stop(t)
		var missing []error
		for where, marker := range map[string]string{"the link": visitor, "cluster1's bridge": street, "cluster2's bridge": visitor} {
			if !harness.Saw(seen[where], marker) {
				missing = append(missing, fmt.Errorf("the capture on %s does not find the marker, so it proves nothing", where))
			}
		}
		return errors.Join(missing...)
	})
}

// plainInside has checkout speak plain text to its neighbours emailservice and shippingservice, and the frontend to the
// product catalogue.
const plainInside = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: mtls-pinnacle, namespace: pinnacle, labels: { heddle.io/cluster: cluster1 } }
spec: { mtls: { mode: PERMISSIVE } }
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: plain-inside, namespace: pinnacle, labels: { heddle.io/cluster: cluster1 } }
spec:
  host: shippingservice.pinnacle.svc.cluster.local
  trafficPolicy: { tls: { mode: DISABLE } }
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: mtls-pinnacle, namespace: pinnacle, labels: { heddle.io/cluster: cluster2 } }
spec: { mtls: { mode: PERMISSIVE } }
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: plain-inside, namespace: pinnacle, labels: { heddle.io/cluster: cluster2 } }
spec:
  host: productcatalogservice.pinnacle.svc.cluster.local
  trafficPolicy: { tls: { mode: DISABLE } }
`

// A policy of the called cluster may name the caller's cluster: its certificate proves it.
func TestPolicyByCluster(t *testing.T) {
	policy := func(cluster string) string {
		return harness.WriteFile(t, fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: no-calls-from, namespace: pinnacle, labels: { heddle.io/cluster: cluster1 } }
spec:
  selector: { matchLabels: { app: adservice } }
  action: DENY
  rules: [{ when: [{ key: source.cluster, values: [%s] }] }]
`, cluster))
	}
	t.Cleanup(func() { primary.Must(t, "delete", "authorizationpolicy", "no-calls-from", "-n", harness.ShopSpace) })
	ads := func() string {
		_, body, err := harness.Fetch(shop(t) + "/product/rainy-teapot")
		if err != nil {
			return err.Error()
		}
		return afterService(body, "adservice")
	}
	primary.Must(t, "apply", "-f", policy("cluster2"))
	harness.Eventually(t, 20*time.Second, "adservice refuses the other cluster", func() error {
		if row := ads(); !strings.Contains(row, "PermissionDenied") {
			return fmt.Errorf("the footer says %.500s", row)
		}
		return nil
	})
	primary.Must(t, "apply", "-f", policy("cluster1"))
	harness.Eventually(t, 20*time.Second, "adservice answers the other cluster again", func() error {
		if row := ads(); strings.Contains(row, "PermissionDenied") || !strings.Contains(row, "OK") {
			return fmt.Errorf("the footer says %.500s", row)
		}
		return nil
	})
}

// afterService is the row of the footer for a service.
func afterService(page, service string) string {
	_, rest, _ := strings.Cut(page, `data-service="`+service+`"`)
	row, _, _ := strings.Cut(rest, "</tr>")
	return row
}

// Inside of a cluster the other one does not exist: no data, no sockets, no workloads.
func TestClustersDoNotSeeEachOther(t *testing.T) {
	for _, pair := range [][2]harness.Cluster{{primary, member}, {member, primary}} {
		here, other := pair[0], string(pair[1])
		state, err := here.Agent()
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"/run/heddle", "/var/lib/heddle"} {
			out, err := exec.Command("nsenter", "-t", fmt.Sprint(state.PID), "-m", "ls", "-A", dir).CombinedOutput()
			if err != nil || !strings.Contains(string(out), string(here)) || strings.Contains(string(out), other) {
				t.Errorf("%s inside of %s: %v\n%s", dir, here, err, out)
			}
		}
		if out, err := exec.Command("nsenter", "-t", fmt.Sprint(state.PID), "-m", "ls", "/run/netns").CombinedOutput(); err != nil || strings.Contains(string(out), other) {
			t.Errorf("/run/netns inside of %s: %v\n%s", here, err, out)
		}
		// Pod addresses of the other cluster are not routed: the same address is one of its own, or nobody's.
		if out, err := here.Inside("ip", "route", "get", "198.18.0.1"); err != nil || !strings.Contains(out, "wan0") {
			t.Errorf("route to the machine: %v\n%s", err, out)
		}
		if _, err := os.Stat("/run/heddle/" + other + "/api.sock"); err != nil {
			t.Errorf("the machine itself should see %s: %v", other, err)
		}
	}
}
