package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// Only what the other side did is a refusal; what did not happen tells nothing.
func TestJudgePlaintext(t *testing.T) {
	for name, c := range map[string]struct {
		// server has the connection once the request has come.
		server func(net.Conn)
		want   verdict
		text   string
	}{
		"closed": {func(c net.Conn) { c.Close() }, refused, "closed"},
		"reset": {func(c net.Conn) {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			c.Close()
		}, refused, "reset"},
		"alert":          {func(c net.Conn) { _, _ = c.Write([]byte{0x15, 3, 3, 0, 2, 2, 10}) }, refused, "TLS alert"},
		"answered":       {func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, accepted, `"HTTP/1.1 400 Bad Request"`},
		"no alert":       {func(c net.Conn) { _, _ = c.Write([]byte{0x15, 9}) }, accepted, "answered"},
		"silence":        {func(net.Conn) {}, unclear, "stays open"},
		"cannot be sent": {nil, unclear, "could not be sent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t)
			done := make(chan struct{})
			go func() {
				accepted, err := l.Accept()
				if err != nil || c.server == nil {
					return
				}
				if _, err := accepted.Read(make([]byte, 4096)); err == nil {
					c.server(accepted)
				}
				<-done
				accepted.Close()
			}()
			defer close(done)
			connection, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			if c.server == nil {
				connection.Close()
			}
			if got, text := judge(connection, time.Now().Add(300*time.Millisecond)); got != c.want || !strings.Contains(text, c.text) {
				// A closed socket takes no deadline either.
				if c.server != nil || got != c.want {
					t.Errorf("%d, %s", got, text)
				}
			}
		})
	}
}

func TestMoreThan(t *testing.T) {
	n := 0.0
	rising := func(context.Context) (float64, error) { n++; return n, nil }
	if ok, err := moreThan(t.Context(), 3, rising); !ok || err != nil || n != 4 {
		t.Errorf("%v, %v after %v looks", ok, err, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	steady := func(context.Context) (float64, error) { cancel(); return 3, nil }
	if ok, err := moreThan(ctx, 3, steady); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	broken := errors.New("no metrics")
	if ok, err := moreThan(t.Context(), 3, func(context.Context) (float64, error) { return 9, broken }); ok || !errors.Is(err, broken) {
		t.Errorf("%v, %v", ok, err)
	}
}
