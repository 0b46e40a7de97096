package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/agent/users"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/control/server/client"
)

// newAgent makes an agent that has nothing of its machine but control groups: its replicas get an address and wait for
// their network, which is never there.
func newAgent(t testing.TB) *Agent {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("control groups need root")
	}
	root := t.TempDir()
	c := cluster.Cluster{Name: fmt.Sprintf("unit%d", os.Getpid()), RunRoot: filepath.Join(root, "run"), DataRoot: filepath.Join(root, "data")}
	for _, dir := range []string{filepath.Join(c.Run(), "agent"), c.Data(), c.Logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	hierarchies, err := process.Hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	a := &Agent{config: Config{Cluster: c, Log: log}, options: cluster.Options{Family: cluster.IPv4}, log: log, client: client.New(c.APISocket()), hierarchies: hierarchies,
		starts: make(chan struct{}, maxStarts), kick: make(chan struct{}, 1), rekick: make(chan struct{}, 1), deployments: map[string]*deployment{}, placed: make(chan struct{}), now: time.Now}
	if a.addresses, err = network.OpenAddresses(a.addressesPath(), a.options.Family.Ranges().Pods, func() (map[string]netip.Addr, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if a.users, err = users.Open(filepath.Join(c.Data(), "users.db"), 1, a.usersOfReplicas); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hierarchies.Remove(c.Cgroup()); err != nil {
			t.Error(err)
		}
	})
	return a
}

// owners are the owners of addresses, as they are on disk.
func owners(t *testing.T, a *Agent) string {
	t.Helper()
	content, err := os.ReadFile(a.addressesPath())
	if err != nil {
		return ""
	}
	// The file itself is the agent's.
	copied := filepath.Join(t.TempDir(), "addresses.db")
	if err := os.WriteFile(copied, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, kept, err := objectfile.OpenSet[string, netip.Addr](copied)
	if err != nil {
		t.Fatal(err)
	}
	// Without an owner is which one is next.
	delete(kept, "")
	return strings.Join(slices.Sorted(maps.Keys(kept)), " ")
}

// writeLog writes to the log of a replica, namespace/name-N.
func writeLog(t *testing.T, a *Agent, replica string) {
	t.Helper()
	dir := logsOf(a.config.Cluster, replica)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "app.log"), []byte("said\n"), 0o640)); err != nil {
		t.Fatal(err)
	}
}

