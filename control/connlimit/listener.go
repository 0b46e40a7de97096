// Package connlimit bounds how many connections one source, and all together, hold at a listener: who can reach it must not
// be able to keep others out, or take the descriptors that the process needs.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Source says by what a connection is counted; false, that it is not.
type Source func(net.Conn) (any, bool)

// Listener closes connections that are beyond a bound as soon as they are accepted.
type Listener struct {
	net.Listener
	perSource, total int
	source           Source
	// Evict has a newcomer get the place of another when all together have as many as they may: of the source that has most that
	// nobody vouched for ([Vouch]), the one that came first. So sources that are fewer than these places keep nobody out, however
	// often they come. More of them, as who has many IPv6 networks can be, have to come as many times as there are such places
	// before a newcomer is vouched for. To spare newcomers for a while would let a few sources keep others out that come anew
	// within that while. Set before the first Accept.
	Evict bool
	// Accepted counts all connections, Refused those of them that were closed for another's place or want of one.
	Accepted, Refused atomic.Uint64

	mu   sync.Mutex
	next uint64
	// held are all, with the order that they came in.
	held map[*held]uint64
	of   map[any]int
}

// New bounds a listener's connections, per source and in total. A nil source is [ByAddress].
func New(listener net.Listener, perSource, total int, source Source) *Listener {
	if source == nil {
		source = ByAddress
	}
	return &Listener{Listener: listener, perSource: perSource, total: total, source: source, held: map[*held]uint64{}, of: map[any]int{}}
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.Accepted.Add(1)
		who, counted := l.source(conn)
		if !counted {
			return conn, nil
		}
		h := &held{Conn: conn, of: l, who: who}
		entered, victim := l.enter(h)
		if victim != nil {
			l.Refused.Add(1)
			victim.Conn.Close()
		}
		if !entered {
			l.Refused.Add(1)
			conn.Close()
			continue
		}
		return h, nil
	}
}

// enter gives a connection a place, and says whose it was; nil where there was room.
func (l *Listener) enter(h *held) (entered bool, victim *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[h.who] >= l.perSource {
		return false, nil
	}
	if len(l.held) >= l.total {
		if victim = l.victim(); victim == nil {
			return false, nil
		}
		l.leave(victim)
	}
	l.next++
	l.held[h] = l.next
	l.of[h.who]++
	return true, victim
}

// victim is who has to go, nil for nobody. The lock is held.
func (l *Listener) victim() *held {
	if !l.Evict {
		return nil
	}
	unknown := map[any]int{}
	for h := range l.held {
		if !h.vouched {
			unknown[h.who]++
		}
	}
	var victim *held
	for h, since := range l.held {
		if h.vouched {
			continue
		}
		if victim == nil || unknown[h.who] > unknown[victim.who] || unknown[h.who] == unknown[victim.who] && since < l.held[victim] {
			victim = h
		}
	}
	return victim
}

// leave gives a place back, once. The lock is held.
func (l *Listener) leave(h *held) {
	if _, has := l.held[h]; !has {
		return
	}
	delete(l.held, h)
	if l.of[h.who]--; l.of[h.who] == 0 {
		delete(l.of, h.who)
	}
}

// held is a connection that gives its place back when it is closed.
type held struct {
	net.Conn
	of  *Listener
	who any
	// vouched is guarded by the listener's lock.
	vouched bool
}

// Close implements [net.Conn].
func (h *held) Close() error {
	h.of.mu.Lock()
	h.of.leave(h)
	h.of.mu.Unlock()
	return h.Conn.Close()
}

// Vouch says whether a connection is one's who may come: it keeps its place then. It finds the listener's own below others, as those of TLS;
// of one that no listener counts nothing is kept.
func Vouch(conn net.Conn, may bool) {
	for conn != nil {
		if h, ok := conn.(*held); ok {
			h.of.mu.Lock()
			h.vouched = may
			h.of.mu.Unlock()
			return
		}
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		conn = outer.NetConn()
	}
}

// NetConn is the connection itself, of which the kernel can be asked.
func (h *held) NetConn() net.Conn { return h.Conn }

// ByAddress counts by [Network] of the remote address.
func ByAddress(conn net.Conn) (any, bool) {
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return Network(address.AddrPort().Addr()), true
	}
	return conn.RemoteAddr().String(), true
}

// Network is what an address is counted by: itself, and of IPv6 its /64, all of which one host has (RFC 4291 §2.5.4).
func Network(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		if prefix, err := a.WithZone("").Prefix(64); err == nil {
			return prefix.Addr()
		}
	}
	return a
}
