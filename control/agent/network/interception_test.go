package network

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/interception/interceptiontest"
)

// applicationUser is no proxy's.
const applicationUser = 4001

// What a workload leaves out of capture is, by the table that the programs follow too.
func TestWhatIsLeftOut(t *testing.T) {
	families(t, func(t *testing.T, f cluster.Family, at func(int) string, to func(int, int) string) {
		c := testCluster(t, f)
		// Who says nothing has everything captured, whatever others say.
		app, peer, other := attach(t, c, "app-0", at(2)), attach(t, c, "peer-0", at(3)), attach(t, c, "other-0", at(4))
		if err := Capture(other, f, proxyUser, interception.Rules{}); err != nil {
			t.Fatal(err)
		}
		loopback := "127.0.0.1"
		if f == cluster.IPv6 {
			loopback = "::1"
		}
		for _, captured := range []string{app, other} {
			greet(t, captured, net.JoinHostPort(loopback, "15001"), "outbound")
			greet(t, captured, net.JoinHostPort(every(f), "15006"), "inbound")
			greet(t, captured, net.JoinHostPort(every(f), "15021"), "health")
		}
		for _, port := range interceptiontest.Ports {
			greet(t, app, net.JoinHostPort(every(f), fmt.Sprint(port)), "application")
			greet(t, peer, net.JoinHostPort(every(f), fmt.Sprint(port)), "peer")
		}
		dns := net.JoinHostPort(f.Ranges().Gateway().Addr().String(), "53")
		greet(t, "", to(1, 15053), "dns")
		for _, tc := range interceptiontest.Cases {
			t.Run(tc.Name, func(t *testing.T) {
				if err := Capture(app, f, proxyUser, tc.Rules(t, netip.MustParseAddr(at(3)))); err != nil {
					t.Fatal(err)
				}
				if err := Captured(app, f); err != nil {
					t.Error(err)
				}
				for _, one := range tc.Outbound {
					want := map[bool]string{true: "outbound", false: "peer"}[one.Captured]
					if got, err := callAs(app, applicationUser, one.Group, to(3, int(one.Port))); err != nil || got != want {
						t.Errorf("outbound %+v: got %q (%v), want %q", one, got, err, want)
					}
				}
				for _, one := range tc.Own {
					want := map[bool]string{true: "inbound", false: "application"}[one.Captured]
					if got, err := callAs(app, proxyUser, proxyUser, to(2, int(one.Port))); err != nil || got != want {
						t.Errorf("own %+v: got %q (%v), want %q", one, got, err, want)
					}
				}
				for _, one := range tc.Inbound {
					want := map[bool]string{true: "inbound", false: "application"}[one.Captured]
					expect(t, peer, to(2, int(one.Port)), want)
				}
				// These are always so.
				expect(t, app, to(2, 80), "application")
				expect(t, app, net.JoinHostPort(loopback, "80"), "application")
				expect(t, app, dns, "dns")
				expect(t, peer, to(2, 15021), "health")
				expect(t, other, to(3, 80), "outbound")
				expect(t, peer, to(4, 80), "inbound")
			})
		}
		if err := Capture(app, f, proxyUser, interception.Rules{Groups: []string{"no-such-group"}}); err == nil {
			t.Error("a group that there is not")
		}
	})
}

// callAs calls as somebody and returns the greeting.
func callAs(netns string, user, group int, address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if group == 0 {
		group = interceptiontest.OtherGroup
	}
	connection, err := DialAs(ctx, netns, user, group, "tcp", address)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	got, err := io.ReadAll(connection)
	return string(got), err
}
