package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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

	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
)

// TestMain runs the tests in a network and a mount namespace of their own: whatever they make is gone with them, and
// nothing on the machine is in their way.
func TestMain(m *testing.M) {
	if address := os.Getenv("HEDDLE_TEST_CALL"); address != "" {
		os.Exit(callHere(address, os.Getenv("HEDDLE_TEST_SOURCE")))
	}
	if os.Getuid() != 0 || os.Getenv("HEDDLE_TEST_INSIDE") != "" {
		if os.Getuid() == 0 {
			if err := prepareInside(); err != nil {
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

// callHere prints how it is greeted; see callAsProxy.
func callHere(address, source string) int {
	dialer := net.Dialer{Timeout: 3 * time.Second}
	if source != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
	}
	connection, err := dialer.Dial("tcp", address)
	if err == nil {
		defer connection.Close()
		if err = connection.SetDeadline(time.Now().Add(3 * time.Second)); err == nil {
			_, err = io.Copy(os.Stdout, connection)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func prepareInside() error {
	if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("none", netnsDir, "tmpfs", 0, ""); err != nil {
		return err
	}
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// every is the address of all interfaces.
func every(f cluster.Family) string {
	if f == cluster.IPv6 {
		return "::"
	}
	return "0.0.0.0"
}

func testCluster(t *testing.T, f cluster.Family) cluster.Cluster {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	c, err := cluster.New("test")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.RunRoot, c.DataRoot = filepath.Join(dir, "run"), filepath.Join(dir, "data")
	if err := os.MkdirAll(c.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Forwarding(c, f), EnsureBridge(c, f), Host(c, f)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		names, err := Names(c.NetnsPrefix())
		if err != nil {
			t.Error(err)
		}
		for _, name := range names {
			if err := Delete(name); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(RemoveBridge(c), RemoveHost(c), RestoreForwarding(c)); err != nil {
			t.Error(err)
		}
	})
	return c
}

func attach(t *testing.T, c cluster.Cluster, replica, address string) string {
	t.Helper()
	if err := Attach(c, "shop", replica, netip.MustParseAddr(address)); err != nil {
		t.Fatal(err)
	}
	return c.Netns("shop", replica)
}

// greet listens inside a namespace ("" is the host) and greets whoever connects.
func greet(t *testing.T, netns, address, greeting string) {
	t.Helper()
	var listener net.Listener
	listen := func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}
	err := listen
	if netns != "" {
		err = func() error { return In(netns, listen) }
	}
	if err := err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(connection, greeting)
			connection.Close()
		}
	}()
}

// call connects from inside a namespace ("" is the host) and returns the greeting.
func call(netns, address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var connection net.Conn
	var err error
	if netns == "" {
		connection, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	} else {
		connection, err = Dial(ctx, netns, "tcp", address)
	}
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	buffer := make([]byte, 64)
	n, err := connection.Read(buffer)
	return string(buffer[:n]), err
}

func expect(t *testing.T, netns, address, want string) {
	t.Helper()
	if got, err := call(netns, address); err != nil || got != want {
		t.Errorf("%s from %q: got %q (%v), want %q", address, netns, got, err, want)
	}
}

// families runs a test for both; at gives the n-th address of the pods' range, to for a port of it.
func families(t *testing.T, test func(t *testing.T, f cluster.Family, at func(n int) string, to func(n, port int) string)) {
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		t.Run(string(f), func(t *testing.T) {
			at := func(n int) string {
				a := f.Ranges().Pods.Addr()
				for range n {
					a = a.Next()
				}
				return a.String()
			}
			test(t, f, at, func(n, port int) string { return net.JoinHostPort(at(n), fmt.Sprint(port)) })
		})
	}
}

func TestReplicasReachEachOther(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		a, b := attach(t, c, "a-0", at(2)), attach(t, c, "b-0", at(3))
		greet(t, a, to(2, 80), "a")
		expect(t, b, to(2, 80), "a")
		expect(t, "", to(2, 80), "a")
		// Attaching again changes nothing, and repairs what is missing.
		attach(t, c, "b-0", at(3))
		expect(t, b, to(2, 80), "a")
		// A replica that comes back with its address is reached at once.
		if err := Detach(c, "shop", "b-0"); err != nil {
			t.Fatal(err)
		}
		if Exists(b) {
			t.Fatal("namespace is left")
		}
		attach(t, c, "b-0", at(3))
		greet(t, b, to(3, 80), "b")
		expect(t, a, to(3, 80), "b")
	})
}

func TestCaptureBringsTrafficToTheProxy(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		app, peer := attach(t, c, "app-0", at(2)), attach(t, c, "peer-0", at(3))
		if err := Captured(app, f); err == nil {
			t.Fatal("capture reported before it was made")
		}
		if err := Capture(app, f, proxyUser, interception.Rules{}); err != nil {
			t.Fatal(err)
		}
		if err := Captured(app, f); err != nil {
			t.Fatal(err)
		}
		loopback, every, virtual, world := "127.0.0.1", "0.0.0.0", "10.96.0.9", "198.51.100.1"
		if f == cluster.IPv6 {
			loopback, every, virtual, world = "::1", "::", "fd00:240:240::9", "2001:db8::1"
		}
		port := func(address string, port int) string { return net.JoinHostPort(address, fmt.Sprint(port)) }
		greet(t, app, port(loopback, 15001), "outbound")
		greet(t, app, port(every, 15006), "inbound")
		greet(t, app, port(every, 8080), "application")
		greet(t, app, port(every, 15021), "health")
		greet(t, peer, to(3, 80), "peer")
		for _, c := range []struct{ name, from, to, want string }{
			{"outbound to a peer", app, to(3, 80), "outbound"},
			{"outbound to a virtual address", app, port(virtual, 80), "outbound"},
			{"outbound to the world", app, port(world, 443), "outbound"},
			{"loopback stays", app, port(loopback, 8080), "application"},
			{"own address stays", app, to(2, 8080), "application"},
			{"inbound from a peer", peer, to(2, 8080), "inbound"},
			{"inbound from the host", "", to(2, 9999), "inbound"},
			{"health passes", peer, to(2, 15021), "health"},
		} {
			if got, err := call(c.from, c.to); err != nil || got != c.want {
				t.Errorf("%s: got %q (%v), want %q", c.name, got, err, c.want)
			}
		}
		for _, p := range []int{15001, 15006} {
			if got, err := call(peer, to(2, p)); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("direct dial of %d: %q %v", p, got, err)
			}
		}
	})
}