// logsKept are the replicas that have logs, and the namespaces that have none but a directory.
func logsKept(t *testing.T, a *Agent) string {
	t.Helper()
	var kept []string
	for _, dir := range []string{"*/*/app.log", "*"} {
		found, err := filepath.Glob(filepath.Join(a.config.Cluster.Logs(), dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			name, err := filepath.Rel(a.config.Cluster.Logs(), strings.TrimSuffix(path, "/app.log"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(kept, func(replica string) bool { return strings.HasPrefix(replica, name+"/") }) {
				kept = append(kept, name)
			}
		}
	}
	return strings.Join(kept, " ")
}

// Of a deleted workload nothing stays: no goroutine, no entry, no address, no user id, no control group, no file, no log. A stopped
// one keeps its addresses and its logs.
func TestDeletedWorkloadLeavesNothing(t *testing.T) {
	a := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	specs := replicas(workload(), "c", false, nil)
	before := runtime.NumGoroutine()
	groups := func() int {
		found := 0
		for _, spec := range specs {
			matches, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Join(a.config.Cluster.Cgroup(), spec.Namespace+"."+spec.Name))
			if err != nil {
				t.Fatal(err)
			}
			found += len(matches)
		}
		return found
	}
	for range 3 {
		a.deploy(ctx, "shop/cart", specs)
		until(t, "addresses and replicas", func() bool { return owners(t, a) == "shop/cart-0 shop/cart-1" && len(a.all()) == 2 })
		for _, spec := range specs {
			group := filepath.Join(a.config.Cluster.Cgroup(), spec.Namespace+"."+spec.Name, "app")
			if _, _, err := a.hierarchies.Create(group, process.Limits{}); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(a.config.Cluster.Workload(spec.Namespace, spec.Name), 0o755); err != nil {
				t.Fatal(err)
			}
			writeLog(t, a, spec.key())
		}
		made := groups()
		a.deploy(ctx, "shop/cart", nil)
		until(t, "the stop", func() bool { return len(a.all()) == 0 })
		if got := owners(t, a); got != "shop/cart-0 shop/cart-1" {
			t.Errorf("a stopped workload has the addresses %q", got)
		}
		if n := a.users.Count(); n != 2*len(specs) {
			t.Errorf("a stopped workload has %d user ids", n)
		}
		if got := logsKept(t, a); got != "shop/cart-0 shop/cart-1" {
			t.Errorf("a stopped workload has the logs %q", got)
		}
		a.deploy(ctx, "shop/cart", specs)
		until(t, "the start", func() bool { return len(a.all()) == 2 })
		a.undeploy(ctx, "shop/cart")
		until(t, "the entry's end", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.deployments) == 0 })
		if n := a.users.Count(); n != 0 {
			t.Errorf("a deleted workload has %d user ids", n)
		}
		if got := owners(t, a); got != "" {
			t.Errorf("a deleted workload has the addresses %q", got)
		}
		if got := logsKept(t, a); got != "" {
			t.Errorf("a deleted workload has the logs %q", got)
		}
		if left := groups(); left != 0 {
			t.Errorf("%d of %d control groups are left", left, made)
		}
		if left, err := filepath.Glob(a.config.Cluster.Workload("shop", "*")); err != nil || len(left) > 0 {
			t.Errorf("%v, %v", left, err)
		}
	}
	until(t, "the goroutines' end", func() bool { return runtime.NumGoroutine() <= before })
}

// A replica of which something cannot be removed keeps its name and its ids until it can, whatever is wanted meanwhile; the removal
// is tried again.
func TestRemovalThatFails(t *testing.T) {
	a := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	specs := replicas(workload(), "c", false, nil)
	stuck := filepath.Join(a.config.Cluster.Workload("shop", "cart-1"), "mounted")
	// What is mounted on cannot be removed.
	free := func() {
		if err := unix.Unmount(stuck, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	}
	t.Cleanup(free)
	refused := func(r *replica) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.draining && strings.Contains(r.message, "not removed yet") && strings.Contains(r.message, "device or resource busy")
	}
	ended := func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.deployments) == 0 }
	for _, again := range []bool{false, true} {
		a.deploy(ctx, "shop/cart", specs)
		until(t, "both replicas", func() bool { return len(a.all()) == 2 && owners(t, a) == "shop/cart-0 shop/cart-1" })
		old := a.find("shop", "cart-1")
		if err := errors.Join(os.MkdirAll(stuck, 0o755), unix.Mount("none", stuck, "tmpfs", 0, "size=4k")); err != nil {
			t.Fatal(err)
		}
		a.undeploy(ctx, "shop/cart")
		until(t, "the removal of what can be removed", func() bool { return len(a.all()) == 1 && refused(old) })
		if got := owners(t, a); got != "shop/cart-0 shop/cart-1" || ended() {
			t.Errorf("of a workload that is not removed yet, ids have %q", got)
		}
		if again {
			a.deploy(ctx, "shop/cart", specs)
			until(t, "the one that can start", func() bool { return len(a.all()) == 2 })
			if a.find("shop", "cart-1") != old {
				t.Error("another replica started where something is left of the one before")
			}
			free()
			until(t, "another one", func() bool { return a.find("shop", "cart-1") != nil && a.find("shop", "cart-1") != old })
			a.undeploy(ctx, "shop/cart")
		}
		free()
		until(t, "the end", ended)
		if got := owners(t, a); got != "" || a.users.Count() != 0 {
			t.Errorf("addresses of %q and %d user ids are left", got, a.users.Count())
		}
	}
}

