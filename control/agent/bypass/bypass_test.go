package bypass

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/pinned"
	"heddle.io/heddle/control/agent/process/processtest"
)

const patience = 30 * time.Second

// addresses of two namespaces, and what the first dials of the second.
type addresses struct{ a, b, target string }

var families = map[string]addresses{
	"ipv4": {"10.9.0.1/24", "10.9.0.2/24", "10.9.0.2:8080"},
	"ipv6": {"fd09::1/64", "fd09::2/64", "[fd09::2]:8080"},
}

// client is an address of the first namespace to dial from.
func (a addresses) client() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParsePrefix(a.a).Addr(), 40000)
}

// sidecars are two namespaces, and a listener to which the second's packet filter brings connections.
func sidecars(t testing.TB, at addresses) (*namespace, *net.TCPListener) {
	t.Helper()
	first, second := newNamespace(t), newNamespace(t)
	cable(t, first, second, at.a, at.b)
	captured(t, second)
	return first, second.listen(t, 15006)
}

// packets opens a socket that sees what a namespace's interfaces carry.
func packets(t testing.TB, n *namespace) int {
	t.Helper()
	var fd int
	n.do(t, func() error {
		var err error
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(0x0300)) // ETH_P_ALL in network order
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// carried says whether a packet had the text.
func carried(fd int, text string) bool {
	packet := make([]byte, 1<<16)
	found := false
	for {
		n, _, err := unix.Recvfrom(fd, packet, 0)
		if err != nil {
			return found
		}
		found = found || bytes.Contains(packet[:n], []byte(text))
	}
}

func exchange(t testing.TB, from, to *net.TCPConn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("%q arrived for %q: %v", got, text, err)
	}
}

func TestPayloadIsNotOnTheInterface(t *testing.T) {
	m := newMachine(t)
	for family, at := range families {
		between := func(t *testing.T) (*namespace, *net.TCPConn, *net.TCPConn) {
			a, l := sidecars(t, at)
			client, server := m.connect(t, a, l, at.target, netip.AddrPort{})
			return a, client, server
		}
		within := func(t *testing.T) (*namespace, *net.TCPConn, *net.TCPConn) {
			n := newNamespace(t)
			cable(t, n, newNamespace(t), at.a, at.b)
			own := netip.AddrPortFrom(netip.MustParsePrefix(at.a).Addr(), 15001)
			application, proxy := m.connect(t, n, n.listen(t, own.Port()), own.String(), netip.AddrPort{})
			return n, application, proxy
		}
		for path, open := range map[string]func(*testing.T) (*namespace, *net.TCPConn, *net.TCPConn){
			"sidecar to sidecar": between, "application to sidecar": within,
		} {
			t.Run(family+" "+path, func(t *testing.T) {
				n, client, server := open(t)
				seen := packets(t, n)
				for _, way := range []struct {
					on   bool
					text string
				}{{true, "bypassed-payload"}, {false, "payload-by-tcp"}, {true, "bypassed-once-more"}} {
					if err := m.Enable(way.on); err != nil {
						t.Fatal(err)
					}
					exchange(t, client, server, way.text)
					if carried(seen, way.text) == way.on {
						t.Errorf("%q is on the interface: %v", way.text, !way.on)
					}
					exchange(t, server, client, way.text)
					if toProxy := path == "sidecar to sidecar"; carried(seen, way.text) == (way.on && toProxy) {
						t.Errorf("the answer %q is on the interface: %v", way.text, !way.on || !toProxy)
					}
				}
			})
		}
	}
}

func TestEqualAddressesDoNotMeet(t *testing.T) {
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			m := newMachine(t)
			const pairs = 4
			var clients, servers [pairs]*net.TCPConn
			for i := range pairs {
				if i == 0 {
					// Its client waits for its other end for ever.
					processtest.Enter(t, filepath.Dir(m.cgroup))
				}
				a, l := sidecars(t, at)
				processtest.Enter(t, m.cgroup)
				clients[i], servers[i] = m.connect(t, a, l, at.target, at.client())
			}
			for i := range pairs {
				exchange(t, clients[i], servers[i], fmt.Sprintf("request of pair %d", i))
			}
			for i := range pairs {
				exchange(t, servers[i], clients[i], fmt.Sprintf("response of pair %d", i))
			}
			if s := m.status(t); s.Connections != pairs-1 || s.Messages != 2*(pairs-1) {
				t.Errorf("all but the first were to bypass TCP: %+v", s)
			}
		})
	}
}

