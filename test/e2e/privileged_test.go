//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

const unlabelled = `apiVersion: v1
kind: Namespace
metadata: { name: unlabelled }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: as-root, namespace: unlabelled }
spec: { command: [sleep, "4711471"], user: root }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: plain, namespace: unlabelled }
spec: { command: [sleep, "4711472"] }
`

// sleeping is a process with that argument: its user and its PID namespace. It is empty when there is none.
func sleeping(t *testing.T, argument string) (user, namespace string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		argv, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		program, rest, _ := strings.Cut(string(argv), "\x00")
		if err != nil || filepath.Base(program) != "sleep" || rest != argument+"\x00" {
			continue
		}
		space, spaceErr := os.Readlink(filepath.Join(dir, "ns/pid"))
		status, statusErr := os.ReadFile(filepath.Join(dir, "status"))
		if spaceErr != nil || statusErr != nil {
			continue // It has just ended.
		}
		for line := range strings.Lines(string(status)) {
			if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
				return strings.Fields(ids)[0], space
			}
		}
	}
	return "", ""
}

// A cluster that allowed privileged workloads once and does so no more runs none of them, though they are stored, and though
// they ran when its agent and controller were killed; the others get their sandbox.
func TestPrivilegedWorkloadsTurnedOff(t *testing.T) {
	withoutCluster(t)
	must(t, "up", "--name", clusterName, "--privileged-workloads")
	t.Cleanup(func() { must(t, "down", "--name", clusterName) })
	must(t, "apply", "-f", harness.WriteFile(t, unlabelled))
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	awaitReplica(t, "unlabelled", "as-root")
	awaitReplica(t, "unlabelled", "plain")
	if user, space := sleeping(t, "4711471"); user != "0" || space != ours {
		t.Fatalf("with --privileged-workloads it runs as %q in %s", user, space)
	}
	pid := controllerPID(t)
	kill(t, agentPID(t))
	kill(t, pid)
	if user, _ := sleeping(t, "4711471"); user != "0" {
		t.Fatal("the workload went with the agent, so that nothing is to be stopped")
	}
	must(t, "up", "--name", clusterName, "--privileged-workloads=false")
	harness.Eventually(t, 60*time.Second, "what is privileged is stopped, and the other one is in a sandbox", func() error {
		if user, space := sleeping(t, "4711471"); user != "" {
			return fmt.Errorf("it runs as %s in %s", user, space)
		}
		user, space := sleeping(t, "4711472")
		if user == "" || user == "0" || space == ours {
			return fmt.Errorf("the ordinary one runs as %q in %q", user, space)
		}
		return nil
	})
	said := must(t, "describe", "workload", "as-root", "-n", "unlabelled")
	for _, want := range []string{"Privileged", "it is not run", `user "root" is privileged`, "heddle.io/privileged"} {
		if !strings.Contains(said, want) {
			t.Errorf("describe does not say %q:\n%s", want, said)
		}
	}
	if out, err := heddle("check", "--wait", "0"); err == nil || !strings.Contains(out, "as-root") {
		t.Errorf("check says nothing of it: %v\n%s", err, out)
	}
	if out, err := heddle("restart", "as-root", "-n", "unlabelled"); err == nil {
		if user, _ := sleeping(t, "4711471"); user != "" {
			t.Errorf("a restart runs it: %s", out)
		}
	}
	// Its namespace is what allows it now: as root, and in a sandbox.
	must(t, "apply", "-f", harness.WriteFile(t, "apiVersion: v1\nkind: Namespace\nmetadata: { name: unlabelled, labels: { heddle.io/privileged: \"true\" } }\n"))
	awaitReplica(t, "unlabelled", "as-root")
	if user, space := sleeping(t, "4711471"); user != "0" || space == ours {
		t.Errorf("allowed by its namespace it runs as %q in %q", user, space)
	}
	must(t, "check", "--wait", "60s")
}
