//go:build conformance

package conformance

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"heddle.io/heddle/test/conformance/expressions"
)

// bytePatterns are so many.
const bytePatterns = 200

// TestWhatIsNoTextMatchesWhereItDoesInEnvoy holds heddle-proxy against Envoy as it comes, which reads all values as ISO 8859-1: one that
// is no UTF-8 must not get past a rule that stops it there (CVE-2026-73552). That heddle-proxy reads it in another way as well, and
// matches then too, is no fault (docs/design/0005-what-policies-see.md).
func TestWhatIsNoTextMatchesWhereItDoesInEnvoy(t *testing.T) {
	r := rand.New(rand.NewPCG(*regexSeed, 1))
	var made []string
	for len(made) < bytePatterns {
		// Others are other patterns to a reader of ISO 8859-1.
		if p := expressions.Pattern(r); !strings.ContainsFunc(p, func(c rune) bool { return c > unicode.MaxASCII }) {
			made = append(made, p)
		}
	}
	patterns := takenByBoth(t, asItComes, made)
	var questions []question
	for i, p := range patterns {
		for _, text := range expressions.Bytes(r, p, subjectsPerPattern) {
			questions = append(questions, question{i, p, alone, text}, question{i, p, ruleOfGroup, text})
		}
	}
	answers := map[string][]string{}
	for _, m := range []matching{portable, asItComes} {
		proxy, err := startVerdicts(t, m, patterns)
		if err != nil {
			t.Fatal(err)
		}
		if answers[m.name], err = verdicts(proxy, questions); err != nil {
			t.Fatal(err)
		}
	}
	matched := 0
	for i, q := range questions {
		if answers[asItComes.name][i] != matches {
			continue
		}
		matched++
		if answers[portable.name][i] != matches {
			t.Errorf("heddle-proxy, %s: %q on %q does not match", q.kind, q.pattern, q.text)
		}
	}
	t.Logf("%d patterns, %d questions, of which %d match", len(patterns), len(questions), matched)
	if t.Failed() || matched == 0 {
		failed++
	} else {
		passed++
	}
}
