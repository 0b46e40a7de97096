package federation

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A state that differs is work for every cluster of the mesh, so each member may only have so many.
const (
	statesPerSecond = 5
	statesBurst     = 10
)

// Each intermediate that is signed is a record in the audit log, whose room is bounded.
const (
	renewalsPerSecond = 0.2
	renewalsBurst     = 20
)

// rates are how often a member may have the mesh at work. They are the membership's and not a stream's: who comes anew has no
// more.
type rates struct {
	states, renewals *rate.Limiter
}

// ratesOf gives those of a member. They are forgotten with its Cluster object.
func (f *Federation) ratesOf(who peerOf) *rates {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rates[who.membership]
	if r == nil {
		r = &rates{states: rate.NewLimiter(statesPerSecond, statesBurst), renewals: rate.NewLimiter(renewalsPerSecond, renewalsBurst)}
		f.rates[who.membership] = r
	}
	return r
}

// inTurn waits until a member may have another stream, whose coming and going is told to all others. It returns false when
// ctx ends first, and then takes nobody's turn. Meanwhile the stream is among those that wait, which end with a removal.
func (f *Federation) inTurn(ctx context.Context, s *stream, r *rates) bool {
	f.mu.Lock()
	f.waiting[s] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting, s)
	}()
	now := f.config.Now()
	turn := r.states.ReserveN(now, 1)
	if !wait(ctx, turn.DelayFrom(now), nil) {
		turn.CancelAt(f.config.Now())
		return false
	}
	return true
}

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
		if f.differs(s, *s.in.waiting) {
			f.note(s, *s.in.waiting)
		}
		s.in.waiting = nil
	})
}

// differs says whether something else is known of a member.
func (f *Federation) differs(s *stream, state State) bool {
	f.mu.Lock()
	e := f.peers[s.cluster]
	if e == nil {
		f.mu.Unlock()
		return true
	}
	before := e.State
	f.mu.Unlock()
	// Only this stream writes another one, and states are never changed: nobody has to wait while they are compared.
	return !before.equal(state)
}

// note takes a member's state, which differs.
func (f *Federation) note(s *stream, state State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.peers[s.cluster]
	if e == nil || f.streams[s.cluster] != s {
		return
	}
	e.State = state
	f.changed(s.cluster)
}
