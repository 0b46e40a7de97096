package capture

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/pinned"
	"heddle.io/heddle/control/cluster"
)

// datagrams is a socket of them, made by whoever is to own it.
func datagrams(t *testing.T, by *thread, domain int) socket {
	t.Helper()
	var s socket
	by.do(t, func() (err error) {
		if s.fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		return s.bound()
	})
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// serve takes datagrams at an address of the stranger's.
func (m *machine) serve(t *testing.T, where netip.AddrPort) socket {
	t.Helper()
	s := datagrams(t, m.stranger, m.domain)
	m.stranger.do(t, func() error { return os.NewSyscallError("bind", unix.Bind(s.fd, at(m.domain, where))) })
	return s
}

// second is another address of the stranger's.
func (m *machine) second(t *testing.T) netip.Addr {
	t.Helper()
	second := m.outside.Addr().Next().Next()
	m.stranger.do(t, func() error { return address("eth0", netip.PrefixFrom(second, m.outside.Bits())) })
	return second
}

// domains are those of sockets that reach the workload's family.
func (m *machine) domains() map[string]int {
	if m.domain == unix.AF_INET6 {
		return map[string]int{"by IPv6": unix.AF_INET6}
	}
	return map[string]int{"by IPv4": unix.AF_INET, "by IPv4 mapped into IPv6": unix.AF_INET6}
}

// send sends a datagram of a socket to an address, or (zero) to the socket's peer.
func (s socket) send(t *testing.T, by *thread, domain int, text string, to netip.AddrPort) {
	t.Helper()
	by.do(t, func() error {
		if !to.IsValid() {
			_, err := unix.Write(s.fd, []byte(text))
			return os.NewSyscallError("write", err)
		}
		return os.NewSyscallError("sendto", unix.Sendto(s.fd, []byte(text), 0, at(domain, to)))
	})
}

// receive waits for a datagram, and says where it is from.
func (s socket) receive(t *testing.T) (text string, from netip.AddrPort) {
	t.Helper()
	buffer := make([]byte, 64)
	n, sender, err := unix.Recvfrom(s.fd, buffer, 0)
	if err != nil {
		t.Fatalf("nothing came: %v", err)
	}
	return string(buffer[:n]), addressOf(sender)
}

// silent says that nothing has come.
func (s socket) silent(t *testing.T) {
	t.Helper()
	buffer := make([]byte, 64)
	if n, from, err := unix.Recvfrom(s.fd, buffer, unix.MSG_DONTWAIT); err == nil {
		t.Errorf("%q came from %v", buffer[:n], addressOf(from))
	} else if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
}

// asks has an application send to an address, or its socket's peer, and a server answer, whose answer is from there to the application.
func (m *machine) asks(t *testing.T, by *thread, s socket, domain int, to netip.AddrPort, server socket, from netip.AddrPort) {
	t.Helper()
	s.send(t, by, domain, "question", to)
	got, asker := server.receive(t)
	if got != "question" || asker.Addr() != m.own() {
		t.Fatalf("%q arrives from %v, not the workload's address", got, asker)
	}
	server.send(t, m.stranger, m.domain, "answer", asker)
	if got, sender := s.receive(t); got != "answer" || sender != from {
		t.Errorf("%q comes from %v instead of %v", got, sender, from)
	}
}

func (m *machine) connects(t *testing.T, s socket, domain int, to netip.AddrPort) {
	t.Helper()
	m.app.do(t, func() error { return os.NewSyscallError("connect", unix.Connect(s.fd, at(domain, to))) })
	if got := s.peer(t); got != to {
		t.Errorf("the peer is %v instead of %v", got, to)
	}
}

func TestApplicationsAskTheClustersDNSServerAtPort53(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		server, asked := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS)), netip.AddrPortFrom(m.dns, 53)
		for name, domain := range m.domains() {
			t.Run(name, func(t *testing.T) {
				before := m.status(t).DNS
				connected := datagrams(t, m.app, domain)
				m.connects(t, connected, domain, asked)
				for range 2 {
					m.asks(t, m.app, connected, domain, netip.AddrPort{}, server, asked)
				}
				m.asks(t, m.app, connected, domain, asked, server, asked)

				free := datagrams(t, m.app, domain)
				for range 2 {
					m.asks(t, m.app, free, domain, asked, server, asked)
				}
				if _, err := unix.Getpeername(free.fd); !errors.Is(err, unix.ENOTCONN) {
					t.Errorf("a socket without a peer has one: %v", err)
				}
				// One that connects, and three datagrams that say where they go.
				if s := m.status(t); s.DNS != before+4 {
					t.Errorf("%+v, %d before", s, before)
				}
			})
		}
		server.silent(t)
	})
}

