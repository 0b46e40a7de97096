package objects

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a regular expression, in bytes and in what it takes once compiled: Envoy refuses large programs
// (re2.max_program_size), heddle-proxy what takes more than 1536 KiB, and either refuses all that came with it.
const (
	maxRegex     = 4096
	maxRegexSize = 24576
)

// regex checks an expression of RE2's syntax. What is admitted here, the proxies take: one that they do not would take all other
// routes with it.
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
	if why, remedy := unusual(pattern, parsed); why != "" {
		c.fail(path, why, remedy)
		return
	}
	if n := size(program); n > maxRegexSize {
		c.fail(path, fmt.Sprintf("is too large: its size is %d once its repetitions are written out, of at most %d", n, maxRegexSize), "repeat less, or name fewer characters")
	}
}

// substitution checks what is put in place of what the pattern matches: \0 to \9 are its groups.
func (c *checker) substitution(path, pattern, text string) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return // The pattern's own check says so.
	}
	for rest := text; ; {
		_, after, found := strings.Cut(rest, `\`)
		switch {
		case !found:
			return
		case strings.HasPrefix(after, `\`):
		case after == "" || after[0] < '0' || after[0] > '9':
			c.fail(path, fmt.Sprintf("%q has a backslash before what is no digit", text), `write \0 to \9 for groups, and \\ for a backslash`)
			return
		case int(after[0]-'0') > parsed.MaxCap():
			c.fail(path, fmt.Sprintf("%q names group %c of %d", text, after[0], parsed.MaxCap()), "name one that the pattern has")
			return
		}
		rest = after[1:]
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

// sizeOfOne character, or of all that differ from it by case alone.
func sizeOfOne(c rune, folded bool) int {
	n := utf8.RuneLen(c)
	for other := unicode.SimpleFold(c); folded && other != c; other = unicode.SimpleFold(other) {
		n += utf8.RuneLen(other)
	}
	return n
}

// sizeOf a range of characters: the ranges of bytes that it is in UTF-8.
func sizeOf(from, to rune) int {
	for _, last := range []rune{utf8.RuneSelf - 1, 1<<11 - 1, 1<<16 - 1} {
		if from <= last && last < to {
			return sizeOf(from, last) + sizeOf(last+1, to)
		}
	}
	length := max(utf8.RuneLen(to), 1)
	// What of the last bytes is not all that they can be has another range before it.
	for i := 1; i < length; i++ {
		all := rune(1)<<(6*i) - 1
		if from&^all == to&^all {
			continue
		}
		if from&all != 0 {
			return sizeOf(from, from|all) + sizeOf((from|all)+1, to)
		}
		if to&all != all {
			return sizeOf(from, to&^all-1) + sizeOf(to&^all, to)
		}
	}
	return length
}
