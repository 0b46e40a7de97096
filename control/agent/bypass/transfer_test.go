package bypass

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

const (
	// endless is the size of a transfer that goes on until it is stopped.
	endless = math.MaxInt
	// ahead is how much an endless one sends that is not received yet: what goes by TCP is read now and then, and what comes
	// next goes past it.
	ahead = 256 << 10
)

// transfer sends random bytes one way through a connection, in pieces of random sizes.
type transfer struct {
	from, to *net.TCPConn
	// sum is of what was sent and of what was received, each when its side has ended.
	sum   [2][sha256.Size]byte
	sides sync.WaitGroup

	mu sync.Mutex
	// moved tells of every change below.
	moved          *sync.Cond
	size           int
	sent, received int
	// settling has the sender wait until all that it sent is received.
	settling bool
	failed   error
}

// begin sends size bytes, the largest piece being so long.
func begin(from, to *net.TCPConn, seed uint64, size, largest int) *transfer {
	x := &transfer{from: from, to: to, size: size}
	x.moved = sync.NewCond(&x.mu)
	x.sides.Go(func() { x.check(x.send(seed, largest)) })
	x.sides.Go(func() { x.check(x.receive()) })
	return x
}

// check ends both sides where one has failed.
func (x *transfer) check(err error) {
	if err == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed == nil {
		x.failed = fmt.Errorf("%d bytes sent, %d received: %w", x.sent, x.received, err)
	}
	x.from.Close()
	x.to.Close()
	x.moved.Broadcast()
}

func (x *transfer) send(seed uint64, largest int) error {
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	sizes := rand.New(rand.NewPCG(seed, 0))
	sum := sha256.New()
	piece := make([]byte, largest)
	for {
		p := piece[:min(x.left(), 1+sizes.IntN(largest))]
		if len(p) == 0 {
			x.sum[0] = [sha256.Size]byte(sum.Sum(nil))
			return x.from.CloseWrite()
		}
		_, _ = source.Read(p)
		sum.Write(p)
		if err := x.from.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := x.from.Write(p); err != nil {
			return err
		}
		x.mu.Lock()
		x.sent += len(p)
		x.moved.Broadcast()
		x.mu.Unlock()
	}
}

// left says how much is still to be sent.
func (x *transfer) left() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	unread := func() int { return x.sent - x.received }
	for x.failed == nil && (x.settling && unread() > 0 || x.size == endless && unread() > ahead) {
		x.moved.Wait()
	}
	x.settling = false
	x.moved.Broadcast()
	return max(x.size-x.sent, 0)
}

func (x *transfer) receive() error {
	sum := sha256.New()
	piece := make([]byte, 64<<10)
	for {
		if err := x.to.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := x.to.Read(piece)
		sum.Write(piece[:n])
		x.mu.Lock()
		x.received += n
		x.moved.Broadcast()
		x.mu.Unlock()
		if errors.Is(err, io.EOF) {
			x.sum[1] = [sha256.Size]byte(sum.Sum(nil))
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// total received so far.
func (x *transfer) total() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.received
}

// reach waits until so many bytes are received in all. Both sides' deadlines bound it.
func (x *transfer) reach(total int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.received < total && x.failed == nil {
		x.moved.Wait()
	}
	return x.failed
}

// settle waits until, once, nothing is on its way.
func (x *transfer) settle() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.settling = true; x.settling && x.failed == nil; {
		x.moved.Wait()
	}
	return x.failed
}

// stop has the sender end.
func (x *transfer) stop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.size = 0
	x.moved.Broadcast()
}

// end waits for both sides and says whether what arrived is what was sent.
func (x *transfer) end() error {
	x.sides.Wait()
	if x.failed == nil && (x.received != x.sent || x.sum[0] != x.sum[1]) {
		return fmt.Errorf("%d bytes arrived for %d, or other ones", x.received, x.sent)
	}
	return x.failed
}

// bothWays begins a transfer in each direction.
func bothWays(client, server *net.TCPConn, seed uint64, size, largest int) []*transfer {
	return []*transfer{begin(client, server, seed, size, largest), begin(server, client, seed+1, size, largest)}
}

// each does it to all of them, one after the other.
func each(t testing.TB, transfers []*transfer, do func(*transfer) error) {
	t.Helper()
	for i, x := range transfers {
		if err := do(x); err != nil {
			t.Fatalf("transfer %d: %v", i, err)
		}
	}
}

// flow waits until each has received so many more bytes.
func flow(t testing.TB, transfers []*transfer, bytes int) {
	t.Helper()
	want := map[*transfer]int{}
	for _, x := range transfers {
		want[x] = x.total() + bytes
	}
	each(t, transfers, func(x *transfer) error { return x.reach(want[x]) })
}

