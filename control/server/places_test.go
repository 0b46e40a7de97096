package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/server/client"
)

// Strangers of many sources, who hold as many connections as all together may, keep nobody out, and who has a role keeps a
// connection.
func TestManySourcesKeepNobodyOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can call as somebody else")
	}
	const sources = maxCallers / maxPerCaller
	for name, begin := range map[string]func(t *testing.T, w *world) (dial func(source int) (net.Conn, error), caller *client.Client){
		"users of the machine": func(t *testing.T, w *world) (func(int) (net.Conn, error), *client.Client) {
			return func(source int) (net.Conn, error) {
				return as(stranger+source)(context.Background(), "unix", filepath.Join(w.dir, "api.sock"))
			}, w.as(t, owner, "")
		},
		"addresses": func(t *testing.T, w *world) (func(int) (net.Conn, error), *client.Client) {
			call := w.remote(t, newPeople(t))
			token, err := w.client.MakeAPIToken(context.Background(), client.APITokenRequest{Role: "viewer", Namespace: "*"})
			if err != nil {
				t.Fatal(err)
			}
			return func(source int) (net.Conn, error) {
				return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(source>>8), byte(source))}}).Dial("tcp", w.address)
			}, call(nil, token.Token)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := startAll(t)
			dial, caller := begin(t, w)
			hold := func(source int) net.Conn {
				t.Helper()
				conn, err := dial(source)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				return conn
			}
			ended := func(conn net.Conn) bool {
				_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, err := conn.Read(make([]byte, 1))
				return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
			}
			begun := w.server.counters()["connections"]
			first := hold(1)
			for i := 1; i < maxCallers; i++ {
				hold(1 + i%sources)
			}
			if _, err := caller.Status(context.Background()); err != nil {
				t.Fatalf("who has a role is kept out: %v", err)
			}
			if !ended(first) {
				t.Error("nobody made room")
			}
			// So many others that each source holds one at the most: who came first would have to go.
			const others = maxCallers + maxPerCaller
			for i := range others {
				hold(1 + sources + i)
			}
			if _, err := caller.Status(context.Background()); err != nil {
				t.Fatalf("who has a role is kept out: %v", err)
			}
			// All are accepted in order; another of the caller's would be the last.
			want, now := begun+maxCallers+1+others, uint64(0)
			for deadline := time.Now().Add(10 * time.Second); now < want && time.Now().Before(deadline); runtime.Gosched() {
				now = w.server.counters()["connections"]
			}
			if now != want {
				t.Errorf("who has a role lost the connection, and made another: %d connections, not %d", now, want)
			}
		})
	}
}
