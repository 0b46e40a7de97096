//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/test/e2e/harness"
)

// inThread runs f on a thread of its own, which ends with it.
func inThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

const attacked = `apiVersion: v1
kind: Namespace
metadata: { name: attacked, labels: { heddle.io/privileged: "true" } }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: victim, namespace: attacked }
spec: { command: [sleep, "100000"], env: [{ name: PASSWORD, value: %s }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: attacker, namespace: attacked, labels: { round: %q }, annotations: { heddle.io/stopped: %q } }
spec: { command: [%s], restart: Never, env: [{ name: %s, value: %s }]%s }
`

// A workload that was taken over gets nothing of another one's, of a proxy's or of the machine's: neither with a user of its
// own nor as root. Most of what it tries is shown to work without a sandbox.
func TestAttacksFromInside(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.New(clusterName)
	if err != nil {
		t.Fatal(err)
	}
	at := targets{Marker: "xyzzy4planted", Run: c.Run(), Data: c.Data(), Shared: 0x68656464, Secret: filepath.Join(t.TempDir(), "secret"), Keys: secretsKeys,
		Agent: agentPID(t), Controller: controllerPID(t), OwnSocket: filepath.Join(c.Workload("attacked", "attacker-0"), "agent.sock")}
	if err := os.WriteFile(at.Secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Not in /tmp, which is not the machine's for a workload.
	if at.Later, err = os.MkdirTemp("/opt", "heddle-e2e-"); err != nil {
		t.Fatal(err)
	}
	later := at.Later
	t.Cleanup(func() { os.RemoveAll(later) })
	if err := errors.Join(os.Chmod(later, 0o755), os.Mkdir(later+mountedBelow, 0o755), unix.Mkfifo(later+mountedEnd, 0o644)); err != nil {
		t.Fatal(err)
	}
	shared, err := unix.SysvShmGet(at.Shared, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := unix.SysvShmCtl(shared, unix.IPC_RMID, nil); err != nil {
			t.Error(err)
		}
	})
	manifest := func(stopped bool, round, user string) string {
		knowledge, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		value, err := json.Marshal(string(knowledge))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(attacked, at.Marker, round, strconv.FormatBool(stopped), self, attackEnvironment, value, user)
	}
	first := harness.WriteFile(t, manifest(true, "none", ""))
	must(t, "apply", "-f", first)
	t.Cleanup(func() { must(t, "delete", "-f", first) })
	victim := awaitReplica(t, "attacked", "victim")
	at.Application, at.Proxy = program(t, victim.State.PID), program(t, victim.State.ProxyPID)
	at.Gateway = program(t, gateway(t).State.ProxyPID)
	at.User = userOf(t, at.Application)
	directory := c.Workload("attacked", "victim-0")
	at.Socket, at.Launch, at.Log = filepath.Join(directory, "agent.sock"), filepath.Join(directory, "app.json"), filepath.Join(c.Logs(), "attacked", "victim-0", "proxy.log")
	at.Admin = "http://" + victim.State.Address + ":15000"

	for name, user := range map[string]string{"a user of its own": "", "root": ", user: root"} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(c.Logs(), "attacked", "attacker-0", "app.log")
			before := size(log)
			must(t, "apply", "-f", harness.WriteFile(t, manifest(false, strings.Fields(name)[0], user)))
			t.Cleanup(func() { must(t, "apply", "-f", harness.WriteFile(t, manifest(true, "pause", ""))) })
			mountLater(t, at.Later)
			said := awaitDone(t, log, before)
			judge(t, said)
		})
	}
	t.Run("a proxy", func(t *testing.T) {
		proxyAttacks(t, c, at, self)
		// With a proxy of its own again, and at rest.
		must(t, "apply", "-f", harness.WriteFile(t, manifest(true, "pause", "")))
	})
	t.Run("without a sandbox", func(t *testing.T) {
		knowledge, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		// Of its own: what these attempts change. Processes, files and users are the machine's.
		cmd := exec.Command("unshare", "--mount", "--net", "--uts", self)
		cmd.Env = append(os.Environ(), attackEnvironment+"="+string(knowledge), attackEnvironment+"_CONTROL=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		found := verdicts(t, string(out))
		shown := 0
		for _, a := range attempts {
			if !a.control {
				continue
			}
			if refusal, made := found[a.name]; !made || refusal != "" {
				t.Errorf("%s proves nothing: root without a sandbox is refused as well: %s", a.name, refusal)
			}
			shown++
		}
		t.Logf("%d of %d attempts are shown to work without a sandbox", shown, len(attempts))
	})
	must(t, "check")
}

