package federation

import (
	"context"
	"time"

	"heddle.io/heddle/control/audit"
)

// formerState is how far this cluster is with the roots that it left when it joined. It is found out anew after a restart.
// The federation's lock guards it.
type formerState struct {
	// settled says since when every workload has a certificate of the mesh's root; zero when that is not known.
	settled time.Time
}

// joined says whether all workloads have certificates of the root that was just joined.
func (f *Federation) joined(all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.former = formerState{}
	if all {
		f.former.settled = f.config.Now()
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
	f.mu.Lock()
	state := f.former
	f.mu.Unlock()
	if state.settled.IsZero() && !roots.Dropped {
		if f.renewAll(ctx) == nil {
			f.joined(true)
		}
		return nil
	}
	if !roots.Dropped {
		ready := state.settled.Add(f.config.Pace.Overlap)
		if roots.Outside.After(ready) {
			ready = roots.Outside
		}
		if f.config.Now().Before(ready) {
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
	if f.renewAll(ctx) == nil {
		f.config.Log.Info("the roots of before the join are trusted no more")
		return f.config.Authority.ForgetFormerRoots()
	}
	return nil // The workloads are told again; the note stays.
}
