package flood

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	var samples []time.Duration
	if Percentile(samples, 50) != 0 {
		t.Error("of nothing")
	}
	for i := 100; i > 0; i-- {
		samples = append(samples, time.Duration(i))
	}
	if p50, p99, p100 := Percentile(samples, 50), Percentile(samples, 99), Percentile(samples, 100); p50 != 50 || p99 != 99 || p100 != 100 {
		t.Error(p50, p99, p100)
	}
}

// TestClients has a server answer well, then badly.
func TestClients(t *testing.T) {
	bad := make(chan struct{})
	answered := make(chan struct{}, 1000)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-bad:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = io.WriteString(w, "GET /client")
		}
		answered <- struct{}{}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	clients := StartClients(server.Listener.Addr().String())
	defer clients.Stop()
	after := func(n int) <-chan struct{} {
		over := make(chan struct{})
		go func() {
			for range n {
				<-answered
			}
			close(over)
		}()
		return over
	}
	if f := clients.Watch(after(50)); f.Failures > 0 || f.Requests < 40 || f.P50 == 0 || f.P99 < f.P50 {
		t.Errorf("%+v", f)
	}
	close(bad)
	if f := clients.Watch(after(50)); f.Failures < 40 || f.Failure == nil {
		t.Errorf("%+v", f)
	}
}

// TestComesBack has a server that ends every connection.
func TestComesBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for range 3 {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			_, _ = io.ReadFull(conn, make([]byte, 1000))
			_ = conn.Close()
		}
		cancel()
	}()
	a := Control[0]
	a.Connections = 1
	sent, done := a.Start(ctx, listener.Addr().String())
	<-done
	if sent.Dials.Load() < 3 || sent.Ended.Load() < 2 || sent.Units.Load() == 0 || sent.Bytes.Load() == 0 || sent.Oldest.Load() == 0 || sent.Most.Load() == 0 {
		t.Errorf("%d dials, %d ended, %d units", sent.Dials.Load(), sent.Ended.Load(), sent.Units.Load())
	}
}
