package capture

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/interception/interceptiontest"
)

// leave has the workload captured but for what rules say.
func (m *machine) leave(t *testing.T, r interception.Rules, ports ...uint16) {
	t.Helper()
	if err := m.Add(Workload{Netns: m.path(), Address: m.own(), DNS: m.dns, ProxyGroup: m.proxyGroup, Ports: ports, Rules: r}); err != nil {
		t.Fatal(err)
	}
}

func (f family) any() netip.Addr {
	if f.domain == unix.AF_INET6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// dialAs connects a socket that a thread makes as one of a group.
func dialAs(t *testing.T, by *thread, group, domain, protocol int, to netip.AddrPort) (s socket, err error) {
	t.Helper()
	if group == 0 {
		group = interceptiontest.OtherGroup
	}
	err = by.try(func() error {
		before, err := unix.SetfsgidRetGid(group)
		if err != nil {
			return err
		}
		if s.fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol); err == nil {
			t.Cleanup(func() { unix.Close(s.fd) })
			err = s.bound()
		}
		_, back := unix.SetfsgidRetGid(before)
		return errors.Join(err, back)
	})
	if err != nil {
		return s, err
	}
	return s, by.try(func() error { return unix.Connect(s.fd, at(domain, to)) })
}

// comesTo says that a connection to an address is one with a listener.
func comesTo(t *testing.T, s, listener socket, to netip.AddrPort) {
	t.Helper()
	taken := listener.accept(t)
	exchange(t, s, taken)
	if got := s.peer(t); got != to {
		t.Errorf("the peer is %v instead of %v", got, to)
	}
}

// another is a second workload of the cluster, which says nothing of what is captured.
type another struct {
	app               *thread
	own               netip.Addr
	outbound, inbound socket
}

func (m *machine) another(t *testing.T) another {
	t.Helper()
	var ns netns.NsHandle
	a := another{app: newThread(t, &ns, filepath.Join(m.cgroup, "app"))}
	proxy := newThread(t, &ns, m.proxyGroup)
	t.Cleanup(func() { ns.Close() })
	// The network beside the machine's.
	outside, inside := netip.MustParsePrefix("10.9.1.1/24"), netip.MustParsePrefix("10.9.1.2/24")
	if m.domain == unix.AF_INET6 {
		outside, inside = netip.MustParsePrefix("fd09:0:0:1::1/64"), netip.MustParsePrefix("fd09:0:0:1::2/64")
	}
	m.stranger.do(t, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}); err != nil {
			return err
		}
		return address("eth1", outside)
	})
	a.app.do(t, func() error { return configure(inside) })
	a.own = inside.Addr()
	if err := m.Add(Workload{Netns: pathOf(ns), Address: a.own, DNS: m.dns, ProxyGroup: m.proxyGroup, Ports: interceptiontest.Ports}); err != nil {
		t.Fatal(err)
	}
	a.outbound = listen(t, proxy, netip.AddrPortFrom(m.loopback, cluster.PortOutbound), 8)
	a.inbound = listen(t, proxy, netip.AddrPortFrom(m.any(), cluster.PortInbound), 8)
	return a
}

// What a workload leaves out of capture is, by the table that the packet filter follows too.
func TestWhatIsLeftOut(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound, inbound := m.outbound(t), m.inbound(t)
		health := listen(t, m.proxy, netip.AddrPortFrom(m.any(), cluster.PortHealth), 8)
		dns := listen(t, m.stranger, netip.AddrPortFrom(m.dns, cluster.PortDNS), 8)
		peer, other := m.outside.Addr(), m.another(t)
		applications, peers := map[uint16]socket{}, map[uint16]socket{}
		for _, port := range interceptiontest.Ports {
			applications[port] = listen(t, m.app, netip.AddrPortFrom(m.any(), port), 8)
			peers[port] = listen(t, m.stranger, netip.AddrPortFrom(peer, port), 8)
		}
		domains := []int{m.domain}
		if m.domain == unix.AF_INET {
			domains = append(domains, unix.AF_INET6) // Mapped.
		}
		for _, tc := range append(interceptiontest.Cases, interceptiontest.Cases[0]) {
			t.Run(tc.Name, func(t *testing.T) {
				m.leave(t, tc.Rules(t, peer))
				for _, one := range tc.Outbound {
					to := netip.AddrPortFrom(peer, one.Port)
					for _, domain := range domains {
						s, err := dialAs(t, m.app, one.Group, domain, 0, to)
						switch {
						case err != nil:
							t.Errorf("outbound %+v: %v", one, err)
						case one.Captured:
							goesTo(t, s, outbound, to)
						default:
							comesTo(t, s, peers[one.Port], to)
						}
					}
				}
				for _, one := range tc.Own {
					to := netip.AddrPortFrom(m.own(), one.Port)
					s, err := dial(t, m.proxy, m.domain, to)
					switch {
					case err != nil:
						t.Errorf("own %+v: %v", one, err)
					case one.Captured:
						goesTo(t, s, inbound, to)
					default:
						comesTo(t, s, applications[one.Port], to)
					}
				}
				for _, one := range tc.Inbound {
					to := netip.AddrPortFrom(m.own(), one.Port)
					s, err := dial(t, m.stranger, m.domain, to)
					switch {
					case err != nil:
						t.Errorf("inbound %+v: %v", one, err)
					case one.Captured:
						goesTo(t, s, inbound, to)
					default:
						comesTo(t, s, applications[one.Port], to)
					}
				}
				// These are always so.
				always := func(by *thread, host netip.Addr, port uint16, listener socket) {
					t.Helper()
					to := netip.AddrPortFrom(host, port)
					comesTo(t, mustDial(t, by, m.domain, to), listener, to)
				}
				always(m.app, m.own(), 80, applications[80])
				always(m.app, m.loopback, 80, applications[80])
				always(m.app, m.dns, 53, dns)
				always(m.stranger, m.own(), cluster.PortHealth, health)
				to := netip.AddrPortFrom(peer, 80)
				goesTo(t, mustDial(t, other.app, m.domain, to), other.outbound, to)
				in := netip.AddrPortFrom(other.own, 80)
				goesTo(t, mustDial(t, m.stranger, m.domain, in), other.inbound, in)
				for _, port := range []uint16{cluster.PortOutbound, cluster.PortInbound} {
					if _, err := dial(t, m.stranger, m.domain, netip.AddrPortFrom(m.own(), port)); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("a stranger at port %d: %v", port, err)
					}
				}
			})
		}
	})
}

