package objects

import (
	"fmt"
	"iter"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxRegexDepth is how deep groups may nest. heddle-proxy takes 250 levels, of which a group may have four: itself, alternatives, what
// follows each other, and a repetition.
const maxRegexDepth = 50

var (
	// Of a pattern that [bare] has made.
	repeatedFlags = regexp.MustCompile(`\(\?[imsU-]*\)([*+?]|\{\d)`)
	noFlags       = regexp.MustCompile(`\(\?\)`)
	someFlags     = regexp.MustCompile(`\(\?[imsU-]+[:)]`)
	repeatedQuote = regexp.MustCompile(string(nothing) + `([*+?]|\{\d)`)
)

// unusual says what of an expression RE2 takes, to no purpose, and heddle-proxy does not (proxy/crates/matching/src/re2.rs), or what Go's
// parser takes and RE2 does not, and what to write instead. Both are empty when there is nothing.
func unusual(pattern string, parsed *syntax.Regexp) (what, remedy string) {
	plain := bare(pattern)
	if found := repeatedFlags.FindString(plain); found != "" {
		return fmt.Sprintf("repeats flags by %q", found), "put the flags before what is repeated"
	}
	if noFlags.MatchString(plain) {
		return `has "(?)", which sets no flags`, "leave it out"
	}
	for _, found := range someFlags.FindAllString(plain, -1) {
		for _, flag := range "imsU" {
			if strings.Count(found, string(flag)) > 1 {
				return fmt.Sprintf("sets a flag twice by %q", found), "leave one out"
			}
		}
	}
	if repeatedQuote.MatchString(plain) {
		return `repeats a quote of nothing, \Q\E`, "leave the quote out"
	}
	for escape := range escapes(pattern) {
		name, class := className(escape)
		switch {
		case class && !inRE2(name):
			return fmt.Sprintf("has the class %s, a name that RE2 does not have in these letters", escape),
				"name a category by its short name, such as Lu, or a script, such as Greek"
		case class && name == "Cs", isSurrogate(escape):
			return fmt.Sprintf("has %q, code points that no text has", escape), "leave them out"
		}
	}
	names := map[string]bool{}
	for _, name := range parsed.CapNames() {
		if name != "" && (names[name] || unicode.IsDigit(rune(name[0]))) {
			return fmt.Sprintf("has a group named %q, a name that is taken or begins with a digit", name), "leave the name out"
		}
		names[name] = true
	}
	if n := depth(plain); n > maxRegexDepth {
		return fmt.Sprintf("has %d groups within each other, of at most %d", n, maxRegexDepth), "nest fewer"
	}
	return "", ""
}

// escapes of a valid pattern, also those in sets. Quotes have none.
func escapes(pattern string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for part := range parts(pattern) {
			if strings.HasPrefix(part, `\Q`) {
				continue
			}
			for rest := strings.TrimPrefix(part, "["); rest != ""; {
				after := afterMember(rest)
				if rest[0] == '\\' && !yield(strings.TrimSuffix(rest, after)) {
					return
				}
				rest = after
			}
		}
	}
}

// isSurrogate says whether an escape is of a code point that stands for half a character in UTF-16.
func isSurrogate(escape string) bool {
	digits, is := strings.CutPrefix(escape, `\x{`)
	code, err := strconv.ParseUint(strings.TrimSuffix(digits, "}"), 16, 32)
	return is && err == nil && utf16.IsSurrogate(rune(code))
}

// className is the name in an escape, if it is one of a class by name.
func className(escape string) (name string, is bool) {
	name, is = strings.CutPrefix(escape, `\p`)
	if !is {
		name, is = strings.CutPrefix(escape, `\P`)
	}
	return strings.TrimPrefix(strings.Trim(name, "{}"), "^"), is
}

// inRE2 says whether RE2 has a class of that name: all categories but two that are made of others, all scripts, and one more. Go's parser
// reads names that RE2 does not: in other letters (\p{greek}), long ones (\p{Letter}) and categories that Unicode only derives.
func inRE2(name string) bool {
	_, category := unicode.Categories[name]
	_, script := unicode.Scripts[name]
	return category && name != "Cn" && name != "LC" || script || name == "Any"
}

// What stands for a character or a set in a [bare] pattern, and for a quote without text.
const (
	something = '_'
	nothing   = '\x00'
)

// bare is a valid pattern without what has brackets that mean themselves: [something] stands for each escape, set and quote.
func bare(pattern string) string {
	var out strings.Builder
	for part := range parts(pattern) {
		switch {
		case part == `\Q\E`, part == `\Q`:
			out.WriteRune(nothing)
		case part[0] == '\\', part[0] == '[', part[0] == nothing:
			out.WriteRune(something)
		default:
			out.WriteString(part)
		}
	}
	return out.String()
}

// parts of a valid pattern: each escape, set and quote, and each character besides.
func parts(pattern string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for pattern != "" {
			var after string
			switch {
			case strings.HasPrefix(pattern, `\Q`):
				// Without an end it goes on to that of the pattern.
				_, after, _ = strings.Cut(pattern[2:], `\E`)
			case pattern[0] == '\\':
				after = afterEscape(pattern)
			case pattern[0] == '[':
				after = afterSet(pattern)
			default:
				after = afterCharacter(pattern)
			}
			if !yield(strings.TrimSuffix(pattern, after)) {
				return
			}
			pattern = after
		}
	}
}

// afterEscape is what follows a backslash and the character after it, and the name of a class or what stands in braces for a code point.
func afterEscape(pattern string) string {
	after := afterCharacter(pattern[1:])
	class, code := pattern[1] == 'p' || pattern[1] == 'P', pattern[1] == 'x'
	if (class || code) && strings.HasPrefix(after, "{") {
		_, after, _ = strings.Cut(after, "}")
		return after
	}
	if class {
		return afterCharacter(after)
	}
	return after
}

func afterCharacter(pattern string) string {
	_, n := utf8.DecodeRuneInString(pattern)
	return pattern[n:]
}

// afterSet is what follows a set in brackets, one that closes being a member where it comes first.
func afterSet(pattern string) string {
	rest := strings.TrimPrefix(pattern[1:], "^")
	for first := true; rest != ""; first = false {
		if rest[0] == ']' && !first {
			return rest[1:]
		}
		if strings.HasPrefix(rest, "[:") && strings.Contains(rest, ":]") {
			_, rest, _ = strings.Cut(rest[2:], ":]")
			continue
		}
		rest = afterMember(rest)
		if len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			rest = afterMember(rest[1:])
		}
	}
	return rest
}

// afterMember is what follows a character of a set, or what stands for one or several.
func afterMember(pattern string) string {
	if pattern[0] == '\\' {
		return afterEscape(pattern)
	}
	return afterCharacter(pattern)
}

// depth of groups within groups, of a [bare] pattern.
func depth(pattern string) int {
	deepest, now := 0, 0
	for _, c := range pattern {
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
