package federation

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"heddle.io/heddle/control/connlimit"
)

// seats are places for connections whose number is bounded. When all are taken, a newcomer gets the place of another: of
// the source address that has most of them, the one that was heard of least lately. So whoever only holds places loses
// them to who comes to speak, and whoever holds many loses them to who holds few.
//
// Refusing the newcomer instead would let silent strangers keep members out for as long as a handshake may last, also
// those who come by the same gateway, whose address is all that is known of where connections come from.
type seats struct {
	most int

	mu    sync.Mutex
	next  uint64
	taken map[*seat]uint64
}

func newSeats(most int) *seats { return &seats{most: most, taken: map[*seat]uint64{}} }

// seat is a connection that knows when it was heard of.
type seat struct {
	net.Conn
	source netip.Addr
	now    func() time.Time
	// heard is when bytes came last (Unix, nanoseconds), 0 before the first.
	heard atomic.Int64
}

func newSeat(conn net.Conn, now func() time.Time) *seat {
	s := &seat{Conn: conn, now: now}
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		s.source = connlimit.Network(address.AddrPort().Addr())
	}
	return s
}

// Read implements [net.Conn].
func (s *seat) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 {
		s.heard.Store(s.now().UnixNano())
	}
	return n, err
}

// take gives a connection a place, and returns the one that it was taken from, or nil.
func (s *seats) take(conn *seat) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	var victim *seat
	if len(s.taken) >= s.most {
		victim = s.victim()
		delete(s.taken, victim)
	}
	s.next++
	s.taken[conn] = s.next
	return victim
}

// victim is who has to go. The lock is held.
func (s *seats) victim() *seat {
	of := map[netip.Addr]int{}
	for conn := range s.taken {
		of[conn.source]++
	}
	var victim *seat
	var heard int64
	for conn := range s.taken {
		at := conn.heard.Load()
		if victim != nil {
			if more := of[conn.source] - of[victim.source]; more != 0 {
				if more < 0 {
					continue
				}
			} else if at > heard || at == heard && s.taken[conn] > s.taken[victim] {
				continue
			}
		}
		victim, heard = conn, at
	}
	return victim
}

// leave gives a place back, unless it was taken from the connection, and says how many are taken still.
func (s *seats) leave(conn *seat) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, conn)
	return len(s.taken)
}
