// Package expressions makes regular expressions and texts for them at random, the same for the same seed.
package expressions

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// deepest that groups nest in what is made on purpose.
const deepest = 3

// Pattern makes one in RE2's syntax, or nearly: some are wrong, and some have what other languages know and RE2 does not.
func Pattern(r *rand.Rand) string {
	m := maker{r}
	switch n := r.IntN(100); {
	case n < 50:
		return m.anchored(m.alternatives(deepest))
	case n < 65:
		return m.sequence()
	case n < 72:
		return m.large()
	case n < 84:
		return m.odd()
	default:
		return m.mistyped(m.anchored(m.alternatives(deepest - 1)))
	}
}

type maker struct{ r *rand.Rand }

func (m maker) of(choices ...string) string { return choices[m.r.IntN(len(choices))] }

// one in n times.
func (m maker) one(n int) bool { return m.r.IntN(n) == 0 }

func (m maker) anchored(pattern string) string {
	if m.one(4) {
		pattern = m.of("(?i)", "(?s)", "(?m)", "(?U)", "(?is)", "(?i-s)", "(?-m)", "(?smU)") + pattern
	}
	if m.one(5) {
		pattern = m.of("^", `\A`, "^^", `\b`, `\B`, "$") + pattern
	}
	if m.one(5) {
		pattern += m.of("$", `\z`, "$$", `\b`, `\B`, "^")
	}
	return pattern
}

func (m maker) alternatives(depth int) string {
	parts := []string{m.concatenation(depth)}
	for m.one(3) && len(parts) < 4 {
		if m.one(6) {
			parts = append(parts, "")
			continue
		}
		parts = append(parts, m.concatenation(depth))
	}
	m.r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return strings.Join(parts, "|")
}

func (m maker) concatenation(depth int) string {
	var out strings.Builder
	for range 1 + m.r.IntN(4) {
		out.WriteString(m.repeated(m.atom(depth)))
	}
	return out.String()
}

// repeated is an atom as often as something behind it says, mostly nothing. Repetitions within repetitions are multiplied, so
// all are small here.
func (m maker) repeated(atom string) string {
	if !m.one(3) {
		return atom
	}
	least := m.r.IntN(4)
	most := least + m.r.IntN(3)
	times := m.of("*", "+", "?", fmt.Sprintf("{%d}", least), fmt.Sprintf("{%d,}", least), fmt.Sprintf("{%d,%d}", least, most))
	return atom + times + m.of("", "", "?")
}