// A socket that was where nothing is captured has gained nothing elsewhere, and the other way round.
func TestASocketThatGoesElsewhere(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound := m.outbound(t)
		m.leave(t, interception.Rules{ExcludedOutboundPorts: []uint16{80}})
		free, captured := netip.AddrPortFrom(m.outside.Addr(), 80), netip.AddrPortFrom(m.outside.Addr(), 81)
		open, closed := listen(t, m.stranger, free, 8), listen(t, m.stranger, captured, 8)
		s := mustDial(t, m.app, m.domain, free)
		comesTo(t, s, open, free)
		m.app.do(t, func() error { return errors.Join(disconnect(s), unix.Connect(s.fd, at(m.domain, captured))) })
		goesTo(t, s, outbound, captured)
		m.app.do(t, func() error { return errors.Join(disconnect(s), unix.Connect(s.fd, at(m.domain, free))) })
		comesTo(t, s, open, free)
		closed.empty(t)
		m.nothingPending(t)
	})
}

// The group is that of the program that made the socket, whoever is given it, and with MPTCP too.
func TestOneOfAGroup(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound := m.outbound(t)
		to := netip.AddrPortFrom(m.outside.Addr(), 80)
		server := listen(t, m.stranger, to, 8)
		m.leave(t, interception.Rules{Groups: []string{"4711"}})
		given := open(t, m.app, m.domain, 0)
		m.app.do(t, func() error {
			return errors.Join(unix.Fchown(given.fd, 4711, 4711), unix.Connect(given.fd, at(m.domain, to)))
		})
		goesTo(t, given, outbound, to)
		server.empty(t)
		s, err := dialAs(t, m.app, 4711, m.domain, unix.IPPROTO_MPTCP, to)
		if err != nil {
			t.Skipf("the kernel has no MPTCP, or has it switched off: %v", err)
		}
		exchange(t, s, server.accept(t))
		if s, err = dialAs(t, m.app, 4712, m.domain, unix.IPPROTO_MPTCP, to); err != nil {
			t.Fatal(err)
		}
		goesTo(t, s, outbound, to)
		server.empty(t)
	})
}

// What is left out goes on being so without the agent, and with the next one.
func TestTakeoverOfRules(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		to := netip.AddrPortFrom(m.outside.Addr(), 80)
		server := listen(t, m.stranger, to, 8)
		m.leave(t, interception.Rules{ExcludedOutboundPorts: []uint16{80}})
		m.Close()
		comesTo(t, mustDial(t, m.app, m.domain, to), server, to)
		m.attach(t)
		comesTo(t, mustDial(t, m.app, m.domain, to), server, to)
	})
}

// Rules that cannot be followed are an error, and what was before holds.
func TestRulesThatCannotBeFollowed(t *testing.T) {
	m := newMachine(t, families[0])
	outbound := m.outbound(t)
	to := netip.AddrPortFrom(m.outside.Addr(), 80)
	for want, r := range map[string]interception.Rules{
		"no-such-group": {ExcludedOutboundPorts: []uint16{80}, Groups: []string{"no-such-group"}},
		"room for 64":   {ExcludedOutboundPorts: make([]uint16, interception.Most+1)},
	} {
		err := m.Add(Workload{Netns: m.path(), Address: m.own(), DNS: m.dns, ProxyGroup: m.proxyGroup, Rules: r})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", r, err)
		}
		goesTo(t, mustDial(t, m.app, m.domain, to), outbound, to)
	}
	// All that there is room for.
	full := interception.Rules{OnlyRanges: true, OnlyInboundPorts: true}
	for i := range interception.Most {
		port, prefix := uint16(1000+i), netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 0}), 24)
		full.ExcludedOutboundPorts, full.IncludedInboundPorts = append(full.ExcludedOutboundPorts, port), append(full.IncludedInboundPorts, port)
		full.ExcludedRanges, full.IncludedRanges = append(full.ExcludedRanges, prefix), append(full.IncludedRanges, prefix)
	}
	full.IncludedRanges[interception.Most-1] = netip.PrefixFrom(m.outside.Addr(), 32)
	m.leave(t, full)
	goesTo(t, mustDial(t, m.app, m.domain, to), outbound, to)
}
