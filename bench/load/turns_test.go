package load

import (
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answering gives the address of a server that answers so, and counts the requests.
func answering(t *testing.T, requests *atomic.Int64, answer http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		answer(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

// raw answers the bytes and keeps the connection.
func raw(answer string) http.HandlerFunc { return rawAfter(answer, func() {}) }

// rawAfter answers the bytes after each call.
func rawAfter(answer string, before func()) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for {
				before()
				if _, err := conn.Write([]byte(answer)); err != nil {
					return
				}
				for line := "x"; line != "\r\n"; {
					if line, err = buffer.ReadString('\n'); err != nil {
						return
					}
				}
			}
		}()
	}
}

func TestTurnsCountWhatEachAddressAnswered(t *testing.T) {
	var first, second atomic.Int64
	turns := Turns{Cookies: []string{"a", "b"}, Connections: 2, Length: 5 * time.Millisecond, Rounds: 2, PID: os.Getpid()}
	answer := raw("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
	turns.Addresses = []string{answering(t, &first, answer), answering(t, &second, answer)}
	took, err := turns.take()
	if err != nil {
		t.Fatal(err)
	}
	if first.Load() != 2 || second.Load() != 2 {
		t.Errorf("%d and %d connections, want 2 to each", first.Load(), second.Load())
	}
	for i, turn := range took {
		// Two rounds, there and back, over two connections: each has one answer in each turn at least.
		if turn.Requests < 8 || turn.CPU <= 0 || turn.MicrosecondsEach() <= 0 {
			t.Errorf("address %d: %+v", i, turn)
		}
	}
}

func TestTurnsFailOnAnyOtherAnswer(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n": "the answer is not 200",
		"HTTP/1.1 200 OK\r\n\r\n":                             "the answer has no length",
		"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n":        "invalid syntax",
	} {
		var requests atomic.Int64
		turns := Turns{Addresses: []string{answering(t, &requests, raw(answer))}, Cookies: []string{"a"}, Connections: 1, Length: time.Millisecond, PID: os.Getpid()}
		if _, err := turns.take(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", answer, err, want)
		}
	}
	turns := Turns{Addresses: []string{"localhost:1"}}
	if _, err := turns.take(); err == nil || !strings.Contains(err.Error(), "want IPv4 and port") {
		t.Errorf("error %v of a name", err)
	}
}