// The proxy's own traffic: to the world it is left alone, to its own workload it comes in by the inbound port, and the
// last leg, which comes from the passthrough address, reaches the application.
func TestTheProxysOwnTraffic(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		app, peer := attach(t, c, "app-0", at(2)), attach(t, c, "peer-0", at(3))
		if err := Capture(app, f, proxyUser, interception.Rules{}); err != nil {
			t.Fatal(err)
		}
		passthrough := "127.0.0.6"
		if f == cluster.IPv6 {
			passthrough = "::6"
		}
		greet(t, app, net.JoinHostPort(every(f), "15006"), "inbound")
		greet(t, app, to(2, 8080), "application")
		greet(t, peer, to(3, 80), "peer")
		for _, c := range []struct{ name, source, to, want string }{
			{"to a peer", "", to(3, 80), "peer"},
			{"to its own workload", "", to(2, 8080), "inbound"},
			{"last leg", passthrough, to(2, 8080), "application"},
		} {
			if got, err := callAsProxy(app, c.source, c.to); err != nil || got != c.want {
				t.Errorf("%s: got %q (%v), want %q", c.name, got, err, c.want)
			}
		}
	})
}

// proxyUser is whom the proxies of these tests run as.
const proxyUser = 1879048199

// callAsProxy calls as the proxy's user, from an address.
func callAsProxy(netns, source, address string) (string, error) {
	var out []byte
	err := In(netns, func() error {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{"HEDDLE_TEST_CALL=" + address, "HEDDLE_TEST_SOURCE=" + source}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
		var err error
		out, err = cmd.Output()
		return err
	})
	return string(out), err
}

func TestDNSReachesTheAgent(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		app := attach(t, c, "app-0", at(2))
		if err := Capture(app, f, proxyUser, interception.Rules{}); err != nil {
			t.Fatal(err)
		}
		server, err := net.ListenPacket("udp", to(1, 15053))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		go func() {
			buffer := make([]byte, 64)
			n, from, err := server.ReadFrom(buffer)
			if err == nil {
				_, _ = server.WriteTo(buffer[:n], from)
			}
		}()
		connection, err := Dial(context.Background(), app, "udp", to(1, 53))
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := connection.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 64)
		if n, err := connection.Read(buffer); err != nil || string(buffer[:n]) != "question" {
			t.Fatalf("%q %v", buffer[:n], err)
		}
		greet(t, "", to(1, 15053), "by stream")
		expect(t, app, to(1, 53), "by stream")
	})
}

