// Package redistest starts a real Redis for a test.
package redistest

import (
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Start runs redis-server on a unix socket of its own and a loopback port that
// forwards to it, until the test ends, and returns the port's address. Where
// redis-server is not installed the test is skipped.
//
// The forwarder is what lets the system choose the port: Redis itself cannot be
// told to take any free one.
func Start(t testing.TB) (address string) {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed; install it with: apt-get install redis-server")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis.sock")
	command := exec.Command(program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := command.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // killed: always an error
	})
	waitFor(t, socket)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go forward(listener, socket)
	return listener.Addr().String()
}

// waitFor returns once the socket accepts. Redis has no way to say that it is
// ready, so it is asked again and again.
func waitFor(t testing.TB, socket string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("redis-server does not accept at %s after 20 s: %v", socket, err)
		}
	}
}
