package federation

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A state that differs is work for every cluster of the mesh, so each member may only have so many.
const (
	statesPerSecond = 5
	statesBurst     = 10
)

func newStateLimiter() *rate.Limiter { return rate.NewLimiter(statesPerSecond, statesBurst) }

// intake holds a member's state back while it says new ones too often.
type intake struct {
	mu      sync.Mutex
	limiter *rate.Limiter
	// waiting is the latest state, until it is its time.
	waiting *State
}

// noteInTime notes a state, at once or when the member may have another one. Of those that come in between, the last one
// counts. One that waits when its stream ends is said again on the next stream.
func (f *Federation) noteInTime(s *stream, state State) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	if s.in.waiting != nil {
		f.counters.add(countStatesSkipped)
		s.in.waiting = &state
		return
	}
	if !f.differs(s, state) {
		return
	}
	now := f.config.Now()
	delay := s.in.limiter.ReserveN(now, 1).DelayFrom(now)
	if delay <= 0 {
		f.note(s, state)
		return
	}
	s.in.waiting = &state
	time.AfterFunc(delay, func() {
		s.in.mu.Lock()
		defer s.in.mu.Unlock()
		f.note(s, *s.in.waiting)
		s.in.waiting = nil
	})
}

// differs says whether the book says something else of a member.
func (f *Federation) differs(s *stream, state State) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.book[s.cluster]
	return e == nil || !e.equal(state)
}

// note writes a member's state into the book.
func (f *Federation) note(s *stream, state State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.book[s.cluster]
	if e == nil || f.streams[s.cluster] != s || e.equal(state) {
		return
	}
	e.State = state
	f.changed()
}
