//go:build e2e

// Package demo runs the tour of `make demo-once` as it is: start, join, deploy, buy, check, remove.
package demo

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"heddle.io/heddle/test/e2e/harness"
)

// The most that the tour may take (the product's answer to 45 and 30 steps).
const (
	mostCommands = 5
	mostSeconds  = 60
)

var lastLine = regexp.MustCompile(`(?:^|\n)purchase ok: (\d+) commands, (\d+) seconds\n$`)

func TestDemoOnce(t *testing.T) {
	once := exec.Command(filepath.Join(harness.Binaries, "demo"), "once", "--manifests", "demo/boutique/two-clusters/")
	once.Dir = "../../.."
	out, err := once.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	found := lastLine.FindSubmatch(out)
	if found == nil {
		t.Fatal("the last line does not say that the purchase was made")
	}
	for i, most := range []int{mostCommands, mostSeconds} {
		if n, err := strconv.Atoi(string(found[i+1])); err != nil || n > most {
			t.Errorf("%s: %v; at most %d", found[0], err, most)
		}
	}
	for _, left := range []string{"/run/heddle/*", "/var/lib/heddle/*"} {
		if names, err := filepath.Glob(left); err != nil || len(names) > 0 {
			t.Errorf("left behind: %v, %v", names, err)
		}
	}
}
