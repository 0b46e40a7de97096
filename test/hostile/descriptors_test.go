//go:build hostile

package hostile

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

const (
	// openFiles that the proxy may have, and idle connections that want more.
	openFiles, idle = 128, 200
	// adminBound is how long /ready may take meanwhile: nothing else is asked of the machine.
	adminBound = 2 * time.Second
	// recoveryBound is how long it may take after the descriptors are free again.
	recoveryBound = 5 * time.Second
)

// TestDescriptors takes all of a proxy's file descriptors by idle connections.
func TestDescriptors(t *testing.T) {
	counted(t)
	address := subject.Address()
	up, err := upstream.NewHTTP1(net.JoinHostPort(address, "20000"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	p, err := subject.Start(subject.Settings{Name: "heddle", Binary: binaries["heddle"], Address: address, Dir: t.TempDir(), OpenFiles: openFiles,
		Listeners: []subject.Listener{{Name: "plain", Kind: "plain", Port: 10000, Upstream: net.JoinHostPort(address, "20000")}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	target := p.At(p.Listeners[0])
	if err := honest(target); err != nil {
		t.Fatal(err)
	}
	before := p.LogBytes()
	var taken []net.Conn
	defer func() {
		for _, conn := range taken {
			_ = conn.Close()
		}
	}()
	for range idle {
		// Those above the limit wait in the kernel's queue.
		conn, err := net.DialTimeout("tcp", target, time.Second)
		if err != nil {
			break
		}
		taken = append(taken, conn)
	}
	if len(taken) < openFiles {
		t.Fatalf("only %d connections, too few to take %d descriptors", len(taken), openFiles)
	}
	for range 5 {
		if err := p.Ready(adminBound); err != nil {
			t.Errorf("/ready without descriptors: %v", err)
			break
		}
	}
	if err := p.Alive(); err != nil {
		t.Fatal(err)
	}
	for _, conn := range taken {
		_ = conn.Close()
	}
	taken = nil
	deadline := time.Now().Add(recoveryBound)
	for err := honest(target); err != nil; err = honest(target) {
		if time.Now().After(deadline) {
			t.Fatalf("%v after the connections were closed: %v", recoveryBound, err)
		}
	}
	if written := p.LogBytes() - before; written > logged {
		t.Errorf("%d bytes of log, want at most %d:\n%s", written, int64(logged), p.Log())
	}
}

// honest sends one good request on a connection of its own.
func honest(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprint(conn, "GET /honest HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return err
	}
	a, err := read1(newReader(conn), "GET")
	if err == nil && a.status != 200 {
		err = errors.New(a.body)
	}
	return err
}
