//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load sends requests at a fixed rate, whether or not earlier ones were answered (open loop), half of them on a new
// connection each. Nothing is retried.
type load struct {
	cancel      context.CancelFunc
	done        sync.WaitGroup
	asked       atomic.Int64
	good        atomic.Int64
	failed      atomic.Int64
	onNew       atomic.Int64
	behind      atomic.Int64
	started     time.Time
	mu          sync.Mutex
	failures    []string
	slowest     time.Duration
	slowestAt   time.Duration
	rate        int
	kept, fresh *http.Client
	inFlight    chan struct{}
	url         string
}

// startLoad begins asking url at rate requests per second.
func startLoad(t *testing.T, url string, rate int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, url: url, rate: rate, started: time.Now(), inFlight: make(chan struct{}, 1000),
		kept:  &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}},
		fresh: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}}
	l.done.Go(func() { l.pace(ctx) })
	t.Cleanup(func() { l.cancel(); l.done.Wait() })
	return l
}

func (l *load) pace(ctx context.Context) {
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
			err := get(client, l.url)
			l.note(began)
			if err != nil {
				l.fail(err)
				return
			}
			l.good.Add(1)
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
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return nil
}

// note remembers the slowest request and when it began.
func (l *load) note(began time.Time) {
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if took > l.slowest {
		l.slowest, l.slowestAt = took, began.Sub(l.started)
	}
}

func (l *load) fail(err error) {
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) < 10 {
		l.failures = append(l.failures, fmt.Sprintf("after %.1fs: %v", time.Since(l.started).Seconds(), err))
	}
}

// waitFor blocks until that many more requests were answered.
func (l *load) waitFor(t *testing.T, more int64) {
	t.Helper()
	target := l.good.Load() + l.failed.Load() + more
	eventually(t, 2*time.Minute, fmt.Sprintf("%d more answers", more), func() error {
		if have := l.good.Load() + l.failed.Load(); have < target {
			return fmt.Errorf("%d of %d", have, target)
		}
		return nil
	})
}

// stop ends the load, prints its counts and fails the test unless every request was answered with 200 and the rate
// was held.
func (l *load) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	took := time.Since(l.started)
	l.done.Wait()
	rate := float64(l.asked.Load()) / took.Seconds()
	t.Logf("load on %s: asked for %d/s, sent %d in %.1f s (%.0f/s, %d on new connections), answered well %d, failed %d, not sent for want of answers %d; slowest %.2f s, asked after %.1f s",
		l.url, l.rate, l.asked.Load(), took.Seconds(), rate, l.onNew.Load(), l.good.Load(), l.failed.Load(), l.behind.Load(),
		l.slowest.Seconds(), l.slowestAt.Seconds())
	if l.failed.Load() > 0 || l.behind.Load() > 0 {
		t.Errorf("%d requests failed, first of them:", l.failed.Load())
		for _, f := range l.failures {
			t.Log("  " + f)
		}
	}
	if rate < minimumRate {
		t.Errorf("sent %.0f requests/s, at least %d are asked for: the test machine is too slow for this result to count", rate, minimumRate)
	}
}
