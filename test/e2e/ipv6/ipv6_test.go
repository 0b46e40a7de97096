//go:build e2e

// Package ipv6 runs two clusters that have no IPv4 address at all: workloads, services, gateways and the link.
package ipv6

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

var mesh = harness.Mesh{Primary: "cluster1", Member: "cluster2", Up: []string{"--ip-family", "ipv6"}}

func TestMain(m *testing.M) { os.Exit(mesh.Run(m)) }

func TestPurchaseOverIPv6(t *testing.T) {
	address := mesh.Shop(t)
	browser := harness.OpenBrowser(t)
	order := harness.Buy(t, browser, address, "rainy-teapot")
	harness.Eventually(t, 10*time.Second, "order "+order.Number+" in checkout's log", func() error {
		if log := mesh.Primary.Must(t, "logs", "checkoutservice", "-n", harness.ShopSpace); order.Number == "" || !strings.Contains(log, order.Number) {
			return fmt.Errorf("not in the log:\n%.2000s", log)
		}
		return nil
	})
	clusters := map[string]bool{}
	for _, call := range order.Calls {
		clusters[call.ServerCluster] = true
	}
	if !clusters["cluster1"] || !clusters["cluster2"] {
		t.Errorf("the footer does not show both clusters: %+v", order.Calls)
	}
}

// No replica, and no cluster, has an IPv4 address beside loopback.
func TestNothingSpeaksIPv4(t *testing.T) {
	for _, c := range []harness.Cluster{mesh.Primary, mesh.Member} {
		for _, r := range c.Replicas(t) {
			if a, err := netip.ParseAddr(r.State.Address); err != nil || !a.Is6() {
				t.Errorf("%s has the address %q", r.State.Name, r.State.Address)
			}
			out, err := r.InNetwork("ip", "-4", "-o", "address")
			if err != nil || strings.Contains(strings.ReplaceAll(out, " lo ", ""), "eth0") {
				t.Errorf("%s: %v\n%s", r.State.Name, err, out)
			}
		}
		out, err := exec.Command("ip", "netns", "exec", "heddle-"+string(c), "ip", "-4", "-o", "address").CombinedOutput()
		if err != nil || strings.Contains(string(out), "wan0") {
			t.Errorf("%s: %v\n%s", c, err, out)
		}
	}
}

// Plain text to a strict workload is refused, by its IPv6 address too.
func TestCaptureOverIPv6(t *testing.T) {
	cart := mesh.Member.ReplicaOf(t, "cartservice")
	out, err := mesh.Member.Inside("curl", "-sS", "--max-time", "10", "http://["+cart.State.Address+"]:7070/")
	if err == nil {
		t.Errorf("plain text was answered: %s", out)
	}
	harness.Eventually(t, 15*time.Second, "mutual TLS in the metrics", func() error {
		if !strings.Contains(cart.ProxyStats(t), `connection_security_policy="mutual_tls"`) {
			return errors.New("no such series")
		}
		return nil
	})
}
