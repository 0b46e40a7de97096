package agent

import (
	"context"
	"time"
)

// backoff grows the pause between restarts: 0.5 s doubling to a minute, reset after a minute of running, so that a
// crashing program costs little and a rare crash costs no waiting.
type backoff struct{ pause time.Duration }

const (
	firstPause = 500 * time.Millisecond
	lastPause  = time.Minute
	stableTime = time.Minute
)

// next returns how long to wait after a run of that length.
func (b *backoff) next(ran time.Duration) time.Duration {
	if b.pause == 0 || ran >= stableTime {
		b.pause = firstPause
		return b.pause
	}
	b.pause = min(2*b.pause, lastPause)
	return b.pause
}

// wait pauses; it returns false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
