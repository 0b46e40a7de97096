package federation

import (
	"context"
	"time"

	"heddle.io/heddle/control/audit"
)

// formerRetry is the pause after workloads that could not be renewed: their proxies are waited for in each attempt.
const formerRetry = time.Minute

// formerState is how far this cluster is with the roots that it left when it joined. It is found out anew after a restart.
// The federation's lock guards it.
type formerState struct {
	// settled says since when every workload has a certificate of the mesh's root; zero when that is not known.
	settled time.Time
	// again is when the workloads are renewed again after some could not be.
	again time.Time
}

// joined says whether all workloads have certificates of the root that was just joined.
func (f *Federation) joined(all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.former = formerState{}
	if now := f.config.Now(); all {
		f.former.settled = now
	} else {
		f.former.again = now.Add(formerRetry)
	}
	signal(f.reroot)
}

// stepFormer ends the trust in the roots that this cluster left when it joined, as soon as no workload shows a certificate of
// them. Who holds the key of such a root, for example a mesh that threw this cluster out, could be anybody here until then.
func (f *Federation) stepFormer(ctx context.Context) error {
	roots, some := f.config.Authority.FormerRoots()
	if !some {
		return nil
	}
	now := f.config.Now()
	f.mu.Lock()
	state := f.former
	f.mu.Unlock()
	if now.Before(state.again) {
		return nil
	}
	if state.settled.IsZero() && !roots.Dropped {
		if err := f.config.Rotate(ctx); err != nil {
			f.joined(false)
			return err
		}
		f.joined(true)
		return nil
	}
	if !roots.Dropped {
		ready := state.settled.Add(f.config.Pace.Overlap)
		if roots.Outside.After(ready) {
			ready = roots.Outside
		}
		if now.Before(ready) {
			return nil // Handshakes that have begun end meanwhile, and so do certificates that others renew.
		}
		ended, err := f.config.Audit.Begin(audit.Record{Who: "controller of " + f.config.Cluster.Name, Action: audit.ForgetRoot,
			Detail: "every workload has a certificate of the mesh that was joined"})
		if err != nil {
			return err
		}
		err = f.config.Authority.DropFormerRoots()
		if ended("", err); err != nil {
			return err
		}
	}
	if err := f.config.Rotate(ctx); err != nil {
		f.mu.Lock()
		f.former.again = now.Add(formerRetry)
		f.mu.Unlock()
		return err
	}
	f.config.Log.Info("the roots of before the join are trusted no more")
	return f.config.Authority.ForgetFormerRoots()
}