// A socket of IPv6 takes an address of IPv4's form too.
func TestASocketOfIPv6ThatConnectsInIPv4sForm(t *testing.T) {
	m := newMachine(t, families[0])
	server, asked := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS)), netip.AddrPortFrom(m.dns, 53)
	s := datagrams(t, m.app, unix.AF_INET6)
	m.connects(t, s, unix.AF_INET, asked)
	m.asks(t, m.app, s, unix.AF_INET6, netip.AddrPort{}, server, asked)
	free := datagrams(t, m.app, unix.AF_INET6)
	m.asks(t, m.app, free, unix.AF_INET, asked, server, asked)
}

func TestOneSocketAsksSeveralServers(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		second, asked := m.second(t), netip.AddrPortFrom(m.dns, 53)
		server := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS))
		for name, domain := range m.domains() {
			t.Run(name, func(t *testing.T) {
				before := m.status(t).DNS
				free, connected := datagrams(t, m.app, domain), datagrams(t, m.app, domain)
				m.asks(t, m.app, free, domain, asked, server, asked)
				m.connects(t, connected, domain, asked)
				for _, to := range []netip.AddrPort{netip.AddrPortFrom(second, 53), netip.AddrPortFrom(second, cluster.PortDNS), netip.AddrPortFrom(m.dns, 5353)} {
					other := m.serve(t, to)
					m.asks(t, m.app, free, domain, to, other, to)
					// The kernel takes no answer from there for this one.
					connected.send(t, m.app, domain, "question", to)
					if got, _ := other.receive(t); got != "question" {
						t.Errorf("%q arrives", got)
					}
					unix.Close(other.fd)
				}
				m.asks(t, m.app, free, domain, asked, server, asked)
				m.asks(t, m.app, connected, domain, netip.AddrPort{}, server, asked)
				if s := m.status(t); s.DNS != before+3 {
					t.Errorf("%+v, %d before", s, before)
				}
			})
		}
	})
}

func TestASocketOfDatagramsThatConnectsAgain(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		asked, listens := netip.AddrPortFrom(m.dns, 53), netip.AddrPortFrom(m.dns, cluster.PortDNS)
		elsewhere := netip.AddrPortFrom(m.second(t), 5353)
		server, other := m.serve(t, listens), m.serve(t, elsewhere)
		for name, domain := range m.domains() {
			t.Run(name, func(t *testing.T) {
				s := datagrams(t, m.app, domain)
				ask := func(to, from netip.AddrPort, of socket) {
					t.Helper()
					m.asks(t, m.app, s, domain, to, of, from)
				}
				m.connects(t, s, domain, elsewhere)
				ask(netip.AddrPort{}, elsewhere, other)
				m.connects(t, s, domain, asked)
				ask(netip.AddrPort{}, asked, server)
				m.connects(t, s, domain, elsewhere)
				ask(netip.AddrPort{}, elsewhere, other)
				m.connects(t, s, domain, asked)
				m.app.do(t, func() error { return disconnect(s) })
				ask(asked, asked, server)
				if domain == unix.AF_INET {
					// A socket of IPv6 that no longer has a peer takes datagrams of that address alone, captured or not.
					ask(elsewhere, elsewhere, other)
				}
				// By the port where the server listens, which its application then knows.
				m.connects(t, s, domain, listens)
				ask(netip.AddrPort{}, listens, server)
				m.connects(t, s, domain, asked)
				ask(netip.AddrPort{}, asked, server)
			})
		}
	})
}

// An answer that waits while its socket connects elsewhere is still the server's.
func TestAnAnswerThatIsReadLater(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		asked, elsewhere := netip.AddrPortFrom(m.dns, 53), netip.AddrPortFrom(m.second(t), 5353)
		server := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS))
		s := datagrams(t, m.app, m.domain)
		s.send(t, m.app, m.domain, "question", asked)
		_, asker := server.receive(t)
		server.send(t, m.stranger, m.domain, "answer", asker)
		m.connects(t, s, m.domain, elsewhere)
		if got, from := s.receive(t); got != "answer" || from != asked {
			t.Errorf("%q from %v", got, from)
		}
	})
}

