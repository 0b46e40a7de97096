package bypass

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const patience = 30 * time.Second

// sidecars are two namespaces, and a listener to which the second's packet filter brings connections.
func sidecars(t *testing.T, a, b string) (*namespace, *net.TCPListener) {
	t.Helper()
	first, second := newNamespace(t), newNamespace(t)
	cable(t, first, second, a, b)
	captured(t, second)
	return first, second.listen(t, 15006)
}

// transfer sends n random bytes in pieces of random sizes and compares what arrives, up to its end.
func transfer(from, to *net.TCPConn, seed uint64, n, largest int) error {
	sent := make(chan [sha256.Size]byte, 1)
	failed := make(chan error, 1)
	go func() {
		source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
		sizes := rand.New(rand.NewPCG(seed, 0))
		sum := sha256.New()
		piece := make([]byte, largest)
		for left := n; left > 0; {
			p := piece[:min(left, 1+sizes.IntN(largest))]
			_, _ = source.Read(p)
			sum.Write(p)
			if _, err := from.Write(p); err != nil {
				failed <- err
				return
			}
			left -= len(p)
		}
		sent <- [sha256.Size]byte(sum.Sum(nil))
		failed <- from.CloseWrite()
	}()
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	sum := sha256.New()
	got, err := io.Copy(sum, struct{ io.Reader }{to})
	if err = errors.Join(err, <-failed); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", got, n, err)
	}
	if got != int64(n) || [sha256.Size]byte(sum.Sum(nil)) != <-sent {
		return fmt.Errorf("%d bytes arrived for %d, or other ones", got, n)
	}
	return nil
}

func TestBytesArriveAsTheyWereSent(t *testing.T) {
	m := newMachine(t)
	for family, addresses := range map[string][3]string{
		"ipv4": {"10.9.0.1/24", "10.9.0.2/24", "10.9.0.2:8080"},
		"ipv6": {"fd09::1/64", "fd09::2/64", "[fd09::2]:8080"},
	} {
		t.Run(family, func(t *testing.T) {
			a, l := sidecars(t, addresses[0], addresses[1])
			before := m.status(t)
			total := 0
			var all sync.WaitGroup
			for i, n := range append([]int{1, 2, 1000, 32 << 20}, make([]int, 200)...) {
				if n == 0 {
					n = 10_000 + i
				}
				client, server := connect(t, a, l, addresses[2], netip.AddrPort{})
				for _, ends := range [][2]*net.TCPConn{{client, server}, {server, client}} {
					total += n
					all.Go(func() {
						if err := transfer(ends[0], ends[1], uint64(i), n, max(n/50, 1)); err != nil {
							t.Error(err)
						}
					})
				}
			}
			all.Wait()
			after := m.status(t)
			if got := after.Connections - before.Connections; got != 204 {
				t.Errorf("%d connections bypass TCP, want 204", got)
			}
			// The large ones go by TCP once the reader lags.
			if got := after.Bytes - before.Bytes; got < 200*10_000 || got > uint64(total) {
				t.Errorf("%d of %d bytes bypassed TCP", got, total)
			}
		})
	}
}

func TestOrderIsKeptWhileTheBypassComesAndGoes(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
	var transfers sync.WaitGroup
	for i := range 8 {
		client, server := connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
		for _, ends := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			transfers.Go(func() {
				if err := transfer(ends[0], ends[1], uint64(i), 8<<20, 5000); err != nil {
					t.Error(err)
				}
			})
		}
	}
	done := make(chan struct{})
	go func() {
		transfers.Wait()
		close(done)
	}()
	for on, flips := false, 0; ; on, flips = !on, flips+1 {
		select {
		case <-done:
			if flips < 10 {
				t.Errorf("the bypass came and went only %d times", flips)
			}
			if s := m.status(t); s.Bytes == 0 || s.Fallbacks[fallbacks[fallbackOrder]] == 0 {
				t.Errorf("both ways were to be used: %+v", s)
			}
			return
		case <-time.After(time.Millisecond):
		}
		if err := m.Enable(on); err != nil {
			t.Fatal(err)
		}
	}
}

