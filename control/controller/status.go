package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
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

// What looks for statuses that differ goes through all objects, and takes no more than a part of a processor for that, one in
// statusShare, however many there are; but it looks again after statusLatest at the latest.
const (
	statusShare  = 10
	statusLatest = 5 * time.Second
)

// Bounds of writing statuses: those that a round writes at the most, and how long a status may differ in nothing but the
// number of proxies. Each is a write that the store syncs, and that all who watch hear of.
const (
	statusBatch   = 50
	countsDelayed = 10 * time.Second
)

// statusLoop writes statuses whenever the model, a proxy's answer or a report may have changed them.
func (c *Controller) statusLoop(ctx context.Context) {
	w := statusWriter{c: c}
	for {
		if w.busy() {
			select {
			case <-c.restatus:
				w.again = true
			default:
			}
		} else {
			var counts <-chan time.Time
			if w.late {
				counts = time.After(time.Until(w.counted.Add(countsDelayed)))
			}
			select {
			case <-ctx.Done():
				return
			case <-c.restatus:
			case <-counts:
			}
			w.again = true
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

// statusWriter writes statuses in rounds.
type statusWriter struct {
	c *Controller
	// looked is how long the last round took, without the time in which the store wrote.
	looked time.Duration
	// counted is when the numbers of proxies were written last; late says that some have changed since.
	counted time.Time
	late    bool
	// left are the objects that are still to be looked at since something changed last; again says that something did after
	// that.
	left  []objects.Key
	again bool
	// counts says that numbers of proxies are written this time.
	counts bool
}

// busy says that there is something left to do.
func (w *statusWriter) busy() bool { return w.again || len(w.left) > 0 }

// round writes what differs, as far as one round goes. The error is that the store takes no writes.
func (w *statusWriter) round(ctx context.Context) error {
	c := w.c
	started, writing := time.Now(), time.Duration(0)
	defer func() { w.looked = time.Since(started) - writing }()
	c.mu.Lock()
	report := c.model.Report()
	if len(w.left) == 0 && w.again {
		w.left = slices.AppendSeq(w.left, maps.Keys(c.objects))
		w.again, w.late, w.counts = false, false, time.Since(w.counted) >= countsDelayed
		if w.counts {
			w.counted = time.Now()
		}
	}
	c.mu.Unlock()
	staged := c.stagedNow()
	states := c.workloadStates()
	progress := c.pusher.Progress()
	advertised := c.ingressAddress()
	clusters := map[string]client.ClusterStatus{}
	for _, s := range c.federation.Status().Clusters {
		clusters[s.Name] = s
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	for written := 0; len(w.left) > 0 && written < statusBatch; w.left = w.left[1:] {
		c.mu.Lock()
		o := c.objects[w.left[0]]
		c.mu.Unlock()
		if o == nil {
			continue
		}
		status := report.Status(o.Key())
		if refused := c.confined(o); refused != nil {
			// In the place of what the model says, which knows nothing of users and capabilities.
			status.Conditions = resolve.MergeConditions(status.Conditions, []metav1.Condition{*refused}, now)
		}
		if programmed := programmed(o, progress[o.Key()], staged); programmed != nil {
			status.Conditions = append(status.Conditions, *programmed)
			resolve.Programmed(&status, programmed)
			status.Proxies = progress[o.Key()].Running()
		}
		reachedBy(o, &status, advertised, c.settings.Domain)
		status.Fields = append(slices.Clip(status.Fields), patchFields(progress[o.Key()])...)
		if o.Kind == objects.Cluster {
			status.Conditions = append(status.Conditions, clusterConditions(o, clusters[o.GetName()])...)
		}
		status = resolve.MergeStatus(o.Status, status, now)
		if o.Kind == objects.Workload {
			status.Workload = &objects.WorkloadState{Replicas: states[o.Key()]}
		}
		is, was := normal(status), normal(o.Status)
		if reflect.DeepEqual(is, was) {
			continue
		}
		if is.Proxies = was.Proxies; !w.counts && reflect.DeepEqual(is, was) {
			w.late = true
			continue
		}
		written++
		begun := time.Now()
		_, err := c.store.SetStatus(ctx, o.Key(), status, o.StatusVersion)
		if writing += time.Since(begun); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
			c.log.Warn("status not written", "object", o.Key().String(), "error", err)
			if errors.Is(err, store.ErrUnavailable) {
				// The others would not be, either.
				return err
			}
		}
	}
	return nil
}

// reachedBy puts the address on which the ports of the ingress gateway are offered in place of its own, which may not be reached from
// elsewhere, in the status of a Gateway that it serves.
func reachedBy(o *objects.Object, status *objects.Status, advertised netip.Addr, domain string) {
	if g, ok := o.Resource.(*gatewayv1.Gateway); ok && len(status.Addresses) > 0 && advertised.IsValid() && resolve.ServedByIngress(g, domain) {
		status.Addresses = resolve.AddressesOf([]netip.Addr{advertised})
	}
}

// ingressAddress is where the ports of the ingress gateway are offered beside its own addresses, invalid for nowhere.
func (c *Controller) ingressAddress() netip.Addr {
	options, err := c.config.Cluster.Options()
	if err != nil || !options.ExposeIngress {
		return netip.Addr{}
	}
	return options.Advertise
}

// confined says of a workload that asks for more than its namespace allows that it is not run; nil for all others. It was
// stored when the cluster allowed it.
func (c *Controller) confined(o *objects.Object) *metav1.Condition {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok || c.privilegedWorkloads {
		return nil
	}
	asked := access.Beyond(w)
	c.mu.Lock()
	namespace := c.objects[objects.Key{Kind: objects.Namespace.Kind, Name: o.GetNamespace()}]
	c.mu.Unlock()
	if len(asked) == 0 || access.AllowsPrivileged(namespace) {
		return nil
	}
	var texts []string
	for _, path := range slices.Sorted(maps.Keys(asked)) {
		texts = append(texts, fmt.Sprintf("%s: %s is privileged", path, asked[path]))
	}
	return &metav1.Condition{Type: objects.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "Privileged", ObservedGeneration: o.GetGeneration(),
		Message: fmt.Sprintf("it is not run: %s, and namespace %q does not allow it; leave that out, or have an admin of all namespaces label the Namespace %s: \"true\"", strings.Join(texts, ", "), o.GetNamespace(), access.LabelPrivileged)}
}

// normal makes statuses that say the same equal: times with and without location, empty and missing lists.
func normal(s objects.Status) objects.Status {
	s = s.DeepCopy()
	s.EachConditions(func(list *[]metav1.Condition) {
		if *list = slices.Clip(*list); *list == nil {
			*list = []metav1.Condition{}
		}
		for i := range *list {
			(*list)[i].LastTransitionTime = metav1.Time{}
		}
	})
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

// workloadStates are the states of all workloads' replicas.
func (c *Controller) workloadStates() map[objects.Key][]objects.ReplicaState {
	out := map[objects.Key][]objects.ReplicaState{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, report := range c.reports {
		for _, r := range report.Replicas {
			if !r.Gateway {
				key := objects.Key{Group: objects.Workload.Group, Kind: objects.Workload.Kind, Namespace: r.Namespace, Name: r.Workload}
				out[key] = append(out[key], r.State)
			}
		}
	}
	for _, states := range out {
		slices.SortFunc(states, func(a, b objects.ReplicaState) int { return cmp.Compare(a.Name, b.Name) })
	}
	return out
}

// programmed says whether every proxy that uses the object runs it. Kinds that no proxy sees have no such condition. The
// message says nothing that changes while the answer is the same.
func programmed(o *objects.Object, p push.Progress, staged stageView) *metav1.Condition {
	switch o.Kind {
	case objects.Namespace, objects.ServiceAccount, objects.Secret, objects.Workload, objects.Cluster, objects.AccessBinding,
		objects.GatewayClass, objects.ReferenceGrant:
		return nil
	}
	condition := &metav1.Condition{Type: objects.ConditionProgrammed, ObservedGeneration: o.GetGeneration()}
	var refused []string
	if p.Failure != "" {
		refused = append(refused, p.Failure)
	}
	for _, path := range slices.Sorted(maps.Keys(p.Broken)) {
		refused = append(refused, path+" is left out, because proxies would refuse the result: "+p.Broken[path][0])
	}
	for _, r := range p.Refused {
		refused = append(refused, proxyName(r.Proxy)+" refused "+r.Reason)
	}
	switch {
	case len(refused) > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Refused", brief(refused)
	case p.Proxies == 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, "NoProxies", "no connected proxy uses it"
	case staged.objects[o.Key()]:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Staged", staged.message()
	case p.Waiting > 0 || p.Version != o.Version:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Pending", "proxies have not acknowledged it yet"+staged.without()
	default:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, "Programmed", "every connected proxy that uses it runs it"
	}
	return condition
}

// patchFields says of patches which change nothing, and which are left out.
func patchFields(p push.Progress) []objects.FieldMessage {
	var out []objects.FieldMessage
	for _, path := range p.Idle {
		out = append(out, objects.FieldMessage{Path: path, Message: "changes nothing in any connected proxy: compare match and context with `heddle proxy config`"})
	}
	for _, path := range slices.Sorted(maps.Keys(p.Broken)) {
		for _, why := range p.Broken[path] {
			out = append(out, objects.FieldMessage{Path: path, Message: "left out: " + why})
		}
	}
	return out
}

// proxyName is namespace/name of a node's identifier, type~address~name.namespace~domain.
func proxyName(id string) string {
	if parts := strings.Split(id, "~"); len(parts) == 4 {
		if cut := strings.LastIndexByte(parts[2], '.'); cut > 0 {
			return parts[2][cut+1:] + "/" + parts[2][:cut]
		}
	}
	return id
}

// brief bounds the length of a message.
func brief(lines []string) string {
	const most = 5
	if len(lines) > most {
		return strings.Join(lines[:most], "\n") + fmt.Sprintf("\nand %d more", len(lines)-most)
	}
	return strings.Join(lines, "\n")
}
