package federation

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestWhoHasToGo(t *testing.T) {
	at := func(source string, heard int64) *seat {
		s := newSeat(nowhere{}, time.Now)
		s.source = netip.MustParseAddr(source)
		s.heard.Store(heard)
		return s
	}
	s := newSeats(4)
	few, old, silent, late := at("192.0.2.1", 0), at("192.0.2.2", 5), at("192.0.2.2", 0), at("192.0.2.2", 9)
	for _, one := range []*seat{few, old, late, silent} {
		if gone := s.take(one); gone != nil {
			t.Fatalf("there was room, and %v had to go", gone)
		}
	}
	// Of the source with most: the silent one, then the one that was heard least lately; and the newcomer counts from then.
	for i, want := range []*seat{silent, old} {
		if gone := s.take(at("192.0.2.3", 0)); gone != want {
			t.Errorf("%d: another one had to go: %v", i, gone)
		}
	}
	if n := s.leave(old); n != 4 {
		t.Errorf("%d are taken after one left that had no place", n)
	}
	if n := s.leave(few); n != 3 {
		t.Errorf("%d are taken", n)
	}
	if gone := s.take(few); gone != nil {
		t.Errorf("there was room, and %v had to go", gone)
	}
}

// Among equals, the one that came first.
func TestTheOldestOfTheSilentGoes(t *testing.T) {
	s := newSeats(3)
	var all []*seat
	for range 10 {
		one := newSeat(nowhere{}, time.Now)
		all = append(all, one)
		want := (*seat)(nil)
		if len(all) > 3 {
			want = all[len(all)-4]
		}
		if gone := s.take(one); gone != want {
			t.Errorf("%d: another one had to go", len(all))
		}
	}
}

// nowhere is a connection that is not there.
type nowhere struct{ net.Conn }

func (nowhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)} }
