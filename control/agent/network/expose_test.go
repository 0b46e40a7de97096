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

	"heddle.io/heddle/control/cluster"
)

// outside gives a namespace on the machine's other side, and the machine's address there.
func outside(t *testing.T, f cluster.Family) (netns string, machine, own netip.Addr) {
	t.Helper()
	c, err := cluster.New("outside")
	if err != nil {
		t.Fatal(err)
	}
	ranges := f.Ranges()
	own = ranges.Host().Addr().Next().Next()
	if err := AttachWAN(c, own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := DetachWAN(c); err != nil {
			t.Error(err)
		}
		if _, err := net.InterfaceByName(cluster.WANBridge); err == nil {
			t.Error("the bridge is left after its last cluster")
		}
	})
	return c.IsolatedNetns(), ranges.Host().Addr(), own
}

// source tells whoever connects where they come from.
func source(t *testing.T, netns, address, name string) {
	t.Helper()
	var listener net.Listener
	if err := In(netns, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(connection.RemoteAddr().String())
			fmt.Fprintf(connection, "%s sees %s", name, host)
			connection.Close()
		}
	}()
}

func TestGatewaysAreReachedFromOutside(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		client, machine, own := outside(t, f)
		a, b, pod := attach(t, c, "gw-0", at(2)), attach(t, c, "gw-1", at(3)), attach(t, c, "pod-0", at(4))
		source(t, a, to(2, 15443), "a")
		source(t, b, to(3, 15443), "b")
		source(t, a, to(2, 80), "ingress")
		expose := func(replicas ...int) {
			t.Helper()
			both := []netip.Addr{}
			for _, n := range replicas {
				both = append(both, netip.MustParseAddr(at(n)))
			}
			err := Expose(c, machine, []Exposure{{Ports: []uint16{15443}, Gateways: both}, {Ports: []uint16{443, 80}, Gateways: both[:min(1, len(both))]}})
			if err != nil {
				t.Fatal(err)
			}
		}
		eastWest := netip.AddrPortFrom(machine, 15443).String()
		expose(2, 3)
		seen := map[string]int{}
		for range 4 {
			got, err := call(client, eastWest)
			if err != nil {
				t.Fatal(err)
			}
			seen[got]++
		}
		if seen["a sees "+own.String()] != 2 || seen["b sees "+own.String()] != 2 {
			t.Fatalf("not in turn, or not the client's own address: %v", seen)
		}
		expect(t, client, netip.AddrPortFrom(machine, 80).String(), "ingress sees "+own.String())
		// From the machine itself, and from a workload whose gateway is its neighbour.
		expect(t, "", netip.AddrPortFrom(machine, 80).String(), "ingress sees "+machine.String())
		expect(t, pod, netip.AddrPortFrom(machine, 80).String(), "ingress sees "+at(1))
		// One that is not ready any more gets nothing.
		expose(3)
		for range 4 {
			expect(t, client, eastWest, "b sees "+own.String())
		}
		// Without any, the caller hears so at once.
		expose()
		if got, err := call(client, eastWest); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%q %v", got, err)
		}
	})
}

// A gateway that goes away with its network namespace cannot close its connections: the machine forgets them, so that
// their peers hear at once instead of waiting for answers.
func TestConnectionsToADeadGatewayAreReset(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		client, machine, _ := outside(t, f)
		attach(t, c, "gw-0", at(2))
		survivor := attach(t, c, "gw-1", at(3))
		greet(t, survivor, to(3, 15443), "survivor")
		var listener net.Listener
		if err := In(c.Netns("shop", "gw-0"), func() (err error) {
			listener, err = net.Listen("tcp", to(2, 15443))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		dead, alive := netip.MustParseAddr(at(2)), netip.MustParseAddr(at(3))
		if err := Expose(c, machine, []Exposure{{Ports: []uint16{15443}, Gateways: []netip.Addr{dead}}}); err != nil {
			t.Fatal(err)
		}
		connection, err := Dial(t.Context(), client, "tcp", netip.AddrPortFrom(machine, 15443).String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if _, err := listener.Accept(); err != nil {
			t.Fatal(err)
		}
		// The cable is cut before anything can be said: a machine that loses a gateway without a word.
		if err := Detach(c, "shop", "gw-0"); err != nil {
			t.Fatal(err)
		}
		if err := Expose(c, machine, []Exposure{{Ports: []uint16{15443}, Gateways: []netip.Addr{alive}}}); err != nil {
			t.Fatal(err)
		}
		if err := Forget(dead); err != nil {
			t.Fatal(err)
		}
		if err := connection.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := connection.Write([]byte("still there?")); err != nil {
			t.Fatal(err)
		}
		if _, err := connection.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("%v, want a reset", err)
		}
		expect(t, client, netip.AddrPortFrom(machine, 15443).String(), "survivor")
		if err := Forget(dead); err != nil {
			t.Fatalf("nothing to forget: %v", err)
		}
	})
}

