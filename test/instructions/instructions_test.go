//go:build instructions

package instructions

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"heddle.io/heddle/bench/paths"
	"heddle.io/heddle/bench/peers"
)

// tolerance by which a count may differ from what is kept. Other processors choose other loops of the C library and
// of BoringSSL.
const tolerance = 0.03

// updates are the commands that write a column of counts.yaml.
var updates = map[string]string{
	"dev":     "make instructions UPDATE=1",
	"release": "make instructions RELEASE=1 UPDATE=1",
	"pgo":     "make instructions RELEASE=1 PGO=1 UPDATE=1",
}

// TestInstructions counts each path and compares it with what is kept.
func TestInstructions(t *testing.T) {
	proxy, kept := os.Getenv("HEDDLE_INSTRUCTIONS_PROXY"), os.Getenv("HEDDLE_INSTRUCTIONS_KEPT")
	if proxy == "" || kept == "" {
		t.Fatal("run this test by `make instructions`, which builds heddle-proxy and says which column of counts.yaml is its")
	}
	update, known := updates[kept]
	if !known {
		t.Fatalf("HEDDLE_INSTRUCTIONS_KEPT is %q: want dev, release or pgo", kept)
	}
	all := read(t)
	passed := 0
	for _, p := range paths.All {
		t.Run(p.Name, func(t *testing.T) {
			got := perRequest(t, p, proxy)
			want, known := all[p.Name][kept]
			fmt.Printf("%-14s %8.0f instructions per request, kept %8.0f (%+.1f %%)\n", p.Name, got, want, 100*(got/want-1))
			if os.Getenv("HEDDLE_INSTRUCTIONS_UPDATE") != "" {
				all[p.Name][kept] = math.Round(got)
				return
			}
			switch {
			case !known:
				t.Errorf("nothing is kept of %s: write it down with `%s`", p.Name, update)
			case got > want*(1+tolerance):
				t.Errorf("%s costs %.0f instructions per request, %.0f are kept: find out what they buy, then say so in the commit with `%s`", p.Name, got, want, update)
			case got < want*(1-tolerance):
				t.Errorf("%s costs %.0f instructions per request, %.0f are kept: keep what was won with `%s`", p.Name, got, want, update)
			default:
				passed++
			}
		})
	}
	if os.Getenv("HEDDLE_INSTRUCTIONS_UPDATE") != "" {
		write(t, all)
		return
	}
	fmt.Printf("%d passed, %d failed\n", passed, len(paths.All)-passed)
}

// perRequest is the difference of a longer and a shorter run, per request: what both have is the start's.
func perRequest(t *testing.T, p paths.Path, proxy string) float64 {
	t.Helper()
	few := p.Requests / 5
	short, long := total(t, p, proxy, few), total(t, p, proxy, p.Requests)
	return float64(long-short) / float64(p.Requests-few)
}

// total instructions of a proxy's life in which it serves so many requests.
func total(t *testing.T, p paths.Path, proxy string, requests int) int64 {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "callgrind.out")
	if profiles := os.Getenv("HEDDLE_INSTRUCTIONS_PROFILES"); profiles != "" {
		out = filepath.Join(profiles, fmt.Sprintf("callgrind.out.%s.%d", p.Name, requests))
	}
	binaries := peers.Binaries{Heddle: proxy, Under: []string{"valgrind", "--tool=callgrind", "--callgrind-out-file=" + out}}
	if err := p.Run(dir, requests, binaries); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^totals: (\d+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("callgrind wrote no totals:\n%.500s", text)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// counts by path and column.
type counts map[string]map[string]float64

func read(t *testing.T) counts {
	t.Helper()
	text, err := os.ReadFile("counts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := counts{}
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatalf("counts.yaml: %v", err)
	}
	for _, p := range paths.All {
		if all[p.Name] == nil {
			all[p.Name] = map[string]float64{}
		}
	}
	return all
}

func write(t *testing.T, all counts) {
	t.Helper()
	var out strings.Builder
	out.WriteString("# Instructions per request in heddle-proxy, by `make instructions` (dev: the profile of tests) and `make instructions\n")
	out.WriteString("# RELEASE=1` (release: what `make build` gives; with PGO=1, pgo: what `make build PGO=1` gives). UPDATE=1 writes this file.\n")
	for _, p := range paths.All {
		fmt.Fprintf(&out, "%s:\n", p.Name)
		for _, column := range slices.Sorted(maps.Keys(all[p.Name])) {
			fmt.Fprintf(&out, "  %s: %.0f\n", column, all[p.Name][column])
		}
	}
	if err := os.WriteFile("counts.yaml", []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
