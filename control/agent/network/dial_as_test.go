package network

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
)

// A socket of the proxy's user is left alone by capture, and the threads that made it are themselves again.
func TestDialAsIsNotCaptured(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		app, peer := attach(t, c, "app-0", at(2)), attach(t, c, "peer-0", at(3))
		if err := Capture(app, f, proxyUser, interception.Rules{}); err != nil {
			t.Fatal(err)
		}
		loopback := "127.0.0.1"
		if f == cluster.IPv6 {
			loopback = "::1"
		}
		greet(t, app, net.JoinHostPort(loopback, "15001"), "outbound")
		greet(t, peer, to(3, 80), "peer")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for range 8 {
			connection, err := DialAs(ctx, app, proxyUser, proxyUser, "tcp", to(3, 80))
			if err != nil {
				t.Fatal(err)
			}
			if err := connection.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(connection); err != nil || string(got) != "peer" {
				t.Errorf("as the proxy: %q, %v", got, err)
			}
			connection.Close()
			expect(t, app, to(3, 80), "outbound")
		}
		if _, err := DialAs(ctx, app, proxyUser, proxyUser, "tcp", "peer:80"); err == nil {
			t.Error("a name was dialled")
		}
		if _, err := DialAs(ctx, "no-such", proxyUser, proxyUser, "tcp", to(3, 80)); err == nil {
			t.Error("there is no such namespace")
		}
	})
}
