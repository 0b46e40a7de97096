package load

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestPortsBySocket has others listen on the address and asks whose the connections are.
func TestPortsBySocket(t *testing.T) {
	const address = "127.0.0.1:9917"
	const sockets, count = 3, 20
	ports, err := PortsBySocket(address, sockets, count)
	if err != nil {
		t.Fatal(err)
	}
	at := make(chan int)
	for socket := range sockets {
		listener, err := listenTogether(address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				conn.Close()
				at <- socket
			}
		}()
	}
	for socket, ports := range ports {
		if len(ports) != count {
			t.Errorf("%d ports for socket %d, want %d", len(ports), socket, count)
		}
		for _, port := range ports {
			conn, err := dialFrom(port, address, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if got := <-at; got != socket {
				t.Errorf("port %d led to socket %d, want %d", port, got, socket)
			}
			conn.Close()
		}
	}
}

func TestMixed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		length := map[string]int{"/short": 10, "/long": 100_000}[r.URL.Path]
		w.Header().Set("Content-Length", strconv.Itoa(length))
		_, _ = w.Write([]byte(strings.Repeat("x", length)))
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	byPort, err := PortsBySocket("127.0.0.1:9918", 1, 20)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]Class{
		"short": {Path: "/short", Bytes: 10, Connections: 10, Rate: 100},
		"long":  {Path: "/long", Bytes: 100_000, Connections: 10, Rate: 100},
	}
	got, err := mixture{os.Getpid(), address, byPort[0], classes, Course{Opening: 200 * time.Millisecond, Duration: 500 * time.Millisecond}}.run()
	if err != nil {
		t.Fatal(err)
	}
	// The server is this process as well.
	if got.CPU <= 0 || got.BusiestThread <= 0 || got.BusiestThread > 1 || got.Lag < 0 {
		t.Errorf("%+v", got)
	}
	for name, r := range got.Classes {
		// As many as were due, however long they took.
		if r.Errors != 0 || r.Requests < 40 || r.Requests > 60 || r.P50 <= 0 || r.P99 < r.P50 {
			t.Errorf("%s: %+v, want 50 answers", name, r)
		}
	}
	classes["long"] = Class{Path: "/long", Bytes: 99_999, Connections: 10, Rate: 100}
	if got, err := (mixture{os.Getpid(), address, byPort[0], classes, Course{Duration: 100 * time.Millisecond}}).run(); err == nil || !strings.Contains(err.Error(), "want 99999") {
		t.Errorf("answers of another length gave %+v and error %v", got, err)
	}
}

// TestMixedLate has load begin when all connections are open, and every other one silent.
func TestMixedLate(t *testing.T) {
	var opened, early, asked atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if opened.Load() < 20 {
			early.Add(1)
		}
		_, _ = w.Write([]byte("x"))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	byPort, err := PortsBySocket("127.0.0.1:9919", 1, 20)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]Class{"short": {Path: "/", Bytes: 1, Connections: 10, Rate: 100}}
	course := Course{Opening: 300 * time.Millisecond, Late: true, Settling: 200 * time.Millisecond, Duration: 500 * time.Millisecond}
	got, err := mixture{0, server.Listener.Addr().String(), byPort[0], classes, course}.run()
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Classes["short"]; r.Errors != 0 || r.Requests < 40 || r.Requests > 60 {
		t.Errorf("%+v, want 50 answers", r)
	}
	if opened.Load() != 20 || early.Load() != 0 || asked.Load() < 60 {
		t.Errorf("%d connections opened, %d of %d requests before all were, want 20 and none of 70", opened.Load(), early.Load(), asked.Load())
	}
	if _, err := (mixture{0, server.Listener.Addr().String(), byPort[0][:19], classes, course}).run(); err == nil {
		t.Error("19 ports were enough for 20 connections")
	}
}

// The others are at every other place, in the order that they have without.
func TestMixedAlternates(t *testing.T) {
	m := mixture{Classes: map[string]Class{"short": {Bytes: 1}, "long": {Bytes: 2}, "longer": {Bytes: 3}}}
	got := m.alternating([]string{"short", "short", "longer", "short", "long", "short"})
	if want := []string{"longer", "short", "long", "short", "short", "short"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
