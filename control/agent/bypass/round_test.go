package bypass

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/pinned"
)

// A program that waits in the call that reads is not to be told EAGAIN when its socket has room to send again, as it would be for a socket
// of the map.
func TestAProgramThatBlocksUsesTCP(t *testing.T) {
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			m := newMachine(t)
			n := newNamespace(t)
			own := netip.MustParsePrefix(at.a).Addr()
			give(t, n, at.a)
			from := netip.MustParseAddrPort("127.0.0.6:0")
			if own.Is6() {
				give(t, n, "::6/128")
				from = netip.MustParseAddrPort("[::6]:0")
			}
			proxy, app := connect(t, n, n.listen(t, 9000), netip.AddrPortFrom(own, 9000).String(), from)
			blocks := func(yes bool) {
				t.Helper()
				control(t, app, func(fd int) error { return unix.SetNonblock(fd, !yes) })
			}
			blocks(true)
			m.use(t, proxy, app)
			if s := m.status(t); s.Refused["blocking"] != 1 || m.recorded(t) != 0 {
				t.Fatalf("a socket that blocks is recorded: %+v", s)
			}
			m.round(t)
			if s := m.status(t); s.Refused["blocking"] != 1 {
				t.Errorf("counted again: %+v", s)
			}

			const much = 8 << 20
			read, wrote, drained := make(chan error), make(chan error), make(chan error)
			control(t, app, func(fd int) error {
				go func() {
					_, err := unix.Read(fd, make([]byte, 1))
					read <- err
				}()
				go func() {
					for sent := 0; sent < much; {
						n, err := unix.Write(fd, make([]byte, much-sent))
						if err != nil {
							wrote <- err
							return
						}
						sent += n
					}
					wrote <- nil
				}()
				return nil
			})
			go func() {
				_, err := io.CopyN(io.Discard, struct{ io.Reader }{proxy}, much)
				drained <- err
			}()
			if err := errors.Join(<-wrote, <-drained); err != nil {
				t.Fatal(err)
			}
			if _, err := proxy.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := <-read; err != nil {
				t.Errorf("the program that waited was told %v", err)
			}

			// One that does not wait any longer.
			blocks(false)
			m.round(t)
			exchange(t, app, proxy, "past TCP")
			if s := m.status(t); s.Sockets != 2 || s.Messages != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Nobody would tell it of what did not go by TCP.
func TestAProgramThatAsksWhatWasSentUsesTCP(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	asks := func(yes int) {
		t.Helper()
		control(t, client, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ZEROCOPY, yes) })
	}
	asks(1)
	m.use(t, client, server)
	if s := m.status(t); s.Refused["zerocopy"] != 1 || m.recorded(t) != 0 {
		t.Errorf("%+v", s)
	}
	asks(0)
	m.use(t, client, server)
	if s := m.status(t); s.Refused["zerocopy"] != 1 || s.Sockets != 2 {
		t.Errorf("%+v", s)
	}
}

// Whether a program waits is not known before it has used its connection: some do not wait for that to be established only.
func TestASocketThatIsNotUsedIsNotRecorded(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	m.round(t)
	exchange(t, client, server, "request")
	m.round(t)
	// It has read, the client has sent: both are ready.
	if s := m.status(t); s.Sockets != 2 || s.Messages != 0 {
		t.Errorf("%+v", s)
	}
	other, _ := connect(t, a, l, at.target, netip.AddrPort{})
	m.round(t)
	if _, err := io.WriteString(other, "nobody has read it"); err != nil {
		t.Fatal(err)
	}
	m.round(t)
	if s := m.status(t); m.recorded(t) != 2 || s.Connections != 2 {
		t.Errorf("one end is recorded without the other: %+v", s)
	}
}

// A socket whose other end is on another machine takes no place, and is not looked for for ever.
func TestASocketWithoutAPeerHereIsNotRecorded(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	first, second := newNamespace(t), newNamespace(t)
	cable(t, first, second, at.a, at.b)
	client, server := connect(t, first, second.listen(t, 8080), at.target, netip.AddrPort{})
	if looked := m.looked(t, client, server); looked != 1 {
		t.Errorf("%d sockets are looked at", looked)
	}
	for range 10 {
		m.use(t, client, server)
	}
	if s := m.status(t); s.Sockets != 0 || s.Connections != 0 || s.Messages != 0 || m.looked(t, client, server) != 0 {
		t.Errorf("sockets are still looked at: %+v", s)
	}
}

