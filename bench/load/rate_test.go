package load

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestRequestsAreDueAtTheRate(t *testing.T) {
	var connections atomic.Int64
	address := answering(t, &connections, raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	r, err := fixedRate{Address: address, Target: "/", Connections: 3, PerSecond: 1000, Duration: 50 * time.Millisecond}.run()
	if err != nil {
		t.Fatal(err)
	}
	// raw takes a connection over at its first request, so that those are counted.
	if r.Requests != 50 || r.Errors != 0 || connections.Load() != 3 {
		t.Errorf("%+v over %d connections, want 50 requests over 3", r, connections.Load())
	}
	if r.PerSecond > 1000 || r.P50 <= 0 || r.P95 < r.P50 || r.P99 < r.P95 {
		t.Errorf("%+v", r)
	}
}

// What is due while an answer is awaited on its connection waits as well, and that is seen.
func TestLatencyBeginsWhenARequestIsDue(t *testing.T) {
	const pause = 30 * time.Millisecond
	var answers atomic.Int64
	var connections atomic.Int64
	address := answering(t, &connections, rawAfter("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func() {
		if answers.Add(1) == 2 { // The first is not counted.
			<-time.After(pause)
		}
	}))
	r, err := fixedRate{Address: address, Target: "/", Connections: 1, PerSecond: 1000, Duration: 20 * time.Millisecond}.run()
	if err != nil {
		t.Fatal(err)
	}
	// The first of twenty waits for the pause, the tenth is due nine milliseconds later.
	if r.Requests != 20 || r.P50 < pause-10*time.Millisecond {
		t.Errorf("%+v, want a median of %v at the least", r, pause-10*time.Millisecond)
	}
}

func TestARateHasBounds(t *testing.T) {
	for _, perSecond := range []int{-1, 0, MostPerSecond + 1} {
		if _, err := (fixedRate{PerSecond: perSecond}).run(); err == nil || !strings.Contains(err.Error(), "want 1 to 1000000") {
			t.Errorf("%d: error %v", perSecond, err)
		}
	}
	if _, err := (fixedRate{PerSecond: 5, Connections: 1, Duration: 100 * time.Millisecond}).run(); err == nil || !strings.Contains(err.Error(), "no request of 5 per second is due in 100ms") {
		t.Errorf("error %v where nothing is due", err)
	}
}

func TestAnyOtherAnswerEndsARate(t *testing.T) {
	// The first is the uncounted one, whose answer is good in the second case.
	for _, good := range []int64{0, 1} {
		var connections, requests atomic.Int64
		address := answering(t, &connections, func(w http.ResponseWriter, _ *http.Request) {
			if requests.Add(1) > good {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		f := fixedRate{Address: address, Target: "/", Connections: 1, PerSecond: 1000, Duration: time.Millisecond}
		if _, err := f.run(); err == nil || !strings.Contains(err.Error(), "the answer is not 200") {
			t.Errorf("error %v after %d good answers", err, good)
		}
	}
}
