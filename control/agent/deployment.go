package agent

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// rolloutTimeout is how long a replaced replica may take to be ready before the next is replaced.
const rolloutTimeout = 60 * time.Second

// deployment brings the replicas of one workload to what is wanted: surplus ones stop and missing ones start together,
// changed ones are replaced one after the other.
type deployment struct {
	agent  *Agent
	key    string
	cancel context.CancelFunc
	kick   chan struct{}

	mu      sync.Mutex
	wanted  []replicaSpec
	version int
	// gone says that the workload was deleted: nothing of it is to stay, its addresses included.
	gone bool
	// placed says that the first round has put its replicas into running.
	placed  bool
	running map[string]*replica
	// removing are those of running that have to go before another of their name may start: a removal that failed is tried again.
	removing map[*replica]bool
}

// deploy sets what is wanted of a workload. Of one that wants nothing, as a stopped one, the addresses are kept.
func (a *Agent) deploy(ctx context.Context, key string, wanted []replicaSpec) {
	a.want(ctx, key, a.captures.settle(wanted), false)
}

// undeploy removes a workload that was deleted. One that is stopped may have no deployment, and ids from when it ran.
func (a *Agent) undeploy(ctx context.Context, key string) {
	a.mu.Lock()
	deployed := a.deployments[key] != nil
	a.mu.Unlock()
	if !deployed {
		// Logs that are left are the next sweep's.
		a.forget(key)
		return
	}
	a.want(ctx, key, nil, true)
}

func (a *Agent) want(ctx context.Context, key string, wanted []replicaSpec, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.deployments[key]
	if d == nil {
		if len(wanted) == 0 {
			return
		}
		d = &deployment{agent: a, key: key, kick: make(chan struct{}, 1), running: map[string]*replica{}, removing: map[*replica]bool{}}
		ctx, d.cancel = context.WithCancel(ctx)
		a.deployments[key] = d
		go d.run(ctx)
	}
	d.mu.Lock()
	same := d.gone == gone && sameSpecs(d.wanted, wanted)
	if !same {
		d.wanted, d.gone = wanted, gone
		d.version++
	}
	d.mu.Unlock()
	if same {
		// Others changed. What was asked for of this one is done, or being done.
		return
	}
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// sameSpecs says whether replicas of the one are replicas of the other, and their keys used alike. Those of an object that
// did not change are one list.
func sameSpecs(x, y []replicaSpec) bool {
	if len(x) == len(y) && len(x) > 0 && &x[0] == &y[0] {
		return true
	}
	return reflect.DeepEqual(x, y)
}

func (d *deployment) run(ctx context.Context) {
	var pauses backoff
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.kick:
		case <-again:
		}
		again = nil
		clean := d.reconcile(ctx)
		retired, forgotten := d.retire()
		if retired {
			return
		}
		if clean && forgotten {
			pauses = backoff{}
		} else {
			again = time.After(pauses.next(0))
		}
	}
}

// retire forgets a deleted workload once nothing of it is left, and says whether it did, and whether nothing was in its way:
// otherwise another round is needed. Nobody else starts replicas of it, so their addresses can go first.
func (d *deployment) retire() (retired, forgotten bool) {
	finished := func() bool { return d.gone && len(d.running) == 0 }
	d.mu.Lock()
	over := finished()
	d.mu.Unlock()
	if !over {
		return false, true
	}
	if !d.agent.forget(d.key) {
		return false, false
	}
	d.agent.mu.Lock()
	defer d.agent.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !finished() {
		// It was made again meanwhile.
		return false, true
	}
	delete(d.agent.deployments, d.key)
	d.cancel()
	return true, true
}

// forget removes the logs of a deleted workload of which nothing runs, and frees its ids. While logs are left, which it says,
// it keeps the ids, by which the logs are found.
func (a *Agent) forget(workload string) bool {
	if err := removeLogs(a.config.Cluster, a.addresses.Owners(workload)...); err != nil {
		a.log.Error("logs of a deleted workload are still there; trying again", "workload", workload, "error", err)
		return false
	}
	if err := errors.Join(a.addresses.Release(workload), a.users.Release(workload)); err != nil {
		a.log.Error("addresses or user ids of a deleted workload are not free yet", "workload", workload, "error", err)
	}
	return true
}

