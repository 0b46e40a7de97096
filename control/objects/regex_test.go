package objects

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"regexp/syntax"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"
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
		`[[:alpha:](]é`: `_é`, `[\](]\[(`: `__(`, `[--[:alpha:](`: `_(`, `[[:alpha:]-(]x`: `_x`, `[a-](`: `_(`, `\Qx`: `_`, `\x{28}\x28{2}`: `__28{2}`,
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

// The classes that Go has are taken for those that RE2 has. A Go with newer tables admits scripts that RE2 and heddle-proxy's parser
// refuse: then compare all three, and what [inRE2] leaves out, anew.
func TestGoKnowsTheUnicodeThatRE2Does(t *testing.T) {
	if unicode.Version != "15.0.0" {
		t.Errorf("Go's tables are of Unicode %s", unicode.Version)
	}
}

func TestSurrogatesAreRefused(t *testing.T) {
	for _, pattern := range []string{`\x{d800}`, `a\x{0DFFF}`, `[^a\x{dbff}]`, `\p{Cs}`, `[\P{^Cs}]`, `\\\x{d800}`} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 1 || !strings.Contains(c.errs[0].Error(), "code points that no text has") {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
	// Escaped backslashes and quotes, which have text behind them, and neighbours.
	for _, pattern := range []string{`\\x{d800}`, `\Q\x{d800}\E`, `\\p{Cs}`, `\x{d7ff}\x{e000}`, `\x{10d800}`, `[\\x{d800}]`, `\x{41}{2}`} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 0 {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
}

// Go's parser reads more names than RE2 does: a stock Envoy would refuse all that came with them.
func TestClassesThatRE2DoesNotHaveAreRefused(t *testing.T) {
	for _, pattern := range []string{`\p{greek}`, `\P{Letter}+`, `\pl`, `[a\p{^any}]`, `[^\pp]`, `\p{Assigned}|a`, `\p{Cn}`, `\p{LC}`, `\Q\E\p{tamil}`} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 1 || !strings.Contains(c.errs[0].Error(), "a name that RE2 does not have") {
			t.Errorf("%q: %v", pattern, c.errs)
		}
	}
	for _, pattern := range []string{`\pL{2}\PN`, `\p{Greek}\p{^Lu}\P{^Nd}`, `[\p{Any}\pZ-]`, `\p{Han}`, `\Q\p{greek}\E`, `\\p{2}`, `[\\p]{3}`, `[[:alpha:]\pM]`} {
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

// What is asked for in a few bytes is counted, not made.
func TestLargeExpressionsCostNoMoreThanTheirText(t *testing.T) {
	for _, pattern := range largeExpressions {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var c checker
		c.regex("at", pattern)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; len(c.errs) != 1 || took > 16<<20 {
			t.Errorf("%.20q… of %d bytes takes %d: %v", pattern, len(pattern), took, c.errs)
		}
	}
}

var largeExpressions = []string{
	strings.Repeat(`\pL{1000}`, 455), `(?:` + strings.Repeat("a", 3300) + `){1000}`, strings.Repeat(`[^a]{1000}`, 400), `((a{0,100}){0,100}){0,100}`,
}

// What Go's parser makes smaller and heddle-proxy does not: it takes more than the proxy's bound (proxy/crates/matching/src/regex.rs).
func TestAlternativesCountAsTheyAreWritten(t *testing.T) {
	var prefixes []string
	for i := range 300 {
		prefixes = append(prefixes, fmt.Sprintf(`\pL%03d`, i))
	}
	for _, pattern := range []string{
		`(?:` + strings.Repeat("|", 45) + `a){1000}`, `(?:` + strings.Repeat("a|", 45) + `b+){1000}`, strings.Join(prefixes, "|") + "|zz",
		strings.Repeat("(?:", 50) + "a" + strings.Repeat(")?", 49) + "){480}",
	} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 1 || !strings.Contains(c.errs[0].Error(), "is too large") {
			t.Errorf("%.40q: %v", pattern, c.errs)
		}
	}
	for _, pattern := range []string{`/(a|b|\||[|]|\Q|\E)+/` + strings.Repeat("|/some/path", 300)} {
		var c checker
		if c.regex("at", pattern); len(c.errs) != 0 {
			t.Errorf("%.40q: %v", pattern, c.errs)
		}
	}
}

func BenchmarkLargeExpressions(b *testing.B) {
	for b.Loop() {
		for _, pattern := range largeExpressions {
			var c checker
			c.regex("at", pattern)
		}
	}
}

func TestTheExpressionsOfAnObjectAreBoundedTogether(t *testing.T) {
	var c checker
	for i := range 100 {
		c.regex(fmt.Sprintf("at[%d]", i), "[^a]{1000}")
	}
	if len(c.errs) != 1 || c.errs[0].Path != "at[45]" {
		t.Errorf("%v", c.errs)
	}
}

// The size of an expression is that of the program that is made of it.
func TestSizesAreThoseOfPrograms(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "é", "(b)", "(?:c|dd)", "[a-z]", `\pL`, ".", "(?s).", "(?i)k", "^", "$", "(?:)", "[^x]", `\d`, "|", "(?:a|)"}
	counts := []string{"", "", "", "*", "+", "?", "{3}", "{2,}", "{0,2}", "{1,4}", "{0}", "{0,}", "{1}"}
	for range 20_000 {
		var pattern strings.Builder
		for range 1 + random.IntN(4) {
			pattern.WriteString(parts[random.IntN(len(parts))] + counts[random.IntN(len(counts))])
		}
		text := pattern.String()
		if random.IntN(2) == 0 {
			text = "(?:" + text + ")" + counts[random.IntN(len(counts))]
		}
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			continue
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		// Repetitions of repetitions, and of nothing, are one in the program.
		got, want := size(parsed), min(sizeOfProgram(program), maxRegexSize+1)
		if got+2*strings.Count(text, "(?:)") < want || got > 2*want+8 {
			t.Errorf("%q: %d, and its program has %d", text, got, want)
		}
		if apart := regexSize(text, parsed); apart < got {
			t.Errorf("%q: %d with its alternatives apart, %d as it is", text, apart, got)
		}
	}
}

func sizeOfProgram(program *syntax.Prog) int {
	n := 0
	for _, step := range program.Inst {
		n++
		switch step.Op {
		case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			n += sizeOf(0, unicode.MaxRune)
		case syntax.InstRune, syntax.InstRune1:
			if len(step.Rune) == 1 {
				n += sizeOfOne(step.Rune[0], syntax.Flags(step.Arg)&syntax.FoldCase != 0)
			}
			for i := 0; i+1 < len(step.Rune); i += 2 {
				n += sizeOf(step.Rune[i], step.Rune[i+1])
			}
		}
	}
	return n
}
