//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/test/e2e/harness"
)

const neighbours = `apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: page, namespace: shop, labels: { app: page } }
spec: { command: [/usr/bin/python3, -u, -m, http.server, "8000", --directory, /usr/share/common-licenses], ports: [{ name: http, port: 8000 }] }
---
apiVersion: v1
kind: Service
metadata: { name: page, namespace: shop }
spec: { selector: { app: page }, ports: [{ name: http, port: 80, targetPort: 8000 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: reader, namespace: shop }
spec: { command: [/bin/sleep, "100000"] }
`

// What goes from workload to workload of one machine bypasses TCP and arrives as it was sent, also over the death of the
// agent, and nothing of it stays when the cluster is gone.
func TestTCPBypass(t *testing.T) {
	withoutCluster(t)
	pins := filepath.Join("/run/heddle", clusterName, "bypass")
	t.Cleanup(func() {
		must(t, "down", "--name", clusterName)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), pins) {
			t.Errorf("the bypass is still there: %v", err)
		}
	})
	must(t, "up", "--name", clusterName, "--tcp-bypass")
	must(t, "apply", "-f", harness.WriteFile(t, neighbours))
	awaitReplica(t, "shop", "page")
	awaitReplica(t, "shop", "reader")
	want, err := os.ReadFile("/usr/share/common-licenses/GPL-3")
	if err != nil {
		t.Fatal(err)
	}
	status := func() (s bypass.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(must(t, "bypass", "status", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	reader := replicaIn(t, "shop", "reader")
	// Looked up once: it is the agent that is asked.
	var address string
	harness.Eventually(t, 30*time.Second, "the page has an address", func() error {
		address, err = lookup(reader, "page.shop.svc.cluster.local")
		return err
	})
	read := func() error {
		got, err := reader.InNetwork("curl", "-sS", "--fail", "--max-time", "5", "--connect-to", "::"+address+":", "http://page.shop.svc.cluster.local/GPL-3")
		if err == nil && got != string(want) {
			err = fmt.Errorf("%d bytes arrived for %d, or other ones", len(got), len(want))
		}
		return err
	}
	harness.Eventually(t, 30*time.Second, "the page is read", read)
	calls := func() {
		t.Helper()
		before := status()
		for range 20 {
			if err := read(); err != nil {
				t.Fatal(err)
			}
		}
		after := status()
		// From the page to its sidecar, and from that to the reader's. The last leg, to an application, uses TCP.
		if more := after.Bytes - before.Bytes; more < 2*20*uint64(len(want))*9/10 {
			t.Errorf("%d bytes bypassed TCP for 20 times %d on two legs: %+v", more, len(want), after)
		}
	}
	calls()
	if s := status(); !s.Attached || s.Connections == 0 {
		t.Errorf("%+v", s)
	}
	must(t, "check", "--wait", "60s")

	connections := status().Connections
	kill(t, agentPID(t))
	if err := read(); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	if _, err := os.Stat(filepath.Join(pins, "established")); err != nil {
		t.Errorf("the bypass went with the agent: %v", err)
	}
	must(t, "up", "--name", clusterName)
	if s := status(); s.Connections < connections {
		t.Errorf("%d connections, %d before the agent was killed", s.Connections, connections)
	}
	calls()
}