// proxyAttacks has the attacker stand in for its workload's proxy, as one that was taken over. Its own socket is its own.
func proxyAttacks(t *testing.T, c cluster.Cluster, at targets, self string) {
	// Proxies get no environment: a script sets it, in a directory that they see.
	dir, err := os.MkdirTemp("/opt", "heddle-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	knowledge, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	program, copied := filepath.Join(dir, "proxy"), filepath.Join(dir, "attacker")
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s='%s' exec %s\n", attackEnvironment, knowledge, copied)
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, []byte(script), 0o755), os.WriteFile(copied, content, 0o755)); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(c.Logs(), "attacked", "attacker-0", "proxy.log")
	before := size(log)
	must(t, "apply", "-f", harness.WriteFile(t, fmt.Sprintf(`apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: attacker, namespace: attacked, annotations: { heddle.io/proxy-path: %s, heddle.io/stopped: "false" } }
spec: { command: [sleep, "100000"] }
`, program)))
	mountLater(t, at.Later)
	said := awaitDone(t, log, before)
	judge(t, said, "connect to the own proxy's socket of the agent")
	if got := verdicts(t, said)["be another workload by the own proxy's socket"]; !strings.Contains(got, "1 certificates, each its own") {
		t.Errorf("the own socket of the agent: %s", got)
	}
}

// mountLater mounts a file system that anybody may write to, once an attacker runs, and takes it away with the test.
func mountLater(t *testing.T, dir string) {
	t.Helper()
	var pipe int
	harness.Eventually(t, 120*time.Second, "the attacker's wait for a mount", func() (err error) {
		// Refused while nobody reads.
		pipe, err = unix.Open(dir+mountedEnd, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	defer unix.Close(pipe)
	mount := dir + mountedBelow
	if err := unix.Mount("none", mount, "tmpfs", 0, "mode=0777,size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
}

// awaitDone returns what an attacker has said behind what was in its log before.
func awaitDone(t *testing.T, log string, before int64) string {
	t.Helper()
	var said string
	harness.Eventually(t, 120*time.Second, "the attacker's end", func() error {
		content, err := os.ReadFile(log)
		if err != nil || int64(len(content)) < before {
			return fmt.Errorf("%d bytes: %w", len(content), err)
		}
		if said = string(content[before:]); !strings.Contains(said, "\ndone\n") {
			return errors.New("it is at work: " + said[max(0, len(said)-300):])
		}
		return nil
	})
	return said
}

// judge holds what an attacker said against what it may: nothing but its own.
func judge(t *testing.T, said string, own ...string) {
	t.Helper()
	found := verdicts(t, said)
	if len(found) != len(attempts) || len(found) < 40 {
		t.Errorf("%d attempts of %d", len(found), len(attempts))
	}
	for _, a := range attempts {
		refusal, made := found[a.name]
		switch {
		case slices.Contains(own, a.name):
			if !made || refusal != "" {
				t.Errorf("%s: %s", a.name, refusal)
			}
		case !made || refusal == "":
			t.Errorf("%s: succeeded", a.name)
		default:
			t.Logf("%-50s %s", a.name, refusal)
		}
	}
}

func verdicts(t *testing.T, said string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(said) {
		text, ok := strings.CutPrefix(line, "verdict ")
		if !ok {
			continue
		}
		var v verdict
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		found[v.Name] = v.Refusal
	}
	return found
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// awaitReplica waits until the first replica of a workload is ready.
func awaitReplica(t *testing.T, namespace, workload string) harness.Replica {
	t.Helper()
	var found harness.Replica
	harness.Eventually(t, 60*time.Second, workload, func() error {
		for _, r := range here.Replicas(t) {
			if r.Namespace == namespace && r.Workload == workload && r.Ready {
				found = r
				return nil
			}
		}
		return errors.New("not ready")
	})
	return found
}

// program is the process that a sandbox's first one started.
func program(t *testing.T, pid int) int {
	t.Helper()
	child, err := harness.StartedBy(pid)
	if err != nil {
		t.Fatal(err)
	}
	return child
}

func userOf(t *testing.T, pid int) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Uid)
}
