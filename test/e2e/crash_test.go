//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/test/e2e/harness"
)

// Two workloads that write down every start: one stays, one is done at once and is not to run again.
const starts = `apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: stays, namespace: pinnacle, labels: { app: stays } }
spec: { replicas: 4, command: [/bin/sh, -c, "echo started $HOSTNAME in %[1]s; exec sleep 100000"] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: once, namespace: pinnacle, labels: { app: once } }
spec: { replicas: 4, restart: Never, command: [/bin/sh, -c, "echo started $HOSTNAME in %[1]s"] }
`

// The agent is killed again and again while it starts workloads: each replica starts once all the same, and of those that
// are deleted afterwards nothing is left.
func TestAgentKilledWhileItStarts(t *testing.T) {
	for _, begun := range []int{0, 1, 3, 6} {
		t.Run(fmt.Sprintf("after %d of 8", begun), func(t *testing.T) {
			round := fmt.Sprintf("round-%d", begun)
			lines := func() []string { return started(t, round) }
			file := harness.WriteFile(t, fmt.Sprintf(starts, round))
			must(t, "apply", "-f", file)
			deleted := false
			t.Cleanup(func() {
				if !deleted {
					must(t, "delete", "-f", file)
				}
			})
			harness.Eventually(t, 60*time.Second, "some starts", func() error {
				if n := len(lines()); n < begun {
					return fmt.Errorf("%d of %d", n, begun)
				}
				return nil
			})
			kill(t, agentPID(t))
			t.Logf("agent killed after %d starts", len(lines()))
			must(t, "up", "--name", clusterName)
			harness.Eventually(t, 60*time.Second, "all replicas", func() error {
				phases := map[string]int{}
				for _, r := range here.Replicas(t) {
					if r.Workload == "stays" || r.Workload == "once" {
						phases[r.Workload+" "+r.State.Phase]++
					}
				}
				// How one ended while no agent ran is not known to anybody.
				if phases["stays Ready"] != 4 || phases["once Stopped"]+phases["once Failed"] != 4 {
					return fmt.Errorf("%v", phases)
				}
				return nil
			})
			count := map[string]int{}
			for _, name := range lines() {
				count[name]++
			}
			for _, workload := range []string{"stays", "once"} {
				for i := range 4 {
					if name := fmt.Sprintf("%s-%d", workload, i); count[name] != 1 {
						t.Errorf("%s started %d times", name, count[name])
					}
				}
			}
			must(t, "delete", "-f", file)
			deleted = true
			harness.Eventually(t, 60*time.Second, "nothing is left", func() error { return leftOf(t, "stays", "once") })
		})
	}
	must(t, "check")
}

// started are the names of the replicas that began, in their logs: once for each time.
func started(t *testing.T, round string) []string {
	t.Helper()
	c, err := cluster.New(clusterName)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(c.Logs(), harness.ShopSpace, "*", "app.log"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, log := range logs {
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "started "); ok && strings.HasSuffix(rest, " in "+round) {
				names = append(names, strings.TrimSuffix(rest, " in "+round))
			}
		}
	}
	return names
}

// owners are those who have an address or a user id by a table of the agent's. It is in use: a copy of it may be of no moment that there was.
func owners(t *testing.T, table string) ([]string, error) {
	t.Helper()
	content, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(table))
	if err := os.WriteFile(copied, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, all, err := objectfile.OpenSet[string, any](copied)
	return slices.Collect(maps.Keys(all)), err
}

// leftOf says what this machine still has of workloads that were deleted.
func leftOf(t *testing.T, workloads ...string) error {
	t.Helper()
	c, err := cluster.New(clusterName)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	addresses, err := owners(t, filepath.Join(c.Data(), "addresses.db"))
	if err != nil {
		return err
	}
	users, err := owners(t, filepath.Join(c.Data(), "users.db"))
	if err != nil {
		return err
	}
	namespaces, err := exec.Command("ip", "netns", "list").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, namespaces)
	}
	for _, w := range workloads {
		its := func(owner string) bool { return strings.HasPrefix(owner, harness.ShopSpace+"/"+w+"-") }
		if slices.ContainsFunc(addresses, its) {
			left = append(left, "addresses of "+w)
		}
		if slices.ContainsFunc(users, its) {
			left = append(left, "user ids of "+w)
		}
		if strings.Contains(string(namespaces), c.Netns(harness.ShopSpace, w+"-")) {
			left = append(left, "network namespaces of "+w)
		}
		for _, pattern := range []string{filepath.Join("/sys/fs/cgroup/*", c.Cgroup(), harness.ShopSpace+"."+w+"-*"), c.Workload(harness.ShopSpace, w+"-*")} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, found...)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%v", left)
	}
	return nil
}
