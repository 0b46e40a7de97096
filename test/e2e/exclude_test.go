//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// leftOut is a namespace that may call nothing outside of the mesh, so that only what is not captured gets there.
const leftOut = `apiVersion: v1
kind: Namespace
metadata: { name: left-out }
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: { name: default, namespace: left-out }
spec: { outboundTrafficPolicy: { mode: REGISTRY_ONLY } }
---
apiVersion: v1
kind: Service
metadata: { name: licences, namespace: left-out }
spec: { selector: { app: licences }, ports: [{ name: http, port: 80, targetPort: 8000 }] }
`

// leaving is a workload that serves licences at two ports, with annotations.
func leaving(name, annotations string) string {
	return fmt.Sprintf(`---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: %s, namespace: left-out, labels: { app: licences }, annotations: { %s } }
spec:
  command: [/bin/sh, -c, "cd /usr/share/common-licenses && { python3 -u -m http.server 9100 & exec python3 -u -m http.server 8000; }"]
  ports: [{ name: http, port: 8000 }]
`, name, annotations)
}

// What Istio's annotations leave out of capture reaches and leaves the application as it is, by port and by range, alike in both ways
// of capture; all else goes by the proxy as before, and all of it once the annotations are gone.
func TestExclusions(t *testing.T) {
	shop(t)
	let, other := outside(t, onHost(t), "let", false), outside(t, onHost(t), "other", false)
	const prefix = "traffic.sidecar.istio.io/"
	byPort := fmt.Sprintf(`%[1]sexcludeOutboundPorts: "%[2]d", %[1]sexcludeInboundPorts: "9100"`, prefix, let)
	byRange := fmt.Sprintf(`%sexcludeOutboundIPRanges: %s/32`, prefix, hostAddress)
	manifest := leftOut
	for _, capture := range []string{"nftables", "ebpf"} {
		way := "heddle.io/capture: " + capture
		manifest += leaving("ports-"+capture, way+", "+byPort) + leaving("ranges-"+capture, way+", "+byRange) + leaving("nothing-"+capture, way)
	}
	apply(t, manifest)
	licence, err := os.ReadFile("/usr/share/common-licenses/GPL-3")
	if err != nil {
		t.Fatal(err)
	}

	dials := func(from harness.Replica, port uint16, word string) error {
		out, err := asApplication(from, "curl", "-sS", "--max-time", "5", fmt.Sprintf("http://%s:%d/", hostAddress, port))
		if err == nil && !strings.HasPrefix(out, word+" ") {
			err = fmt.Errorf("another one answers: %.100q", out)
		}
		return err
	}
	dialled := func(r harness.Replica, port int) error {
		status, body, err := harness.Fetch(fmt.Sprintf("http://%s:%d/GPL-3", r.State.Address, port))
		if err == nil && (status != 200 || body != string(licence)) {
			err = fmt.Errorf("%d: %.100q", status, body)
		}
		return err
	}
	// reaches holds what one workload reaches, and is reached at, against what it leaves out.
	reaches := func(workload string, toLet, toOther, at9100 bool) {
		t.Helper()
		r := awaitReplica(t, "left-out", workload)
		// By the proxy, with an identity: an application that has begun, and a proxy that has its configuration.
		harness.Eventually(t, 30*time.Second, workload+" reads a licence through the mesh", func() error {
			address, err := lookup(r, "licences.left-out.svc.cluster.local")
			if err != nil {
				return err
			}
			got, err := asApplication(r, "curl", "-sS", "--fail", "--max-time", "5", "--connect-to", "::"+address+":", "http://licences.left-out.svc.cluster.local/GPL-3")
			if err == nil && got != string(licence) {
				err = fmt.Errorf("%.200q", got)
			}
			return err
		})
		for _, to := range []struct {
			what string
			err  error
			want bool
		}{
			{"dials the port that may be left out", dials(r, let, "let"), toLet},
			{"dials another port", dials(r, other, "other"), toOther},
			{"is dialled at port 9100", dialled(r, 9100), at9100},
			{"is dialled at port 8000", dialled(r, 8000), false},
		} {
			if (to.err == nil) != to.want {
				t.Errorf("%s %s: %v, want success: %v", workload, to.what, to.err, to.want)
			}
		}
	}
	for _, capture := range []string{"nftables", "ebpf"} {
		reaches("ports-"+capture, true, false, true)
		reaches("ranges-"+capture, true, true, false)
		reaches("nothing-"+capture, false, false, false)
		if said := must(t, "describe", "workload", "ports-"+capture, "-n", "left-out"); !strings.Contains(said, "Not captured") || !strings.Contains(said, "9100") {
			t.Errorf("describe does not say what is not captured:\n%s", said)
		}
	}

	// Nothing is left out of what cannot be read, and what was said before holds.
	out, err := heddle("apply", "-f", harness.WriteFile(t, leaving("ports-ebpf", "heddle.io/capture: ebpf, "+prefix+`excludeOutboundPorts: "http"`)))
	if err == nil || !strings.Contains(out, "excludeOutboundPorts") || !strings.Contains(out, `"http"`) {
		t.Errorf("a port that is no number: %v\n%s", err, out)
	}
	reaches("ports-ebpf", true, false, true)

	for _, capture := range []string{"nftables", "ebpf"} {
		before := replicaIn(t, "left-out", "ports-"+capture)
		must(t, "apply", "-f", harness.WriteFile(t, leaving("ports-"+capture, "heddle.io/capture: "+capture)))
		harness.Eventually(t, 60*time.Second, "the replica is replaced", func() error {
			if now := replicaIn(t, "left-out", "ports-"+capture); now.State.PID == before.State.PID || !now.Ready {
				return fmt.Errorf("%+v", now.State)
			}
			return nil
		})
		reaches("ports-"+capture, false, false, false)
	}
}
