package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/model/build"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/xds"
)

// statusPause is the least time between two rounds of statuses: they follow the proxies' answers, which come in bursts.
const statusPause = 250 * time.Millisecond

// statusRetry is between attempts while the store takes no writes.
const statusRetry = 2 * time.Second

// statusLoop writes statuses whenever the model, a proxy's answer or a report may have changed them.
func (c *Controller) statusLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.restatus:
		}
		pause := statusPause
		if !c.writeStatuses(ctx) {
			pause = statusRetry
			signal(c.restatus)
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

// writeStatuses returns false when the store did not take them.
func (c *Controller) writeStatuses(ctx context.Context) bool {
	c.mu.Lock()
	report := c.report
	all := make([]*objects.Object, 0, len(c.objects))
	for _, o := range c.objects {
		all = append(all, o)
	}
	c.mu.Unlock()
	if report == nil {
		return true
	}
	replicas := c.Replicas()
	nodes := map[string]xds.NodeStatus{}
	for _, n := range c.xds.Nodes() {
		nodes[n.ID] = n
	}
	c.uses.keep(nodes)
	clusters := map[string]client.ClusterStatus{}
	for _, s := range c.federation.Status().Clusters {
		clusters[s.Name] = s
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	for _, o := range all {
		status := report.Status(o.Key())
		programmed, proxies := c.programmed(o, replicas, nodes)
		if programmed != nil {
			status.Conditions = append(status.Conditions, *programmed)
		}
		status.Proxies = proxies
		if o.Kind == objects.Cluster {
			status.Conditions = append(status.Conditions, clusterConditions(o, clusters[o.GetName()])...)
		}
		status.Conditions = build.MergeConditions(o.Status.Conditions, status.Conditions, now)
		if o.Kind == objects.Workload {
			status.Workload = workloadState(o, replicas)
		}
		if reflect.DeepEqual(normal(status), normal(o.Status)) {
			continue
		}
		if err := c.store.SetStatus(ctx, o.Key(), status); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNotFound) {
			c.log.Warn("status not written", "object", o.Key().String(), "error", err)
			if errors.Is(err, store.ErrUnavailable) {
				// The others would not be, either.
				return false
			}
		}
	}
	return true
}

// normal makes statuses that say the same equal: times with and without location, empty and missing lists.
func normal(s objects.Status) objects.Status {
	conditions := make([]metav1.Condition, 0, len(s.Conditions))
	for _, c := range s.Conditions {
		c.LastTransitionTime = metav1.Time{}
		conditions = append(conditions, c)
	}
	s.Conditions = conditions
	if len(s.Fields) == 0 {
		s.Fields = nil
	}
	if s.Workload != nil {
		w := *s.Workload
		w.Replicas = append([]objects.ReplicaState{}, w.Replicas...)
		for i := range w.Replicas {
			w.Replicas[i].Started = time.Unix(w.Replicas[i].Started.Unix(), 0).UTC()
		}
		if len(w.Replicas) == 0 {
			s.Workload = nil
		} else {
			s.Workload = &w
		}
	}
	return s
}

func workloadState(o *objects.Object, replicas []client.Replica) *objects.WorkloadState {
	state := &objects.WorkloadState{}
	for _, r := range replicas {
		if !r.Gateway && r.Namespace == o.GetNamespace() && r.Workload == o.GetName() {
			state.Replicas = append(state.Replicas, r.State)
		}
	}
	return state
}

// programmed says whether every proxy that the object concerns runs it, and how many do. Kinds that no proxy sees have
// no such condition.
func (c *Controller) programmed(o *objects.Object, replicas []client.Replica, nodes map[string]xds.NodeStatus) (*metav1.Condition, int) {
	switch o.Kind {
	case objects.Namespace, objects.ServiceAccount, objects.Secret, objects.Workload, objects.Cluster:
		return nil, 0
	}
	condition := &metav1.Condition{Type: objects.ConditionProgrammed, ObservedGeneration: o.GetGeneration()}
	wanted, running := 0, 0
	var refused, waiting []string
	for _, r := range replicas {
		n, connected := nodes[r.NodeID]
		if !connected || n.Failure == "" && !c.uses.of(r.NodeID, o.Key()) {
			continue
		}
		wanted++
		name := r.Namespace + "/" + r.State.Name
		switch {
		case n.Failure != "":
			refused = append(refused, name+": "+n.Failure)
		case n.Synced && n.Revision >= o.Revision:
			running++
		default:
			var reasons []string
			for _, t := range n.Types {
				if t.State == xds.Refused {
					reasons = append(reasons, t.Type+": "+t.Reason)
				}
			}
			if len(reasons) > 0 {
				refused = append(refused, name+" refused "+strings.Join(reasons, ", "))
			} else {
				waiting = append(waiting, name+" has not acknowledged it yet")
			}
		}
	}
	switch {
	case wanted == 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, "NoProxies", "no connected proxy uses it"
	case len(refused) > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Refused", brief(refused)
	case len(waiting) > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Pending", brief(waiting)
	default:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, "Programmed", fmt.Sprintf("%d proxies run it", running)
	}
	return condition, running
}

// brief bounds the length of a message.
func brief(lines []string) string {
	const most = 5
	if len(lines) > most {
		return strings.Join(lines[:most], "\n") + fmt.Sprintf("\nand %d more", len(lines)-most)
	}
	return strings.Join(lines, "\n")
}
