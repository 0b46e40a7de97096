package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/process/processtest"
)

// family of a test's addresses.
type family struct {
	name            string
	domain          int
	outside, inside netip.Prefix
	// elsewhere is an address that is nowhere.
	elsewhere, loopback, sidecar, dns netip.Addr
}

var families = []family{
	{"ipv4", unix.AF_INET, netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("10.9.0.2/24"),
		netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("10.9.0.1")},
	{"ipv6", unix.AF_INET6, netip.MustParsePrefix("fd09::1/64"), netip.MustParsePrefix("fd09::2/64"),
		netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("::1"), netip.MustParseAddr("::6"), netip.MustParseAddr("fd09::1")},
}

func (f family) own() netip.Addr { return f.inside.Addr() }

// thread is one of the operating system, in a network namespace and a control group.
type thread struct{ run chan func() }

// newThread is in a namespace (0: a new one) and a control group (empty: the test's).
func newThread(t testing.TB, ns *netns.NsHandle, group string) *thread {
	t.Helper()
	th := &thread{run: make(chan func())}
	made := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		err := func() (err error) {
			if group != "" {
				if err := os.WriteFile(filepath.Join(group, "cgroup.threads"), []byte("0"), 0); err != nil {
					return err
				}
			}
			if *ns == 0 {
				*ns, err = netns.New()
				return err
			}
			return netns.Set(*ns)
		}()
		made <- err
		for f := range th.run {
			f()
		}
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(th.run) })
	return th
}

// do runs f there.
func (th *thread) do(t testing.TB, f func() error) {
	t.Helper()
	if err := th.try(f); err != nil {
		t.Fatal(err)
	}
}

func (th *thread) try(f func() error) error {
	done := make(chan error)
	th.run <- func() { done <- f() }
	return <-done
}

// machine has one workload, whose application and proxy are threads of this process, and a stranger outside.
type machine struct {
	*Capture
	family
	dir, cgroup, proxyGroup string
	ns                      netns.NsHandle
	app, proxy, stranger    *thread
	limits                  bounds
}

func newMachine(t testing.TB, f family) *machine {
	t.Helper()
	return newMachineOf(t, f, roomy)
}

func newMachineOf(t testing.TB, f family, limits bounds) *machine {
	t.Helper()
	m := &machine{family: f, dir: filepath.Join(t.TempDir(), "bpf"), limits: limits}
	m.cgroup = processtest.ControlGroup(t, "capture")
	appGroup := filepath.Join(m.cgroup, "app")
	m.proxyGroup = filepath.Join(m.cgroup, "proxy")
	for _, group := range []string{appGroup, m.proxyGroup} {
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.type"), []byte("threaded"), 0); err != nil {
			t.Fatal(err)
		}
	}
	var outside netns.NsHandle
	m.stranger = newThread(t, &outside, "")
	m.app = newThread(t, &m.ns, appGroup)
	m.proxy = newThread(t, &m.ns, m.proxyGroup)
	t.Cleanup(func() {
		outside.Close()
		m.ns.Close()
	})
	m.stranger.do(t, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(m.ns))})
	})
	m.stranger.do(t, func() error { return configure(f.outside) })
	m.app.do(t, func() error { return configure(f.inside) })
	if f.domain == unix.AF_INET6 {
		m.app.do(t, func() error { return address("lo", netip.PrefixFrom(f.sidecar, 128)) })
	}
	m.attach(t)
	t.Cleanup(func() {
		m.Close()
		if err := Detach(m.dir); err != nil {
			t.Error(err)
		}
	})
	m.add(t)
	return m
}

func (m *machine) attach(t testing.TB) {
	t.Helper()
	var err error
	if m.Capture, err = attachOf(m.dir, m.cgroup, m.limits); err != nil {
		t.Fatalf("%+v", err)
	}
}

func (m *machine) path() string { return pathOf(m.ns) }

func pathOf(ns netns.NsHandle) string { return fmt.Sprintf("/proc/self/fd/%d", int(ns)) }

func (m *machine) add(t testing.TB, ports ...uint16) {
	t.Helper()
	if err := m.Add(Workload{Netns: m.path(), Address: m.own(), DNS: m.dns, ProxyGroup: m.proxyGroup, Ports: ports}); err != nil {
		t.Fatal(err)
	}
}

// unredirect has no connection be redirected any longer, as those are not that programs outside of the cluster make.
func (m *machine) unredirect(t testing.TB) {
	t.Helper()
	for i, a := range attachments {
		if a.Kind == ebpf.AttachCGroupInet4Connect || a.Kind == ebpf.AttachCGroupInet6Connect {
			if err := errors.Join(os.Remove(filepath.Join(m.dir, a.Program)), m.links[i].Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (m *machine) status(t *testing.T) Status {
	t.Helper()
	s, err := m.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func configure(prefix netip.Prefix) error {
	// A new namespace has loopback, but off.
	if err := address("lo", netip.MustParsePrefix("127.0.0.1/8")); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return address("eth0", prefix)
}

func address(device string, prefix netip.Prefix) error {
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		return err
	}
	if prefix.Addr().Is6() {
		// No duplicate detection: the address is to be usable at once.
		parsed.Flags = unix.IFA_F_NODAD
	}
	return netlink.AddrReplace(dev, parsed)
}
