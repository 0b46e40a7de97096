//go:build e2e

package mesh

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
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
	var status struct {
		Root    struct{ Hash string }
		Trusted []struct{ Hash string }
	}
	out := c.Must(t, "ca", "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return status.Root.Hash, len(status.Trusted)
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
