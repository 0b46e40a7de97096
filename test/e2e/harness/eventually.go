//go:build e2e

package harness

import (
	"testing"
	"time"
)

// Eventually asks again until condition has no more to complain about, and fails the test after the limit.
func Eventually(t *testing.T, limit time.Duration, what string, condition func() error) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		case <-again.C:
		}
	}
}
