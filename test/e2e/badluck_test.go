//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// withoutCluster takes the shared cluster away for a test that starts its own, and starts it again afterwards.
func withoutCluster(t *testing.T) {
	t.Helper()
	must(t, "down", "--name", clusterName)
	t.Cleanup(func() {
		if err := startShop(); err != nil {
			here.ShowLogs()
			t.Fatal(err)
		}
	})
}

// traces is everything of a cluster, of any, that this machine shows: processes, namespaces, interfaces, packet filter
// tables, control groups, mounts and files.
func traces(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for what, argv := range map[string][]string{
		"network namespaces": {"ip", "netns", "list"},
		"interfaces":         {"ip", "-o", "-br", "link"},
		"nftables":           {"nft", "list", "tables"},
	} {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "heddle") || what == "interfaces" && strings.HasPrefix(line, "hv") {
				found[what] = append(found[what], strings.TrimSpace(line))
			}
		}
	}
	for _, pid := range processes(t) {
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil {
			found["processes"] = append(found["processes"], fmt.Sprintf("%d %s", pid, strings.ReplaceAll(string(command), "\x00", " ")))
		}
	}
	for what, pattern := range map[string]string{"control groups": "/sys/fs/cgroup/*/heddle-*", "unified control group": "/sys/fs/cgroup/heddle-*", "sockets": "/run/heddle*", "data": "/var/lib/heddle*"} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found[what] = append(found[what], matches...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "heddle") {
			found["mounts"] = append(found["mounts"], strings.TrimSpace(line))
		}
	}
	for what, lines := range found {
		if len(lines) == 0 {
			delete(found, what)
		}
	}
	return found
}

// processes of the cluster: whatever runs one of its programs or in one of its control groups.
func processes(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			continue // A kernel thread, or ended meanwhile.
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if filepath.Dir(program) == harness.Binaries || err == nil && strings.Contains(string(groups), "/heddle-") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func nothingLeft(t *testing.T) {
	t.Helper()
	for what, lines := range traces(t) {
		t.Errorf("%s left:\n  %s", what, strings.Join(lines, "\n  "))
	}
}

// agentState is the agent's own account.
type agentState struct {
	PID           int `json:"pid"`
	ControllerPID int `json:"controllerPid"`
	Replicas      []harness.Replica
}

func askAgent() (agentState, error) {
	var s agentState
	out, err := exec.Command("curl", "-sS", "--fail", "--max-time", "5", "--unix-socket", "/run/heddle/"+clusterName+"/agent.sock", "http://agent/v1/status").CombinedOutput()
	if err != nil {
		return s, fmt.Errorf("ask agent: %w: %s", err, out)
	}
	return s, json.Unmarshal(out, &s)
}

func agentPID(t *testing.T) int {
	t.Helper()
	s, err := askAgent()
	if err != nil {
		t.Fatal(err)
	}
	return s.PID
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

func TestSecondUp(t *testing.T) {
	out := must(t, "up", "--name", clusterName)
	if !strings.Contains(out, "already running") || !strings.Contains(out, gateway(t).State.Address) {
		t.Errorf("up said\n%s", out)
	}
	// With a dead gateway it waits for the repair.
	before := gateway(t)
	kill(t, before.State.ProxyPID)
	harness.Eventually(t, 10*time.Second, "up in spite of the dead gateway", func() error {
		_, err := heddle("up", "--name", clusterName)
		if err == nil && gateway(t).State.ProxyPID == before.State.ProxyPID {
			err = errors.New("the killed proxy is still named")
		}
		return err
	})
	harness.Eventually(t, 10*time.Second, "the shop", harness.Works(shop(t)+"/"))
}

// The agent dies under load; nothing else does. `up` starts another, which takes over every process as it is.
//
// The page asked for passes two proxies and has no calls behind it: while there is no agent, names do not resolve, so an
// application that opens a connection by name just then (cartservice's pool to Redis does when it grows) fails.
func TestAgentKilledUnderLoad(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("frontend:\n%s\ncartservice:\n%s", must(t, "logs", "frontend", "-n", harness.ShopSpace, "--tail", "10"), must(t, "logs", "cartservice", "-n", harness.ShopSpace, "--tail", "10"))
		}
	})
	retriesOff(t)
	before := map[string]harness.Replica{}
	for _, r := range here.Replicas(t) {
		before[r.Namespace+"/"+r.State.Name] = r
	}
	controller := controllerPID(t)
	l := harness.StartLoad(t, shop(t)+"/static/shop.css", harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	dead := agentPID(t)
	kill(t, dead)
	t.Logf("agent killed after %.1f s", l.Elapsed().Seconds())
	l.WaitFor(t, 2*harness.LoadRate)
	t.Logf("repair begun after %.1f s", l.Elapsed().Seconds())
	if out := must(t, "up", "--name", clusterName); !strings.Contains(out, "Starting cluster") {
		t.Errorf("up said\n%s", out)
	}
	if now := agentPID(t); now == dead {
		t.Error("no new agent")
	}
	must(t, "check")
	l.WaitFor(t, 2*harness.LoadRate)
	l.Stop(t)
	if now := controllerPID(t); now != controller {
		t.Errorf("the controller was restarted: process %d, then %d", controller, now)
	}
	after := here.Replicas(t)
	if len(after) != len(before) {
		t.Errorf("%d replicas before, %d after", len(before), len(after))
	}
	for _, r := range after {
		was := before[r.Namespace+"/"+r.State.Name].State
		if r.State.PID != was.PID || r.State.ProxyPID != was.ProxyPID || r.State.Restarts != was.Restarts || r.State.Address != was.Address {
			t.Errorf("%s was not taken over: %+v, then %+v", r.State.Name, was, r.State)
		}
	}
	// The new agent really watches them: what dies comes back.
	victim := here.ReplicaOf(t, "adservice")
	kill(t, victim.State.PID)
	harness.Eventually(t, 20*time.Second, "the adopted application's restart", func() error {
		r := here.ReplicaOf(t, "adservice")
		if r.State.PID == victim.State.PID || r.State.Phase != "Ready" || r.State.Restarts != victim.State.Restarts+1 {
			return fmt.Errorf("%+v", r.State)
		}
		return nil
	})
}

