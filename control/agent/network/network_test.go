package network

import (
	"context"
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

	"heddle.io/heddle/control/cluster"
)

// TestMain runs the tests in a network and a mount namespace of their own: whatever they make is gone with them, and
// nothing on the machine is in their way.
func TestMain(m *testing.M) {
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

func testCluster(t *testing.T) cluster.Cluster {
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
	if err := errors.Join(Forwarding(c), EnsureBridge(c), Host(c)); err != nil {
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
		listener, err = net.Listen("tcp4", address)
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
		connection, err = (&net.Dialer{}).DialContext(ctx, "tcp4", address)
	} else {
		connection, err = Dial(ctx, netns, "tcp4", address)
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

func TestReplicasReachEachOther(t *testing.T) {
	c := testCluster(t)
	a, b := attach(t, c, "a-0", "10.244.0.2"), attach(t, c, "b-0", "10.244.0.3")
	greet(t, a, "10.244.0.2:80", "a")
	expect(t, b, "10.244.0.2:80", "a")
	expect(t, "", "10.244.0.2:80", "a")
	// Attaching again changes nothing, and repairs what is missing.
	attach(t, c, "b-0", "10.244.0.3")
	expect(t, b, "10.244.0.2:80", "a")
	// A replica that comes back with its address is reached at once.
	if err := Detach(c, "shop", "b-0"); err != nil {
		t.Fatal(err)
	}
	if Exists(b) {
		t.Fatal("namespace is left")
	}
	attach(t, c, "b-0", "10.244.0.3")
	greet(t, b, "10.244.0.3:80", "b")
	expect(t, a, "10.244.0.3:80", "b")
}

func TestCaptureBringsTrafficToTheProxy(t *testing.T) {
	c := testCluster(t)
	app, peer := attach(t, c, "app-0", "10.244.0.2"), attach(t, c, "peer-0", "10.244.0.3")
	if err := Captured(app); err == nil {
		t.Fatal("capture reported before it was made")
	}
	if err := Capture(app); err != nil {
		t.Fatal(err)
	}
	if err := Captured(app); err != nil {
		t.Fatal(err)
	}
	greet(t, app, "127.0.0.1:15001", "outbound")
	greet(t, app, "0.0.0.0:15006", "inbound")
	greet(t, app, "0.0.0.0:8080", "application")
	greet(t, app, "0.0.0.0:15021", "health")
	greet(t, peer, "10.244.0.3:80", "peer")
	for _, c := range []struct{ name, from, to, want string }{
		{"outbound to a peer", app, "10.244.0.3:80", "outbound"},
		{"outbound to a virtual address", app, "10.96.0.9:80", "outbound"},
		{"outbound to the world", app, "198.51.100.1:443", "outbound"},
		{"loopback stays", app, "127.0.0.1:8080", "application"},
		{"own address stays", app, "10.244.0.2:8080", "application"},
		{"inbound from a peer", peer, "10.244.0.2:8080", "inbound"},
		{"inbound from the host", "", "10.244.0.2:9999", "inbound"},
		{"health passes", peer, "10.244.0.2:15021", "health"},
	} {
		if got, err := call(c.from, c.to); err != nil || got != c.want {
			t.Errorf("%s: got %q (%v), want %q", c.name, got, err, c.want)
		}
	}
	for _, port := range []string{"15001", "15006"} {
		if got, err := call(peer, "10.244.0.2:"+port); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("direct dial of %s: %q %v", port, got, err)
		}
	}
}

func TestDNSReachesTheAgent(t *testing.T) {
	c := testCluster(t)
	app := attach(t, c, "app-0", "10.244.0.2")
	if err := Capture(app); err != nil {
		t.Fatal(err)
	}
	server, err := net.ListenPacket("udp4", "10.244.0.1:15053")
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
	connection, err := Dial(context.Background(), app, "udp4", "10.244.0.1:53")
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
}

func TestConflictNamesTheOther(t *testing.T) {
	c := testCluster(t)
	if found, err := Conflict(c); err != nil || found != "" {
		t.Fatalf("own bridge is a conflict: %q %v", found, err)
	}
	other, err := cluster.New("other")
	if err != nil {
		t.Fatal(err)
	}
	if found, err := Conflict(other); err != nil || !strings.Contains(found, c.Bridge()) {
		t.Fatalf("%q %v", found, err)
	}
}

func TestAddressesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "addresses.json")
	pool := netip.MustParsePrefix("10.244.0.0/29")
	a, err := OpenAddresses(path, pool)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]netip.Addr{}
	for i := range 5 {
		owner := fmt.Sprint("shop/r-", i)
		if got[owner], err = a.Get(owner); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Get("shop/one-too-many"); err == nil || !strings.Contains(err.Error(), "no address left") {
		t.Fatal(err)
	}
	again, err := OpenAddresses(path, pool)
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range got {
		if address, err := again.Get(owner); err != nil || address != want {
			t.Errorf("%s: %s %v, want %s", owner, address, err, want)
		}
	}
	if err := again.Release("shop/r-2"); err != nil {
		t.Fatal(err)
	}
	if address, err := again.Get("shop/new"); err != nil || address != got["shop/r-2"] {
		t.Fatalf("%s %v", address, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAddresses(path, pool); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatal(err)
	}
}