// Logs that cannot be removed keep the ids by which they are found until they can, and the removal is tried again.
func TestLogsThatCannotBeRemoved(t *testing.T) {
	a := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.deploy(ctx, "shop/cart", replicas(workload(), "c", false, nil))
	until(t, "both replicas", func() bool { return len(a.all()) == 2 && owners(t, a) == "shop/cart-0 shop/cart-1" })
	writeLog(t, a, "shop/cart-0")
	stuck := filepath.Join(logsOf(a.config.Cluster, "shop/cart-1"), "mounted")
	if err := errors.Join(os.MkdirAll(stuck, 0o755), unix.Mount("none", stuck, "tmpfs", 0, "size=4k")); err != nil {
		t.Fatal(err)
	}
	free := sync.OnceFunc(func() {
		if err := unix.Unmount(stuck, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(free)
	a.undeploy(ctx, "shop/cart")
	until(t, "the removal of what can be removed", func() bool { return len(a.all()) == 0 && logsKept(t, a) == "shop" })
	writeLog(t, a, "shop/cart-0")
	until(t, "another try", func() bool { return logsKept(t, a) == "shop" })
	if got := owners(t, a); got != "shop/cart-0 shop/cart-1" {
		t.Errorf("ids have %q", got)
	}
	free()
	until(t, "the end", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.deployments) == 0 })
	if got := owners(t, a) + logsKept(t, a); got != "" || a.users.Count() != 0 {
		t.Errorf("%q and %d user ids are left", got, a.users.Count())
	}
}

// A directory of logs that a version before left open is closed.
func TestLogsAreClosedToOthers(t *testing.T) {
	c := cluster.Cluster{Name: "c", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	for _, before := range []os.FileMode{0, 0o755} {
		if before != 0 {
			if err := os.Chmod(c.Logs(), before); err != nil {
				t.Fatal(err)
			}
		}
		if err := MakeLogs(c); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(c.Logs()); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("from %s: %v, %v", before, info.Mode(), err)
		}
	}
}

// While a removal is tried again, the replica goes on to say why it was not removed.
func TestRemovalThatIsTriedAgainSaysWhy(t *testing.T) {
	a := newAgent(t)
	r := a.newReplica(replicas(workload(), "c", false, nil)[0])
	r.start(t.Context())
	stuck := filepath.Join(r.dir, "mounted")
	if err := errors.Join(os.MkdirAll(stuck, 0o755), unix.Mount("none", stuck, "tmpfs", 0, "size=4k")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(stuck, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	const why = "not removed yet"
	refused := func() {
		if err := r.stop(t.Context()); err == nil {
			t.Fatal("removed")
		}
	}
	refused()
	r.set(func() { r.message = why })
	refused()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.message != why {
		t.Errorf("it says %q", r.message)
	}
}

// A workload that is deleted and made again at once runs.
func TestDeletedAndMadeAgain(t *testing.T) {
	a := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	specs := replicas(workload(), "c", false, nil)
	for range 20 {
		a.deploy(ctx, "shop/cart", specs)
		a.undeploy(ctx, "shop/cart")
	}
	a.deploy(ctx, "shop/cart", specs)
	until(t, "both replicas", func() bool { return len(a.all()) == 2 && owners(t, a) == "shop/cart-0 shop/cart-1" })
	a.undeploy(ctx, "shop/cart")
	until(t, "the end", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.deployments) == 0 })
	if got := owners(t, a); got != "" || a.users.Count() != 0 {
		t.Errorf("addresses of %q and %d user ids are left", got, a.users.Count())
	}
}

// The ids of all replicas of a workload are written once, before one of them starts.
func TestIDsOfAWorkloadAreWrittenOnce(t *testing.T) {
	a := newAgent(t)
	var writes [2]atomic.Int32
	first := a.options.Family.Ranges().Pods.Addr()
	a.addresses = allocation.New(allocation.Config[netip.Addr]{Next: netip.Addr.Next, Size: 100}, first, nil,
		func(map[string]netip.Addr, []string, int, func() map[string]netip.Addr) error {
			writes[0].Add(1)
			return nil
		})
	a.users = allocation.New(allocation.Config[int]{Next: func(id int) int { return id + 1 }, Size: 100}, 1, nil,
		func(map[string]int, []string, int, func() map[string]int) error { writes[1].Add(1); return nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := workload()
	w.Spec.Replicas = new(int32(20))
	a.deploy(ctx, "shop/cart", replicas(w, "c", false, nil))
	until(t, "the addresses", func() bool {
		all := a.all()
		return len(all) == 20 && !slices.ContainsFunc(all, func(r *replica) bool { r.mu.Lock(); defer r.mu.Unlock(); return r.proxyUser == 0 })
	})
	for i, what := range []string{"addresses", "user ids"} {
		if n := writes[i].Load(); n != 1 {
			t.Errorf("%s were written %d times", what, n)
		}
	}
	a.undeploy(ctx, "shop/cart")
	until(t, "the end", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.deployments) == 0 })
}

// What an agent before this one has left of a workload that was deleted meanwhile goes.
func TestSweepFreesAddresses(t *testing.T) {
	a := newAgent(t)
	for _, replica := range []string{"shop/cart-0", "shop/cart-7", "shop/gone-0", "away/gone-0", "istio-system/istio-ingressgateway-0"} {
		writeLog(t, a, replica)
	}
	if _, err := a.addresses.Get("shop/cart-0", "shop/cart-7", "shop/gone-0", "istio-system/istio-ingressgateway-0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.deploy(ctx, ingressKey, ingress.replicas(1, "", nil))
	until(t, "the start", func() bool { return len(a.all()) == 1 })
	a.sweep(map[string][]replicaSpec{"shop/cart": nil})
	if got := owners(t, a); got != "istio-system/istio-ingressgateway-0 shop/cart-0 shop/cart-7" {
		t.Error(got)
	}
	if got := logsKept(t, a); got != "istio-system/istio-ingressgateway-0 shop/cart-0 shop/cart-7" {
		t.Errorf("logs: %q", got)
	}
	a.deploy(ctx, ingressKey, nil)
	until(t, "the stop", func() bool { return len(a.all()) == 0 })
}

// What a stale replica has left and cannot be removed is not tried at every list: each try may wait for a process that cannot be
// killed. Its ids stay.
func TestSweepOfWhatCannotBeRemoved(t *testing.T) {
	a := newAgent(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	name := network.Path(a.config.Cluster.Netns("shop", "gone-0"))
	dir := a.config.Cluster.Workload("shop", "gone-0")
	stuck, other := filepath.Join(dir, "mounted"), filepath.Join(dir, "other")
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o444), os.MkdirAll(stuck, 0o755), unix.Mount("none", stuck, "tmpfs", 0, "size=4k")); err != nil {
		t.Fatal(err)
	}
	free := sync.OnceFunc(func() {
		if err := unix.Unmount(stuck, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { free(); os.Remove(name) })
	if _, err := a.addresses.Get("shop/gone-0"); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		after time.Duration
		tried bool
	}{{0, true}, {0, false}, {sweepPause - 1, false}, {1, true}, {sweepPause / 2, false}} {
		now = now.Add(step.after)
		// A try removes what it can.
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		a.sweep(nil)
		if _, err := os.Stat(other); errors.Is(err, os.ErrNotExist) != step.tried {
			t.Errorf("step %d: tried %t", i, !step.tried)
		}
		if got := owners(t, a); got != "shop/gone-0" {
			t.Errorf("step %d: ids have %q", i, got)
		}
	}
	free()
	now = now.Add(sweepPause)
	a.sweep(nil)
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) || owners(t, a) != "" || len(a.unswept) != 0 {
		t.Errorf("left: %v, ids of %q, %v", err, owners(t, a), a.unswept)
	}
}
