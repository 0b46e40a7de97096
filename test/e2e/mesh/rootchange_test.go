//go:build e2e

package mesh

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

// fewPerConnection has connections to both pages end after a few requests, so that there are new handshakes all the time,
// between sidecars and across clusters.
const fewPerConnection = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: few-per-connection, namespace: pinnacle, labels: { heddle.io/cluster: cluster2 } }
spec:
  host: frontend.pinnacle.svc.cluster.local
  trafficPolicy: { connectionPool: { http: { maxRequestsPerConnection: 5 } } }
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: few-per-connection-far, namespace: pinnacle, labels: { heddle.io/cluster: cluster2 } }
spec:
  host: farshop.pinnacle.svc.cluster.local
  trafficPolicy: { connectionPool: { http: { maxRequestsPerConnection: 5 } } }
`

// rootOf is the hash of a cluster's root, and how many it trusts.
func rootOf(t *testing.T, c harness.Cluster) (hash string, trusted int) {
	t.Helper()
	a, err := authorityOf(c)
	if err != nil {
		t.Fatal(err)
	}
	return a.Root.Hash, len(a.Trusted)
}

// The root is rotated twice while pages of both clusters are asked for: the member follows the primary, and no request of
// either is lost. What the retired root and a removed member have signed is refused afterwards.
func TestRootRotatedOverBothClustersUnderLoad(t *testing.T) {
	l := startLoads(t)
	member.Must(t, "apply", "-f", harness.WriteFile(t, fewPerConnection))
	t.Cleanup(func() {
		member.Must(t, "delete", "destinationrule/few-per-connection", "destinationrule/few-per-connection-far", "-n", harness.ShopSpace)
	})
	stolen := member.Stolen(t, harness.ShopSpace, "frontend")
	cart := member.ReplicaOf(t, "cartservice").State.Address
	if err := harness.Shows(stolen, "heddle-"+string(member), net.JoinHostPort(cart, "7070")); err != nil {
		t.Fatalf("before the rotation: %v", err)
	}
	for n := range 2 {
		before, _ := rootOf(t, primary)
		began := l.near.Elapsed()
		out := primary.Must(t, "ca", "rotate")
		t.Logf("rotation %d took %.1f s:\n%s", n+1, (l.near.Elapsed() - began).Seconds(), out)
		harness.Eventually(t, 10*time.Second, "the member has the new root alone", func() error {
			now, trusted := rootOf(t, member)
			if want, _ := rootOf(t, primary); now != want || now == before || trusted != 1 {
				return fmt.Errorf("root %s and %d trusted, want %s", now, trusted, want)
			}
			return nil
		})
		l.settle(t)
		if err := harness.Shows(stolen, "heddle-"+string(member), net.JoinHostPort(cart, "7070")); err == nil {
			t.Error("a certificate of the retired root is accepted")
		}
	}
	if out, err := member.Heddle("ca", "rotate"); err == nil || !strings.Contains(out, "only the primary") {
		t.Errorf("a member rotates the mesh's root: %v\n%s", err, out)
	}
	l.stop(t)
	checked(t)
	// A member that was removed has what the newest root has signed, and that opens nothing either.
	attack := removedMember{caller: member.ReplicaOf(t, "frontend"), gateway: net.JoinHostPort(primary.Address(t).String(), "15443")}
	if err := attack.meet(primarysServices[0]); err != nil {
		t.Fatalf("before the removal: %v", err)
	}
	primary.Must(t, "cluster", "remove", string(member))
	t.Cleanup(func() {
		address, token := newToken(t)
		member.Must(t, "cluster", "join", address, "--token", token)
		checked(t)
	})
	harness.Eventually(t, bound, "the removed member's certificate is refused", func() error {
		if err := attack.meet(primarysServices[0]); err == nil {
			return fmt.Errorf("it is accepted")
		}
		return nil
	})
	primary.Must(t, "ca", "rotate")
	if err := attack.meet(primarysServices[0]); err == nil {
		t.Error("the removed member's certificate is accepted after another rotation")
	}
}

// The controllers of both clusters are killed in each phase of a rotation, the primary's and the member's in turn: their
// successors go on where they were, both end with the new root alone, and no request of either cluster is lost.
func TestRotationOverBothClustersGoesOnAfterControllersAreKilled(t *testing.T) {
	l := startLoads(t)
	member.Must(t, "apply", "-f", harness.WriteFile(t, fewPerConnection))
	t.Cleanup(func() {
		member.Must(t, "delete", "destinationrule/few-per-connection", "destinationrule/few-per-connection-far", "-n", harness.ShopSpace)
	})
	before, _ := rootOf(t, primary)
	primary.Must(t, "ca", "rotate", "--wait", "0")
	killed := map[string]bool{}
	deadline := time.Now().Add(3 * time.Minute)
	for {
		if time.Now().After(deadline) {
			t.Fatalf("the rotation does not end:\n%s\n%s", primary.Must(t, "ca", "status"), member.Must(t, "ca", "status"))
		}
		a, err := authorityOf(primary)
		if err != nil {
			continue // Its controller is being started anew.
		}
		if a.Change == nil {
			break
		}
		for _, c := range []harness.Cluster{primary, member} {
			name := string(c) + " in " + a.Change.Phase
			if killed[name] {
				continue
			}
			agent, err := c.Agent()
			if err != nil {
				t.Fatal(err)
			}
			if agent.ControllerPID == 0 {
				continue // It has just been killed, and is looked for again.
			}
			if err := syscall.Kill(agent.ControllerPID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
			killed[name] = true
			t.Logf("killed the controller of %s after %.1f s", name, l.near.Elapsed().Seconds())
		}
	}
	for _, phase := range []string{"trust", "sign", "retire"} {
		for _, c := range []harness.Cluster{primary, member} {
			if name := string(c) + " in " + phase; !killed[name] {
				t.Errorf("the controller of %s was not killed: %v", name, killed)
			}
		}
	}
	harness.Eventually(t, 90*time.Second, "both clusters have the new root alone", func() error {
		var roots []string
		for _, c := range []harness.Cluster{primary, member} {
			a, err := authorityOf(c)
			if err != nil {
				return err
			}
			if a.Change != nil || a.Root.Hash == before || len(a.Trusted) != 1 {
				return fmt.Errorf("%s has the root %s after %s, and trusts %+v", c, a.Root.Hash, before, a.Trusted)
			}
			roots = append(roots, a.Root.Hash)
		}
		if roots[0] != roots[1] {
			return fmt.Errorf("roots %v", roots)
		}
		return nil
	})
	l.settle(t)
	l.stop(t)
	checked(t)
}

// authority is what `heddle ca status` says of a cluster's; an error while its controller is away.
type authority struct {
	Root    struct{ Hash string }
	Trusted []struct{ Hash string }
	Change  *struct{ Phase string }
}

func authorityOf(c harness.Cluster) (authority, error) {
	var a authority
	out, err := c.Heddle("ca", "status", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &a)
	}
	if err != nil {
		return a, fmt.Errorf("%w: %s", err, out)
	}
	return a, nil
}