func TestSidecarKilled(t *testing.T) {
	victim := here.ReplicaOf(t, "currencyservice")
	kill(t, victim.State.ProxyPID)
	// It may be ready again before anybody looks, but not with the one that was killed.
	harness.Eventually(t, 10*time.Second, "the replica being not ready", func() error {
		s, err := askAgent()
		if err != nil {
			return err
		}
		for _, r := range s.Replicas {
			if r.Workload == "currencyservice" && r.State.Phase == "Ready" && r.State.ProxyPID == victim.State.ProxyPID {
				return fmt.Errorf("%+v", r.State)
			}
		}
		return nil
	})
	harness.Eventually(t, 20*time.Second, "another sidecar", func() error {
		if now := here.ReplicaOf(t, "currencyservice").State; now.Phase != "Ready" || now.ProxyPID == victim.State.ProxyPID || now.PID != victim.State.PID {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	harness.Eventually(t, 10*time.Second, "the shop", harness.Works(shop(t)+"/"))
}

const brokenWorkload = "apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: { name: broken, namespace: pinnacle, labels: { app: broken } }\nspec: { command: [%s] }\n"

func TestCrashLoop(t *testing.T) {
	apply(t, fmt.Sprintf(brokenWorkload, `/bin/sh, -c, "echo out of luck; exit 3"`))
	harness.Eventually(t, 30*time.Second, "restarts with growing pauses", func() error {
		r := here.ReplicaOf(t, "broken")
		if r.State.Restarts < 3 || r.State.Phase != "BackOff" {
			return fmt.Errorf("%+v", r.State)
		}
		return nil
	})
	for _, c := range []struct {
		args string
		says []string
	}{
		{"ps -n pinnacle", []string{"application ended: exit code 3; starting again in ", "BackOff"}},
		{"describe workload broken -n pinnacle", []string{"application ended: exit code 3; starting again in ", "BackOff"}},
		{"get workloads broken -n pinnacle", []string{"0/1", "BackOff"}},
	} {
		// Between two pauses it runs for a moment.
		harness.Eventually(t, 10*time.Second, c.args, func() error {
			out := must(t, strings.Fields(c.args)...)
			for _, part := range c.says {
				if !strings.Contains(out, part) {
					return fmt.Errorf("no %q in\n%s", part, out)
				}
			}
			return nil
		})
	}
	if out := must(t, "logs", "broken", "-n", harness.ShopSpace); strings.Count(out, "out of luck") < 3 {
		t.Error(out)
	}
	ask(t, "", "check", "--wait", "0").refused(t, 1)
}

func TestCommandThatDoesNotExist(t *testing.T) {
	for _, c := range []struct{ command, says string }{
		{"no-such-program", `program "no-such-program" is neither in `},
		{"/no/such/program", "program /no/such/program: "},
		{"/etc/passwd", "program /etc/passwd is not an executable file"},
	} {
		t.Run(c.command, func(t *testing.T) {
			apply(t, fmt.Sprintf(brokenWorkload, c.command))
			harness.Eventually(t, 20*time.Second, "a status that says so", func() error {
				if out := must(t, "ps", "-n", harness.ShopSpace); !strings.Contains(out, c.says) || !strings.Contains(out, "BackOff") {
					return errors.New(out)
				}
				if out := must(t, "get", "workload", "broken", "-n", harness.ShopSpace, "-o", "yaml"); !strings.Contains(out, "phase: BackOff") {
					return errors.New(out)
				}
				return nil
			})
		})
	}
}

// Objects are applied one by one while the controller is killed again and again: each one that was acknowledged is
// there afterwards.
func TestControllerKilledDuringApplies(t *testing.T) {
	t.Cleanup(func() { must(t, "delete", "namespace", "durable") })
	must(t, "apply", "-f", harness.WriteFile(t, "apiVersion: v1\nkind: Namespace\nmetadata: { name: durable }\n"))
	stop := make(chan struct{})
	var acknowledged []string
	var refused int
	var appliers sync.WaitGroup
	var mu sync.Mutex
	for worker := range 2 {
		appliers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("account-%d-%d", worker, n)
				a := ask(t, fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: %s, namespace: durable }\n", name), "apply", "-f", "-")
				mu.Lock()
				if a.code == 0 {
					acknowledged = append(acknowledged, name)
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	for range 4 {
		mu.Lock()
		target := len(acknowledged) + 10
		mu.Unlock()
		harness.Eventually(t, 30*time.Second, "more acknowledged objects", func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(acknowledged) < target {
				return fmt.Errorf("%d of %d", len(acknowledged), target)
			}
			return nil
		})
		kill(t, controllerPID(t))
	}
	harness.Eventually(t, 30*time.Second, "the controller", func() error { _, err := heddle("get", "services"); return err })
	close(stop)
	appliers.Wait()
	there := strings.Fields(must(t, "get", "serviceaccounts", "-n", "durable", "-o", "name"))
	for _, name := range acknowledged {
		if !slices.Contains(there, "serviceaccount/"+name) {
			t.Errorf("acknowledged and lost: %s", name)
		}
	}
	t.Logf("%d acknowledged objects are there after 4 kills; %d attempts were refused", len(acknowledged), refused)
	must(t, "check")
}

// Everybody may open the socket, and only root and who started the cluster may do anything.
func TestSocketIsForRootAndTheOwner(t *testing.T) {
	withoutCluster(t)
	program := copyForAll(t)
	as := func(uid string, args ...string) answer {
		return askAs(t, []string{"HOME=/nonexistent"}, "", "setpriv", append([]string{"--reuid", uid, "--regid", uid, "--clear-groups", program}, args...)...)
	}
	if a := askAs(t, []string{"SUDO_UID=12345"}, "", filepath.Join(harness.Binaries, "heddle"), "up", "--name", clusterName); a.code != 0 {
		t.Fatalf("%+v", a)
	}
	if a := as("12345", "get", "namespaces"); a.code != 0 || !strings.Contains(a.out, "istio-system") {
		t.Errorf("the owner: %+v", a)
	}
	as("12346", "get", "namespaces").refused(t, 1, "user 12346 may not read namespaces", "needs the role viewer", "no role", "heddle access grant viewer --user 12346 -A")
	// The owner stays the owner when the controller is another process.
	before := controllerPID(t)
	kill(t, before)
	harness.Eventually(t, 20*time.Second, "the owner's access after a restart", func() error {
		if a := as("12345", "get", "namespaces"); a.code != 0 {
			return errors.New(a.err)
		}
		return nil
	})
	// And when the cluster is repaired by root.
	kill(t, agentPID(t))
	must(t, "up", "--name", clusterName)
	kill(t, controllerPID(t))
	harness.Eventually(t, 20*time.Second, "the owner's access after a repair", func() error {
		if a := as("12345", "get", "namespaces"); a.code != 0 {
			return errors.New(a.err)
		}
		return nil
	})
	as("12345", "down", "--name", clusterName).refused(t, 1, "root is needed", "sudo")
}

// copyForAll puts the command line where every user can run it.
func copyForAll(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "heddle-for-all-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	content, err := os.ReadFile(filepath.Join(harness.Binaries, "heddle"))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "heddle")
	if err := errors.Join(os.WriteFile(program, content, 0o755), os.Chmod(program, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return program
}

// Each missing prerequisite is refused before anything is changed, and the next try without it works.
func TestUpIsRefused(t *testing.T) {
	withoutCluster(t)
	nothingLeft(t)
	up := []string{"up", "--name", clusterName}
	heddleProgram := filepath.Join(harness.Binaries, "heddle")
	complete := []string{"where:", "why:", "remedy:", "Nothing was changed."}
	t.Run("not root", func(t *testing.T) {
		program := copyForAll(t)
		askAs(t, []string{"HOME=/nonexistent"}, "", "setpriv", append([]string{"--reuid", "65534", "--regid", "65534", "--clear-groups", program}, up...)...).
			refused(t, 1, append(complete, "root is needed", "sudo")...)
	})
	t.Run("no nft", func(t *testing.T) {
		askAs(t, []string{"PATH=" + t.TempDir()}, "", heddleProgram, up...).refused(t, 1, append(complete, "the program nft is missing", "apt-get install nftables")...)
	})
	t.Run("no proxy", func(t *testing.T) {
		ask(t, "", append(up, "--proxy", "/no/such/proxy")...).refused(t, 1, append(complete, "proxy program is missing", "/no/such/proxy", "make build")...)
	})
	t.Run("port taken", func(t *testing.T) {
		packets, err := net.ListenPacket("udp4", "0.0.0.0:15053")
		if err != nil {
			t.Fatal(err)
		}
		// Without the address the port cannot be tried: only a bridge that is there already has it.
		run(t, "ip", "link", "add", "heddle-"+clusterName, "type", "bridge")
		run(t, "ip", "address", "add", "10.244.0.1/16", "dev", "heddle-"+clusterName)
		ask(t, "", up...).refused(t, 1, append(complete, "an address is taken", "10.244.0.1:15053", "ss -lntup")...)
		run(t, "ip", "link", "delete", "heddle-"+clusterName)
		if err := packets.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("addresses taken", func(t *testing.T) {
		run(t, "ip", "link", "add", "taker0", "type", "bridge")
		run(t, "ip", "address", "add", "10.244.7.1/24", "dev", "taker0")
		run(t, "ip", "link", "set", "taker0", "up")
		ask(t, "", up...).refused(t, 1, append(complete, "addresses are in use", "taker0")...)
		run(t, "ip", "link", "delete", "taker0")
	})
	t.Run("disk full", func(t *testing.T) {
		mountData(t, "64m")
		ask(t, "", up...).refused(t, 1, append(complete, "the disk is too full", "/var/lib/heddle/"+clusterName, "free some space")...)
		unmountData(t)
	})
	t.Run("read-only", func(t *testing.T) {
		mountData(t, "600m,ro")
		ask(t, "", up...).refused(t, 1, append(complete, "a directory cannot be written", "/var/lib/heddle/"+clusterName)...)
		unmountData(t)
	})
	nothingLeft(t)
	t.Run("proxy that does not start", func(t *testing.T) {
		// Found only after much was made: all of it goes again.
		ask(t, "", append(up, "--proxy", "/bin/false", "--timeout", "5s")...).refused(t, 1, "not ready in time", "remedy:")
	})
	nothingLeft(t)
	must(t, up...)
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
}

const dataRoot = "/var/lib/heddle"

func mountData(t *testing.T, options string) {
	t.Helper()
	if err := os.MkdirAll(dataRoot, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-t", "tmpfs", "-o", "size="+options, "heddle-data", dataRoot)
}

func unmountData(t *testing.T) {
	t.Helper()
	run(t, "umount", dataRoot)
	if err := os.Remove(dataRoot); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestTwoUpsAtOnce(t *testing.T) {
	withoutCluster(t)
	answers := make([]answer, 2)
	var ups sync.WaitGroup
	for i := range answers {
		ups.Go(func() { answers[i] = ask(t, "", "up", "--name", clusterName) })
	}
	ups.Wait()
	good := 0
	for _, a := range answers {
		if a.code == 0 {
			good++
			continue
		}
		a.refused(t, 1, "another `heddle up` or `heddle down`", "where:", "remedy:")
	}
	if good == 0 {
		t.Errorf("neither worked: %+v", answers)
	}
	must(t, "check")
	if out, err := exec.Command("pgrep", "-c", "-f", "heddle agent run --name "+clusterName).Output(); err != nil || strings.TrimSpace(string(out)) != "1" {
		t.Errorf("agents: %s, %v", out, err)
	}
}

// Whatever was killed, and whenever, `down` finds the rest.
func TestDownAfterCrashes(t *testing.T) {
	withoutCluster(t)
	nothingLeft(t)
	for name, crash := range map[string]func(t *testing.T){
		"agent":                func(t *testing.T) { kill(t, agentPID(t)) },
		"agent and controller": func(t *testing.T) { pid := controllerPID(t); kill(t, agentPID(t)); kill(t, pid) },
		"agent, its records gone": func(t *testing.T) {
			kill(t, agentPID(t))
			if err := os.RemoveAll("/run/heddle/" + clusterName); err != nil {
				t.Fatal(err)
			}
		},
		"in the middle of a start": func(t *testing.T) {
			must(t, "delete", "workloads", "adservice", "frontend", "redis-cart", "-n", harness.ShopSpace)
			must(t, "apply", "-f", "../../demo/boutique/manifests/")
			kill(t, agentPID(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, "up", "--name", clusterName)
			must(t, "apply", "-f", "../../demo/boutique/manifests/")
			must(t, "check")
			if len(processes(t)) < 20 {
				t.Fatalf("only %d processes run", len(processes(t)))
			}
			crash(t)
			must(t, "down", "--name", clusterName)
			nothingLeft(t)
			if out := must(t, "down", "--name", clusterName); !strings.Contains(out, "nothing to remove") {
				t.Errorf("the second down said %s", out)
			}
		})
	}
}

// The disk of the store runs full: writes are refused with the reason, what was acknowledged stays, a controller that is
// killed meanwhile comes back, and with space all goes on.
func TestDiskFull(t *testing.T) {
	withoutCluster(t)
	mountData(t, "768m")
	t.Cleanup(func() {
		must(t, "down", "--name", clusterName)
		unmountData(t)
	})
	must(t, "up", "--name", clusterName)
	must(t, "apply", "-f", "../../demo/boutique/manifests/")
	must(t, "check")
	address := shop(t)
	file := harness.WriteFile(t, service("before"))
	must(t, "apply", "-f", file)
	ballast := filepath.Join(dataRoot, "ballast")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+ballast, "bs=64k").CombinedOutput(); err == nil {
		t.Fatalf("the disk did not run full: %s", out)
	}
	// Writes that were under way may have ended the controller; the next one only reads.
	harness.Eventually(t, 20*time.Second, "the controller on a full disk", func() error { _, err := heddle("get", "services"); return err })
	for range 3 {
		ask(t, service("during"), "apply", "-f", "-").refused(t, 1, "nothing was changed", "the disk is full", "MiB are free", "remedy:", "make room")
	}
	absent(t, "during")
	must(t, "get", "service", "before", "-n", harness.ShopSpace)
	harness.Eventually(t, 5*time.Second, "the shop on a full disk", harness.Works(address+"/"))
	before := controllerPID(t)
	kill(t, before)
	harness.Eventually(t, 5*time.Second, "the shop on a full disk without its controller", harness.Works(address+"/"))
	harness.Eventually(t, 20*time.Second, "another controller on a full disk", func() error {
		if _, err := heddle("get", "service", "before", "-n", harness.ShopSpace); err != nil {
			return err
		}
		if controllerPID(t) == before {
			return errors.New("the killed process is still named")
		}
		return nil
	})
	ask(t, service("during"), "apply", "-f", "-").refused(t, 1, "the disk is full")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 60*time.Second, "writes after space was made", func() error {
		if a := ask(t, service("after"), "apply", "-f", "-"); a.code != 0 {
			return errors.New(a.err)
		}
		return nil
	})
	must(t, "get", "service", "before", "after", "-n", harness.ShopSpace)
	must(t, "check")
}
