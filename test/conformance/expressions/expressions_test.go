package expressions

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTheSameSeedMakesTheSame(t *testing.T) {
	a, b := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2))
	for range 500 {
		one, two := Pattern(a), Pattern(b)
		if one != two || !utf8.ValidString(one) {
			t.Fatalf("%q and %q", one, two)
		}
		if first, second := Subjects(a, one, 10), Subjects(b, one, 10); !slices.Equal(first, second) {
			t.Fatalf("%q: %q and %q", one, first, second)
		}
	}
}

// A test in which nearly nothing matches, or nearly all, finds little.
func TestAGoodPartOfTheTextsMatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	refused, asked, matched := 0, 0, 0
	for range 400 {
		pattern := Pattern(r)
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			refused++
			continue
		}
		compiled.Longest()
		texts := Subjects(r, pattern, 20)
		for _, text := range texts {
			asked++
			if slices.Equal(compiled.FindStringIndex(text), []int{0, len(text)}) {
				matched++
			}
		}
		if slices.Sort(texts); len(slices.Compact(texts)) < 20 {
			t.Errorf("%q has %d texts", pattern, len(texts))
		}
	}
	if refused < 40 || refused > 160 {
		t.Errorf("%d of 400 are refused", refused)
	}
	if matched < asked/4 || matched > asked/2 {
		t.Errorf("%d of %d match", matched, asked)
	}
}

func TestTextsAreValuesOfFields(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		for _, text := range Subjects(r, Pattern(r), 10) {
			control := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
			if !utf8.ValidString(text) || strings.ContainsFunc(text, control) || strings.Trim(text, " \t") != text || len(text) > longest {
				t.Fatalf("%q", text)
			}
		}
	}
}

// What RE2 has, and what it has not, comes up among as many as one run makes.
func TestPatternsHaveAllOfTheSyntax(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var all strings.Builder
	for range 2000 {
		all.WriteString(Pattern(r) + "\n")
	}
	for _, part := range []string{`\d`, `\W`, `\s`, `\b`, `\B`, `\pL`, `\p{^Lu}`, `\x{`, `\x7f`, `\101`, `\Q`, `\E`, "[^", "[:alpha:]", "[:^", "|)", "(|", "()", "(?P<", "(?<", "(?:", "(?i)", "(?s", "(?m",
		"(?U", "(?-i:", "*?", "+?", "??", "{3,}", "{1000}", "{1001}", "^", "$", `\A`, `\z`, "é", "😀"} {
		if !strings.Contains(all.String(), part) {
			t.Errorf("no pattern has %s", part)
		}
	}
}
