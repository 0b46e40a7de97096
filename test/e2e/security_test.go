//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"heddle.io/heddle/test/e2e/harness"
)

const disableMutualTLS = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: mtls-pinnacle, namespace: pinnacle }
spec: { mtls: { mode: DISABLE } }
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: mtls-pinnacle-rule, namespace: pinnacle }
spec:
  host: "*"
  exportTo: ["."]
  trafficPolicy: { tls: { mode: DISABLE } }
`

// search makes the frontend send a marker to the product catalogue, and records what crosses the workloads' bridge on
// the way. The leg between this client and the gateway is left out: it is plain HTTP by design.
func search(t *testing.T, marker string) []byte {
	t.Helper()
	recording := harness.StartCapture(t, bridge, "tcp and not host "+hostAddress)
	status, body, err := harness.Fetch(shop(t) + "/?q=" + marker)
	if err != nil || status != 200 {
		t.Fatalf("search: %d, %v: %.200s", status, err, body)
	}
	return recording.Stop(t)
}

func TestCaptureDoesNotSeeTheMarker(t *testing.T) {
	const hidden, shown = "zq7marker4hidden", "zq7marker4shown"
	if harness.Saw(search(t, hidden), hidden) {
		t.Error("the marker crossed the bridge in the clear although mutual TLS is strict")
	}
	// The positive control: without mutual TLS the same capture must find it.
	must(t, "apply", "-f", harness.WriteFile(t, disableMutualTLS))
	t.Cleanup(func() {
		must(t, "apply", "-f", "../../demo/boutique/manifests/")
		must(t, "check")
	})
	attempt := 0
	harness.Eventually(t, 30*time.Second, "the marker in the clear", func() error {
		attempt++
		marker := fmt.Sprintf("%s%d", shown, attempt)
		if !harness.Saw(search(t, marker), marker) {
			return errors.New("the capture does not find the marker, so it proves nothing")
		}
		return nil
	})
}

func TestPolicyStopsJustOneCall(t *testing.T) {
	address := shop(t)
	browser := harness.OpenBrowser(t)
	harness.Walk(t, browser, chromedp.Navigate(address+"/product/rainy-teapot"), chromedp.WaitVisible(chromedp.CSS("#ad")))
	apply(t, `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: no-ads-for-the-frontend, namespace: pinnacle }
spec:
  selector: { matchLabels: { app: adservice } }
  action: DENY
  rules: [{ from: [{ source: { principals: [cluster.local/ns/pinnacle/sa/frontend] } }] }]
`)
	var ads []harness.MeshCall
	harness.Eventually(t, 20*time.Second, "adservice refuses the frontend", func() error {
		harness.Walk(t, browser, chromedp.Navigate(address+"/product/rainy-teapot"), chromedp.WaitVisible(chromedp.CSS("#add-to-cart")))
		ads = nil
		for _, call := range harness.MeshCalls(t, browser) {
			if call.Service == "adservice" {
				ads = append(ads, call)
			}
		}
		if len(ads) != 1 || !strings.Contains(ads[0].Status, "PermissionDenied") {
			return fmt.Errorf("calls to adservice: %+v", ads)
		}
		return nil
	})
	for _, call := range harness.MeshCalls(t, browser) {
		if call.Service != "adservice" && call.Status != "OK" && call.Status != "200" {
			t.Errorf("another call failed too: %+v", call)
		}
	}
	if bought := harness.Buy(t, browser, address, "rainy-teapot"); !strings.HasPrefix(bought.Number, "LS-") {
		t.Errorf("order number %q", bought.Number)
	}
}

func TestPlaintextToAStrictWorkloadIsRefused(t *testing.T) {
	cart := here.ReplicaOf(t, "cartservice")
	for _, port := range []string{"7070", "15006"} {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(cart.State.Address, port), 5*time.Second)
		if err != nil {
			continue // Refused at once is as good.
		}
		// An HTTP/2 preface: what a gRPC client without TLS would send.
		if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			t.Logf("port %s: %v", port, err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(io.LimitReader(conn, 1024))
		if len(answer) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("port %s: got %q, %v; want the connection closed without an answer", port, answer, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