// Each cluster has a control group, programs and maps of its own.
func TestClustersWithEqualAddressesDoNotMeet(t *testing.T) {
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			clusters := []*machine{newMachine(t), newMachine(t)}
			var clients, servers []*net.TCPConn
			for _, m := range clusters {
				processtest.Enter(t, m.cgroup)
				a, l := sidecars(t, at)
				client, server := m.connect(t, a, l, at.target, at.client())
				clients, servers = append(clients, client), append(servers, server)
			}
			for i, m := range clusters {
				request, response := strings.Repeat("request", i+1), strings.Repeat("response", i+1)
				exchange(t, clients[i], servers[i], request)
				exchange(t, servers[i], clients[i], response)
				if s := m.status(t); s.Connections != 1 || s.Sockets != 2 || s.Messages != 2 || s.Bytes != uint64(len(request)+len(response)) {
					t.Errorf("cluster %d was to have its own connection alone: %+v", i, s)
				}
			}
			// From one cluster to the other: neither's programs know both ends.
			processtest.Enter(t, clusters[1].cgroup)
			a, l := sidecars(t, at)
			processtest.Enter(t, clusters[0].cgroup)
			client, server := connect(t, a, l, at.target, at.client())
			for _, m := range clusters {
				m.use(t, client, server)
			}
			exchange(t, client, server, "request")
			exchange(t, server, client, "response")
			for i, m := range clusters {
				if s := m.status(t); s.Connections != 1 || s.Messages != 2 {
					t.Errorf("what goes between clusters was to use TCP, cluster %d: %+v", i, s)
				}
			}
		})
	}
}

