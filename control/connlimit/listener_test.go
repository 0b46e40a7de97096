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

func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "2001:db8:1:2::": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := Network(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s", text, got)
		}
	}
}
