package objects

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The proxy's table of what patterns mean is RE2's own opinion.
func TestTheProxysTableOfPatternsIsRE2s(t *testing.T) {
	table, err := os.ReadFile("../../proxy/crates/matching/src/re2/as_re2.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(table)) {
		verdict, rest, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !found || verdict == "#" {
			continue
		}
		var both [2]string
		if err := json.Unmarshal([]byte("["+rest+"]"), &both); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		pattern, text := both[0], both[1]
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			t.Errorf("%q: %v", pattern, err)
			continue
		}
		// The first match, as long as can be, is the whole text if any match is.
		compiled.Longest()
		if got := slices.Equal(compiled.FindStringIndex(text), []int{0, len(text)}); got != (verdict == "match") {
			t.Errorf("%q on %q: matches %v, and the table says %s", pattern, text, got, verdict)
		}
		var c checker
		if c.regex("at", pattern); pattern != "" && len(c.errs) > 0 {
			t.Errorf("%q is refused: %v", pattern, c.errs)
		}
		seen++
	}
	if seen < 60 {
		t.Errorf("only %d cases were read", seen)
	}
}

// What the proxy does not take would have it refuse all the routes of every workload.
func TestWhatTheProxyDoesNotTakeIsRefused(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("(", depth) + "a" + strings.Repeat("|b)*c", depth) }
	for _, pattern := range []string{
		`a(?i)*`, `a(?i)(?s)+`, `a(?i-s)??`, `a*(?U){2}`, `(?)a`, `(?-)a`, `(?P<1>a)`, `(?<1x>a)`, `(?P<n>a)(?<n>b)`, `a\Q\E+`, `\p{Cs}`, `\P{^surrogate}`,
		`[\p{C_s}a]`, nested(maxRegexDepth + 1),
	} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 1 {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
	for _, pattern := range []string{`(?i)a*`, `(\(?s)*`, `(?:a)*`, `\Qa\E+`, `(?P<x1>a)`, `\(\(\(`, nested(maxRegexDepth)} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 0 {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
}

func TestLargeExpressionsAreRefused(t *testing.T) {
	for _, pattern := range []string{`\pL{500}`, `(.{100}){20}`, `[^a]{1000}[^b]{1000}`, `((a{100}){10}){20}`} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 1 {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
}
