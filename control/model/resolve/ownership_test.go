package resolve

import "testing"

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "x", true}, {"a*", "abc", true}, {"a*", "ba", false}, {"*c", "abc", true}, {"*c", "abcd", false},
		{"a*c", "abc", true}, {"a*c", "ac", true}, {"a*a", "a", false}, {"a*b*c", "axxbyyc", true}, {"a*b*c", "acb", false}, {"**", "x", true},
	} {
		if got := Covers(c.pattern, c.name); got != c.want {
			t.Errorf("%q, %q: %t", c.pattern, c.name, got)
		}
	}
}
