// Package processtest puts tests of eBPF programs into control groups of their own.
package processtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"heddle.io/heddle/control/agent/process"
)

// ControlGroup makes a group of version 2, named heddle-<name>-test-…, moves this process into it until the test ends, and returns its
// directory. The test is skipped where that cannot be.
func ControlGroup(t testing.TB, name string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("eBPF programs and network namespaces need root")
	}
	h, err := process.Hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	if h.V2 == "" {
		t.Skip("no cgroup version 2 is mounted")
	}
	dir, err := os.MkdirTemp(h.V2, "heddle-"+name+"-test-")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	home := h.V2
	for line := range strings.Lines(string(before)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			home = filepath.Join(h.V2, path)
		}
	}
	Enter(t, dir)
	t.Cleanup(func() {
		Enter(t, home)
		// The namespaces' threads are ending, and one that ends is not moved: the group holds it until it is gone.
		if err := h.Remove(filepath.Base(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Enter moves this process into a group.
func Enter(t testing.TB, cgroup string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
}
