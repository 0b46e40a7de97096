package scenarios

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/bench/results"
)

// cookieTurn is how long one listener is asked before the other is.
const cookieTurn = 100 * time.Millisecond

// cookieTexts is how many texts a client sends by turns, so that no proxy answers from what it knows of the last one.
const cookieTexts = 64

// cookieEngines are the subjects: who is asked, and by which engine it finds expressions.
var cookieEngines = map[string]struct {
	peer      string
	hyperscan bool
}{
	"portable":  {peer: "heddle"},
	"hyperscan": {peer: "heddle", hyperscan: true},
	"envoy":     {peer: "envoy"},
}

// cookieRules are the rules of a listener, and the cookies that it is asked with.
type cookieRules struct {
	// name ends the names of the figures: "_whole" for expressions that a cookie begins and ends with.
	name    string
	rules   peers.CookieRules
	cookies []string
}

// cookies by name: what they hold of the expressions' words, and their length in bytes. Those that match are let pass by
// rules that allow, the others by rules that deny, so that each is answered.
var cookies = map[string]func(*rand.Rand) string{
	"60b": func(r *rand.Rand) string { return filled(r, "", 60) },
	"4k":  func(r *rand.Rand) string { return filled(r, "", 4096) },
	// The first words of all expressions, and never a second one.
	"60b_hostile": func(r *rand.Rand) string { return firstWords(r, 60) },
	"4k_hostile":  func(r *rand.Rand) string { return firstWords(r, 4096) },
	"60b_match":   func(r *rand.Rand) string { return matching(r, 60) },
	"4k_match":    func(r *rand.Rand) string { return matching(r, 4096) },
}

// cookieListeners are a proxy's: the first is without rules, and each of the others is held against it.
var cookieListeners = []cookieRules{
	{"", peers.CookieRules{}, nil},
	{"", peers.CookieRules{Action: "DENY", Anywhere: true}, []string{"60b", "60b_hostile", "4k", "4k_hostile"}},
	{"", peers.CookieRules{Action: "ALLOW", Anywhere: true}, []string{"60b_match", "4k_match"}},
	{"_whole", peers.CookieRules{Action: "DENY"}, []string{"60b", "60b_hostile", "4k", "4k_hostile"}},
	{"_whole", peers.CookieRules{Action: "ALLOW"}, []string{"60b_match", "4k_match"}},
}

func filled(r *rand.Rand, text string, length int) string {
	b := []byte(text)
	for len(b) < length {
		b = append(b, byte('a'+r.IntN(26)))
	}
	return string(b)
}

func firstWords(r *rand.Rand, length int) string {
	var text strings.Builder
	for text.Len()+9 <= length {
		fmt.Fprintf(&text, "malform%02d", r.IntN(peers.RuleCount))
	}
	return filled(r, text.String(), length)
}

func matching(r *rand.Rand, length int) string {
	n := r.IntN(peers.RuleCount)
	end := fmt.Sprintf("request%02d", n)
	return filled(r, fmt.Sprintf("malform%02d", n), length-len(end)) + end
}

// expressions measures what a hundred regular expressions on a cookie add to a request, in processor time.
func expressions(o Options) (results.Result, error) {
	result := results.New("p6", o.Runs, time.Now())
	names := o.Subjects
	if len(names) == 0 {
		names = []string{"portable", "hyperscan", "envoy"}
	}
	for _, name := range names {
		if _, known := cookieEngines[name]; !known {
			return result, fmt.Errorf("unknown subject %q of p6: want portable, hyperscan or envoy", name)
		}
	}
	dir, err := os.MkdirTemp("", "heddle-bench")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	texts := map[string][]string{}
	for name, text := range cookies {
		random := rand.New(rand.NewPCG(1, uint64(len(name))))
		for range cookieTexts {
			texts[name] = append(texts[name], text(random))
		}
	}
	var rules []peers.CookieRules
	for _, listener := range cookieListeners {
		rules = append(rules, listener.rules)
	}
	var subjects []*cookieSubject
	for i, name := range names {
		folder := filepath.Join(dir, name)
		if err := os.Mkdir(folder, 0o755); err != nil {
			return result, err
		}
		engine := cookieEngines[name]
		s := &cookieSubject{name: name, number: i, added: map[string][]float64{}}
		work := peers.Work{Cookies: rules, Hyperscan: engine.hyperscan}
		if s.proxy, err = peers.Start(engine.peer, folder, proxyPlace, work, s.address(0), backendAddress, o.Binaries); err != nil {
			return result, err
		}
		defer s.proxy.Stop()
		subjects = append(subjects, s)
	}
	for run := range o.Runs + 1 { // The first run warms up and is not counted.
		for _, s := range subjects {
			if err := s.run(run, texts, o); err != nil {
				return result, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	for _, s := range subjects {
		result.Subjects[s.name] = map[string]float64{}
		for figure, values := range s.added {
			result.Subjects[s.name][figure] = results.Median(values)
		}
	}
	return result, nil
}

// cookieSubject is a running proxy, and what rules added to requests in each run.
type cookieSubject struct {
	name   string
	number int
	proxy  *process.Process
	added  map[string][]float64
}

// address of a listener.
func (s *cookieSubject) address(listener int) string {
	return fmt.Sprintf("127.0.0.1:%d", 19001+len(cookieListeners)*s.number+listener)
}

// run measures what a request costs more where there are rules, for each of the cookies: both listeners are one process's and are
// asked by short turns, so that neither how a process lies in memory nor what else the machine does is part of the difference.
func (s *cookieSubject) run(run int, texts map[string][]string, o Options) error {
	for i, listener := range cookieListeners {
		for _, cookie := range listener.cookies {
			turns := load.Turns{Addresses: []string{s.address(0), s.address(i)}, Cookies: texts[cookie], Connections: 32,
				Length: cookieTurn, Rounds: max(1, int(o.Duration/(4*cookieTurn))), PID: s.proxy.PID()}
			took, err := load.ByTurns(clientPlace, turns)
			if err != nil {
				return fmt.Errorf("cookies %s%s: %w", cookie, listener.name, err)
			}
			without, with := took[0].MicrosecondsEach(), took[1].MicrosecondsEach()
			fmt.Fprintf(o.Progress, "p6 %s run %d/%d: %s%s %.2f CPU µs more than %.2f\n", s.name, run, o.Runs, cookie, listener.name, with-without, without)
			if run > 0 {
				figure := "added_us_" + cookie + listener.name
				s.added[figure] = append(s.added[figure], with-without)
			}
		}
	}
	return nil
}
