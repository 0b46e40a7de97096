package peer

import (
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		said  string
		lines bool
		want  string
	}{
		{"as it is", false, "as it is"},
		{"ten and more", false, "ten and mo…"},
		{"\x1b[2Jgone", false, " [2Jgone"},
		{"a\r\nb", false, "a  b"},
		{"a\r\nb", true, "a \nb"},
		{"\u202ertl", false, " rtl"},
		{strings.Repeat("ü", 11), false, strings.Repeat("ü", 10) + "…"},
		{"\xff\xfe", false, "\ufffd\ufffd"},
	} {
		if got := Words(c.said, 10, c.lines); got != c.want {
			t.Errorf("%q: %q, want %q", c.said, got, c.want)
		}
	}
}
