//go:build conformance

package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// patternCases is what stands before their names in divergences.yaml.
const patternCases = "patterns/"

// asItComes is Envoy without the switch that has it read UTF-8.
var asItComes = matching{name: "Envoy", proxy: "envoy"}

// TestPatternsThatMatchOtherwiseAreKnown has those that random patterns leave out.
func TestPatternsThatMatchOtherwiseAreKnown(t *testing.T) {
	divergences := loadDivergences(t)
	for _, c := range []struct {
		name, pattern, text string
		beside              matching
	}{
		{"any byte", `\C`, "é", re2},
		{"no character", `\pC`, "\U0010ffff", re2},
		{"a character of two bytes", ".", "é", asItComes},
	} {
		ok := t.Run(c.name, func(t *testing.T) {
			lines := map[string][]string{}
			for _, m := range []matching{portable, c.beside} {
				proxy, err := startVerdicts(t, m, []string{c.pattern})
				if err != nil {
					t.Fatal(err)
				}
				got, err := verdicts(proxy, []question{{0, c.pattern, alone, c.text}})
				if err != nil {
					t.Fatal(err)
				}
				lines[m.proxy] = []string{fmt.Sprintf("%s %s %+q", c.pattern, got[0], c.text)}
			}
			compare(t, patternCases+c.name, lines["heddle"], lines["envoy"], divergences)
		})
		if ok {
			passed++
		} else {
			failed++
		}
	}
	for _, d := range divergences {
		if !d.used && strings.HasPrefix(d.Case, patternCases) {
			t.Errorf("divergences.yaml: %s does not differ so any more: %q and %q", d.Case, d.Heddle, d.Envoy)
		}
	}
}
