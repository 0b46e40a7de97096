//go:build e2e

// Package mesh drives two isolated clusters of this machine the way a user does: joined, with one global namespace, the
// boutique split over both.
package mesh

import (
	"os"
	"testing"

	"heddle.io/heddle/test/e2e/harness"
)

const (
	primary = harness.Cluster("cluster1")
	member  = harness.Cluster("cluster2")
)

var both = harness.Mesh{Primary: primary, Member: member}

// TestMain starts both clusters for all tests and takes them down afterwards.
func TestMain(m *testing.M) { os.Exit(both.Run(m)) }

func shop(t *testing.T) string {
	t.Helper()
	return both.Shop(t)
}

func checked(t *testing.T) {
	t.Helper()
	both.Checked(t)
}
