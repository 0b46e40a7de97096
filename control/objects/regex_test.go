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
		seen++
		var c checker
		c.regex("at", pattern)
		if verdict == "refuse" {
			if len(c.errs) != 1 || strings.Contains(c.errs[0].Error(), "is not a regular expression") {
				t.Errorf("%q is to be refused, and RE2 takes it: %v", pattern, c.errs)
			}
			continue
		}
		if pattern != "" && len(c.errs) > 0 {
			t.Errorf("%q is refused: %v", pattern, c.errs)
		}
		// The first match, as long as can be, is the whole text if any match is.
		compiled.Longest()
		if got := slices.Equal(compiled.FindStringIndex(text), []int{0, len(text)}); got != (verdict == "match") {
			t.Errorf("%q on %q: matches %v, and the table says %s", pattern, text, got, verdict)
		}
	}
	if seen < 60 {
		t.Errorf("only %d cases were read", seen)
	}
}

// Brackets that mean themselves have nothing to do with groups and flags.
func TestPatternsAreMadeBare(t *testing.T) {
	for pattern, want := range map[string]string{
		`(\(?s)*`: `(_?s)*`, `\Q(?)\E(?i)a`: `_(?i)a`, `a\Q\E+`: "a\x00+", "\x00+": "_+", `[(?)]`: `_`, `[])(]x`: `_x`, `[^](]x`: `_x`,
		`[[:alpha:](]é`: `_é`, `[\](]\[(`: `__(`, `[--[:alpha:](`: `_(`, `[[:alpha:]-(]x`: `_x`, `[a-](`: `_(`, `\Qx`: `_`,
	} {
		if got := bare(pattern); got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
	for _, pattern := range []string{`(?i)a*`, `(\(?s)*`, `[(?)]`, `\Q(?i)*\E`, `\Qa\E+`, strings.Repeat("[(]", 100)} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 0 {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
}

func TestLargeExpressionsAreRefused(t *testing.T) {
	for _, pattern := range []string{`\pL{500}`, `(.{100}){20}`, `[^a]{1000}[^b]{1000}`, `((a{100}){10}){20}`, strings.Repeat("😀{1000}", 16), `(?i)` + strings.Repeat("k{1000}", 8)} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 1 {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
}
