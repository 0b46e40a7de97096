package federation

import (
	"context"
	"time"
)

// lastRenewal is the longest pause between two attempts to renew workloads: so long a proxy that comes round late may go
// unnoticed.
const lastRenewal = time.Minute

// renewals pace the attempts to have every workload renewed that no command waits for: each waits for the proxies that are
// silent, signs for those that refuse, and holds off joins meanwhile. A restart begins anew. The federation's lock guards them.
type renewals struct {
	// wanted is the generation that the last attempt was for, see [ca.Authority.Generation], problem what became of it.
	wanted  string
	problem error
	// pause after it; the next one is not before again.
	pause time.Duration
	again time.Time
}

// renewAll has every workload renewed, for what goes on by itself. What an attempt did not bring about is tried again after
// a pause, twice as long each time while the same is wanted; until then the answer is that of the last attempt.
func (f *Federation) renewAll(ctx context.Context) error {
	wanted, err := f.config.Authority.Generation()
	if err != nil {
		return err
	}
	f.mu.Lock()
	last := f.renewals
	f.mu.Unlock()
	again := last.wanted == wanted && last.problem != nil
	if again && f.config.Now().Before(last.again) {
		return last.problem
	}
	problem := f.config.Rotate(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // Taken back: it says nothing of the workloads.
	}
	next := renewals{wanted: wanted, problem: problem, pause: f.config.Pace.Resume}
	if problem != nil {
		if again {
			next.pause = min(2*last.pause, lastRenewal)
		}
		next.again = f.config.Now().Add(next.pause)
		f.config.Log.Warn("not all workloads have the certificates and roots that they should have", "error", problem, "again_in", next.pause)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renewals = next
	f.counters.add(countWorkloadRenewals)
	return problem
}