// looked counts those of these sockets that rounds look at.
func (m *machine) looked(t *testing.T, of ...*net.TCPConn) (n int) {
	t.Helper()
	states := m.objects.Maps["states"]
	for _, c := range of {
		control(t, c, func(fd int) error {
			err := states.Lookup(int32(fd), make([]byte, states.ValueSize()))
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil
			}
			n++
			return err
		})
	}
	return n
}

// One workload that has another's end be ready, and is not itself, takes none of its places for good.
func TestBothEndsAreRecordedOrNone(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	exchange(t, client, server, "request")
	exchange(t, server, client, "response")
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	m.round(t)
	// TCP has closed one direction: neither is for the map any more.
	if s := m.status(t); m.recorded(t) != 0 || s.Refused["not_recorded"] != 0 {
		t.Errorf("%+v", s)
	}
	client.Close()
	server.Close()
	m.givesAllBack(t)
}

// What other connections have pushed out is put back by the server.
func TestAPairThatWasPushedOutIsFound(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	if err := m.empty("pairs"); err != nil {
		t.Fatal(err)
	}
	// Also if nobody uses it for longer than it is looked for.
	for range 4 {
		m.round(t)
	}
	m.use(t, client, server)
	exchange(t, client, server, "past TCP")
	if s := m.status(t); s.Messages != 1 {
		t.Errorf("%+v", s)
	}
}

// Once both ends know each other, what other connections push out is of no importance.
func TestAConnectionHalfRecordedIsNotPushedOut(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	// Which end is looked at first, and is recorded last, is up to the kernel: of some connections it is the client, of some the server.
	var clients, servers []*net.TCPConn
	for range 16 {
		client, server := connect(t, a, l, at.target, netip.AddrPort{})
		exchange(t, client, server, "request")
		exchange(t, server, client, "response")
		clients, servers = append(clients, client), append(servers, server)
	}
	if err := errors.Join(m.eachSocket(), m.empty("pairs")); err != nil {
		t.Fatal(err)
	}
	if n := m.recorded(t); n != len(clients) {
		t.Fatalf("%d sockets are recorded, want one of each connection", n)
	}
	m.round(t)
	for i, client := range clients {
		exchange(t, client, servers[i], "past TCP")
	}
	if s := m.status(t); m.recorded(t) != 2*len(clients) || s.Messages != uint64(len(clients)) {
		t.Errorf("%+v", s)
	}
}

// A client that waits for its server, which goes, gives its place back although it stays itself.
func TestAClientWhoseServerIsGoneGivesItsPlaceBack(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	if _, err := io.WriteString(client, "nobody reads it"); err != nil {
		t.Fatal(err)
	}
	m.round(t)
	if s := m.status(t); s.Sockets != 1 {
		t.Fatalf("%+v", s)
	}
	server.Close()
	m.round(t)
	if s := m.status(t); s.Sockets != 0 {
		t.Errorf("%+v", s)
	}
}

// The socket of TCP that one of MPTCP uses is closed without the bypass being told: it takes no place, which nobody would give back.
func TestASocketOfMPTCPTakesNoPlace(t *testing.T) {
	m := newMachine(t)
	n := newNamespace(t)
	give(t, n, "10.0.0.1/24")
	// Nobody accepts.
	l := n.listen(t, 9000)
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.6:0"))}
	dialer.SetMultipathTCP(true)
	var client net.Conn
	n.do(t, func() (err error) {
		client, err = dialer.Dial("tcp", fmt.Sprintf("10.0.0.1:%d", l.Addr().(*net.TCPAddr).Port))
		return err
	})
	defer client.Close()
	if speaks, err := client.(*net.TCPConn).MultipathTCP(); err != nil || !speaks {
		t.Skip("the kernel has no MPTCP here:", err)
	}
	if _, err := io.WriteString(client, "used"); err != nil {
		t.Fatal(err)
	}
	m.round(t)
	if s := m.status(t); s.Connections != 1 || s.Sockets != 0 || s.Refused["not_recorded"] != 1 {
		t.Errorf("%+v", s)
	}
	client.Close()
	m.givesAllBack(t)
}

// An end that the kernel does not record has the connection use TCP.
func TestAnEndThatIsNotRecorded(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	fill[uint32](t, m.objects.Maps["places"])
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	m.use(t, client, server)
	exchange(t, client, server, "by TCP")
	if s := m.status(t); s.Refused["not_recorded"] == 0 || s.Messages != 0 {
		t.Errorf("%+v", s)
	}
	if err := m.empty("places"); err != nil {
		t.Fatal(err)
	}
	client.Close()
	server.Close()
	m.givesAllBack(t)
}

