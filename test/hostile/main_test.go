//go:build hostile

// Package hostile sends hostile bytes to heddle-proxy and to a stock Envoy in the same configuration, and holds what
// happens against bounds. Its README says how to add a case.
package hostile

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
)

// long is `make hostile LONG=1`: an hour, more load, inputs mutated at random.
var long = os.Getenv("HEDDLE_HOSTILE_LONG") != ""

// seed of everything random.
var seed = int64(1)

// binaries by subject; Envoy's may be missing.
var binaries = subject.Binaries{}

// tally counts cases.
var tally struct {
	sync.Mutex
	passed, failed int
	// skipped by name, with the reason.
	skipped []string
}

// noEnvoy is the one reason to skip.
const noEnvoy = "HEDDLE_TEST_ENVOY names no Envoy to compare with; `make hostile` sets it"

// counted makes a test one of the cases of the last line.
func counted(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		tally.Lock()
		defer tally.Unlock()
		switch {
		case t.Failed():
			tally.failed++
		case t.Skipped():
			tally.skipped = append(tally.skipped, t.Name()+": "+noEnvoy)
		default:
			tally.passed++
		}
	})
}

func TestMain(m *testing.M) {
	flag.Parse()
	folder := os.Getenv("HEDDLE_E2E_BIN")
	if folder == "" {
		fmt.Fprintln(os.Stderr, "run these tests by `make hostile`, which builds heddle-proxy and sets HEDDLE_E2E_BIN")
		os.Exit(1)
	}
	binaries["heddle"] = filepath.Join(folder, "heddle-proxy")
	if envoy := os.Getenv("HEDDLE_TEST_ENVOY"); envoy != "" {
		binaries["envoy"] = envoy
	}
	if text := os.Getenv("HEDDLE_HOSTILE_SEED"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			fmt.Fprintf(os.Stderr, "HEDDLE_HOSTILE_SEED: %v\n", err)
			os.Exit(1)
		}
		seed = n
	} else if long {
		seed = time.Now().UnixNano()
	}
	fmt.Printf("seed %d (HEDDLE_HOSTILE_SEED)\n", seed)
	code := m.Run()
	for _, s := range tally.skipped {
		fmt.Println("skipped: " + s)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, len(tally.skipped))
	if code == 0 && tally.failed > 0 {
		code = 1
	}
	os.Exit(code)
}

// forSubjects runs a test for heddle-proxy and, where there is one, for Envoy.
func forSubjects(t *testing.T, parallel bool, test func(t *testing.T, name string)) {
	for _, name := range []string{"heddle", "envoy"} {
		t.Run(name, func(t *testing.T) {
			if binaries[name] == "" {
				counted(t)
				t.Skip(noEnvoy)
			}
			if parallel {
				t.Parallel()
			}
			test(t, name)
		})
	}
}