func TestIsolatedClustersReachEachOther(t *testing.T) {
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		t.Run(string(f), func(t *testing.T) {
			testCluster(t, f)
			a, machine, first := outside(t, f)
			other, err := cluster.New("other-with-a-long-name")
			if err != nil {
				t.Fatal(err)
			}
			second := first.Next()
			// Twice: repairing changes nothing.
			if err := errors.Join(AttachWAN(other, second), AttachWAN(other, second)); err != nil {
				t.Fatal(err)
			}
			if !HasWAN(other) {
				t.Error("not attached")
			}
			b := other.IsolatedNetns()
			greet(t, b, netip.AddrPortFrom(second, 80).String(), "other")
			greet(t, "", netip.AddrPortFrom(machine, 81).String(), "machine")
			expect(t, a, netip.AddrPortFrom(second, 80).String(), "other")
			expect(t, "", netip.AddrPortFrom(second, 80).String(), "other")
			expect(t, b, netip.AddrPortFrom(machine, 81).String(), "machine")
			// The namespace is lost under its cable: both are made anew.
			if err := Delete(b); err != nil {
				t.Fatal(err)
			}
			if err := AttachWAN(other, second); err != nil {
				t.Fatal(err)
			}
			greet(t, b, netip.AddrPortFrom(second, 82).String(), "again")
			expect(t, a, netip.AddrPortFrom(second, 82).String(), "again")
			// One goes, the other stays connected.
			if err := DetachWAN(other); err != nil {
				t.Fatal(err)
			}
			if HasWAN(other) || Exists(b) {
				t.Error("something is left")
			}
			expect(t, a, netip.AddrPortFrom(machine, 81).String(), "machine")
		})
	}
}

// A link that was taken down comes back with its address and default route, which the kernel has forgotten.
func TestTheLinkToOtherClustersIsRepaired(t *testing.T) {
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		t.Run(string(f), func(t *testing.T) {
			testCluster(t, f)
			a, machine, own := outside(t, f)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			world := netip.AddrPortFrom(machine, 80).String()
			greet(t, "", world, "machine")
			// What was lost before is repaired at once: no event tells of it any more.
			for _, state := range []string{"down", "up"} {
				if out, err := exec.Command("ip", "-n", a, "link", "set", cluster.WANInside, state).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- In(a, func() error { return KeepWAN(ctx, own) }) }()
			for deadline := time.Now().Add(20 * time.Second); ; {
				if got, err := call(a, world); err == nil && got == "machine" {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("what was lost before is not repaired: %v", err)
				}
			}
			// Then it is cut, until it has been repaired once more.
			deadline := time.Now().Add(20 * time.Second)
			for {
				if out, err := exec.Command("ip", "-n", a, "link", "set", cluster.WANInside, "down").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if _, err := call(a, world); err == nil {
					// A repair that was under way may have started the link again.
					if out, err := exec.Command("ip", "-n", a, "-o", "link", "show", cluster.WANInside, "up").CombinedOutput(); err != nil || len(out) == 0 {
						t.Fatalf("reached over a link that is down: %v", err)
					}
				}
				if out, err := exec.Command("ip", "-n", a, "link", "set", cluster.WANInside, "up").CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				routes, err := exec.Command("ip", "-n", a, "-o", map[cluster.Family]string{cluster.IPv4: "-4", cluster.IPv6: "-6"}[f], "route", "show", "default").Output()
				if err != nil {
					t.Fatal(err)
				}
				if got, err := call(a, world); err == nil && got == "machine" && strings.Contains(string(routes), machine.String()) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("not repaired")
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSettingsAreRestoredByTheLastCluster(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, _ func(int) string, _ func(int, int) string) {
		if os.Getuid() != 0 {
			t.Skip("settings of the machine need root")
		}
		key := "net/ipv4/ip_forward"
		if f == cluster.IPv6 {
			key = "net/ipv6/conf/all/forwarding"
		}
		value := func() string {
			content, err := os.ReadFile("/proc/sys/" + key)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(content))
		}
		if err := sysctl(key, "0"); err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		var clusters []cluster.Cluster
		for _, name := range []string{"one", "two"} {
			c, err := cluster.New(name)
			if err != nil {
				t.Fatal(err)
			}
			c.RunRoot = filepath.Join(root, "run")
			clusters = append(clusters, c)
			// Twice: what is kept stays the machine's own.
			if err := errors.Join(Forwarding(c, f), Forwarding(c, f)); err != nil {
				t.Fatal(err)
			}
		}
		for i, c := range clusters {
			if value() != "1" {
				t.Fatalf("not set while %d clusters need it", len(clusters)-i)
			}
			if err := errors.Join(RestoreForwarding(c), RestoreForwarding(c)); err != nil {
				t.Fatal(err)
			}
		}
		if value() != "0" {
			t.Error("not restored")
		}
		if left, err := os.ReadDir(clusters[0].RunRoot); err != nil || len(left) != 0 {
			t.Errorf("left: %v %v", left, err)
		}
		if err := os.WriteFile(settingsPath(clusters[0]), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Forwarding(clusters[0], f); err == nil || !strings.Contains(err.Error(), settingsPath(clusters[0])) {
			t.Errorf("kept settings that cannot be read: %v", err)
		}
	})
}

// What cannot be put back is kept for another try.
func TestSettingsThatCannotBeRestoredAreKept(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, _ func(int) string, _ func(int, int) string) {
		if os.Getuid() != 0 {
			t.Skip("settings of the machine need root")
		}
		c := cluster.Cluster{Name: "one", RunRoot: t.TempDir()}
		if err := Forwarding(c, f); err != nil {
			t.Fatal(err)
		}
		kept, err := readSettings(c)
		if err != nil {
			t.Fatal(err)
		}
		const key = "net/ipv4/ip_forward"
		kept.Old[key] = "not a number"
		if err := writeSettings(c, kept); err != nil {
			t.Fatal(err)
		}
		if err := RestoreForwarding(c); err == nil || !strings.Contains(err.Error(), "ip_forward") {
			t.Errorf("%v", err)
		}
		if kept, err = readSettings(c); err != nil || len(kept.Users) != 0 || len(kept.Old) != 1 || kept.Old[key] != "not a number" {
			t.Fatalf("%+v, %v", kept, err)
		}
		kept.Old[key] = "0"
		if err := errors.Join(writeSettings(c, kept), RestoreForwarding(c)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(settingsPath(c)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("still kept: %v", err)
		}
	})
}
