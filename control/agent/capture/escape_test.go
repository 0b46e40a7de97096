package capture

import (
	"errors"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/cluster"
)

// Each is a way by which a program might reach another one past its proxy, and what must become of it instead.
func TestNoWayAroundTheProxy(t *testing.T) {
	const proxyUser = 4711
	each(t, func(t *testing.T, m *machine) {
		proxy := m.outbound(t)
		server := listen(t, m.stranger, netip.AddrPortFrom(m.outside.Addr(), 8080), 64)
		to := netip.AddrPortFrom(m.outside.Addr(), 8080)
		stream := func(t *testing.T) socket { return open(t, m.app, m.domain, 0) }
		connect := func(s socket) error { return unix.Connect(s.fd, at(m.domain, to)) }
		for name, attempt := range map[string]func(t *testing.T) (socket, error){
			"plain": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error { return connect(s) })
			},
			"without blocking": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error {
					if err := unix.SetNonblock(s.fd, true); err != nil {
						return err
					}
					if err := connect(s); err != nil && !errors.Is(err, unix.EINPROGRESS) {
						return err
					}
					if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, patience*1000); err != nil {
						return err
					}
					return unix.SetNonblock(s.fd, false)
				})
			},
			"data with the first packet": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error { return unix.Sendto(s.fd, nil, unix.MSG_FASTOPEN, at(m.domain, to)) })
			},
			"data with the first packet, later": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error {
					return errors.Join(unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1), connect(s))
				})
			},
			"multipath": func(t *testing.T) (socket, error) {
				s, err := socket{}, error(nil)
				if err = m.app.try(func() error {
					s.fd, err = unix.Socket(m.domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
					return err
				}); err != nil {
					t.Skipf("the kernel has no MPTCP, or has it switched off: %v", err)
				}
				t.Cleanup(func() { unix.Close(s.fd) })
				return s, errors.Join(s.bound(), m.app.try(func() error { return connect(s) }))
			},
			"a socket given to the proxy's user": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error { return errors.Join(unix.Fchown(s.fd, proxyUser, proxyUser), connect(s)) })
			},
			"as the proxy's user": func(t *testing.T) (s socket, err error) {
				err = m.app.try(func() error {
					if _, err := unix.SetfsuidRetUid(proxyUser); err != nil {
						return err
					}
					s.fd, err = unix.Socket(m.domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err == nil {
						err = errors.Join(s.bound(), connect(s))
					}
					_, back := unix.SetfsuidRetUid(0)
					return errors.Join(err, back)
				})
				t.Cleanup(func() { unix.Close(s.fd) })
				return s, err
			},
			"with a mark": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error {
					return errors.Join(unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_MARK, 1337), connect(s))
				})
			},
			"from the proxy's address": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error {
					return errors.Join(unix.Bind(s.fd, at(m.domain, netip.AddrPortFrom(m.sidecar, 0))), connect(s))
				})
			},
			"after a connection within": func(t *testing.T) (socket, error) {
				within := listen(t, m.app, netip.AddrPortFrom(m.loopback, 0), 1)
				s := stream(t)
				return s, m.app.try(func() error {
					return errors.Join(unix.Connect(s.fd, at(m.domain, within.local(t))), disconnect(s), connect(s))
				})
			},
			"a socket that listened": func(t *testing.T) (socket, error) {
				s := stream(t)
				return s, m.app.try(func() error {
					return errors.Join(unix.Bind(s.fd, at(m.domain, netip.AddrPortFrom(m.own(), 0))), unix.Listen(s.fd, 1), unix.Shutdown(s.fd, unix.SHUT_RD), connect(s))
				})
			},
		} {
			t.Run(name, func(t *testing.T) {
				s, err := attempt(t)
				if err != nil {
					t.Fatal(err)
				}
				if name == "data with the first packet, later" {
					// Nothing is sent before.
					if _, err := unix.Write(s.fd, nil); err != nil {
						t.Fatal(err)
					}
				}
				goesTo(t, s, proxy, to)
				server.empty(t)
			})
		}
		t.Run("on the interface", func(t *testing.T) {
			// What the proxy answers does not find its way back, as with a packet filter: no connection, and none past it.
			s := stream(t)
			if err := m.app.try(func() error {
				return errors.Join(unix.SetNonblock(s.fd, true), unix.SetsockoptString(s.fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0"), connect(s))
			}); err == nil {
				t.Error("connected")
			}
			server.empty(t)
		})
	})
}

// disconnect has a socket be as new (connect(2)).
func disconnect(s socket) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&unix.RawSockaddr{Family: unix.AF_UNSPEC})), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

