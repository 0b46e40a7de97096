package objects

import (
	"fmt"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// Bounds of a regular expression, in bytes and in what it takes once compiled: Envoy refuses large programs
// (re2.max_program_size), heddle-proxy what takes more than 1 MiB, and either refuses all that came with it.
const (
	maxRegex     = 4096
	maxRegexSize = 16384
)

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