func (m maker) atom(depth int) string {
	if depth > 0 && m.one(4) {
		inner := m.alternatives(depth - 1)
		switch m.r.IntN(6) {
		case 0, 1:
			return "(" + inner + ")"
		case 2:
			return "(?:" + inner + ")"
		case 3:
			return "(?" + m.of("i", "s", "m", "U", "-i", "i-s", "-sm", "U-i", "ims") + ":" + inner + ")"
		case 4:
			return m.named(inner)
		default:
			return m.of("()", "(|"+inner+")", "("+inner+"|)", "(?:)", "(^"+inner+")", "("+inner+"$)", "(?i)", "(?-i)", "(?s)")
		}
	}
	switch m.r.IntN(12) {
	case 0, 1, 2, 3:
		return m.literal()
	case 4, 5:
		return m.set()
	case 6:
		return m.class()
	case 7:
		return m.of(".", ".", "(.*)", "(?s:.*)", "(?:.+)", "(.*?)", "(.{2,})")
	case 8:
		return m.character()
	case 9:
		return `\Q` + m.of(m.word(), "a.b*[", "(?i)", `\`, "é|", "{2}", m.word()+"+") + `\E`
	case 10:
		return m.of(`\b`, `\B`, "^", "$", `\A`, `\z`, "")
	default:
		return m.word()
	}
}

// named is a group whose name no other has: one that is there twice is odd.
func (m maker) named(inner string) string {
	name := fmt.Sprintf("%s%d", m.of("n", "_", "Name_"), m.r.IntN(1_000_000))
	return m.of("(?P<", "(?<") + name + ">" + inner + ")"
}

// letters that subjects and patterns have in common. Some have more than one other case, or one that is not ASCII.
var letters = []string{"a", "b", "c", "A", "B", "k", "K", "\u212a", "s", "S", "ſ", "0", "1", "9", "_", "é", "É", "ß", "ẞ", "σ", "ς", "Σ", "µ", "μ", "ǆ", "ǅ",
	"İ", "ı", "Å", "\u212b", "ñ", "日", "😀", "٣", "\u00a0", "\u0301", "\u2028", "\ufeff", "\ufffd", "Ω", "Ω", "ﬁ", "Ⅷ", "𐐀", "𐐨"}

// signs that mean themselves behind a backslash.
const signs = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ "

func (m maker) letter() string {
	if m.one(3) {
		return letters[m.r.IntN(len(letters))]
	}
	return string("abckst019"[m.r.IntN(9)])
}

func (m maker) sign() string { return string(signs[m.r.IntN(len(signs))]) }

func (m maker) word() string {
	var out strings.Builder
	for range 1 + m.r.IntN(4) {
		out.WriteString(m.letter())
	}
	return out.String()
}

// literal is a character that means itself, or an escape for one.
func (m maker) literal() string {
	switch m.r.IntN(6) {
	case 0, 1, 2:
		return m.letter()
	case 3:
		// A blank has no escape.
		if sign := m.sign(); sign != " " {
			return `\` + sign
		}
		return " "
	case 4:
		return m.of("-", "/", ",", ":", ";", "=", "!", "@", "%", "&", "#", "<", ">", "~", "'", `"`, "]", "}", "`")
	default:
		return m.character()
	}
}

// character is one by its number or name.
func (m maker) character() string {
	c, _ := first(m.letter())
	switch m.r.IntN(6) {
	case 0:
		return `\x{` + strconv.FormatInt(int64(c), 16) + "}"
	case 1:
		return `\x{` + fmt.Sprintf("%06X", c) + "}"
	case 2:
		return fmt.Sprintf(`\x%02x`, 0x20+m.r.IntN(0xe0))
	case 3:
		return m.of(`\101`, `\060`, `\141`, `\0`, `\12`, `\377`, `\1412`, `\08`, `\40`)
	case 4:
		return m.of(`\t`, `\n`, `\r`, `\f`, `\v`, `\a`)
	default:
		return m.of(`\x{10ffff}`, `\x{0}`, `\x7f`, `\x80`, `\xff`, `\x{2028}`, `\x{e9}`, `\x{1F600}`)
	}
}

// class is one by an escape.
func (m maker) class() string {
	return m.of(`\d`, `\D`, `\w`, `\W`, `\s`, `\S`, `\pL`, `\PL`, `\pN`, `\p{Lu}`, `\P{Lu}`, `\p{^Lu}`, `\P{^Ll}`, `\p{Greek}`, `\p{^Greek}`,
		`\p{Latin}`, `\p{Han}`, `\p{Cyrillic}`, `\pZ`, `\pP`, `\p{Nd}`, `\p{Sc}`, `\p{Any}`, `\P{Any}`, `\pM`, `\p{Zs}`, `\pC`, `\p{Cc}`)
}

func (m maker) set() string {
	var out strings.Builder
	out.WriteString("[" + m.of("", "", "^"))
	if m.one(10) {
		out.WriteString(m.of("]", "-", "]-", "^", "[", "[:", "&&", "--", "~~"))
	}
	for range 1 + m.r.IntN(4) {
		switch m.r.IntN(10) {
		case 0, 1, 2:
			out.WriteString(m.letter())
		case 3, 4:
			out.WriteString(m.of("a-c", "0-9", "A-Z", "a-z", "à-ÿ", "α-ω", `\x{100}-\x{2fff}`, "!-/", `\x00-\x1f`, " -~", "k-s", "Z-a", `\x80-ÿ`,
				`\101-\103`, `\[-\]`, `+--`, "--/", "😀-😿", `\x{10000}-\x{10ffff}`, "ſ-ſ", "A-k"))
		case 5:
			out.WriteString(m.class())
		case 6:
			out.WriteString("[:" + m.of("", "", "^") + m.of("alpha", "digit", "alnum", "upper", "lower", "space", "punct", "word", "xdigit", "print", "graph",
				"cntrl", "blank", "ascii") + ":]")
		case 7:
			out.WriteString(m.character())
		case 8:
			if sign := m.sign(); sign != " " {
				out.WriteString(`\` + sign)
			}
		default:
			out.WriteString(m.of(".", "*", "+", "?", "(", ")", "{", "}", "|", "$", "&&", "||", "~~", "[", "/", "#", " ", "a^"))
		}
	}
	if m.one(10) {
		out.WriteString("-")
	}
	return out.String() + "]"
}

// sequence has words in order and anything between them, which heddle-proxy looks for in ways of their own.
func (m maker) sequence() string {
	var out strings.Builder
	out.WriteString(m.of("", "", "(?i)", "(?s)", "^") + m.of(".*", ".*", "", ".+", ".*?"))
	for n := range 1 + m.r.IntN(3) {
		if n > 0 {
			out.WriteString(m.of(".*", ".+", ".*", ".*?", "(.*)", ".{1,}", ".+.+"))
		}
		switch m.r.IntN(5) {
		case 0:
			out.WriteString("(" + m.word() + "|" + m.word() + ")")
		case 1:
			out.WriteString(m.word() + "(" + m.word() + ")?" + m.word())
		case 2:
			out.WriteString("/" + m.word() + "/")
		default:
			out.WriteString(m.word() + m.letter())
		}
	}
	return out.String() + m.of("", ".*", ".*", ".+", "$")
}

// large repeats more than anybody needs; RE2 takes no more than a thousand, also multiplied.
func (m maker) large() string {
	n := m.of("100", "255", "999", "1000", "1000", "1001", "2000", "65536", "99999999999")
	one := m.of("a", "[ab]", "(?:ab)", "é", ".", "(a|b)", `\d`, "(?i)k", "(?:a?)", "(|a)")
	switch m.r.IntN(7) {
	case 0:
		return fmt.Sprintf("%s{%s}", one, n)
	case 1:
		return fmt.Sprintf("%s{0,%s}%s", one, n, m.word())
	case 2:
		return fmt.Sprintf("%s{%s,}", one, n)
	case 3:
		return fmt.Sprintf("(?:%s{%s}){%s}", one, m.of("2", "10", "31", "32", "100"), m.of("10", "31", "32", "33", "100"))
	case 4:
		return fmt.Sprintf("%s{%s,%s}", one, n, m.of("1000", "999", "1001", "5"))
	case 5:
		return fmt.Sprintf("(?:(?:%s{0,%s}){%s}){%s}%s", one, m.of("2", "10"), m.of("0,10", "10"), m.of("10", "11"), m.word())
	default:
		return m.of(`\pL`, "[^a]", ".", `\PL`, `[\pL\pN]`) + "{" + m.of("9", "50", "300", "1000") + "}"
	}
}

// Oddities are patterns that RE2 refuses, and some that it takes in its own way. \C by itself is a known difference.
var Oddities = []string{"(?=a)", "(?!a)", "(?<=a)", "(?<!a)", `(a)\1`, `(?P<n>a)\k<n>`, "(?P=n)", "(?P>n)", "(?>a)", "(?|a|b)", "(?#a)", "(?x)a b", "(?R)", "(?1)",
	"*", "+a", "?", "a**", "a*+", "a++", "a??", "a???", "a{2}{3}", "a{2}*", "a{3,2}", "a{,5}", "a{", "a{x}", "a{1,2", "{", "{2}", "a{01}", "a{1,02}", "a{ 1}",
	"(", ")", "(?", "(?i", "(?P<", "(?P<>a)", "(?P<a b>c)", "(?<a-b>c)", "(?P<n>a)(?P<n>b)", "(?<n>a)(?P<n>b)", "(?P<é>a)", "(?P<1>a)", "(?:", "(?)", "(?-)", "(?i-)", "(?z)", "(?ii)",
	"(?i-i:a)", "(?^:a)", "(?-u:a)", "(?u:a)", "(?R:a)", "(?x:a)", "(?u)é", "[", "[a", "[]", "[]a", "[^]", "[^]]", "[b-a]", "[a-", "[a-]", "[-a]", "[--a]", "[a-b-c]", "[a-\\d]", "[\\d-a]", "[\\w-\\s]",
	"[[:alpha:]", "[[:foo:]]", "[[:^foo:]]", "[:alpha:]", "[[.a.]]", "[[=a=]]", "[[:alpha:]-z]", "[a-[:alpha:]]", "[[a]b]", "[a&&b]", "[a--b]", "[\\b]", "[\\B]", "[\\A]", "[\\pL-z]", "[\\Qa\\E]", "[\\C]",
	`\`, `\8`, `\9`, `\1`, `\7`, `\18`, `\400`, `\777`, `\x`, `\xg`, `\x1`, `\x{`, `\x{}`, `\x{110000}`, `\x{d800}`, `\x{ 41}`, `\x{000000041}`, `\x{0000000000000041}`, `\u0041`, `\u{41}`, `\U00000041`, `\cA`, `\e`, `\h`, `\H`, `\N`, `\R`, `\X`,
	`\K`, `\G`, `\Z`, `\z`, `\<a\>`, `\b{start}`, `\b{end}a`, `\b{start-half}`, "\\`", `\'`, `\_`, `\-`, `\é`, `\ `, `\p`, `\pX`, `\p{`, `\p{}`, `\p{X}`, `\p{^}`, `\pé`, `\p{greek}`, `\p{Letter}`, `\p{L}`, `\p{L&}`, `\p{LC}`,
	`\p{Script=Greek}`, `\p{sc=Grek}`, `\p{Alphabetic}`, `\p{Cs}`, `\p{Co}`, `\p{Cn}`, `\p{Lu}\p{^Lu}`, `\P{^^L}`, `\p{Is_L}`, `\p{Common}`, `\p{any}`, `\p{ASCII}`, `\p{Assigned}`, `\pLu`, `\Qa`, `\Q`, `\Q\E`, `a\Q\E*`, `\Qab\E*`, `\E`, `a\E`, `\Q\Q\E\E`,
	"^*", "$+", `\b+`, "(^)*", "^{2}", "(?:)*", "()*", "()+", "(|a)*", "(|a)+", "(a|)*", "(a*)*", "(a*)+", "(a?)*?", "(a|b*)*", "(?:a*){2,}", "|", "||", "a||b", "|*", "(|*)", "(*)", "(+|a)", "a|*", "^|$", `\A*`, "(?i)*",
	"a(?i)b|c", "(?i)a(?-i)a", "(?i:a)b", "((?i)a)a", "(?U)a*?", "(?m)^a$", "(?s).", "(?i)ſ", "(?i)[^k]", "(?i)[^\\x{212a}]", "(?i)\\W", "(?i)[^\\w]", "(?i)[[:^lower:]]", "(?i)\\PL", "(?i)\\p{Lu}", "(?i)\\P{Lu}", "(?i)[A-_]", "(?i)ß", "(?i)ς", "(?i)İ", "(?i)ı",
	"(?i)ǆ", "(?i)[a-z]", "(?i)\\x6b", "(?i)\\Qk\\E", `\C*`, `\C+a`, `a\C*b`, "[[:word:]]", "[[:ascii:]]", "[[:^ascii:]]", "(?P<a>x)|(?P<b>y)", "a.b", "\\.\\*", "a b", "#a", "a # b", "日本", "[日-本]", "\u0000", "\n", "a\nb"}

func (m maker) odd() string {
	odd := Oddities[m.r.IntN(len(Oddities))]
	switch m.r.IntN(4) {
	case 0:
		return odd
	case 1:
		return m.word() + odd + m.repeated(m.atom(0))
	case 2:
		return "(?:" + odd + ")" + m.of("", "*", "?", "{2}") + m.repeated(m.atom(1))
	default:
		return m.repeated(m.atom(1)) + odd + m.repeated(m.atom(1))
	}
}

// mistyped is a pattern with one to three slips.
func (m maker) mistyped(pattern string) string {
	for range 1 + m.r.IntN(3) {
		runes := []rune(pattern)
		at := m.r.IntN(len(runes) + 1)
		before, after := string(runes[:at]), string(runes[at:])
		switch _, n := first(after); m.r.IntN(4) {
		case 0: // a piece less
			pattern = before + after[n:]
		case 1: // a piece twice
			pattern = before + after[:n] + after
		case 2: // the two sides of it in the other order
			pattern = after[:n] + before + after[n:]
		default: // something more
			pattern = before + m.of("(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "^", "$", `\`, "-", ":", "(?", "{2,1}", "{1,", ",", "[^", "[:", ":]", `\Q`, `\E`, `\b`, "[[:", "&&", "é") + after
		}
	}
	return pattern
}

// first character of a text and its length; of none it is 0 long.
func first(text string) (rune, int) {
	for at, c := range text {
		return c, at + len(string(c))
	}
	return 0, 0
}