// After it was redirected, a socket that connects within the workload has the peer that it has.
func TestPeerOfASocketThatConnectsAgain(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.outbound(t)
		within := listen(t, m.app, netip.AddrPortFrom(m.loopback, 8081), 1)
		s := mustDial(t, m.app, m.domain, netip.AddrPortFrom(m.elsewhere, 80))
		m.app.do(t, func() error { return errors.Join(disconnect(s), unix.Connect(s.fd, at(m.domain, within.local(t)))) })
		if got := s.peer(t); got != within.local(t) {
			t.Errorf("the peer is %v", got)
		}
		exchange(t, s, within.accept(t))
	})
}

// Whoever dials the proxy's own ports would be passed on to the proxy itself, or to anybody.
func TestCapturePortsAreNotDialled(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound, inbound := m.outbound(t), m.inbound(t)
		any := netip.IPv4Unspecified()
		if m.domain == unix.AF_INET6 {
			any = netip.IPv6Unspecified()
		}
		for _, port := range []uint16{cluster.PortOutbound, cluster.PortInbound} {
			for _, host := range []netip.Addr{m.own(), m.loopback, any, m.elsewhere, m.sidecar} {
				for _, domain := range []int{m.domain, unix.AF_INET6} {
					if _, err := dial(t, m.app, domain, netip.AddrPortFrom(host, port)); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("the application at %v port %d: %v", host, port, err)
					}
				}
				if host == m.elsewhere {
					continue
				}
				if _, err := dial(t, m.proxy, m.domain, netip.AddrPortFrom(host, port)); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("the proxy at %v port %d: %v", host, port, err)
				}
			}
			if _, err := dial(t, m.stranger, m.domain, netip.AddrPortFrom(m.own(), port)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("a stranger at port %d: %v", port, err)
			}
		}
		outbound.empty(t)
		inbound.empty(t)
		if s := m.status(t); s.Refused["direct"] == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Whoever reaches the outbound port by other means, as with packets of its own making, is not said to have dialled anything.
func TestWhoWasNotRedirectedHasNoDestination(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound := m.outbound(t)
		m.unredirect(t)
		s := mustDial(t, m.app, m.domain, netip.AddrPortFrom(m.loopback, cluster.PortOutbound))
		taken := outbound.accept(t)
		if to, err := taken.original(t); err == nil && to.Port() != cluster.PortOutbound {
			t.Errorf("it dialled %v", to)
		}
		exchange(t, s, taken)
	})
}

// The cluster has addresses of one family; the other one is not a way out of it, or in.
func TestTheOtherFamily(t *testing.T) {
	m := newMachine(t, families[0])
	outbound := m.outbound(t)
	other := families[1]
	m.stranger.do(t, func() error { return address("eth0", other.outside) })
	m.app.do(t, func() error { return address("eth0", other.inside) })
	listen(t, m.stranger, netip.AddrPortFrom(other.outside.Addr(), 8080), 8)
	server := listen(t, m.app, netip.AddrPortFrom(netip.IPv6Unspecified(), 8080), 8)
	if _, err := dial(t, m.app, unix.AF_INET6, netip.AddrPortFrom(other.outside.Addr(), 8080)); !errors.Is(err, unix.ENETUNREACH) {
		t.Error(err)
	}
	if _, err := dial(t, m.stranger, unix.AF_INET6, netip.AddrPortFrom(other.own(), 8080)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
	outbound.empty(t)
	server.empty(t)
	if s := m.status(t); s.Refused["family"] != 2 {
		t.Errorf("%+v", s)
	}
}

// Each connection holds the port that was dialled: where nobody listens, strangers must not take those that the workload dials from.
func TestStrangersDoNotTakeClientPorts(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.inbound(t)
		for port := uint16(40000); port < 40200; port++ {
			if _, err := dial(t, m.stranger, m.domain, netip.AddrPortFrom(m.own(), port)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("port %d: %v", port, err)
			}
		}
		if s := m.status(t); s.Refused["closed"] < 200 || s.Inbound != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// An application has the inbound port while its proxy is away: it is not given what arrives for the proxy.
func TestAnApplicationIsNotTakenForItsProxy(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		any := netip.IPv4Unspecified()
		if m.domain == unix.AF_INET6 {
			any = netip.IPv6Unspecified()
		}
		impostor := listen(t, m.app, netip.AddrPortFrom(any, cluster.PortInbound), 8)
		m.add(t, 8080)
		if _, err := dial(t, m.stranger, m.domain, netip.AddrPortFrom(m.own(), 8080)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Error(err)
		}
		impostor.empty(t)
	})
}
