package isolation

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
)

// TestMain runs the tests in a network and a mount namespace of their own, which stand for the machine.
func TestMain(m *testing.M) {
	if script := os.Getenv("HEDDLE_TEST_SCRIPT"); script != "" {
		c := cluster.Cluster{Name: os.Getenv("HEDDLE_TEST_NAME"), RunRoot: os.Getenv("HEDDLE_TEST_RUN"), DataRoot: os.Getenv("HEDDLE_TEST_DATA")}
		fmt.Fprintln(os.Stderr, Exec(c, []string{"/bin/sh", "-c", script}, os.Environ()))
		os.Exit(1)
	}
	if os.Getuid() != 0 || os.Getenv("HEDDLE_TEST_INSIDE") != "" {
		if os.Getuid() == 0 {
			if err := prepareMachine(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "HEDDLE_TEST_INSIDE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// prepareMachine makes the mounts shared, as systemd does: the harder case.
func prepareMachine() error {
	if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := os.MkdirAll(network.Path(""), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("none", network.Path(""), "tmpfs", 0, ""); err != nil {
		return err
	}
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// isolated makes a cluster of the machine that the directory stands for.
func isolated(t *testing.T, machine, name string, f cluster.Family) (cluster.Cluster, cluster.Options) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	c, err := cluster.New(name)
	if err != nil {
		t.Fatal(err)
	}
	c.RunRoot, c.DataRoot = filepath.Join(machine, "run"), filepath.Join(machine, "data")
	o, err := Reserve(c, cluster.Options{Family: f, Isolated: true})
	if err != nil {
		t.Fatal(err)
	}
	ensure(t, c, o, 0)
	t.Cleanup(func() { remove(t, c) })
	return c, o
}

func ensure(t *testing.T, c cluster.Cluster, o cluster.Options, agent int) {
	t.Helper()
	if err := Ensure(c, o, agent); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, c cluster.Cluster) {
	t.Helper()
	if err := errors.Join(Remove(c), network.RestoreForwarding(c), os.RemoveAll(c.Run()), os.RemoveAll(c.Data())); err != nil {
		t.Error(err)
	}
	if left := Traces(c); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// command is a shell script inside of a cluster.
func command(c cluster.Cluster, script string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "HEDDLE_TEST_SCRIPT="+script, "HEDDLE_TEST_NAME="+c.Name, "HEDDLE_TEST_RUN="+c.RunRoot, "HEDDLE_TEST_DATA="+c.DataRoot)
	return cmd
}

func inCluster(t *testing.T, c cluster.Cluster, script string) string {
	t.Helper()
	out, err := command(c, script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s in %s: %v\n%s", script, c.Name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// daemon runs inside until it is killed, and says that it does by a file.
func daemon(t *testing.T, c cluster.Cluster, script string) (*exec.Cmd, <-chan error) {
	t.Helper()
	cmd := command(c, "touch "+filepath.Join(c.Run(), "started")+"; "+script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	until(t, func() bool { _, err := os.Stat(filepath.Join(c.Run(), "started")); return err == nil })
	return cmd, ended
}

// reach fails unless an address answers a cluster: with a refusal, for nobody listens there.
func reach(t *testing.T, c cluster.Cluster, address netip.Addr) {
	t.Helper()
	err := network.In(c.IsolatedNetns(), func() error {
		connection, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", netip.AddrPortFrom(address, 1).String())
		if err == nil {
			connection.Close()
		}
		return err
	})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s does not reach %s: %v", c.Name, address, err)
	}
}

func until(t *testing.T, holds func() bool) {
	t.Helper()
	deadline, tick := time.After(10*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatal("not in time")
		case <-tick.C:
		}
	}
}

func TestClustersDoNotSeeEachOther(t *testing.T) {
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		t.Run(string(f), func(t *testing.T) {
			machine := t.TempDir()
			a, first := isolated(t, machine, "a", f)
			b, second := isolated(t, machine, "b", f)
			if first.Advertise == second.Advertise || first.Advertise != f.Ranges().Host().Addr().Next() {
				t.Fatalf("addresses %s and %s", first.Advertise, second.Advertise)
			}
			for _, x := range []struct {
				c     cluster.Cluster
				other netip.Addr
			}{{a, second.Advertise}, {b, first.Advertise}} {
				for _, dir := range []string{x.c.RunRoot, x.c.DataRoot} {
					if got := inCluster(t, x.c, "ls -A "+dir); got != x.c.Name {
						t.Errorf("%s of %s holds %q", dir, x.c.Name, got)
					}
				}
				if got := inCluster(t, x.c, "ls -A "+network.Path("")); got != "" {
					t.Errorf("%s sees the machine's network namespaces: %q", x.c.Name, got)
				}
				// Names that are made inside are not seen on the machine.
				inCluster(t, x.c, "ip netns add inner && ip netns exec inner true")
				if network.Exists("inner") {
					t.Error("a name from inside is on the machine")
				}
				reach(t, x.c, x.other)
				// The machine reads what is written inside, and the other way round.
				inCluster(t, x.c, "echo inside > "+filepath.Join(x.c.Run(), "file")+"; echo inside > "+filepath.Join(x.c.Data(), "file"))
				for _, dir := range []string{x.c.Run(), x.c.Data()} {
					if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "inside\n" {
						t.Errorf("%s: %q %v", dir, content, err)
					}
				}
			}
			// A socket that is served inside is reached by its path on the machine.
			socket := filepath.Join(a.Run(), "s")
			var listener net.Listener
			if err := within(a, func() (err error) { listener, err = net.Listen("unix", socket); return err }); err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			connection, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			connection.Close()
			// One goes, the other stays; the last takes everything along.
			remove(t, b)
			reach(t, a, f.Ranges().Host().Addr())
			remove(t, a)
			if _, err := net.InterfaceByName(cluster.WANBridge); err == nil {
				t.Error("the bridge is left")
			}
			if left, err := os.ReadDir(a.RunRoot); err != nil || len(left) != 0 {
				t.Errorf("left: %v %v", left, err)
			}
		})
	}
}

// What goes away on the machine must not be kept alive inside, or it could never be removed.
func TestNamesThatGoAwayAreGoneInsideToo(t *testing.T) {
	machine := t.TempDir()
	a, _ := isolated(t, machine, "a", cluster.IPv4)
	b, _ := isolated(t, machine, "b", cluster.IPv4)
	inode, err := network.Inode(network.Path(a.IsolatedNetns()))
	if err != nil {
		t.Fatal(err)
	}
	_, ended := daemon(t, b, "exec sleep 100")
	remove(t, a)
	if out := inCluster(t, b, "cat /proc/self/mountinfo"); strings.Contains(out, fmt.Sprintf("net:[%d]", inode)) || strings.Contains(out, "mnt:[") {
		t.Errorf("namespaces that were removed are kept:\n%s", out)
	}
	select {
	case err := <-ended:
		t.Errorf("a process of the other cluster ended: %v", err)
	default:
	}
}

func TestRepair(t *testing.T) {
	machine := t.TempDir()
	c, o := isolated(t, machine, "c", cluster.IPv4)
	namespaces := func() [2]uint64 {
		t.Helper()
		net, netErr := network.Inode(network.Path(c.IsolatedNetns()))
		mnt, mntErr := network.Inode(c.MountNamespace())
		if err := errors.Join(netErr, mntErr); err != nil {
			t.Fatal(err)
		}
		return [2]uint64{net, mnt}
	}
	before := namespaces()
	agent, ended := daemon(t, c, "exec sleep 100")
	ensure(t, c, o, 0)
	if namespaces() != before {
		t.Fatal("what was right was made anew")
	}
	// The cable is pulled.
	if out, err := exec.Command("ip", "link", "delete", c.WANVeth()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ensure(t, c, o, 0)
	reach(t, c, o.Family.Ranges().Host().Addr())
	// The run directory is removed and made again.
	if err := os.RemoveAll(c.Run()); err != nil {
		t.Fatal(err)
	}
	ensure(t, c, o, 0)
	inCluster(t, c, "echo again > "+filepath.Join(c.Run(), "file"))
	if _, err := os.Stat(filepath.Join(c.Run(), "file")); err != nil {
		t.Fatal(err)
	}
	// Both names are lost, and the agent is still there.
	if err := errors.Join(network.Delete(c.IsolatedNetns()), unpin(c)); err != nil {
		t.Fatal(err)
	}
	ensure(t, c, o, agent.Process.Pid)
	if namespaces() != before {
		t.Fatal("not the agent's namespaces")
	}
	select {
	case err := <-ended:
		t.Fatalf("the process inside ended: %v", err)
	default:
	}
	// Whoever is still inside does not survive the removal.
	remove(t, c)
	if err := <-ended; err == nil {
		t.Error("it ended by itself")
	}
	if err := command(c, "true").Run(); err == nil {
		t.Error("entered what was removed")
	}
}

func TestHalfMadeIsolationIsRemoved(t *testing.T) {
	for name, make := range map[string]func(c cluster.Cluster, o cluster.Options) error{
		"nothing": func(cluster.Cluster, cluster.Options) error { return nil },
		"network only": func(c cluster.Cluster, o cluster.Options) error {
			return network.AttachWAN(c, o.Advertise)
		},
		"no way to the machine": func(c cluster.Cluster, o cluster.Options) error {
			// The machine's address is not in its network.
			o.Advertise = netip.MustParseAddr("192.0.2.1")
			if Ensure(c, o, 0) == nil {
				return errors.New("made")
			}
			return nil
		},
		"network namespace lost": func(c cluster.Cluster, o cluster.Options) error {
			return errors.Join(Ensure(c, o, 0), network.Delete(c.IsolatedNetns()))
		},
		"mount namespace is a plain file": func(c cluster.Cluster, o cluster.Options) error {
			return errors.Join(Ensure(c, o, 0), unix.Unmount(c.MountNamespace(), unix.MNT_DETACH))
		},
		"directory of names without names": func(c cluster.Cluster, o cluster.Options) error {
			return errors.Join(ensurePins(c), network.AttachWAN(c, o.Advertise))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("namespaces need root")
			}
			machine := t.TempDir()
			c := cluster.Cluster{Name: "half", RunRoot: filepath.Join(machine, "run"), DataRoot: filepath.Join(machine, "data")}
			o, err := Reserve(c, cluster.Options{Family: cluster.IPv4, Isolated: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := make(c, o); err != nil {
				t.Fatal(err)
			}
			remove(t, c)
			if _, err := net.InterfaceByName(cluster.WANBridge); err == nil {
				t.Error("the bridge is left")
			}
			if _, err := os.Stat(pins(c)); err == nil {
				t.Error("the directory of names is left")
			}
		})
	}
}

// An interface of somebody else that has the bridge's name is neither used nor removed.
func TestAForeignInterfaceStays(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	machine := t.TempDir()
	c := cluster.Cluster{Name: "late", RunRoot: filepath.Join(machine, "run"), DataRoot: filepath.Join(machine, "data")}
	o, err := Reserve(c, cluster.Options{Family: cluster.IPv4, Isolated: true})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "link", "add", cluster.WANBridge, "type", "veth", "peer", "name", "foreign").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := Ensure(c, o, 0); err == nil || !strings.Contains(err.Error(), "not a bridge") || len(Traces(c)) == 0 {
		t.Errorf("%v, traces %v", err, Traces(c))
	}
	remove(t, c)
	if out, err := exec.Command("ip", "link", "del", cluster.WANBridge).CombinedOutput(); err != nil {
		t.Errorf("it is gone: %s", out)
	}
}

func TestAddressesAreKeptAndNotSharedOut(t *testing.T) {
	root := t.TempDir()
	reserve := func(name string, o cluster.Options) (cluster.Options, error) {
		return Reserve(cluster.Cluster{Name: name, RunRoot: filepath.Join(root, "run"), DataRoot: filepath.Join(root, "data")}, o)
	}
	four := cluster.Options{Family: cluster.IPv4, Isolated: true}
	var kept cluster.Options
	for i := range 253 {
		o, err := reserve(fmt.Sprint("c", i), four)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("198.18.0.%d", i+2); o.Advertise.String() != want {
			t.Fatalf("%s, want %s", o.Advertise, want)
		}
		kept = o
	}
	if o, err := reserve("c252", kept); err != nil || o.Advertise != kept.Advertise {
		t.Fatalf("not kept: %s %v", o.Advertise, err)
	}
	if _, err := reserve("one-too-many", four); err == nil || !strings.Contains(err.Error(), "heddle down") {
		t.Fatal(err)
	}
	if o, err := reserve("six", cluster.Options{Family: cluster.IPv6, Isolated: true}); err != nil || o.Advertise.String() != "2001:db8:198:18::2" {
		t.Fatalf("%s %v", o.Advertise, err)
	}
	// What is free again is given out again; an address that another one has meanwhile is replaced.
	if err := os.RemoveAll(filepath.Join(root, "data", "c7")); err != nil {
		t.Fatal(err)
	}
	if o, err := reserve("new", kept); err != nil || o.Advertise.String() != "198.18.0.9" {
		t.Fatalf("%s %v", o.Advertise, err)
	}
	if err := os.WriteFile(filepath.Join(root, "data", "c1", "cluster.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := reserve("other", four); err == nil || !strings.Contains(err.Error(), "c1") {
		t.Fatal(err)
	}
}

// The user ids of a cluster are its own on its machine, isolated or not, and stay so.
func TestUserIdsAreNotSharedOut(t *testing.T) {
	root := t.TempDir()
	taken := map[int]bool{}
	for i := range 6 {
		c := cluster.Cluster{Name: fmt.Sprint("c", i), RunRoot: filepath.Join(root, "run"), DataRoot: filepath.Join(root, "data")}
		o, err := Reserve(c, cluster.Options{Family: cluster.IPv4, Isolated: i%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if o.UserBlock == 0 || taken[o.UserBlock] {
			t.Errorf("%s has block %d", c.Name, o.UserBlock)
		}
		taken[o.UserBlock] = true
		again, err := c.Options()
		if err == nil {
			again, err = Reserve(c, again)
		}
		if err != nil || again.UserBlock != o.UserBlock {
			t.Errorf("%s had block %d and has %d: %v", c.Name, o.UserBlock, again.UserBlock, err)
		}
	}
}
