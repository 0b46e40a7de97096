package scenarios

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/bench/results"
)

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

// cookieRules are the rules of a proxy, and the cookies that it is asked with.
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

// cookieSubjects are the proxies: the first is without rules, and each of the others is held against it.
var cookieSubjects = []cookieRules{
	{"", peers.CookieRules{}, []string{"60b", "4k"}},
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
	type proxy struct {
		*process.Process
		url string
	}
	port := 19001
	for _, name := range names {
		var proxies []proxy
		for i := range cookieSubjects {
			address, folder := fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("%s/%s-%d", dir, name, i)
			port++
			if err := os.Mkdir(folder, 0o755); err != nil {
				return result, err
			}
			engine, rules := cookieEngines[name], cookieSubjects[i].rules
			rules.Hyperscan = engine.hyperscan
			p, err := peers.Start(engine.peer, folder, proxyPlace, peers.Work{Cookies: &rules}, address, backendAddress, o.Binaries)
			if err != nil {
				return result, err
			}
			defer p.Stop()
			proxies = append(proxies, proxy{p, "http://" + address + "/"})
		}
		added := map[string][]float64{}
		for run := range o.Runs + 1 { // The first run warms up and is not counted.
			without := map[int]float64{}
			for i, subject := range cookieSubjects {
				for _, cookie := range subject.cookies {
					each, err := costWithCookies(proxies[i].Process, proxies[i].url, texts[cookie], o.Duration)
					if err != nil {
						return result, fmt.Errorf("%s, cookies %s%s: %w", name, cookie, subject.name, err)
					}
					length := len(texts[cookie][0])
					if i == 0 {
						without[length] = each
						fmt.Fprintf(o.Progress, "p6 %s run %d/%d: %s without rules %.2f CPU µs per request\n", name, run, o.Runs, cookie, each)
						continue
					}
					fmt.Fprintf(o.Progress, "p6 %s run %d/%d: %s%s %.2f CPU µs more\n", name, run, o.Runs, cookie, subject.name, each-without[length])
					if run > 0 {
						figure := "added_us_" + cookie + subject.name
						added[figure] = append(added[figure], each-without[length])
					}
				}
			}
		}
		figures := map[string]float64{}
		for figure, values := range added {
			figures[figure] = results.Median(values)
		}
		result.Subjects[name] = figures
	}
	return result, nil
}

// costWithCookies is the processor time of a request, in microseconds.
func costWithCookies(p *process.Process, url string, cookies []string, duration time.Duration) (float64, error) {
	before, err := p.Cost()
	if err != nil {
		return 0, err
	}
	got, err := load.WrkCookies(clientPlace, url, 32, duration, cookies)
	if err != nil {
		return 0, err
	}
	after, err := p.Cost()
	if err != nil {
		return 0, err
	}
	if got.Requests == 0 || got.Errors*1000 > got.Requests {
		return 0, fmt.Errorf("%d good answers and %d errors: this run measures nothing", got.Requests, got.Errors)
	}
	used := after.User - before.User + after.System - before.System
	return float64(used.Nanoseconds()) / 1000 / float64(got.Requests), nil
}
