//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// lightPath is a page that costs a workload little: what is tested is that connections are accepted, and a page that fills a
// workload's memory tests something else.
const lightPath = "/static/shop.css"

// fewPerConnection has connections between the ingress and the page's sidecar end after a few requests, so that there are
// new handshakes all the time.
const fewPerConnection = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: few-per-connection, namespace: pinnacle }
spec:
  host: frontend.pinnacle.svc.cluster.local
  trafficPolicy: { connectionPool: { http: { maxRequestsPerConnection: 5 } } }
`

func renewConnections(t *testing.T) {
	t.Helper()
	retriesOff(t)
	must(t, "apply", "-f", harness.WriteFile(t, fewPerConnection))
	t.Cleanup(func() { must(t, "delete", "destinationrule/few-per-connection", "-n", harness.ShopSpace) })
	must(t, "check")
}

// authority is what `heddle ca status -o json` says.
type authority struct {
	Root struct{ Subject, Hash string }
	// Trusted are all roots.
	Trusted []struct{ Hash string }
	Change  *struct {
		Phase   string
		Awaited []string
	}
}

func authorityOf(t *testing.T) authority {
	t.Helper()
	var a authority
	out := must(t, "ca", "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return a
}

// sidecar is where a workload of the shop is reached from this machine.
func sidecar(t *testing.T, workload string, port int) string {
	t.Helper()
	return net.JoinHostPort(here.ReplicaOf(t, workload).State.Address, fmt.Sprint(port))
}

func TestRootRotatedTwiceUnderLoad(t *testing.T) {
	renewConnections(t)
	first := authorityOf(t)
	stolen := here.Stolen(t, harness.ShopSpace, "frontend")
	cart := sidecar(t, "cartservice", 7070)
	if err := harness.Shows(stolen, "", cart); err != nil {
		t.Fatalf("before the rotation: %v", err)
	}
	l := harness.StartLoad(t, shop(t)+lightPath, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	seen := map[string]bool{first.Root.Hash: true}
	for n := range 2 {
		began := l.Elapsed()
		out := must(t, "ca", "rotate")
		t.Logf("rotation %d took %.1f s:\n%s", n+1, (l.Elapsed() - began).Seconds(), out)
		now := authorityOf(t)
		if seen[now.Root.Hash] || len(now.Trusted) != 1 || now.Change != nil {
			t.Errorf("after rotation %d: %+v", n+1, now)
		}
		seen[now.Root.Hash] = true
		l.WaitFor(t, 2*harness.LoadRate)
		err := harness.Shows(stolen, "", cart)
		if err == nil {
			t.Error("a certificate of the retired root is accepted")
		}
		t.Logf("a certificate of the retired root: %v", err)
	}
	l.Stop(t)
	must(t, "check")
	out := must(t, "audit", "--since", "10m", "--limit", "0")
	for _, action := range []string{"root.rotate", "root.sign", "root.retire", "root.finish"} {
		if !strings.Contains(out, action) {
			t.Errorf("%s is not in the audit log:\n%s", action, out)
		}
	}
}

// The controller is killed in each phase of a rotation: its successor goes on where it was, and no request is lost.
func TestRotationGoesOnAfterTheControllerIsKilled(t *testing.T) {
	renewConnections(t)
	before := authorityOf(t)
	l := harness.StartLoad(t, shop(t)+lightPath, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	must(t, "ca", "rotate", "--wait", "0")
	killed := map[string]bool{}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		if time.Now().After(deadline) {
			t.Fatalf("the rotation does not end: %+v", authorityOf(t))
		}
		var a authority
		out, err := heddle("ca", "status", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &a)
		}
		if err != nil {
			continue // It is being started anew.
		}
		if a.Change == nil {
			break
		}
		if !killed[a.Change.Phase] {
			killed[a.Change.Phase] = true
			if err := syscall.Kill(controllerPID(t), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			t.Logf("killed in the phase %s after %.1f s", a.Change.Phase, l.Elapsed().Seconds())
		}
	}
	for _, phase := range []string{"trust", "sign", "retire"} {
		if !killed[phase] {
			t.Errorf("the phase %s was not seen", phase)
		}
	}
	l.WaitFor(t, 2*harness.LoadRate)
	l.Stop(t)
	if now := authorityOf(t); now.Root.Hash == before.Root.Hash || len(now.Trusted) != 1 {
		t.Errorf("%+v", now)
	}
	must(t, "check")
}

func TestExternalIntermediateInstalledUnderLoad(t *testing.T) {
	renewConnections(t)
	stolen := here.Stolen(t, harness.ShopSpace, "frontend")
	cart := sidecar(t, "cartservice", 7070)
	company := harness.NewCorporate(t)
	request := must(t, "ca", "csr")
	if again := must(t, "ca", "csr"); again != request {
		t.Error("the request is another one the second time")
	}
	chain := harness.WriteFile(t, company.Root())
	// What cannot work is refused before anything changes.
	before := authorityOf(t)
	for what, file := range map[string]string{"path length is 0": company.Sign(t, request, 0), "another key": company.Root()} {
		if out, err := heddle("ca", "install", "--cert", harness.WriteFile(t, file), "--chain", chain); err == nil || !strings.Contains(out, what) {
			t.Errorf("want %q: %v\n%s", what, err, out)
		}
	}
	if now := authorityOf(t); now.Root != before.Root || now.Change != nil {
		t.Errorf("%+v", now)
	}
	certificate := harness.WriteFile(t, company.Sign(t, request, 1))
	l := harness.StartLoad(t, shop(t)+lightPath, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	t.Log(must(t, "ca", "install", "--cert", certificate, "--chain", chain))
	l.WaitFor(t, 2*harness.LoadRate)
	l.Stop(t)
	if err := harness.Shows(stolen, "", cart); err == nil {
		t.Error("a certificate of the root before is accepted")
	}
	if err := harness.Shows(here.Stolen(t, harness.ShopSpace, "frontend"), "", cart); err != nil {
		t.Errorf("a certificate of the new authority: %v", err)
	}
	out := must(t, "ca", "status")
	if !strings.Contains(out, "Heddle authority of "+clusterName) || !strings.Contains(out, "Corporate root") {
		t.Errorf("status says\n%s", out)
	}
	if out, err := heddle("ca", "rotate"); err == nil || !strings.Contains(out, "heddle ca csr") {
		t.Errorf("a root from outside was rotated: %v\n%s", err, out)
	}
	must(t, "check")
	harness.Eventually(t, 30*time.Second, "the shop", func() error {
		if status, _, err := harness.Fetch(shop(t) + "/"); err != nil || status != 200 {
			return errors.Join(err, fmt.Errorf("status %d", status))
		}
		return nil
	})
}
