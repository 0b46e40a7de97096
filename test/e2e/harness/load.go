//go:build e2e

// Package harness is what end-to-end tests of one and of several clusters share: the command line, a browser, open-loop
// load, captures.
package harness

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Loads ask for more than the least rate at which a result counts, so that a hiccup of the machine is no failure.
const (
	LoadRate    = 240
	MinimumRate = 200
)

// Load sends requests at a fixed rate, whether or not earlier ones were answered (open loop), half of them on a new
// connection each. Nothing is retried.
type Load struct {
	cancel      context.CancelFunc
	done        sync.WaitGroup
	asked       atomic.Int64
	good        atomic.Int64
	onNew       atomic.Int64
	behind      atomic.Int64
	started     time.Time
	mu          sync.Mutex
	failures    []failure
	slowest     time.Duration
	slowestAt   time.Duration
	rate        int
	kept, fresh *http.Client
	inFlight    chan struct{}
	url         string
}

// failure of one request, by when it was asked and when it failed.
type failure struct {
	asked, failed time.Duration
	err           error
}

// StartLoad begins asking url at rate requests per second.
func StartLoad(t *testing.T, url string, rate int) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &Load{cancel: cancel, url: url, rate: rate, started: time.Now(), inFlight: make(chan struct{}, 4000),
		kept:  client(&http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}),
		fresh: client(&http.Transport{DisableKeepAlives: true, DisableCompression: true})}
	l.done.Go(func() { l.pace(ctx) })
	t.Cleanup(func() { l.cancel(); l.done.Wait() })
	return l
}

// client takes an answer as it is, also one that leads elsewhere.
func client(over *http.Transport) *http.Client {
	asItIs := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Timeout: 10 * time.Second, Transport: over, CheckRedirect: asItIs}
}

func (l *Load) pace(ctx context.Context) {
	due := time.NewTimer(0)
	defer due.Stop()
	for n := 0; ; n++ {
		// By the clock, not by the last request: a late one is followed by the next at once.
		due.Reset(time.Until(l.started.Add(time.Duration(n) * time.Second / time.Duration(l.rate))))
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		}
		select {
		case l.inFlight <- struct{}{}:
		default:
			// So many unanswered at once is a failure of the mesh, not of the client.
			l.behind.Add(1)
			continue
		}
		l.asked.Add(1)
		client := l.kept
		if n%2 == 0 {
			client = l.fresh
			l.onNew.Add(1)
		}
		l.done.Go(func() {
			defer func() { <-l.inFlight }()
			// Not ctx: what was asked is waited for, so that stopping the load fails nothing.
			began := time.Now()
			l.note(began, get(client, l.url))
		})
	}
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusSeeOther {
		if len(body) == 0 {
			body = []byte("without a body")
		}
		return fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return nil
}

func (l *Load) note(began time.Time, err error) {
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if took > l.slowest {
		l.slowest, l.slowestAt = took, began.Sub(l.started)
	}
	if err != nil {
		l.failures = append(l.failures, failure{asked: began.Sub(l.started), failed: began.Sub(l.started) + took, err: err})
		return
	}
	l.good.Add(1)
}

func (l *Load) answered() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.good.Load() + int64(len(l.failures))
}

// URL is the page that is asked for.
func (l *Load) URL() string { return l.url }

// Elapsed is the time since the start.
func (l *Load) Elapsed() time.Duration { return time.Since(l.started) }

// WaitFor blocks until that many more requests were answered.
func (l *Load) WaitFor(t *testing.T, more int64) {
	t.Helper()
	target := l.answered() + more
	Eventually(t, 2*time.Minute, fmt.Sprintf("%d more answers", more), func() error {
		if have := l.answered(); have < target {
			return fmt.Errorf("%d of %d", have, target)
		}
		return nil
	})
}

// Any is no bound on how many requests of a class may fail, and is said where it is meant.
const Any = -1

// Allowance is a class of requests that a fault may have failed: those asked in a time of the load, counted from its
// start, that failed in one of the ways. Nothing else may fail.
type Allowance struct {
	Why      string
	From, To time.Duration
	// Like are parts of the errors' texts, of which one has to be there; none for every text.
	Like []string
	// AtMost is how many may have failed.
	AtMost int
}

func (a Allowance) covers(f failure) bool {
	if f.asked < a.From || f.asked > a.To {
		return false
	}
	like := len(a.Like) == 0
	for _, part := range a.Like {
		like = like || strings.Contains(f.err.Error(), part)
	}
	return like
}

func (a Allowance) String() string {
	most := "any number"
	if a.AtMost != Any {
		most = fmt.Sprintf("at most %d", a.AtMost)
	}
	return fmt.Sprintf("%s, asked %.2f to %.2f s, %s", a.Why, a.From.Seconds(), a.To.Seconds(), most)
}

// Stop ends the load, prints its counts and fails the test unless the rate was held, every request was sent when it was
// due, and every one was answered with 200 or 303, the allowed ones excepted. It returns how many failed.
func (l *Load) Stop(t *testing.T, allowed ...Allowance) int {
	t.Helper()
	l.cancel()
	took := time.Since(l.started)
	l.done.Wait()
	rate := float64(l.asked.Load()) / took.Seconds()
	counts := make([]int, len(allowed))
	var outside []failure
	kinds := map[string]int{}
	for _, f := range l.failures {
		kinds[kind(f.err)]++
		at := slices.IndexFunc(allowed, func(a Allowance) bool { return a.covers(f) })
		if at < 0 {
			outside = append(outside, f)
			continue
		}
		counts[at]++
	}
	t.Logf("load on %s: asked for %d/s, sent %d in %.1f s (%.0f/s, %d on new connections), answered well %d, failed %d (%d of them not allowed), not sent for want of answers %d; slowest %.2f s, asked after %.1f s",
		l.url, l.rate, l.asked.Load(), took.Seconds(), rate, l.onNew.Load(), l.good.Load(), len(l.failures), len(outside), l.behind.Load(),
		l.slowest.Seconds(), l.slowestAt.Seconds())
	for i, a := range allowed {
		t.Logf("  %d failed: %v", counts[i], a)
		if a.AtMost != Any && counts[i] > a.AtMost {
			t.Errorf("%d requests failed: %v", counts[i], a)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		t.Logf("  %d failed by: %s", kinds[k], k)
	}
	if len(outside) > 0 {
		t.Errorf("%d requests failed that should not, first of them:", len(outside))
		for _, f := range outside[:min(10, len(outside))] {
			t.Logf("  asked after %.2f s, failed after %.2f s: %v", f.asked.Seconds(), f.failed.Seconds(), f.err)
		}
	}
	if l.behind.Load() > 0 {
		t.Errorf("%d requests were not sent: too many were unanswered", l.behind.Load())
	}
	// The last ones may be due while the load is being stopped.
	if due := int64(took.Seconds() * float64(l.rate)); due-l.asked.Load()-l.behind.Load() > int64(l.rate)/10 {
		t.Errorf("%d of %d requests were not sent when they were due: the test machine is too slow for this result to count", due-l.asked.Load()-l.behind.Load(), due)
	}
	if rate < MinimumRate {
		t.Errorf("sent %.0f requests/s, at least %d are asked for: the test machine is too slow for this result to count", rate, MinimumRate)
	}
	return len(l.failures)
}

// ports are what differs between the same failures.
var ports = regexp.MustCompile(`:[0-9]{4,5}`)

// kind is a failure's text without what differs each time.
func kind(err error) string { return ports.ReplaceAllString(err.Error(), ":…") }
