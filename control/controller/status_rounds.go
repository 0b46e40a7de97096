package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/push"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// statusPause is the least time between two rounds of statuses: they follow the proxies' answers, which come in bursts.
const statusPause = 250 * time.Millisecond

// statusRetry is between attempts while the store takes no writes.
const statusRetry = 2 * time.Second

// Looking for statuses that differ takes no more than a part of a processor, one in statusShare, however many objects are to be
// looked at; but it is looked again after statusLatest at the latest.
const (
	statusShare  = 10
	statusLatest = 5 * time.Second
)

// Bounds of writing statuses: those that a round writes at the most, and how long one waits that the store did not take. Each is a write
// that the store syncs, and that all who watch hear of.
const (
	statusBatch = 50
	statusAgain = 10 * time.Second
)

// statusLoop writes statuses whenever the model, a proxy's answer or a report may have changed them.
func (c *Controller) statusLoop(ctx context.Context) {
	w := newStatusWriter(c)
	for {
		var again <-chan time.Time
		if len(w.late) > 0 {
			again = time.After(time.Until(w.retried.Add(statusAgain)))
		}
		if len(w.left) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-c.restatus:
			case <-again:
			}
		}
		err := w.round(ctx)
		pause := pauseAfter(w.looked)
		if err != nil {
			pause = statusRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// pauseAfter is the time between a round of statuses that looked for so long and the next.
func pauseAfter(looked time.Duration) time.Duration {
	return min(max((statusShare-1)*looked, statusPause), statusLatest)
}

// statusWriter writes statuses in rounds, and looks at those alone whose parts are said to have changed: by the store, agents and
// namespaces ([Controller.stale]), the model ([resolve.Model.Restated]), the proxies and what they are sent
// ([push.Pusher.Changed]), a staged change, and what holds for all of the cluster.
type statusWriter struct {
	c *Controller
	// looked is how long the last round took, without the time in which the store wrote.
	looked time.Duration
	// left are the objects that are still to be looked at, queued the same ones.
	left   []objects.Key
	queued map[objects.Key]struct{}
	// late are those whose status the store did not take, and retried is when such were looked at last.
	late    map[objects.Key]struct{}
	retried time.Time
	// staged, advertised and clusters are as in the round before.
	staged     stageView
	advertised netip.Addr
	clusters   map[string]client.ClusterStatus
}

func newStatusWriter(c *Controller) *statusWriter {
	return &statusWriter{c: c, queued: map[objects.Key]struct{}{}, late: map[objects.Key]struct{}{}}
}

// look has an object be looked at.
func (w *statusWriter) look(key objects.Key) {
	if _, is := w.queued[key]; !is {
		w.queued[key] = struct{}{}
		w.left = append(w.left, key)
	}
}

// gather finds what is to be looked at since it was called last.
func (w *statusWriter) gather(now time.Time) {
	c := w.c
	for _, key := range slices.Concat(c.model.Restated(), c.pusher.Changed()) {
		w.look(key)
	}
	staged, advertised := c.stagedNow(), c.ingressAddress()
	c.mu.Lock()
	for key := range c.stale {
		w.look(key)
	}
	c.stale = nil
	// Whom a change went on without stands in the status of whatever they have not acknowledged; that is rare.
	if without := staged.without() != w.staged.without(); without || advertised != w.advertised {
		for key := range c.objects {
			if without || key.Group == objects.KubernetesGateway.Group && key.Kind == objects.KubernetesGateway.Kind {
				w.look(key)
			}
		}
	}
	c.mu.Unlock()
	if !staged.says(w.staged) {
		for _, of := range []map[objects.Key]bool{w.staged.objects, staged.objects} {
			for key := range of {
				w.look(key)
			}
		}
	}
	w.staged, w.advertised = staged, advertised
	before := w.clusters
	w.clusters = map[string]client.ClusterStatus{}
	for _, s := range c.federation.Clusters() {
		w.clusters[s.Name] = s
		if was := before[s.Name]; was.Connected != s.Connected || was.Reachable != s.Reachable || was.Problem != s.Problem {
			w.look(objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: s.Name})
		}
	}
	for name := range before {
		if _, there := w.clusters[name]; !there {
			w.look(objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: name})
		}
	}
	if len(w.late) > 0 && now.Sub(w.retried) >= statusAgain {
		w.retried = now
		for key := range w.late {
			w.look(key)
		}
		w.late = map[objects.Key]struct{}{}
	}
}

// round writes what differs, as far as one round goes. The error is that the store takes no writes.
func (w *statusWriter) round(ctx context.Context) error {
	started, writing := time.Now(), time.Duration(0)
	defer func() { w.looked = time.Since(started) - writing }()
	w.gather(started)
	for written := 0; len(w.left) > 0 && written < statusBatch; {
		some := w.left[:min(len(w.left), statusBatch-written)]
		progress := w.c.pusher.Progress(some)
		for _, key := range some {
			o, status := w.status(key, progress[key])
			if o != nil {
				written++
				begun := time.Now()
				_, err := w.c.store.SetStatus(ctx, key, status, o.StatusVersion)
				writing += time.Since(begun)
				switch {
				case err == nil || ctx.Err() != nil || errors.Is(err, store.ErrNotFound):
				case errors.Is(err, store.ErrConflict):
					// Most come back sooner, with what was written in between.
					w.late[key] = struct{}{}
				default:
					w.c.log.Warn("status not written", "object", key.String(), "error", err)
					if errors.Is(err, store.ErrUnavailable) {
						// The others would not be, either.
						return fmt.Errorf("write the status of %s: %w", key, err)
					}
					w.late[key] = struct{}{}
				}
			}
			w.left = w.left[1:]
			delete(w.queued, key)
		}
	}
	return nil
}

// status of an object, with the object; nil when it has that status.
func (w *statusWriter) status(key objects.Key, progress push.Progress) (*objects.Object, objects.Status) {
	c := w.c
	var states []objects.ReplicaState
	c.mu.Lock()
	o := c.objects[key]
	if o != nil && o.Kind == objects.Workload {
		states = c.replicas.of(key)
	}
	c.mu.Unlock()
	if delete(w.late, key); o == nil {
		return nil, objects.Status{}
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	status := c.model.Report().Status(key)
	if refused := c.confined(o); refused != nil {
		// In the place of what the model says, which knows nothing of users and capabilities.
		status.Conditions = resolve.MergeConditions(status.Conditions, []metav1.Condition{*refused}, now)
	}
	if programmed := programmed(o, progress, w.staged); programmed != nil {
		status.Conditions = append(status.Conditions, *programmed)
		resolve.Programmed(&status, programmed)
	}
	reachedBy(o, &status, w.advertised, c.settings.Domain)
	status.Fields = append(slices.Clip(status.Fields), patchFields(progress)...)
	if o.Kind == objects.Cluster {
		status.Conditions = append(status.Conditions, clusterConditions(o, w.clusters[o.GetName()])...)
	}
	status = resolve.MergeStatus(o.Status, status, now)
	if o.Kind == objects.Workload {
		status.Workload = &objects.WorkloadState{Replicas: states}
	}
	if reflect.DeepEqual(normal(status), normal(o.Status)) {
		return nil, status
	}
	return o, status
}
