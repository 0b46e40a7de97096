package expressions

import (
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// longest text in bytes.
	longest = 2000
	// whole classes with so many ranges are not gone through.
	tries = 20
)

// Subjects makes n different texts to hold against a pattern: those that it describes, those with a slip in them, and others. They
// are such as the value of a field can be, and as every version of Unicode from 15 on reads alike.
func Subjects(r *rand.Rand, pattern string, n int) []string {
	m := maker{r}
	// Go's parser reads nearly all that RE2 does. Without it the texts are random.
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	seen := map[string]bool{}
	out := make([]string, 0, n)
	add := func(text string) {
		if text = legal(text); len(out) < n && !seen[text] {
			seen[text] = true
			out = append(out, text)
		}
	}
	add("")
	// A pattern may have fewer texts than are asked for.
	for tried := 0; len(out) < n && tried < 20*n; tried++ {
		text := m.text()
		if err == nil && !m.one(6) {
			var b strings.Builder
			m.describe(parsed, &b)
			text = b.String()
			if m.one(3) {
				text = m.slip(text)
			}
		} else if m.one(3) {
			text = m.slip(pattern)
		}
		add(text)
	}
	return out
}

// legal is a text as the value of a field: a proxy may refuse other ones, and takes blanks at the ends off. heddle-proxy reads what is
// no UTF-8 in two ways, and Envoy in none (docs/design/0005-what-policies-see.md), so all of it is.
func legal(text string) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' && c != '\t' || c == 0x7f || !settled(c) {
			return -1
		}
		return c
	}, strings.ToValidUTF8(text, ""))
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "")
	}
	return strings.Trim(text, " \t")
}

// settled says that later versions of Unicode have nothing else to say of a character than Go's, which is version 15. Code points that
// are none are not: whether \pC has them is a known difference.
func settled(c rune) bool {
	if c == 0x19b || c == 0x264 {
		return false // Version 16 has capitals of them.
	}
	return unicode.In(c, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf, unicode.Co)
}

func (m maker) text() string {
	var out strings.Builder
	for range m.r.IntN(8) {
		switch m.r.IntN(5) {
		case 0:
			out.WriteString(m.sign())
		case 1:
			out.WriteString(strings.Repeat(m.letter(), m.r.IntN(4)))
		default:
			out.WriteString(m.letter())
		}
	}
	return out.String()
}

// describe writes a text of an expression, if what looks around in it lets it match.
func (m maker) describe(e *syntax.Regexp, out *strings.Builder) {
	if out.Len() > 2*longest {
		return
	}
	switch e.Op {
	case syntax.OpLiteral:
		for _, c := range e.Rune {
			if e.Flags&syntax.FoldCase != 0 {
				for range m.r.IntN(3) {
					c = unicode.SimpleFold(c)
				}
			}
			out.WriteRune(c)
		}
	case syntax.OpCharClass:
		out.WriteRune(m.member(e.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		out.WriteString(m.any())
	case syntax.OpStar:
		m.repeat(e.Sub[0], 0, -1, out)
	case syntax.OpPlus:
		m.repeat(e.Sub[0], 1, -1, out)
	case syntax.OpQuest:
		m.repeat(e.Sub[0], 0, 1, out)
	case syntax.OpRepeat:
		m.repeat(e.Sub[0], e.Min, e.Max, out)
	case syntax.OpAlternate:
		m.describe(e.Sub[m.r.IntN(len(e.Sub))], out)
	case syntax.OpCapture, syntax.OpConcat:
		for _, sub := range e.Sub {
			m.describe(sub, out)
		}
	}
}

func (m maker) any() string {
	if m.one(4) {
		return m.sign()
	}
	return m.letter()
}

// repeat describes an expression as often as it may be, and sometimes once more or less.
func (m maker) repeat(e *syntax.Regexp, least, most int, out *strings.Builder) {
	times := least + m.r.IntN(4)
	switch {
	case m.one(12):
		// Long enough for what reads long texts in another way.
		times = least + m.r.IntN(400)
	case m.one(8) && most >= 0:
		times = most
	}
	if most >= 0 {
		times = min(times, most)
	}
	if m.one(20) {
		times += 1 - 2*m.r.IntN(2)
	}
	for range times {
		m.describe(e, out)
	}
}

// member of a class: mostly at the edges of its ranges, where mistakes are. Of those that a field cannot have, the last one.
func (m maker) member(ranges []rune) rune {
	if len(ranges) == 0 {
		return 'a'
	}
	var c rune
	for range tries {
		at := m.r.IntN(len(ranges)/2) * 2
		// The later ranges of a large class are rare characters.
		if m.one(2) {
			at = m.r.IntN(min(len(ranges)/2, 4)) * 2
		}
		low, high := ranges[at], ranges[at+1]
		switch m.r.IntN(4) {
		case 0:
			c = low
		case 1:
			c = high
		default:
			c = low + m.r.Int32N(min(high-low+1, 64))
		}
		if legal(string(c)) != "" {
			break
		}
	}
	return c
}

// slip is a text with one or two mistakes.
func (m maker) slip(text string) string {
	for range 1 + m.r.IntN(2) {
		runes := []rune(text)
		at := m.r.IntN(len(runes) + 1)
		before, after := string(runes[:at]), string(runes[at:])
		c, n := first(after)
		switch m.r.IntN(6) {
		case 0:
			text = before + after[n:]
		case 1:
			text = before + m.any() + after
		case 2:
			text = before + m.any() + after[n:]
		case 3:
			text = before + after[:n] + after
		case 4:
			text = before + string(unicode.SimpleFold(c)) + after[n:]
		default:
			text = m.of(m.any()+text, text+m.any(), text+text)
		}
	}
	return text
}

// Bytes are n texts for a pattern as [Subjects] makes them, in ISO 8859-1. None is UTF-8.
func Bytes(r *rand.Rand, pattern string, n int) []string {
	m := maker{r}
	out := make([]string, 0, n)
	for len(out) < n {
		for _, text := range Subjects(r, pattern, 2) {
			b := make([]byte, 0, len(text)+1)
			for _, c := range text {
				if c <= 0xff {
					b = append(b, byte(c))
				}
			}
			if m.one(2) || utf8.Valid(b) {
				b = slices.Insert(b, m.r.IntN(len(b)+1), byte(0x80+m.r.IntN(0x80)))
			}
			if text := strings.Trim(string(b), " \t"); !utf8.ValidString(text) && len(out) < n {
				out = append(out, text)
			}
		}
	}
	return out
}