// packets opens a socket that sees what a namespace's interfaces carry.
func packets(t *testing.T, n *namespace) int {
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

func exchange(t *testing.T, from, to *net.TCPConn, text string) {
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
	a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
	seen := packets(t, a)
	client, server := connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	for _, way := range []struct {
		on   bool
		text string
	}{{true, "bypassed-payload"}, {false, "payload-by-tcp"}, {true, "bypassed-once-more"}} {
		if err := m.Enable(way.on); err != nil {
			t.Fatal(err)
		}
		for _, ends := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			exchange(t, ends[0], ends[1], way.text)
			if carried(seen, way.text) == way.on {
				t.Errorf("%q from %v is on the interface: %v", way.text, ends[0].LocalAddr(), !way.on)
			}
		}
	}
}

func TestEqualAddressesDoNotMeet(t *testing.T) {
	m := newMachine(t)
	const pairs = 4
	var clients, servers [pairs]*net.TCPConn
	for i := range pairs {
		if i == 0 {
			// Its client waits for its other end for ever.
			enter(t, filepath.Dir(m.cgroup))
		}
		a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
		enter(t, m.cgroup)
		clients[i], servers[i] = connect(t, a, l, "10.9.0.2:8080", netip.MustParseAddrPort("10.9.0.1:40000"))
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
}

func TestAReaderThatStopsHoldsItsSenderBack(t *testing.T) {
	newMachine(t)
	a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
	client, server := connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
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
	a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
	client, server := connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
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

// Applications may wait in ways that a socket of the map does not know.
func TestAnApplicationReceivesByTCP(t *testing.T) {
	m := newMachine(t)
	n := newNamespace(t)
	cable(t, n, newNamespace(t), "10.9.0.1/24", "10.9.0.2/24")
	sidecar := n.listen(t, 15001)
	application, proxy := connect(t, n, sidecar, "10.9.0.1:15001", netip.AddrPort{})
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
	if err := errors.Join(application.SetReadDeadline(time.Now().Add(patience)), raw.Read(func(fd uintptr) bool {
		received, _, err = unix.Recvfrom(int(fd), got, unix.MSG_WAITALL|unix.MSG_PEEK)
		return received == len(got) || err != nil && !errors.Is(err, unix.EAGAIN)
	}), err); err != nil || string(got) != "response" {
		t.Errorf("%q: %v", got, err)
	}
	if s := m.status(t); s.Messages != 1 {
		t.Errorf("what an application receives was to come by TCP: %+v", s)
	}

	// Its own parts are none of the bypass's business, whatever ports they use.
	part, other := connect(t, n, sidecar, "127.0.0.1:15001", netip.AddrPort{})
	exchange(t, part, other, "inside")
	if s := m.status(t); s.Connections != 1 || s.Messages != 1 {
		t.Errorf("loopback was to be left alone: %+v", s)
	}
	// But what it answers to its sidecar, which calls it from this address.
	service := n.listen(t, 9000)
	proxy, application = connect(t, n, service, "127.0.0.1:9000", netip.MustParseAddrPort("127.0.0.6:0"))
	exchange(t, proxy, application, "request")
	exchange(t, application, proxy, "response")
	if s := m.status(t); s.Connections != 2 || s.Messages != 2 {
		t.Errorf("the answer alone was to bypass TCP: %+v", s)
	}
}

func TestOnlyTheControlGroupsSockets(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
	enter(t, filepath.Dir(m.cgroup))
	client, server := connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
	enter(t, m.cgroup)
	exchange(t, client, server, "from outside")
	if s := m.status(t); s.Sockets != 0 || s.Connections != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTheNextAgentTakesOver(t *testing.T) {
	m := newMachine(t)
	a, l := sidecars(t, "10.9.0.1/24", "10.9.0.2/24")
	client, server := connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
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
	client, server = connect(t, a, l, "10.9.0.2:8080", netip.AddrPort{})
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

func TestDetachRemovesEverything(t *testing.T) {
	dir, cgroup := filepath.Join(t.TempDir(), "bpf"), controlGroup(t)
	b, err := Attach(dir, cgroup)
	if err != nil {
		t.Fatal(err)
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
}

func TestWithoutControlGroup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bpf")
	_ = controlGroup(t)
	_, err := Attach(dir, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "cgroup version 2") {
		t.Errorf("%v", err)
	}
	if mounted, err := isBPF(dir); err != nil || mounted {
		t.Errorf("what was begun is still there: %v", err)
	}
}
