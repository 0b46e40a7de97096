//go:build e2e

package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// loadPath has calls behind it: currency, and cart with Redis. An empty cart has nothing to check out, so that the answer
// leads back to it. A page with pictures and recommendations fills two processors at LoadRate: the queue that builds up
// then says nothing of the mesh.
const loadPath = "/checkout"

// noRetries turns Istio's default retries off, so that every failure shows.
const noRetries = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: %[1]s-no-retries, namespace: pinnacle }
spec:
  hosts: [%[1]s.pinnacle.svc.cluster.local]
  http:
  - retries: { attempts: 0 }
    route: [{ destination: { host: %[1]s.pinnacle.svc.cluster.local } }]
---
`

const noRetriesAtTheEdge = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: frontend-ingress, namespace: pinnacle }
spec:
  hosts: ["*"]
  gateways: [frontend-gateway]
  http:
  - retries: { attempts: 0 }
    route: [{ destination: { host: frontend.pinnacle.svc.cluster.local, port: { number: 80 } } }]
`

func retriesOff(t *testing.T) {
	t.Helper()
	var manifest strings.Builder
	for _, service := range []string{"adservice", "cartservice", "currencyservice", "productcatalogservice", "recommendationservice", "shippingservice", "checkoutservice"} {
		fmt.Fprintf(&manifest, noRetries, service)
	}
	apply(t, manifest.String())
	must(t, "apply", "-f", harness.WriteFile(t, noRetriesAtTheEdge))
	t.Cleanup(func() { must(t, "apply", "-f", "../../demo/boutique/manifests/gateway.yaml") })
	must(t, "check")
}

func TestControllerKilledUnderLoad(t *testing.T) {
	retriesOff(t)
	l := harness.StartLoad(t, shop(t)+loadPath, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	for range 2 {
		before := controllerPID(t)
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 30*time.Second, "another controller", func() error {
			if _, err := heddle("get", "services", "-n", harness.ShopSpace); err != nil {
				return err
			}
			if now := controllerPID(t); now == before {
				return errors.New("the killed process is still named")
			}
			return nil
		})
		l.WaitFor(t, 3*harness.LoadRate)
	}
	l.Stop(t)
	// Nothing acknowledged is lost, and the new controller still configures proxies.
	must(t, "check")
}

func TestCertificatesRotateUnderLoad(t *testing.T) {
	retriesOff(t)
	l := harness.StartLoad(t, shop(t)+loadPath, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	for range 3 {
		before := map[string]time.Time{}
		for _, r := range here.Replicas(t) {
			before[r.State.Name] = r.CertificateExpires
			rotate(t, r)
		}
		harness.Eventually(t, 30*time.Second, "another certificate everywhere", func() error {
			for _, r := range here.Replicas(t) {
				if !r.CertificateExpires.After(before[r.State.Name]) {
					return fmt.Errorf("%s still has the certificate that ends at %v", r.State.Name, r.CertificateExpires)
				}
			}
			return nil
		})
		l.WaitFor(t, 2*harness.LoadRate)
	}
	l.Stop(t)
}

// rotate asks the agent to renew a replica's certificate now, as it does by itself at half of its life.
func rotate(t *testing.T, r harness.Replica) {
	t.Helper()
	out, err := exec.Command("curl", "-sS", "--fail", "--max-time", "10", "-X", "POST", "--unix-socket", "/run/heddle/"+clusterName+"/agent.sock",
		fmt.Sprintf("http://agent/v1/replicas/%s/%s/rotate", r.Namespace, r.State.Name)).CombinedOutput()
	if err != nil {
		t.Fatalf("rotate %s: %v: %s", r.State.Name, err, out)
	}
}

// Random bytes on every port that a peer can reach: the proxies answer with errors or close, stay within their memory
// and go on serving.
func TestHostileBytes(t *testing.T) {
	cart := here.ReplicaOf(t, "cartservice")
	before := residentMiB(t, program(t, cart.State.ProxyPID))
	targets := []string{net.JoinHostPort(cart.State.Address, "7070"), net.JoinHostPort(cart.State.Address, "15021"), net.JoinHostPort(cart.State.Address, "15090"), net.JoinHostPort(gateway(t).State.Address, "80")}
	heads := [][]byte{nil, []byte("GET / HTTP/1.1\r\n"), []byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"),
		[]byte("\x16\x03\x01\xff\xff\x01\x00\xff\xff"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}
	for _, target := range targets {
		for n := range 200 {
			conn, err := net.DialTimeout("tcp", target, 5*time.Second)
			if err != nil {
				t.Fatalf("%s after %d connections: %v", target, n, err)
			}
			noise := make([]byte, 4096)
			if _, err := rand.Read(noise); err != nil {
				t.Fatal(err)
			}
			// The peer may close while this is written: that is an answer, too.
			if _, err := conn.Write(append(append([]byte{}, heads[n%len(heads)]...), noise...)); err != nil {
				t.Logf("%s: %v", target, err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	harness.Eventually(t, 10*time.Second, "the shop", harness.Works(shop(t)+"/"))
	if now := here.ReplicaOf(t, "cartservice"); now.State.ProxyPID != cart.State.ProxyPID {
		t.Errorf("the sidecar was restarted: %d, then %d", cart.State.ProxyPID, now.State.ProxyPID)
	}
	if after := residentMiB(t, program(t, cart.State.ProxyPID)); after > before+50 {
		t.Errorf("the sidecar grew from %d to %d MiB", before, after)
	}
}

func residentMiB(t *testing.T, pid int) int { return memoryKiB(t, pid, "VmRSS") / 1024 }

// memoryKiB is one figure of a process's memory, by its name in proc_pid_status(5).
func memoryKiB(t *testing.T, pid int, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("no %s of process %d", name, pid)
	return 0
}
