package objects

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a regular expression, in bytes and in what it takes once compiled: Envoy refuses large programs
// (re2.max_program_size), heddle-proxy what takes more than 1 MiB, and either refuses all that came with it.
const (
	maxRegex      = 4096
	maxRegexSize  = 16384
	maxRegexDepth = 50
)

// unusual is what RE2 takes, to no purpose, and heddle-proxy does not (proxy/crates/matching/src/re2.rs).
var unusual = []struct {
	is          *regexp.Regexp
	in          func(pattern string) string
	why, remedy string
}{
	{regexp.MustCompile(`\(\?[imsU-]*\)([*+?]|\{\d)`), bare, "where flags are repeated", "put the flags before what is repeated"},
	{regexp.MustCompile(`\(\?-?\)`), bare, "which sets no flags", "leave it out"},
	{regexp.MustCompile(`\\Q\\E([*+?]|\{\d)`), strings.Clone, "where a quote of nothing is repeated", "leave the quote out"},
	{regexp.MustCompile(`(?i)\\p\{\^?(cs|surrogate)\}`), withoutSeparators, "code points that no text has", "leave it out"},
}

// escaped is a backslash, and what it takes the meaning from or gives one to.
var escaped = regexp.MustCompile(`(?s)\\.`)

// bare is a pattern without what is escaped.
func bare(pattern string) string { return escaped.ReplaceAllLiteralString(pattern, "_") }

// withoutSeparators is a pattern without what does not count in the names of Unicode's classes.
func withoutSeparators(pattern string) string {
	return strings.NewReplacer(" ", "", "-", "", "_", "").Replace(pattern)
}

// depth of groups within groups, at most: a bracket in a set counts as well.
func depth(pattern string) int {
	deepest, now := 0, 0
	for _, c := range bare(pattern) {
		switch c {
		case '(':
			now++
			deepest = max(deepest, now)
		case ')':
			now--
		}
	}
	return deepest
}

func (c *checker) regex(path, pattern string) {
	if pattern == "" {
		c.fail(path, "is empty", "write a regular expression")
		return
	}
	if len(pattern) > maxRegex {
		c.fail(path, fmt.Sprintf("is longer than %d bytes", maxRegex), "shorten it")
		return
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		c.fail(path, "is not a regular expression: "+err.Error(), "use RE2 syntax")
		return
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		c.fail(path, "is not a regular expression: "+err.Error(), "use RE2 syntax")
		return
	}
	names := map[string]bool{}
	for _, name := range parsed.CapNames() {
		if name != "" && (names[name] || unicode.IsDigit(rune(name[0]))) {
			c.fail(path, fmt.Sprintf("has a group named %q, a name that is taken or begins with a digit", name), "leave the name out")
			return
		}
		names[name] = true
	}
	for _, r := range unusual {
		if found := r.is.FindString(r.in(pattern)); found != "" {
			c.fail(path, fmt.Sprintf("has %q, %s", found, r.why), r.remedy)
			return
		}
	}
	if n := depth(pattern); n > maxRegexDepth {
		c.fail(path, fmt.Sprintf("has %d groups within each other, of at most %d", n, maxRegexDepth), "nest fewer")
		return
	}
	if n := size(program); n > maxRegexSize {
		c.fail(path, fmt.Sprintf("is too large: its size is %d once its repetitions are written out, of at most %d", n, maxRegexSize), "repeat less, or name fewer characters")
	}
}

// size of a program over bytes, in steps: what one over characters becomes, whose ranges are several of bytes each in UTF-8.
func size(program *syntax.Prog) int {
	n := 0
	for _, step := range program.Inst {
		n++
		switch step.Op {
		case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			n += sizeOf(0, unicode.MaxRune)
		case syntax.InstRune, syntax.InstRune1:
			for i := 0; i+1 < len(step.Rune); i += 2 {
				n += sizeOf(step.Rune[i], step.Rune[i+1])
			}
		}
	}
	return n
}

func sizeOf(from, to rune) int {
	switch {
	case to < utf8.RuneSelf:
		return 1
	case to-from < 1<<12:
		return 2
	default:
		return 8
	}
}