func TestForgedAnswersAreFromWhereTheyAreFrom(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		asked, second := netip.AddrPortFrom(m.dns, 53), m.second(t)
		server := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS))
		for name, domain := range m.domains() {
			t.Run(name, func(t *testing.T) {
				free, connected := datagrams(t, m.app, domain), datagrams(t, m.app, domain)
				free.send(t, m.app, domain, "question", asked)
				_, asker := server.receive(t)
				m.connects(t, connected, domain, asked)
				connected.send(t, m.app, domain, "question", netip.AddrPort{})
				_, otherAsker := server.receive(t)
				for _, from := range []netip.AddrPort{netip.AddrPortFrom(second, cluster.PortDNS), netip.AddrPortFrom(second, 53), netip.AddrPortFrom(m.dns, 54)} {
					forger := m.serve(t, from)
					forger.send(t, m.stranger, m.domain, "forged", asker)
					if got, sender := free.receive(t); got != "forged" || sender != from {
						t.Errorf("%q from %v instead of %v", got, sender, from)
					}
					forger.send(t, m.stranger, m.domain, "forged", otherAsker)
					unix.Close(forger.fd)
				}
				server.send(t, m.stranger, m.domain, "answer", otherAsker)
				if got, sender := connected.receive(t); got != "answer" || sender != asked {
					t.Errorf("%q from %v", got, sender)
				}
				// Who has not asked is not told that somebody answers.
				idle := datagrams(t, m.app, domain)
				m.app.do(t, func() error { return unix.Bind(idle.fd, at(domain, netip.AddrPortFrom(m.own(), 7000))) })
				server.send(t, m.stranger, m.domain, "call", netip.AddrPortFrom(m.own(), 7000))
				if got, sender := idle.receive(t); got != "call" || sender != netip.AddrPortFrom(m.dns, cluster.PortDNS) {
					t.Errorf("%q from %v", got, sender)
				}
			})
		}
	})
}

// Proxies ask past the programs, and so do namespaces in which nothing is captured.
func TestOnlyApplicationsAreBroughtToTheDNSServer(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		asked := netip.AddrPortFrom(m.dns, 53)
		server, other := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS)), m.serve(t, asked)
		leftAlone := func(by *thread, what string) {
			t.Helper()
			for name, domain := range m.domains() {
				free, connected := datagrams(t, by, domain), datagrams(t, by, domain)
				m.asks(t, by, free, domain, asked, other, asked)
				by.do(t, func() error { return unix.Connect(connected.fd, at(domain, asked)) })
				m.asks(t, by, connected, domain, netip.AddrPort{}, other, asked)
				if got := connected.peer(t); got != asked {
					t.Errorf("%s %s has the peer %v", what, name, got)
				}
			}
			server.silent(t)
		}
		leftAlone(m.proxy, "a proxy")
		if err := m.Remove(m.path()); err != nil {
			t.Fatal(err)
		}
		leftAlone(m.app, "an application that is not captured")
		if s := m.status(t); s.DNS != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// An agent of a version that has these programs takes over what one attached that did not.
func TestTakeoverOfProgramsWithoutThoseOfDNS(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		for i, a := range attachments {
			if strings.Contains(a.Program, "msg") {
				if err := errors.Join(os.Remove(filepath.Join(m.dir, a.Program)), m.links[i].Close()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !pinned.IsAttached(m.dir, attachments) {
			t.Error("what an earlier version attached counts as nothing, and would be removed where the next one fails")
		}
		if err := m.Captured(m.path()); err == nil || !strings.Contains(err.Error(), "msg") {
			t.Errorf("programs are missing: %v", err)
		}
		m.Close()
		m.attach(t)
		m.add(t)
		if err := m.Captured(m.path()); err != nil {
			t.Error(err)
		}
		server, asked := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS)), netip.AddrPortFrom(m.dns, 53)
		s := datagrams(t, m.app, m.domain)
		m.asks(t, m.app, s, m.domain, asked, server, asked)
		// The next one leaves what is known of sockets.
		m.Close()
		m.attach(t)
		s.send(t, m.app, m.domain, "question", asked)
		_, asker := server.receive(t)
		m.Close()
		server.send(t, m.stranger, m.domain, "answer", asker)
		if got, from := s.receive(t); got != "answer" || from != asked {
			t.Errorf("%q from %v", got, from)
		}
		m.attach(t)
	})
}

// An application that would not know the answer for one is told at once.
func TestQuestionsAreRefusedWhereTheKernelHasNoMemory(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		if err := m.app.try(func() error { return os.WriteFile("/proc/sys/net/core/optmem_max", []byte("0"), 0) }); err != nil {
			t.Skipf("the kernel bounds what is kept of sockets for all network namespaces together: %v", err)
		}
		asked := netip.AddrPortFrom(m.dns, 53)
		server := m.serve(t, netip.AddrPortFrom(m.dns, cluster.PortDNS))
		s := datagrams(t, m.app, m.domain)
		for name, ask := range map[string]func() error{
			"connect": func() error { return unix.Connect(s.fd, at(m.domain, asked)) },
			"sendto":  func() error { return unix.Sendto(s.fd, []byte("question"), 0, at(m.domain, asked)) },
		} {
			if err := m.app.try(ask); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: %v", name, err)
			}
		}
		server.silent(t)
		if s := m.status(t); s.DNS != 0 || s.Refused["memory"] != 2 {
			t.Errorf("%+v", s)
		}
	})
}
