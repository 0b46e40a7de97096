package bypass

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/process/processtest"
)

// machine has the bypass attached to a control group that the tests' own process is in.
type machine struct {
	*Bypass
	dir, cgroup string
	sockets     uint32
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	return newMachineOf(t, minSockets)
}

// newMachineOf has room for so many sockets.
func newMachineOf(t testing.TB, sockets uint32) *machine {
	t.Helper()
	m := &machine{dir: filepath.Join(t.TempDir(), "bpf"), cgroup: processtest.ControlGroup(t, "bypass"), sockets: sockets}
	m.attach(t)
	t.Cleanup(func() {
		m.Close()
		if err := Detach(m.dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m *machine) attach(t testing.TB) {
	t.Helper()
	var err error
	if m.Bypass, err = attachWithRoom(m.dir, m.cgroup, room{sockets: m.sockets, unreadBlocks: m.sockets / 8}); err != nil {
		t.Fatal(err)
	}
}

// detach has nothing of it stay.
func (m *machine) detach(t testing.TB) {
	t.Helper()
	m.Close()
	if err := Detach(m.dir); err != nil {
		t.Fatal(err)
	}
}

// status now.
func (m *machine) status(t testing.TB) Status {
	t.Helper()
	s, err := m.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// namespace is a network namespace with a thread of its own.
type namespace struct {
	handle netns.NsHandle
	run    chan func()
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	n := &namespace{run: make(chan func())}
	made := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		var err error
		n.handle, err = netns.New()
		made <- err
		for f := range n.run {
			f()
		}
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(n.run)
		n.handle.Close()
	})
	n.do(t, func() error {
		lo, err := netlink.LinkByName("lo")
		return errors.Join(err, netlink.LinkSetUp(lo))
	})
	return n
}

// do runs f inside.
func (n *namespace) do(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error)
	n.run <- func() { done <- f() }
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// cable joins two namespaces.
func cable(t testing.TB, a, b *namespace, addressA, addressB string) {
	t.Helper()
	a.do(t, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(b.handle))})
	})
	for n, address := range map[*namespace]string{a: addressA, b: addressB} {
		n.do(t, func() error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			parsed, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			// No duplicate detection: the address is to be usable at once.
			parsed.Flags = unix.IFA_F_NODAD
			return errors.Join(netlink.AddrAdd(eth, parsed), netlink.LinkSetUp(eth))
		})
	}
	// An address of IPv6 is tentative until the cable is known to have its other end.
	for n, address := range map[*namespace]string{a: addressA, b: addressB} {
		n.do(t, func() error { return usable(netip.MustParsePrefix(address).Addr()) })
	}
}

// usable waits until connections can come from an address.
func usable(address netip.Addr) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		probe, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		if err == nil {
			return probe.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		runtime.Gosched()
	}
}

// captured has the packet filter bring what arrives at port 8080 to the inbound port, as the agent does.
func captured(t testing.TB, n *namespace) {
	t.Helper()
	n.do(t, func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader("table inet capture {\nchain in {\ntype nat hook prerouting priority dstnat\ntcp dport 8080 redirect to :15006\n}\n}\n")
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

func (n *namespace) listen(t testing.TB, port uint16) *net.TCPListener {
	t.Helper()
	var l net.Listener
	n.do(t, func() error {
		var err error
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// connect dials from a's side, from a port or (0) any, and takes the connection.
func connect(t testing.TB, a *namespace, l *net.TCPListener, to string, from netip.AddrPort) (client, server *net.TCPConn) {
	t.Helper()
	dialer := net.Dialer{}
	if from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	a.do(t, func() error {
		target, err := net.ResolveTCPAddr("tcp", to)
		if err != nil {
			return err
		}
		// One address and no deadline: the socket is made on this thread.
		var local *net.TCPAddr
		if dialer.LocalAddr != nil {
			local = dialer.LocalAddr.(*net.TCPAddr)
		}
		client, err = net.DialTCP("tcp", local, target)
		return err
	})
	server, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// connect is [connect], and has the connection bypass TCP as far as it may.
func (m *machine) connect(t testing.TB, a *namespace, l *net.TCPListener, to string, from netip.AddrPort) (client, server *net.TCPConn) {
	t.Helper()
	client, server = connect(t, a, l, to, from)
	m.use(t, client, server)
	return client, server
}

// use has both ends send something, and makes a round.
func (m *machine) use(t testing.TB, client, server *net.TCPConn) {
	t.Helper()
	exchange(t, client, server, "first request")
	exchange(t, server, client, "first response")
	m.round(t)
}

// round is the agent's, and the next one, from which on what it has recorded is sent to. There are some more, as sockets of which a program is
// within a call are left for the next.
func (m *machine) round(t testing.TB) {
	t.Helper()
	for range 5 {
		if _, err := m.Round(); err != nil {
			t.Fatal(err)
		}
	}
}

// recorded counts the sockets that can be sent to. Others have a place among them, and wait for their other end.
func (m *machine) recorded(t testing.TB) (n int) {
	t.Helper()
	var cookie uint64
	var round uint32
	entries := m.objects.Maps["places"].Iterate()
	for entries.Next(&cookie, &round) {
		if round > 0 {
			n++
		}
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// programs counts those of this kind that are attached to a control group.
func programs(cgroup string) (int, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupSockOps})
	if err != nil {
		return 0, err
	}
	return len(result.Programs), nil
}