func TestConflictNamesTheOther(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, _ func(int) string, _ func(int, int) string) {
		c := testCluster(t, f)
		ranges := []netip.Prefix{f.Ranges().Pods, f.Ranges().Services}
		if found, err := Conflict(c.Bridge(), f, ranges...); err != nil || found != "" {
			t.Fatalf("own bridge is a conflict: %q %v", found, err)
		}
		if found, err := Conflict("heddle-other", f, ranges...); err != nil || !strings.Contains(found, c.Bridge()) {
			t.Fatalf("%q %v", found, err)
		}
		if found, err := Conflict("heddle-other", f, f.Ranges().WAN); err != nil || found != "" {
			t.Fatalf("%q %v", found, err)
		}
	})
}

func TestAddressesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "addresses.db")
	pool := netip.MustParsePrefix("10.244.0.0/29")
	known := map[string]netip.Addr{}
	open := func() (*allocation.Table[netip.Addr], error) {
		return OpenAddresses(path, pool, func() (map[string]netip.Addr, error) { return maps.Clone(known), nil })
	}
	a, err := open()
	if err != nil {
		t.Fatal(err)
	}
	owners := []string{"shop/r-0", "shop/r-1", "shop/s-2", "shop/r-3", "shop/r-4"}
	given, err := a.Get(owners...)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]netip.Addr{}
	for i, owner := range owners {
		got[owner] = given[i]
	}
	if given[0] != netip.MustParseAddr("10.244.0.2") || given[4] != netip.MustParseAddr("10.244.0.6") {
		t.Errorf("the network's, the gateway's or the broadcast address is in %v", given)
	}
	if _, err := a.Get("shop/one-too-many"); err == nil || !strings.Contains(err.Error(), "no address left") {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range got {
		if address, err := again.Get(owner); err != nil || address[0] != want {
			t.Errorf("%s: %s %v, want %s", owner, address, err, want)
		}
	}
	if err := again.Keep(func(workload string) bool { return workload != "shop/s" }); err != nil {
		t.Fatal(err)
	}
	if address, err := again.Get("shop/new"); err != nil || address[0] != got["shop/s-2"] {
		t.Fatalf("%s %v", address, err)
	}
	if err := again.Release("shop/r"); err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := open()
	if err != nil || left.Count() != 1 {
		t.Fatal(err)
	} else if address, err := left.Get("shop/new"); err != nil || address[0] != got["shop/s-2"] {
		t.Fatalf("%s %v", address, err)
	}
	// A torn file is repaired from what replicas have.
	if err := errors.Join(left.Close(), os.Truncate(path, 5000)); err != nil {
		t.Fatal(err)
	}
	known = map[string]netip.Addr{"shop/r-1": got["shop/r-1"], "shop/twice": got["shop/r-1"], "shop/elsewhere": netip.MustParseAddr("192.0.2.1")}
	repaired, err := open()
	if err != nil || repaired.Count() != 1 {
		t.Fatalf("%v %v", repaired, err)
	}
	if address, err := repaired.Get("shop/other"); err != nil || address[0] == got["shop/r-1"] {
		t.Errorf("the address of what runs was handed out: %s %v", address, err)
	}
	unread := errors.New("the namespaces cannot be read")
	_, err = OpenAddresses(filepath.Join(t.TempDir(), "none"), pool, func() (map[string]netip.Addr, error) { return nil, unread })
	if !errors.Is(err, unread) {
		t.Fatal(err)
	}
}

func TestAddressesOfReplicas(t *testing.T) {
	c := testCluster(t, cluster.IPv4)
	attach(t, c, "web-0", "10.244.3.4")
	attach(t, c, "web-1", "10.244.3.5")
	// One that was just being made when an agent ended has no address yet.
	if err := create(c.Netns("shop", "web-2")); err != nil {
		t.Fatal(err)
	}
	got, err := AddressesOfReplicas(c)
	want := map[string]netip.Addr{"shop/web-0": netip.MustParseAddr("10.244.3.4"), "shop/web-1": netip.MustParseAddr("10.244.3.5")}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}