func (d *deployment) appendTo(out []*replica) []*replica {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.running {
		out = append(out, r)
	}
	return out
}

// replica returns one, or nil.
func (d *deployment) replica(name string) *replica {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running[name]
}

func (d *deployment) isPlaced() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.placed
}

// reconcile goes one round. It returns false when something could not be removed, so that another round is needed.
func (d *deployment) reconcile(ctx context.Context) bool {
	d.mu.Lock()
	wanted, version := d.wanted, d.version
	var missing []replicaSpec
	for _, w := range wanted {
		if d.running[w.Name] == nil {
			missing = append(missing, w)
		}
	}
	d.mu.Unlock()
	if len(missing) > 0 {
		// For all of them at once, the disk is written once. Each asks for its own again, and tells why it has none.
		_, _, _, _ = d.agent.ids(missing...)
	}
	d.mu.Lock()
	names := map[string]bool{}
	var surplus []*replica
	for _, w := range wanted {
		names[w.Name] = true
	}
	for name, r := range d.running {
		if !names[name] || d.removing[r] {
			surplus = append(surplus, r)
		}
	}
	var changed []replicaSpec
	same := map[*replica]replicaSpec{}
	for _, w := range wanted {
		switch r := d.running[w.Name]; {
		case r == nil:
			d.startLocked(ctx, w)
		case d.removing[r]:
		case r.hash != w.hash():
			changed = append(changed, w)
		default:
			same[r] = w
		}
	}
	d.placed = true
	d.mu.Unlock()
	for r, w := range same {
		r.useKeysBy(w.KeyProvider)
	}
	d.agent.signalPlaced()
	clean := d.removeAll(ctx, surplus)
	d.mu.Lock()
	for _, w := range wanted {
		// What was in its way is gone.
		if d.running[w.Name] == nil && d.version == version && ctx.Err() == nil {
			d.startLocked(ctx, w)
		}
	}
	d.mu.Unlock()
	for _, w := range changed {
		d.mu.Lock()
		outdated := d.version != version
		r := d.running[w.Name]
		d.mu.Unlock()
		if outdated || ctx.Err() != nil {
			// The next round decides with what is wanted now.
			return clean
		}
		if r != nil && !d.remove(ctx, r) {
			// The others go on serving meanwhile.
			return false
		}
		d.mu.Lock()
		next := d.startLocked(ctx, w)
		d.mu.Unlock()
		d.awaitReady(ctx, next)
	}
	d.agent.dirty()
	return clean
}

func (d *deployment) startLocked(ctx context.Context, spec replicaSpec) *replica {
	r := d.agent.newReplica(spec)
	d.running[spec.Name] = r
	r.start(ctx)
	return r
}

// removeAll says whether nothing is left of any of them.
func (d *deployment) removeAll(ctx context.Context, all []*replica) bool {
	var stops sync.WaitGroup
	var left atomic.Bool
	for _, r := range all {
		stops.Go(func() {
			if !d.remove(ctx, r) {
				left.Store(true)
			}
		})
	}
	stops.Wait()
	return !left.Load()
}

// remove says whether nothing is left of the replica. As long as something is, its name and its ids are not free.
func (d *deployment) remove(ctx context.Context, r *replica) bool {
	d.mu.Lock()
	d.removing[r] = true
	d.mu.Unlock()
	if err := r.stop(ctx); err != nil {
		r.set(func() { r.message = "not removed yet: " + err.Error() })
		r.log.Error("workload not removed; trying again", "error", err)
		return false
	}
	d.mu.Lock()
	delete(d.running, r.spec.Name)
	delete(d.removing, r)
	d.mu.Unlock()
	d.agent.located.Add(1)
	d.agent.dirty()
	return true
}

// awaitReady waits until a replaced replica is ready, or for as long as a rollout waits for one.
func (d *deployment) awaitReady(ctx context.Context, r *replica) {
	ctx, cancel := context.WithTimeout(ctx, rolloutTimeout)
	defer cancel()
	for {
		ready, changed := r.ready()
		if ready {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