func TestBytesArriveAsTheyWereSent(t *testing.T) {
	const small = 1000
	sizes := []int{1, 2, 1000, 64 << 10, 1 << 20, 32 << 20, 1 << 30}
	for i := range small {
		sizes = append(sizes, 10_000+i)
	}
	m := newMachine(t)
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			a, l := sidecars(t, at)
			before := m.status(t)
			var ends [][2]*net.TCPConn
			for range sizes {
				client, server := m.connect(t, a, l, at.target, netip.AddrPort{})
				ends = append(ends, [2]*net.TCPConn{client, server})
			}
			// The sockets of the family before go when the kernel comes to it.
			if s := m.status(t); s.Connections-before.Connections != uint64(len(sizes)) || s.Sockets < 2*len(sizes) {
				t.Errorf("%d connections were to bypass TCP: %+v", len(sizes), s)
			}
			var transfers []*transfer
			total := 0
			for i, size := range sizes {
				transfers = append(transfers, bothWays(ends[i][0], ends[i][1], uint64(2*i), size, min(size/50+1, 4<<20))...)
				total += 2 * size
			}
			each(t, transfers, (*transfer).end)
			// The large ones go by TCP once the reader lags.
			if got := m.status(t).Bytes - before.Bytes; got < small*10_000 || got > uint64(total) {
				t.Errorf("%d of %d bytes bypassed TCP", got, total)
			}
		})
	}
}

// everywhere is a transfer each way on so many new connections.
func everywhere(t testing.TB, a *namespace, l *net.TCPListener, at addresses, connections, largest int) []*transfer {
	t.Helper()
	var all []*transfer
	for i := range connections {
		client, server := connect(t, a, l, at.target, netip.AddrPort{})
		all = append(all, bothWays(client, server, uint64(2*i), endless, largest)...)
	}
	return all
}

func finish(t testing.TB, transfers []*transfer) {
	t.Helper()
	for _, x := range transfers {
		x.stop()
	}
	each(t, transfers, (*transfer).end)
}

func TestOrderIsKeptWhileTheBypassComesAndGoes(t *testing.T) {
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			m := newMachine(t)
			a, l := sidecars(t, at)
			transfers := everywhere(t, a, l, at, 8, 5000)
			flow(t, transfers, 1)
			m.round(t)
			for flip := range 40 {
				before := m.status(t)
				if err := m.Enable(flip%2 == 1); err != nil {
					t.Fatal(err)
				}
				flow(t, transfers, 32<<10)
				// One that is off is not in use any longer only where its reader has caught up.
				if after := m.status(t); flip%2 == 1 && after.Bytes == before.Bytes {
					t.Errorf("nothing bypassed TCP after switch %d: %+v", flip, after)
				}
			}
			finish(t, transfers)
			if s := m.status(t); s.Fallbacks["tcp_unread"] == 0 || s.Fallbacks["switched_off"] == 0 {
				t.Errorf("both ways were to be used, and the bypass was switched off: %+v", s)
			}
		})
	}
}

// Connections are older than the bypass, are taken over by the next agent, and outlive the bypass and the one after it.
func TestTransfersGoOnWhileProgramsAreAttachedAndDetached(t *testing.T) {
	for family, at := range families {
		t.Run(family, func(t *testing.T) {
			m := newMachine(t)
			a, l := sidecars(t, at)
			m.detach(t)
			transfers := everywhere(t, a, l, at, 4, 5000)
			flow(t, transfers, 64<<10)
			m.attach(t)
			m.round(t)
			flow(t, transfers, 64<<10)
			if s := m.status(t); s.Connections != 0 || s.Bytes != 0 {
				t.Errorf("connections from before were to be left alone: %+v", s)
			}
			transfers = append(transfers, everywhere(t, a, l, at, 4, 5000)...)
			flow(t, transfers, 1)
			m.round(t)
			flow(t, transfers, 64<<10)
			before := m.status(t)
			if before.Connections != 4 || before.Bytes == 0 {
				t.Errorf("the later connections were to bypass TCP: %+v", before)
			}
			for range 4 {
				m.Close()
				m.attach(t)
				flow(t, transfers, 64<<10)
			}
			if after := m.status(t); after.Bytes == before.Bytes {
				t.Errorf("nothing bypassed TCP after the next agent came: %+v", after)
			}

			if err := m.Enable(false); err != nil {
				t.Fatal(err)
			}
			each(t, transfers, (*transfer).settle)
			settled := m.status(t)
			flow(t, transfers, 64<<10)
			if after := m.status(t); after.Bytes != settled.Bytes {
				t.Errorf("switched off, %d bytes bypassed TCP", after.Bytes-settled.Bytes)
			}
			m.detach(t)
			if left, err := programs(m.cgroup); err != nil || left != 0 {
				t.Errorf("%d programs are still attached: %v", left, err)
			}
			flow(t, transfers, 64<<10)
			m.attach(t)
			flow(t, transfers, 64<<10)
			transfers = append(transfers, everywhere(t, a, l, at, 4, 5000)...)
			flow(t, transfers, 1)
			m.round(t)
			flow(t, transfers, 64<<10)
			if s := m.status(t); s.Connections != 4 || s.Bytes == 0 {
				t.Errorf("the connections of the last bypass were to use it: %+v", s)
			}
			finish(t, transfers)
		})
	}
}
