//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// residentBound is what the proxy of a sidecar of the shop, with two workers, has resident at most, in KiB, by whether the
// release build is measured: that of the tests has more code.
var residentBound = map[bool]int{false: 24_000, true: 19_500}

// TestMemoryOfSidecars holds what the shop's sidecars have resident under traffic against the bound, and prints what of it
// are the program's and its libraries' pages. What it took to read the configuration is given back within a minute.
func TestMemoryOfSidecars(t *testing.T) {
	const requests = 500
	restartSidecars(t)
	browse(t, requests)
	bound := residentBound[os.Getenv("HEDDLE_E2E_RELEASE") != ""]
	harness.Eventually(t, 2*time.Minute, "sidecars that have given back what they do not need", func() error {
		return tooLarge(sidecars(t), bound)
	})
	// What traffic needs has to come back, and to stay below the bound.
	browse(t, requests)
	all := sidecars(t)
	t.Logf("KiB resident, of it pages of files:\n%s", table(all))
	if err := tooLarge(all, bound); err != nil {
		t.Error(err)
	}
}

// restartSidecars has the shop's begin anew: what the allocator keeps of the load of other tests is not theirs.
func restartSidecars(t *testing.T) {
	t.Helper()
	before := map[string]int{}
	for _, r := range here.Replicas(t) {
		if r.Namespace == harness.ShopSpace && r.State.ProxyPID != 0 {
			before[r.State.Name] = r.State.ProxyPID
			kill(t, r.State.ProxyPID)
		}
	}
	harness.Eventually(t, time.Minute, "other sidecars", func() error {
		for _, r := range here.Replicas(t) {
			if was, is := before[r.State.Name]; is && (r.State.Phase != "Ready" || r.State.ProxyPID == was) {
				return fmt.Errorf("%+v", r.State)
			}
		}
		return nil
	})
	harness.Eventually(t, 20*time.Second, "the shop", harness.Works(shop(t)+"/"))
}

// browse opens the shop so many times.
func browse(t *testing.T, times int) {
	t.Helper()
	address := shop(t)
	for i := range times {
		if status, _, err := harness.Fetch(address + "/"); err != nil || status != 200 {
			t.Fatalf("request %d: %d, %v", i, status, err)
		}
	}
}

// sidecarMemory is what the proxy of one sidecar has resident, in KiB.
type sidecarMemory struct {
	workload        string
	resident, files int
}

func sidecars(t *testing.T) []sidecarMemory {
	t.Helper()
	var all []sidecarMemory
	for _, r := range here.Replicas(t) {
		if r.Namespace == harness.ShopSpace && r.State.ProxyPID != 0 {
			proxy := program(t, r.State.ProxyPID)
			all = append(all, sidecarMemory{r.Workload, memoryKiB(t, proxy, "VmRSS"), memoryKiB(t, proxy, "RssFile")})
		}
	}
	if len(all) == 0 {
		t.Fatal("no replica of the shop has a sidecar")
	}
	return all
}

func tooLarge(all []sidecarMemory, bound int) error {
	i := slices.IndexFunc(all, func(s sidecarMemory) bool { return s.resident > bound })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("%s has %d KiB resident, the bound is %d; of all, KiB resident and of it pages of files:\n%s", all[i].workload, all[i].resident, bound, table(all))
}

func table(all []sidecarMemory) string {
	var lines strings.Builder
	for _, s := range all {
		fmt.Fprintf(&lines, "%-24s %6d %6d\n", s.workload, s.resident, s.files)
	}
	return lines.String()
}
