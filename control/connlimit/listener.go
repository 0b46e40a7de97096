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
	// Accepted counts all connections, Refused those of them that were closed at once.
	Accepted, Refused atomic.Uint64

	mu  sync.Mutex
	all int
	of  map[any]int
}

// New bounds a listener's connections, per source and in total. A nil source is [ByAddress].
func New(listener net.Listener, perSource, total int, source Source) *Listener {
	if source == nil {
		source = ByAddress
	}
	return &Listener{Listener: listener, perSource: perSource, total: total, source: source, of: map[any]int{}}
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
		if !l.enter(who) {
			l.Refused.Add(1)
			conn.Close()
			continue
		}
		return &held{Conn: conn, leave: sync.OnceFunc(func() { l.leave(who) })}, nil
	}
}

func (l *Listener) enter(who any) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.total || l.of[who] >= l.perSource {
		return false
	}
	l.all++
	l.of[who]++
	return true
}

func (l *Listener) leave(who any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[who]--; l.of[who] == 0 {
		delete(l.of, who)
	}
}

// held is a connection that gives its place back when it is closed.
type held struct {
	net.Conn
	leave func()
}

// Close implements [net.Conn].
func (h *held) Close() error {
	h.leave()
	return h.Conn.Close()
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
