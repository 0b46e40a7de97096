//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/test/e2e/harness"
)

// strictAndOtherwise has all of the mesh speak mutual TLS, and one workload captured by the packet filter.
const strictAndOtherwise = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: default, namespace: istio-system }
spec: { mtls: { mode: STRICT } }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: other-reader, namespace: shop, annotations: { heddle.io/capture: nftables } }
spec: { command: [/bin/sleep, "100000"] }
`

// A cluster whose traffic is captured by eBPF, without rules in the workloads' namespaces: requests go by both proxies and mutual
// TLS, strangers do not get past them, the agent's death changes nothing, and nothing stays when the cluster is gone.
func TestEBPFCapture(t *testing.T) {
	withoutCluster(t)
	pins := filepath.Join("/run/heddle", clusterName, "capture")
	t.Cleanup(func() {
		must(t, "down", "--name", clusterName)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), pins) {
			t.Errorf("capture is still there: %v", err)
		}
	})
	must(t, "up", "--name", clusterName, "--capture", "ebpf", "--tcp-bypass")
	must(t, "apply", "-f", harness.WriteFile(t, neighbours+"---\n"+strictAndOtherwise))
	for _, workload := range []string{"page", "reader", "other-reader"} {
		awaitReplica(t, "shop", workload)
	}
	want, err := os.ReadFile("/usr/share/common-licenses/GPL-3")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.New(clusterName)
	if err != nil {
		t.Fatal(err)
	}
	ruled := func(workload string) bool {
		out, err := exec.Command("ip", "netns", "exec", c.Netns("shop", workload+"-0"), "nft", "list", "tables").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out)) != ""
	}
	for workload, rules := range map[string]bool{"page": false, "reader": false, "other-reader": true} {
		if ruled(workload) != rules {
			t.Errorf("%s has rules of the packet filter: %v", workload, !rules)
		}
	}
	page, reader, other := replicaIn(t, "shop", "page"), replicaIn(t, "shop", "reader"), replicaIn(t, "shop", "other-reader")
	var address string
	harness.Eventually(t, 30*time.Second, "the page has an address", func() error {
		address, err = lookup(reader, "page.shop.svc.cluster.local")
		return err
	})
	read := func(from harness.Replica) error {
		got, err := asApplication(from, "curl", "-sS", "--fail", "--max-time", "5", "--connect-to", "::"+address+":", "http://page.shop.svc.cluster.local/GPL-3")
		if err == nil && got != string(want) {
			err = fmt.Errorf("%d bytes arrived for %d, or other ones: %.200q", len(got), len(want), got)
		}
		return err
	}
	calls := func(when string) {
		t.Helper()
		for range 5 {
			for _, from := range []harness.Replica{reader, other} {
				if err := read(from); err != nil {
					t.Errorf("%s: %s: %v", when, from.State.Name, err)
				}
			}
		}
		// The workload's own port and those of its proxy, from this machine, by no identity.
		for _, port := range []int{8000, 15001, 15006} {
			if status, body, err := harness.Fetch(fmt.Sprintf("http://%s:%d/", page.State.Address, port)); err == nil {
				t.Errorf("%s: a stranger at port %d is answered: %d %.100q", when, port, status, body)
			}
			if out, err := asApplication(reader, "curl", "-sS", "--max-time", "5", fmt.Sprintf("http://127.0.0.1:%d/", port)); err == nil {
				t.Errorf("%s: the application reaches port %d within: %.100q", when, port, out)
			}
		}
	}
	for _, from := range []harness.Replica{reader, other} {
		harness.Eventually(t, 30*time.Second, "the page is read by "+from.State.Name, func() error { return read(from) })
	}
	bypassed := func() (s bypass.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(must(t, "bypass", "status", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	calls("at first")
	// The sidecars keep their connections, which bypass TCP soon: from the page to its sidecar, and from that to the readers', which it is
	// known to be although it has the page's port.
	harness.Eventually(t, 30*time.Second, "the page bypasses TCP", func() error {
		before := bypassed()
		calls("by the bypass")
		if more := bypassed().Bytes - before.Bytes; more < 2*10*uint64(len(want))*9/10 {
			return fmt.Errorf("%d bytes bypassed TCP for 10 times %d on two legs: %+v", more, len(want), before)
		}
		return nil
	})
	if !strings.Contains(page.ProxyStats(t), `connection_security_policy="mutual_tls"`) {
		t.Error("the page's proxy counts no request by mutual TLS")
	}
	must(t, "check", "--wait", "60s")

	// Names are found without the rules that bring DNS to its port, which the others need.
	if out, err := exec.Command("nft", "flush", "chain", "ip", c.Table(), "prerouting").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names := func(when string) {
		t.Helper()
		for _, options := range []string{"", "use-vc"} { // By UDP and by TCP (resolv.conf(5)).
			if got, err := found(reader, options); err != nil || got != address {
				t.Errorf("%s, with options %q: the page is at %q: %v", when, options, got, err)
			}
		}
	}
	names("without rules")
	if got, err := found(other, ""); err == nil {
		t.Errorf("who is captured by the packet filter finds the page at %s without its rules", got)
	}
	if got, err := lookup(reader, "page.shop.svc.cluster.local"); err != nil || got != address {
		t.Errorf("the agent's check finds the page at %q: %v", got, err)
	}

	kill(t, agentPID(t))
	calls("without an agent")
	names("without an agent")
	must(t, "up", "--name", clusterName)
	harness.Eventually(t, 30*time.Second, "the next agent has taken over what runs", func() error {
		if again := replicaIn(t, "shop", "reader"); again.State.PID != reader.State.PID {
			return fmt.Errorf("pid %d, %d before the agent's death", again.State.PID, reader.State.PID)
		}
		return nil
	})
	calls("with the next agent")
	names("with the next agent")
	if got, err := found(other, ""); err != nil || got != address {
		t.Errorf("who is captured by the packet filter finds the page at %q: %v", got, err)
	}
	must(t, "check", "--wait", "60s")

	must(t, "delete", "workload", "-n", "shop", "reader")
	harness.Eventually(t, 60*time.Second, "the programs of a deleted workload go", func() error {
		found, err := filepath.Glob(filepath.Join(pins, "steered-*"))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%v", found)
		}
		return err
	})
}

// found has the C library of an application look the page up, with options of resolv.conf.
func found(r harness.Replica, options string) (string, error) {
	out, err := asApplication(r, "nsenter", "-t", fmt.Sprint(r.State.PID), "-m", "env", "RES_OPTIONS=attempts:1 "+options, "getent", "ahostsv4", "page.shop.svc.cluster.local.")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	address, _, _ := strings.Cut(out, " ")
	return address, nil
}

// asApplication runs a command in a replica's network namespace and in its application's control group, by which its programs are
// known.
func asApplication(r harness.Replica, argv ...string) (string, error) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.State.PID))
	if err != nil {
		return "", err
	}
	hierarchies, err := process.Hierarchy()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(groups)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return r.InNetwork(append([]string{"/bin/sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(hierarchies.V2, group, "cgroup.procs")}, argv...)...)
		}
	}
	return "", fmt.Errorf("%s is in no control group", r.State.Name)
}
