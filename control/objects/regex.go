package objects

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a regular expression, in bytes and in what it takes once compiled: Envoy refuses large programs
// (re2.max_program_size) and all that came with them, heddle-proxy what takes more than 1536 KiB, with its virtual host or listener.
const (
	maxRegex     = 4096
	maxRegexSize = 24576
	// maxRegexSizes is that of all expressions of an object: in each proxy that has it, some 64 MiB.
	maxRegexSizes = 1 << 20
)

// MaxNamespaceRegexSize is the size of all regular expressions of a namespace, in the steps of the programs that they become with
// their repetitions written out: some 256 MiB in a proxy that has all of them, which serves other namespaces too. Besides, each of
// its workers has up to 64 KiB of states, or 48 bytes for each step if that is more, for each expression that a client had it try.
const MaxNamespaceRegexSize = 4 << 20

// regex checks an expression of RE2's syntax. What is admitted here, the proxies take: one that they do not would take the routes
// beside it with it.
func (c *checker) regex(path, pattern string) {
	parsed := c.ownRegex(path, pattern)
	if parsed == nil {
		return
	}
	if why, remedy := unusual(pattern, parsed); why != "" {
		c.fail(path, why, remedy)
	}
}

// ownRegex checks an expression that the controller alone uses. Nil for one that is refused.
func (c *checker) ownRegex(path, pattern string) *syntax.Regexp {
	if pattern == "" {
		c.fail(path, "is empty", "write a regular expression")
		return nil
	}
	if len(pattern) > maxRegex {
		c.fail(path, fmt.Sprintf("is longer than %d bytes", maxRegex), "shorten it")
		return nil
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		c.fail(path, "is not a regular expression: "+err.Error(), "use RE2 syntax")
		return nil
	}
	n, before := regexSize(pattern, parsed), c.regexSizes
	c.regexSizes += n
	switch {
	case n > maxRegexSize:
		c.fail(path, fmt.Sprintf("is too large: its size is more than %d once its repetitions are written out", maxRegexSize), "repeat less, or name fewer characters")
		return nil
	case before <= maxRegexSizes && before+n > maxRegexSizes:
		c.fail(path, fmt.Sprintf("is too large together with the expressions before it: their size is more than %d once their repetitions are written out", maxRegexSizes),
			"repeat less, name fewer characters, or spread them over several objects")
		return nil
	}
	return parsed
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

// regexSize is the [size] of a valid pattern whose alternatives stand as they were written. The parser makes one of what several begin
// with, and of several that are empty, before anybody can count them; heddle-proxy compiles most of that as often as it is there. A
// group in front of each keeps it from doing so.
func regexSize(pattern string, parsed *syntax.Regexp) int {
	if !strings.Contains(pattern, "|") {
		return size(parsed)
	}
	var apart strings.Builder
	for part := range parts(pattern) {
		if apart.WriteString(part); part == "|" {
			apart.WriteString("()")
		}
	}
	parsed, err := syntax.Parse(apart.String(), syntax.Perl)
	if err != nil {
		return maxRegexSize + 1 // Larger than the parser takes.
	}
	return size(parsed)
}

// size of an expression: the steps of the program over bytes that it becomes, where ranges of characters are several of bytes each
// in UTF-8. Repetitions are multiplied, not written out: ten bytes can ask for millions of steps. What is larger than
// [maxRegexSize] has no size but being so.
func size(e *syntax.Regexp) int {
	steps, _ := stepsOf(e)
	return min(2+steps, maxRegexSize+1) // The program's own are that nothing matches, and that all did.
}

// stepsOf an expression within another, and whether it matches the empty text; [syntax.Compile] says what becomes what.
func stepsOf(e *syntax.Regexp) (steps int, nullable bool) {
	all, some := true, false
	for _, sub := range e.Sub {
		n, empty := stepsOf(sub)
		steps += n
		all, some = all && empty, some || empty
	}
	nullable = some
	switch e.Op {
	case syntax.OpLiteral:
		for _, r := range e.Rune {
			steps += 1 + sizeOfOne(r, e.Flags&syntax.FoldCase != 0)
		}
	case syntax.OpCharClass:
		steps = 1
		for i := 0; i+1 < len(e.Rune) && steps <= maxRegexSize; i += 2 {
			steps += sizeOf(e.Rune[i], e.Rune[i+1])
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		steps = 1 + sizeOf(0, unicode.MaxRune)
	case syntax.OpCapture:
		if e.Sub[0].Op != syntax.OpEmptyMatch {
			steps += 2
		}
	case syntax.OpAlternate:
		steps += len(e.Sub) - 1
	case syntax.OpRepeat:
		return repeated(steps, nullable, e.Min, e.Max)
	case syntax.OpStar:
		return repeated(steps, nullable, 0, -1)
	case syntax.OpPlus:
		return repeated(steps, nullable, 1, -1)
	case syntax.OpQuest:
		return repeated(steps, nullable, 0, 1)
	case syntax.OpConcat:
		nullable = all
	case syntax.OpNoMatch:
	default: // A place in the text, or the empty one.
		return 1, true
	}
	return min(steps, maxRegexSize+1), nullable
}

// repeated steps, at least and at most so many times, without a limit where most is negative.
func repeated(steps int, nullable bool, least, most int) (int, bool) {
	switch {
	case least == 0 && most == 0:
		return 1, true
	case most >= 0: // xx(x(x)?)?, where one that may be absent is two steps of heddle-proxy's.
		steps = most*steps + 2*(most-least)
	case least == 0 && nullable: // (x+)?
		steps += 2
	default: // xxx+
		steps = max(least, 1)*steps + 1
	}
	return min(steps, maxRegexSize+1), nullable || least == 0
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
