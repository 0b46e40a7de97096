package cluster

import (
	"strings"
	"testing"
)

func TestNamesThatCannotBe(t *testing.T) {
	for name, want := range map[string]string{
		"cluster1": "", "a": "", "wan1": "", "": "lower-case", "A": "lower-case", "a.b": "lower-case", "-a": "lower-case", strings.Repeat("a", 41): "lower-case",
		"federation": "find their primary by", "wan": WANBridge,
	} {
		if _, err := New(name); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}