// A namespace that others have pushed out of the shares has room for unread messages as before.
func TestAWorkloadThatWasForgottenHasRoom(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := connect(t, a, l, at.target, netip.AddrPort{})
	m.use(t, client, server)
	if err := m.empty("workload_shares"); err != nil {
		t.Fatal(err)
	}
	const messages = 5
	for range messages {
		if _, err := io.WriteString(client, "unread"); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.status(t); s.Messages != messages {
		t.Errorf("%+v", s)
	}
}

// fill takes all places of a map by cookies that nobody has: the kernel counts up its own from 1.
func fill[V any](t *testing.T, m *ebpf.Map) {
	t.Helper()
	cookies, values := make([]uint64, m.MaxEntries()), make([]V, m.MaxEntries())
	for i := range cookies {
		cookies[i] = 1<<62 + uint64(i)
	}
	if _, err := m.BatchUpdate(cookies, values, nil); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) empty(name string) error {
	return pinned.RemoveKeys(m.objects.Maps[name], func(uint64) bool { return true })
}

// Rounds go on while connections come, are used and go, whichever end is closed first.
func TestRoundsBesideConnectionsThatComeAndGo(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	done, ended := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			if _, err := m.Round(); err != nil {
				ended <- err
				return
			}
		}
	}()
	for i := range 1000 {
		client, server := connect(t, a, l, at.target, netip.AddrPort{})
		for range 1 + i%8 {
			exchange(t, client, server, "request")
			exchange(t, server, client, "response")
		}
		ends := []*net.TCPConn{client, server}
		if i%3 == 0 {
			if err := client.SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}
		ends[i%2].Close()
		ends[1-i%2].Close()
	}
	close(done)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	m.givesAllBack(t)
	if s := m.status(t); s.Messages == 0 || s.Refused["not_recorded"] != 0 {
		t.Errorf("%+v", s)
	}
}

// A round that fails, and the first that does not any more, are told once.
func TestFailingRoundsAreToldOnce(t *testing.T) {
	var told []error
	n := news{tell: func(err error) { told = append(told, err) }}
	failed := errors.New("failed")
	for _, err := range []error{nil, failed, failed, nil, nil, failed} {
		n.round(err)
	}
	if !slices.Equal(told, []error{failed, nil, failed}) {
		t.Errorf("%v", told)
	}
}

func TestRoundsAreMadeWhenTheyMayFindSomething(t *testing.T) {
	var s schedule
	waits := func(found uint64) (waited time.Duration) {
		for waited = shortestPause; !s.now(found); waited += shortestPause {
		}
		return waited
	}
	var got []time.Duration
	for range 9 {
		got = append(got, waits(0))
		s.made(false, time.Millisecond)
	}
	for i, want := range []time.Duration{shortestPause, shortestPause, 2 * shortestPause, 4 * shortestPause, 8 * shortestPause, 16 * shortestPause, 32 * shortestPause, longestPause, longestPause} {
		if got[i] != want {
			t.Errorf("round %d after %v, want %v", i, got[i], want)
		}
	}
	if waited := waits(1); waited != shortestPause {
		t.Errorf("after a connection was found: %v", waited)
	}
	s.made(true, time.Millisecond)
	if waited := waits(1); waited != shortestPause {
		t.Errorf("after a round that found something: %v", waited)
	}
	s.made(true, shortestPause)
	if waited := waits(2); waited != pausePerRound*shortestPause {
		t.Errorf("after a round that took %v: %v", shortestPause, waited)
	}
}

// What a round costs of idle sockets: of connections that bypass TCP, and of those of which one end has not been used.
func BenchmarkRound(b *testing.B) {
	for _, connections := range []int{40, 4000} {
		for name, used := range map[string]bool{"recorded": true, "waiting": false} {
			b.Run(fmt.Sprintf("%s/%d", name, 2*connections), func(b *testing.B) {
				m := newMachine(b)
				a, l := sidecars(b, families["ipv4"])
				for range connections {
					client, server := connect(b, a, l, families["ipv4"].target, netip.AddrPort{})
					if used {
						exchange(b, client, server, "request")
					}
				}
				m.round(b)
				for b.Loop() {
					if _, err := m.Round(); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				if s := m.status(b); used != (s.Sockets == 2*connections) {
					b.Errorf("%+v", s)
				}
			})
		}
	}
}

// What the agent does ten times a second while nothing happens.
func BenchmarkNothingFound(b *testing.B) {
	m := newMachine(b)
	for b.Loop() {
		if _, err := m.connections(); err != nil {
			b.Fatal(err)
		}
	}
}
