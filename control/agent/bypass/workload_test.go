package bypass

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (n *namespace) path() string { return fmt.Sprintf("/proc/self/fd/%d", int(n.handle)) }

// give gives loopback an address, which is there at once.
func give(t testing.TB, n *namespace, address string) {
	t.Helper()
	n.do(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		// Until the kernel has come to look for duplicates, connections to it would come from another address.
		parsed.Flags |= unix.IFA_F_NODAD
		routes, done := make(chan netlink.RouteUpdate), make(chan struct{})
		defer close(done)
		if err := errors.Join(netlink.RouteSubscribe(routes, done), netlink.AddrAdd(lo, parsed)); err != nil {
			return err
		}
		// The route to an address of IPv6 comes from a worker of the kernel's, which a busy machine lets wait; that to its network is
		// there before, and leads nowhere.
		for {
			found, err := netlink.RouteGet(parsed.IP)
			if err == nil && len(found) > 0 && found[0].Type == unix.RTN_LOCAL {
				return nil
			}
			<-routes
		}
	})
}

func (m *machine) set(t testing.TB, n *namespace, proxyGroup string, mode Mode) {
	t.Helper()
	if err := m.SetWorkload(n.path(), proxyGroup, mode); err != nil {
		t.Fatal(err)
	}
}

// sends has a text go one way, and says whether it was on the interface as is wanted.
func sends(t testing.TB, seen int, from, to *net.TCPConn, text string, byTCP bool) {
	t.Helper()
	exchange(t, from, to, text)
	if carried(seen, text) != byTCP {
		t.Errorf("%q is on the interface: %v", text, !byTCP)
	}
}

func TestModes(t *testing.T) {
	m := newMachine(t)
	for family, at := range families {
		for name, c := range map[string]struct {
			mode Mode
			// Which ways use TCP: to the proxy, and to the application.
			toProxy, toApplication bool
		}{"send": {ModeSend, false, true}, "both": {ModeBoth, false, false}, "off": {ModeOff, true, true}} {
			t.Run(family+" "+name, func(t *testing.T) {
				n := newNamespace(t)
				own := netip.MustParsePrefix(at.a).Addr()
				give(t, n, at.a)
				if own.Is6() {
					give(t, n, "::6/128")
				}
				m.set(t, n, "", c.mode)
				outbound := n.listen(t, 15001)
				app, proxy := m.connect(t, n, outbound, netip.AddrPortFrom(own, 15001).String(), netip.AddrPort{})
				seen := packets(t, n)
				sends(t, seen, app, proxy, "application-to-proxy", c.toProxy)
				sends(t, seen, proxy, app, "proxy-to-application", c.toApplication)

				server := n.listen(t, 8080)
				from := netip.MustParseAddrPort("127.0.0.6:0")
				if own.Is6() {
					from = netip.MustParseAddrPort("[::6]:0")
				}
				proxy, app = m.connect(t, n, server, netip.AddrPortFrom(own, 8080).String(), from)
				sends(t, seen, app, proxy, "answer-to-proxy", c.toProxy)
				sends(t, seen, proxy, app, "request-to-application", c.toApplication)
			})
		}
	}
}

// Without a packet filter, what is dialled is the port of the proxy's socket, which is known by its control group.
func TestSidecarsWithoutAPacketFilter(t *testing.T) {
	m := newMachine(t)
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			first, second := newNamespace(t), newNamespace(t)
			cable(t, first, second, at.a, at.b)
			m.set(t, second, m.cgroup, ModeSend)
			client, server := m.connect(t, first, second.listen(t, 8080), at.target, netip.AddrPort{})
			seen := packets(t, first)
			sends(t, seen, client, server, "to-the-server", false)
			sends(t, seen, server, client, "to-the-client", false)
			// One that wants none of it.
			m.set(t, first, "", ModeOff)
			client, server = m.connect(t, first, second.listen(t, 8081), netip.AddrPortFrom(netip.MustParsePrefix(at.b).Addr(), 8081).String(), netip.AddrPort{})
			sends(t, seen, client, server, "to-the-other-server", true)
			sends(t, seen, server, client, "to-the-other-client", true)
		})
	}
}

// Where no mode can be kept any more, whoever wants one is told, and connections are as those of workloads that nobody has set.
func TestWorkloadsBeyondTheirPlaces(t *testing.T) {
	m := newMachine(t)
	fill[workload](t, m.objects.Maps["workloads"])
	n := newNamespace(t)
	if err := m.SetWorkload(n.path(), "", ModeOff); err == nil || !strings.Contains(err.Error(), "all 16384 places") {
		t.Errorf("error %v", err)
	}
	give(t, n, "10.0.0.1/24")
	app, proxy := m.connect(t, n, n.listen(t, 15001), "10.0.0.1:15001", netip.AddrPort{})
	seen := packets(t, n)
	sends(t, seen, app, proxy, "application-to-proxy", false)
	sends(t, seen, proxy, app, "proxy-to-application", true)

	if err := m.KeepWorkloads(nil); err != nil {
		t.Fatal(err)
	}
	m.set(t, n, "", ModeOff)
}

func TestWorkloadsAreForgotten(t *testing.T) {
	m := newMachine(t)
	first, second := newNamespace(t), newNamespace(t)
	left := func() int {
		t.Helper()
		var cookie uint64
		var of workload
		n, entries := 0, m.objects.Maps["workloads"].Iterate()
		for entries.Next(&cookie, &of) {
			n++
		}
		if err := entries.Err(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	m.set(t, first, "", ModeBoth)
	m.set(t, second, "", ModeOff)
	if err := m.ForgetWorkload(first.path()); err != nil || left() != 1 {
		t.Errorf("%d left: %v", left(), err)
	}
	m.set(t, first, "", ModeBoth)
	if err := m.KeepWorkloads([]string{second.path(), "/run/netns/none"}); err != nil || left() != 1 {
		t.Errorf("%d left: %v", left(), err)
	}
	if err := m.KeepWorkloads(nil); err != nil || left() != 0 {
		t.Errorf("%d left: %v", left(), err)
	}
	for _, path := range []string{first.path(), "/run/netns/none"} {
		if err := m.ForgetWorkload(path); err != nil {
			t.Error(err)
		}
	}
	if err := m.SetWorkload(first.path(), "/nowhere", ModeSend); err == nil {
		t.Error("a control group that is not there")
	}
}