func TestAReaderThatStopsHoldsItsSenderBack(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	client, server := m.connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	const much = 256 << 20
	sent := 0
	for piece := make([]byte, 64<<10); sent < much; {
		if err := client.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := client.Write(piece)
		sent += n
		if err != nil {
			break
		}
	}
	if sent >= much/8 {
		t.Fatalf("a reader that does not read was sent %d bytes", sent)
	}
	if err := errors.Join(client.CloseWrite(), server.SetReadDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	if got, err := io.Copy(io.Discard, struct{ io.Reader }{server}); err != nil || got != int64(sent) {
		t.Errorf("%d of %d bytes arrived: %v", got, sent, err)
	}
}

// The kernel keeps a record for each message, whatever its size, that counts against no bound of its own.
func TestAReaderThatStopsIsSentFewMessages(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	client, server := m.connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	const bytes, most = 5000, 512
	want := make([]byte, bytes)
	for i := range want {
		want[i] = byte(i)
		if _, err := client.Write(want[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	before := m.status(t)
	if before.Messages == 0 || before.Messages > most || before.Fallbacks["receiver_behind"] == 0 {
		t.Errorf("a reader that does not read was sent %+v", before)
	}
	got := make([]byte, bytes)
	if _, err := io.ReadFull(server, got); err != nil || !slices.Equal(got, want) {
		t.Errorf("other bytes arrived: %v", err)
	}
	exchange(t, client, server, "more")
	if after := m.status(t); after.Messages != before.Messages+1 {
		t.Errorf("after it has read, messages do not bypass TCP: %+v", after)
	}
}

// What the kernel keeps of unread messages is charged to nobody: one workload, with however many connections, can have it keep half
// of what there is room for, and there is room for the next.
func TestOneWorkloadDoesNotTakeAllRoomForUnreadMessages(t *testing.T) {
	const sockets, connections, each = 128, 20, 200
	// Of 16 times 32 messages, beyond two of each connection: the attacker has half.
	const most = connections*2 + 8*32
	m := newMachineOf(t, sockets)
	attacker, l := sidecars(t, families["ipv4"])
	other, theirs := sidecars(t, families["ipv6"])
	var all [][2]*net.TCPConn
	for range connections {
		client, server := m.connect(t, attacker, l, families["ipv4"].target, netip.AddrPort{})
		all = append(all, [2]*net.TCPConn{client, server})
		for range each {
			if _, err := client.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := m.status(t)
	if s.Messages < most/2 || s.Messages > most || s.Fallbacks["unread_share"] == 0 {
		t.Errorf("readers that do not read were sent %+v, want at most %d messages", s, most)
	}
	client, server := m.connect(t, other, theirs, families["ipv6"].target, netip.AddrPort{})
	for range each {
		if _, err := client.Write([]byte{2}); err != nil {
			t.Fatal(err)
		}
	}
	if after := m.status(t); after.Messages < s.Messages+each/2 {
		t.Errorf("of another workload's %d messages, %d bypassed TCP", each, after.Messages-s.Messages)
	}
	if _, err := io.ReadFull(server, make([]byte, each)); err != nil {
		t.Error(err)
	}
	for _, ends := range append(all, [2]*net.TCPConn{client, server}) {
		ends[0].Close()
		ends[1].Close()
	}
	m.givesAllBack(t)
}

// Senders that have sent a burst and are idle since hold nothing for what their receivers have read.
func TestIdleSendersDoNotHoldRoomForUnreadMessages(t *testing.T) {
	const sockets, burst = 128, 40
	m := newMachineOf(t, sockets)
	a, l := sidecars(t, families["ipv4"])
	var ends [8][2]*net.TCPConn
	for i := range ends {
		ends[i][0], ends[i][1] = m.connect(t, a, l, families["ipv4"].target, netip.AddrPort{})
	}
	send := func(i int) {
		t.Helper()
		for range burst {
			if _, err := ends[i][0].Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	receive := func(i int) {
		t.Helper()
		if _, err := io.ReadFull(ends[i][1], make([]byte, burst)); err != nil {
			t.Fatal(err)
		}
	}
	// Each takes two blocks, until they have half of all.
	for i := range 5 {
		send(i)
		receive(i)
	}
	held, err := m.total()
	if s := m.status(t); err != nil || held.UnreadBlocks != sockets/8/2 || s.Fallbacks["unread_share"] == 0 {
		t.Fatalf("%+v are held, %+v: %v", held, s, err)
	}
	if changed, err := m.Round(); err != nil || !changed {
		t.Errorf("nothing was returned: %v", err)
	}
	if held, err = m.total(); err != nil || held.UnreadBlocks != 0 {
		t.Errorf("%+v are still held: %v", held, err)
	}
	if changed, err := m.Round(); err != nil || changed {
		t.Errorf("what nobody holds was returned: %v", err)
	}
	before := m.status(t)
	send(4)
	if after := m.status(t); after.Messages != before.Messages+burst {
		t.Errorf("%d of %d messages bypassed TCP", after.Messages-before.Messages, burst)
	}
	// What is unread stays counted.
	for i := 5; i < len(ends); i++ {
		send(i)
	}
	if changed, err := m.Round(); err != nil || changed {
		t.Errorf("what is unread was returned: %v", err)
	}
	if held, err = m.total(); err != nil || held.UnreadBlocks != 8 {
		t.Errorf("%+v are held of what nobody has read, want 8 blocks: %v", held, err)
	}
}

// What a sender that closes leaves unread is the kernel's to keep as before.
func TestClosedSendersDoNotGiveBackWhatTheirReceiversKeep(t *testing.T) {
	const sockets, connections, each, rounds = 128, 12, 40, 3
	// Of 16 times 32 messages, beyond two of each receiver: the attacker has half.
	const most = rounds*connections*2 + 8*32
	m := newMachineOf(t, sockets)
	attacker, l := sidecars(t, families["ipv4"])
	var receivers []*net.TCPConn
	for round := range rounds {
		for range connections {
			client, server := m.connect(t, attacker, l, families["ipv4"].target, netip.AddrPort{})
			receivers = append(receivers, server)
			for range each {
				if _, err := client.Write([]byte{1}); err != nil {
					t.Fatal(err)
				}
			}
			client.Close()
		}
		m.records(t, (round+1)*connections)
	}
	s := m.status(t)
	if s.Messages < most/2 || s.Messages > most || s.Fallbacks["unread_share"] == 0 {
		t.Errorf("readers that do not read were sent %+v, want at most %d messages", s, most)
	}
	for _, r := range receivers {
		if got, err := io.Copy(io.Discard, struct{ io.Reader }{r}); err != nil || got != each {
			t.Errorf("%d of %d bytes arrived: %v", got, each, err)
		}
		r.Close()
	}
	m.givesAllBack(t)
	// There is as much room as at first.
	client, server := m.connect(t, attacker, l, families["ipv4"].target, netip.AddrPort{})
	for range each {
		exchange(t, client, server, "1")
	}
	if after := m.status(t); after.Messages != s.Messages+each {
		t.Errorf("%d of %d messages bypassed TCP", after.Messages-s.Messages, each)
	}
}

// However the ends of a connection close, what is left is given back once.
func TestBothEndsCloseAtOnce(t *testing.T) {
	const each = 40
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	for i := range 1000 {
		client, server := m.connect(t, a, l, families["ipv4"].target, netip.AddrPort{})
		for range each {
			if _, err := client.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 1 {
			if err := server.SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}
		var ends sync.WaitGroup
		ends.Go(func() { client.Close() })
		ends.Go(func() { server.Close() })
		ends.Wait()
	}
	m.givesAllBack(t)
	if s := m.status(t); s.Messages != 1000*each {
		t.Errorf("all was to bypass TCP: %+v", s)
	}
}

// What was sent to a socket that TCP has closed is kept for as long as somebody has the socket.
func TestAResetReceiverKeepsWhatItWasSent(t *testing.T) {
	const each = 40
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	client, server := m.connect(t, a, l, families["ipv4"].target, netip.AddrPort{})
	for range each {
		if _, err := client.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(client.SetLinger(0), client.Close()); err != nil {
		t.Fatal(err)
	}
	m.waits(t, func(recorded share) bool { return recorded == share{Sockets: 1, UnreadBlocks: 2} })
	if got, err := io.ReadAll(server); len(got) != each || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%d of %d bytes arrived: %v", len(got), each, err)
	}
	server.Close()
	m.givesAllBack(t)
}

// What a connection is sent that nobody has taken goes by TCP, however long that lasts.
func TestAConnectionThatIsNeverTakenIsNotRecorded(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	for range 20 {
		var client *net.TCPConn
		a.do(t, func() error {
			var err error
			client, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(families["ipv4"].target)))
			return err
		})
		for range 40 {
			if _, err := client.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			m.round(t)
		}
		if s := m.status(t); s.Messages != 0 || m.recorded(t) != 0 || s.Connections == 0 {
			t.Errorf("%+v", s)
		}
		if err := errors.Join(client.SetLinger(0), client.Close()); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	m.givesAllBack(t)
}

// What it has sent stays its own when it connects elsewhere.
func TestASenderThatConnectsAgainDoesNotGiveBackWhatItsReceiverKeeps(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	target, fd, first := m.dialRaw(t, a, l)
	for range 40 {
		if _, err := unix.Write(fd, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	disconnect(t, fd)
	again(t, a, fd, target)
	second, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	unix.Close(fd)
	m.waits(t, func(recorded share) bool { return recorded == share{Sockets: 1, UnreadBlocks: 2} })
	first.Close()
	m.givesAllBack(t)
}

// dialRaw dials the second sidecar by a socket of its own, has the connection bypass TCP, and gives the address as well.
func (m *machine) dialRaw(t testing.TB, from *namespace, l *net.TCPListener) (target unix.Sockaddr, fd int, server *net.TCPConn) {
	t.Helper()
	target = &unix.SockaddrInet4{Port: 8080, Addr: [4]byte{10, 9, 0, 2}}
	from.do(t, func() error {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
			return err
		}
		return errors.Join(unix.Connect(fd, target), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetNonblock(fd, true))
	})
	server, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if _, err := unix.Write(fd, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	m.round(t)
	return target, fd, server
}

// again has a socket connect once more.
func again(t testing.TB, from *namespace, fd int, target unix.Sockaddr) {
	t.Helper()
	from.do(t, func() error {
		return errors.Join(unix.SetNonblock(fd, false), unix.Connect(fd, target), unix.SetNonblock(fd, true))
	})
}

// disconnect ends a connection by connect(2) to no address.
func disconnect(t testing.TB, fd int) {
	t.Helper()
	none := [16]byte{}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
		t.Fatal(errno)
	}
}

// Its queue may hold what the peer of before has sent.
func TestASocketThatConnectsAgainUsesTCP(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	target, fd, server := m.dialRaw(t, a, l)
	for range 40 {
		if _, err := server.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	disconnect(t, fd)
	server.Close()
	m.waits(t, func(recorded share) bool { return recorded == share{Sockets: 1, UnreadBlocks: 2} })
	again(t, a, fd, target)
	before := m.status(t)
	server, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	got := make([]byte, 7)
	if _, err := unix.Write(fd, []byte("request")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, got); err != nil || string(got) != "request" {
		t.Fatalf("%q: %v", got, err)
	}
	if _, err := server.Write([]byte("response")); err != nil {
		t.Fatal(err)
	}
	if after := m.status(t); after.Messages != before.Messages || after.Connections != before.Connections {
		t.Errorf("it bypasses TCP: %+v, before %+v", after, before)
	}
	server.Close()
	unix.Close(fd)
	m.givesAllBack(t)
}

// Applications may wait in ways that a socket of the map does not know.
func TestAnApplicationReceivesByTCP(t *testing.T) {
	m := newMachine(t)
	n := newNamespace(t)
	cable(t, n, newNamespace(t), "10.9.0.1/24", "10.9.0.2/24")
	sidecar := n.listen(t, 15001)
	application, proxy := m.connect(t, n, sidecar, "10.9.0.1:15001", netip.AddrPort{})
	exchange(t, application, proxy, "request")
	if s := m.status(t); s.Messages != 1 {
		t.Errorf("what an application sends was to bypass TCP: %+v", s)
	}
	raw, err := application.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	exchanged := make(chan error, 1)
	go func() {
		for _, half := range []string{"resp", "onse"} {
			if _, err := io.WriteString(proxy, half); err != nil {
				exchanged <- err
				return
			}
		}
		exchanged <- nil
	}()
	if err := <-exchanged; err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	var received int
	waitErr := errors.Join(application.SetReadDeadline(time.Now().Add(patience)), raw.Read(func(fd uintptr) bool {
		received, _, err = unix.Recvfrom(int(fd), got, unix.MSG_WAITALL|unix.MSG_PEEK)
		return received == len(got) || err != nil && !errors.Is(err, unix.EAGAIN)
	}))
	if err := errors.Join(waitErr, err); err != nil || string(got) != "response" {
		t.Errorf("%q: %v", got, err)
	}
	if s := m.status(t); s.Messages != 1 {
		t.Errorf("what an application receives was to come by TCP: %+v", s)
	}

	// Its own parts are none of the bypass's business, whatever ports they use.
	part, other := m.connect(t, n, sidecar, "127.0.0.1:15001", netip.AddrPort{})
	exchange(t, part, other, "inside")
	if s := m.status(t); s.Connections != 1 || s.Messages != 1 {
		t.Errorf("loopback was to be left alone: %+v", s)
	}
	// But what it answers to its sidecar, which calls it from this address.
	service := n.listen(t, 9000)
	proxy, application = m.connect(t, n, service, "127.0.0.1:9000", netip.MustParseAddrPort("127.0.0.6:0"))
	exchange(t, proxy, application, "request")
	exchange(t, application, proxy, "response")
	if s := m.status(t); s.Connections != 2 || s.Messages != 2 {
		t.Errorf("the answer alone was to bypass TCP: %+v", s)
	}
}

// One that opens whatever it can leaves room for others, and gives back what it closes.
func TestOneWorkloadDoesNotTakeAllSockets(t *testing.T) {
	const sockets, attempts = 64, 100
	m := newMachineOf(t, sockets)
	attacker, l := sidecars(t, families["ipv4"])
	for range 2 {
		var all [][2]*net.TCPConn
		before := m.status(t)
		for range attempts {
			client, server := m.connect(t, attacker, l, families["ipv4"].target, netip.AddrPort{})
			all = append(all, [2]*net.TCPConn{client, server})
		}
		// It has both ends, each in a namespace: both have what is left when they have as much.
		s := m.status(t)
		if s.Sockets < sockets/2 || s.Sockets > 2*sockets/3+1 || s.Refused["workload_share"] == before.Refused["workload_share"] || s.Refused["not_recorded"] != 0 {
			t.Errorf("the attacker was to have two shares of three: %+v", s)
		}
		other, theirs := sidecars(t, families["ipv6"])
		client, server := m.connect(t, other, theirs, families["ipv6"].target, netip.AddrPort{})
		exchange(t, client, server, "request")
		exchange(t, server, client, "response")
		if after := m.status(t); after.Connections != s.Connections+1 || after.Messages != s.Messages+2 {
			t.Errorf("another workload's connection was to bypass TCP: %+v, before %+v", after, s)
		}
		client.Close()
		server.Close()
		// Those beyond the share are no worse off than without the bypass.
		exchange(t, all[attempts-1][0], all[attempts-1][1], "by TCP")
		for _, ends := range all {
			ends[0].Close()
			ends[1].Close()
		}
		m.givesAllBack(t)
	}
}

// givesAllBack waits until nobody has a share of anything, and nothing is written down for it.
func (m *machine) givesAllBack(t testing.TB) {
	t.Helper()
	m.waits(t, func(recorded share) bool { return recorded == (share{}) })
	for _, name := range []string{"places", "orphaned"} {
		var of uint64
		if err := m.objects.Maps[name].NextKey(nil, &of); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("socket %d is still in the map %q: %v", of, name, err)
		}
	}
}

// records waits until so many sockets are recorded.
func (m *machine) records(t testing.TB, sockets int) {
	t.Helper()
	m.waits(t, func(recorded share) bool { return recorded.Sockets == int64(sockets) })
}

// waits until what all workloads have is as it should be: the kernel closes sockets when it comes to it.
func (m *machine) waits(t testing.TB, until func(recorded share) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		recorded, err := m.total()
		if err != nil {
			t.Fatal(err)
		}
		if until(recorded) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v are still in somebody's share", recorded)
		}
	}
}

func TestOnlyTheControlGroupsSockets(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	processtest.Enter(t, filepath.Dir(m.cgroup))
	client, server := m.connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	processtest.Enter(t, m.cgroup)
	exchange(t, client, server, "from outside")
	if s := m.status(t); s.Sockets != 0 || s.Connections != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTheNextAgentTakesOver(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, families["ipv4"])
	client, server := m.connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	exchange(t, client, server, "before")
	if _, err := io.WriteString(client, "unread, "); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if _, err := io.WriteString(client, "without an agent, "); err != nil {
		t.Fatal(err)
	}
	m.attach(t)
	if _, err := io.WriteString(client, "after"); err != nil {
		t.Fatal(err)
	}
	want := "unread, without an agent, after"
	got := make([]byte, len(want))
	if err := server.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, got); err != nil || string(got) != want {
		t.Errorf("%q arrived: %v", got, err)
	}
	client, server = m.connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	exchange(t, client, server, "a new connection")
	if s := m.status(t); s.Connections != 2 || s.Messages != 5 || s.Sockets != 4 {
		t.Errorf("all was to bypass TCP: %+v", s)
	}
	if err := m.Enable(false); err != nil {
		t.Fatal(err)
	}
	seen := packets(t, a)
	exchange(t, client, server, "switched-off")
	if !carried(seen, "switched-off") {
		t.Error("the second agent does not hold the switch")
	}
}

// What is attached keeps its room, whatever the next agent would make; what has another layout, or none, is left as it is.
func TestOtherSizesAreTakenOverAndOtherLayoutsAreNot(t *testing.T) {
	m := newMachineOf(t, 128)
	a, l := sidecars(t, families["ipv4"])
	client, server := m.connect(t, a, l, families["ipv4"].target, netip.AddrPort{})
	exchange(t, client, server, "before")
	m.Close()
	m.sockets = 256
	m.attach(t)
	exchange(t, client, server, "after")
	if s := m.status(t); s.MaxSockets != 128 || s.Sockets != 2 || s.Messages != 2 {
		t.Errorf("the sockets of before were to be taken over: %+v", s)
	}
	layout, pin := m.objects.Maps[layoutMap], filepath.Join(m.dir, layoutMap)
	next, err := ebpf.NewMap(&ebpf.MapSpec{Type: layout.Type(), KeySize: layout.KeySize(), ValueSize: layout.ValueSize(), MaxEntries: layout.MaxEntries() + 1})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	refuses := func(what string) {
		t.Helper()
		if _, err := attachWithRoom(m.dir, m.cgroup, room{sockets: 128, unreadBlocks: 16}); err == nil || !strings.Contains(err.Error(), "another version") {
			t.Errorf("%s: %v", what, err)
		}
		before := m.status(t).Messages
		exchange(t, client, server, "goes on")
		if s := m.status(t); s.Messages != before+1 {
			t.Errorf("%s: a message went by TCP: %+v", what, s)
		}
		if !IsAttached(m.dir) {
			t.Errorf("%s: what is attached was removed", what)
		}
	}
	if err := os.Remove(pin); err != nil {
		t.Fatal(err)
	}
	refuses("pins without a layout")
	if err := next.Pin(pin); err != nil {
		t.Fatal(err)
	}
	refuses("another layout")
}

// What cannot be read does not say that the programs are gone.
func TestCountersThatCannotBeRead(t *testing.T) {
	for _, name := range []string{"counts", "total_share"} {
		m := newMachineOf(t, 128)
		if err := m.objects.Maps[name].Close(); err != nil {
			t.Fatal(err)
		}
		if s, err := m.Status(); err == nil || !s.Attached || s.Fallbacks != nil {
			t.Errorf("without map %s: %+v, %v", name, s, err)
		}
	}
}

// Whoever is killed while attaching leaves maps without links, which nobody uses.
func TestWhatWasHalfAttachedIsMadeAnew(t *testing.T) {
	m := newMachineOf(t, 128)
	m.Close()
	for _, pin := range []string{"established", "closed", layoutMap} {
		if err := pinned.Drop(filepath.Join(m.dir, pin)); err != nil {
			t.Fatal(err)
		}
	}
	m.attach(t)
	a, l := sidecars(t, families["ipv4"])
	client, server := m.connect(t, a, l, families["ipv4"].target, netip.AddrPort{})
	exchange(t, client, server, "anew")
	if s := m.status(t); s.Messages != 1 {
		t.Errorf("%+v", s)
	}
}

func TestDetachRemovesEverything(t *testing.T) {
	dir, cgroup := filepath.Join(t.TempDir(), "bpf"), processtest.ControlGroup(t, "bypass")
	b, err := Attach(dir, cgroup)
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.Status()
	if err != nil || len(s.Programs) != 4 || len(s.Maps) < 10 {
		t.Fatalf("%+v: %v", s, err)
	}
	b.Close()
	for range 2 {
		if err := Detach(dir); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Error("the BPF file system is still mounted")
	}
	attached, err := programs(cgroup)
	if err != nil || attached != 0 {
		t.Errorf("%d programs are still attached: %v", attached, err)
	}
	// The kernel frees them when it comes to it.
	deadline := time.Now().Add(patience)
	for _, p := range s.Programs {
		for there := true; there && !time.Now().After(deadline); runtime.Gosched() {
			left, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
			if there = err == nil; there {
				left.Close()
			}
		}
	}
	for _, m := range s.Maps {
		for there := true; there; runtime.Gosched() {
			left, err := ebpf.NewMapFromID(ebpf.MapID(m.ID))
			if there = err == nil; there {
				left.Close()
			}
			if there && time.Now().After(deadline) {
				t.Fatalf("map %s is still there", m.Name)
			}
		}
	}
	if time.Now().After(deadline) {
		t.Error("programs are still there")
	}
}

func TestWithoutControlGroup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bpf")
	_ = processtest.ControlGroup(t, "bypass")
	_, err := Attach(dir, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "cgroup version 2") {
		t.Errorf("%v", err)
	}
	if mounted, err := pinned.IsMounted(dir); err != nil || mounted {
		t.Errorf("what was begun is still there: %v", err)
	}
}
