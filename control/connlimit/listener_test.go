package connlimit

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
)

// dial connects from a source address.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// open says whether a connection was let in: then the server says so.
func open(conn net.Conn) bool {
	_, err := io.ReadFull(conn, make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		panic(err)
	}
	return err == nil
}

func TestNoSourceKeepsOthersOut(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := New(inner, 3, 5, nil)
	defer l.Close()
	var mu sync.Mutex
	var accepted []net.Conn
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted = append(accepted, conn)
			mu.Unlock()
			_, _ = conn.Write([]byte{1})
		}
	}()
	to := inner.Addr().String()
	for i, c := range []struct {
		from string
		open bool
	}{
		{"127.0.0.2", true}, {"127.0.0.2", true}, {"127.0.0.2", true}, {"127.0.0.2", false}, {"127.0.0.3", true}, {"127.0.0.2", false}, {"127.0.0.4", true},
		// All together are full.
		{"127.0.0.5", false},
	} {
		if got := open(dial(t, c.from, to)); got != c.open {
			t.Errorf("%d from %s: open %t", i, c.from, got)
		}
	}
	if l.Accepted.Load() != 8 || l.Refused.Load() != 3 {
		t.Errorf("%d accepted, %d refused", l.Accepted.Load(), l.Refused.Load())
	}
	mu.Lock()
	first := accepted[0]
	mu.Unlock()
	// A place is given back once, however often the connection is closed.
	first.Close()
	first.Close()
	if !open(dial(t, "127.0.0.2", to)) || open(dial(t, "127.0.0.2", to)) {
		t.Error("the place is not given back, or twice")
	}
}

// However many sources hold all places, a newcomer gets one, and who is vouched for keeps it.
func TestManySourcesKeepNobodyOut(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const sources, each = 8, 3
	l := New(inner, each, sources*each, nil)
	l.Evict = true
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte{1})
			accepted <- conn
		}
	}()
	to := inner.Addr().String()
	come := func(from string) (client, server net.Conn) {
		t.Helper()
		client = dial(t, from, to)
		if !open(client) {
			t.Fatalf("%s is kept out", from)
		}
		return client, <-accepted
	}
	source := func(i int) string { return netip.AddrFrom4([4]byte{127, 0, 1, byte(i)}).String() }
	var strangers []net.Conn
	for i := range sources * each {
		stranger, _ := come(source(i % sources))
		strangers = append(strangers, stranger)
	}
	caller, callers := come("127.0.0.2")
	if open(strangers[0]) {
		t.Error("the first of them has its place still")
	}
	// Below what hides it, as TLS does.
	Vouch(struct {
		net.Conn
		wrapping
	}{callers, wrapping{callers}}, true)
	// Who comes again and again takes places of those that hold most.
	for i := range 3 * sources * each {
		come(netip.AddrFrom4([4]byte{127, 0, 2, byte(i)}).String())
	}
	if _, err := callers.Write([]byte{1}); err != nil || !open(caller) {
		t.Errorf("who is vouched for lost its place: %v", err)
	}
	for i, stranger := range strangers {
		if open(stranger) {
			t.Errorf("stranger %d has its place still", i)
		}
	}
	// Who may not come any more has the place of a stranger; each is given back once.
	Vouch(callers, false)
	for i := range sources * each {
		come(netip.AddrFrom4([4]byte{127, 0, 3, byte(i)}).String())
	}
	if open(caller) {
		t.Error("it has its place still")
	}
	callers.Close()
	if len(l.held) != sources*each || l.Refused.Load() != 1+3*sources*each+sources*each {
		t.Errorf("%d hold places, %d were refused", len(l.held), l.Refused.Load())
	}
	// With all places vouched for, there is none.
	for h := range l.held {
		Vouch(h, true)
	}
	if open(dial(t, "127.0.0.4", to)) {
		t.Error("one more than all")
	}
}

// Sources that are fewer than places never push out who has one, however often they come; of more of them, as many have to come as
// there are places.
func TestWhoPushesANewcomerOut(t *testing.T) {
	const total = 32
	for _, c := range []struct {
		sources, arrivals int
		has               bool
	}{{total - 2, 100 * total, true}, {4 * total, total - 1, true}, {4 * total, total, false}} {
		l := New(nil, 8, total, nil)
		l.Evict = true
		come := func(who any) *held {
			h := &held{of: l, who: who}
			if entered, _ := l.enter(h); !entered {
				t.Fatalf("%v was refused", who)
			}
			return h
		}
		for i := range total {
			come(i % c.sources)
		}
		newcomer := come("newcomer")
		for i := range c.arrivals {
			come(i % c.sources)
		}
		if _, has := l.held[newcomer]; has != c.has {
			t.Errorf("%+v: it has its place: %t", c, has)
		}
	}
}

// wrapping is how a connection shows the one below it.
type wrapping struct{ below net.Conn }

func (w wrapping) NetConn() net.Conn { return w.below }

func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "2001:db8:1:2::": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := Network(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s", text, got)
		}
	}
}
