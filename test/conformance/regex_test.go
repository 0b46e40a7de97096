//go:build conformance

package conformance

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"heddle.io/heddle/test/conformance/expressions"
	"heddle.io/heddle/test/hostile/subject"
)

var (
	regexSeed     = flag.Uint64("regex-seed", 1, "what random patterns and their texts are made of")
	regexPatterns = flag.Int("regex-patterns", 700, "how many random patterns are made")
	regexPattern  = flag.String("regex-pattern", "", "one pattern in place of random ones")
)

const (
	// subjectsPerPattern are made for it.
	subjectsPerPattern = 20
	// patternsPerProxy are in one configuration, without those that are refused. Hyperscan takes seconds to compile them.
	patternsPerProxy = 400
	// patternsToScan are enough of them for most to be Hyperscan's: it does not take each.
	patternsToScan = 50
)

var (
	portable  = matching{name: "heddle-proxy", proxy: "heddle"}
	hyperscan = matching{name: "heddle-proxy with Hyperscan", proxy: "heddle", hyperscan: true}
	// re2 is what the others are held against.
	re2 = matching{name: "RE2", proxy: "envoy", utf8: true}
)

// TestRandomPatternsMatchAsInRE2 asks heddle-proxy, with each of its engines, and RE2, which Envoy has, about the same texts.
func TestRandomPatternsMatchAsInRE2(t *testing.T) {
	t.Logf("-regex-seed %d -regex-patterns %d", *regexSeed, *regexPatterns)
	r := rand.New(rand.NewPCG(*regexSeed, 0))
	patterns := randomPatterns(r)
	for part := range slices.Chunk(patterns, patternsPerProxy) {
		if t.Run("", func(t *testing.T) { testPatterns(t, r, part) }) {
			passed++
		} else {
			failed++
		}
	}
}

// randomPatterns are all different, odd ones first, and none is empty: that is no regular expression to the API.
func randomPatterns(r *rand.Rand) []string {
	if *regexPattern != "" {
		return []string{*regexPattern}
	}
	patterns := slices.Clone(expressions.Oddities)
	seen := map[string]bool{"": true}
	for _, p := range patterns {
		seen[p] = true
	}
	for len(patterns) < len(expressions.Oddities)+*regexPatterns {
		if p := expressions.Pattern(r); !seen[p] {
			seen[p] = true
			patterns = append(patterns, p)
		}
	}
	return patterns
}

func testPatterns(t *testing.T, r *rand.Rand, patterns []string) {
	patterns = takenByBoth(t, re2, patterns)
	questions := questionsOf(r, patterns)
	sides := []matching{re2, portable, hyperscan}
	answers, errs := make([][]string, len(sides)), make([]error, len(sides))
	var scanned error
	var all sync.WaitGroup
	for i, m := range sides {
		all.Go(func() {
			var proxy *subject.Proxy
			if proxy, errs[i] = startVerdicts(t, m, patterns); errs[i] == nil {
				answers[i], errs[i] = verdicts(proxy, questions)
				if errs[i] == nil && m.hyperscan && len(patterns) >= patternsToScan {
					// Four of five are about groups; few of those are the portable engine's.
					scanned = hasScanned(proxy, len(questions)/2)
				}
				proxy.Stop()
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	want := answers[0]
	matched := 0
	for i, q := range questions {
		if q.kind == alone && want[i] == matches {
			matched++
		}
	}
	t.Logf("%d patterns; %d texts, of which %d match", len(patterns), len(questions)/len(waysToAsk), matched)
	for i, m := range sides[1:] {
		report(t, m.name, patterns, questions, answers[1+i], want)
	}
	if scanned != nil {
		t.Error(scanned)
	}
}

// takenByBoth are those patterns that heddle-proxy and another take. Of what RE2 or heddle-proxy refuses the controller must admit
// nothing: heddle-proxy leaves it to the controller to refuse what RE2 refuses, and does not take what is of no use
// (proxy/crates/matching/src/re2.rs).
func takenByBoth(t *testing.T, other matching, patterns []string) []string {
	t.Helper()
	ours, theirs := takenBy(t, portable, patterns), takenBy(t, other, patterns)
	counts := map[string]int{}
	var both []string
	for i, p := range patterns {
		why := refusalOf(t, p)
		counts[fmt.Sprintf("%s %t, heddle-proxy %t, controller %t", other.name, theirs[i], ours[i], why == "")]++
		if why == "" && other == re2 && (!theirs[i] || !ours[i]) {
			t.Errorf("%q is admitted by the controller; RE2 takes it: %t, heddle-proxy: %t", p, theirs[i], ours[i])
		}
		if theirs[i] && ours[i] {
			both = append(both, p)
		}
	}
	t.Logf("patterns by who takes them: %v", counts)
	return both
}

// waysToAsk about a text. The second time heddle-proxy's automaton of a group has more of the states that it needs.
var waysToAsk = []kind{alone, firstOfGroup, firstOfGroup, ruleOfGroup, ruleOfGroup}

func questionsOf(r *rand.Rand, patterns []string) []question {
	var out []question
	for i, p := range patterns {
		for _, text := range expressions.Subjects(r, p, subjectsPerPattern) {
			for _, k := range waysToAsk {
				out = append(out, question{i, p, k, text})
			}
		}
	}
	return out
}

// report fails for each pattern that matches otherwise, with the shortest of the texts that show it. Questions behind those that were
// asked are left out.
func report(t *testing.T, name string, patterns []string, questions []question, got, want []string) {
	t.Helper()
	var wrong []int
	for i := range got {
		if got[i] != want[i] {
			wrong = append(wrong, i)
		}
	}
	slices.SortStableFunc(wrong, func(a, b int) int { return len(questions[a].text) - len(questions[b].text) })
	type place struct {
		pattern string
		kind    kind
	}
	told := map[place]bool{}
	for _, i := range wrong {
		q := questions[i]
		if at := (place{strconv.Itoa(q.number), q.kind}); q.kind != firstOfGroup && !told[at] {
			told[at] = true
			t.Errorf("%s, %s: %q on %q: %s, RE2: %s", name, q.kind, q.pattern, q.text, got[i], want[i])
		}
	}
	// The first match is another one because of one of two patterns: what is told of either of them may be the reason.
	for _, i := range wrong {
		q := questions[i]
		if q.kind != firstOfGroup {
			continue
		}
		known := false
		for _, pattern := range []string{got[i], want[i]} {
			for _, k := range waysToAsk {
				known = known || told[place{pattern, k}]
			}
			told[place{pattern, firstOfGroup}] = true
		}
		if !known {
			t.Errorf("%s, first match of %q: %s, RE2: %s", name, q.text, patternOf(patterns, got[i]), patternOf(patterns, want[i]))
		}
	}
}

// patternOf a verdict, which is a number or says that none matches.
func patternOf(patterns []string, verdict string) string {
	if i, err := strconv.Atoi(verdict); err == nil && i < len(patterns) {
		return strconv.Quote(patterns[i])
	}
	return "none"
}
