package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"heddle.io/heddle/control/server/client"
)

// reported is the report that the controller took last.
type reported struct {
	// run is this agent's own, and number counts its reports: together they name the content.
	run    string
	number uint64
	// replicas that it said, nil when it is not known whether it was taken. What says the same is the same pointer.
	replicas map[client.ReplicaName]*client.Replica
}

func (r *reported) revision() string { return fmt.Sprintf("%s-%d", r.run, r.number) }

// take notes what the controller took.
func (r *reported) take(now []*client.Replica) {
	r.replicas = make(map[client.ReplicaName]*client.Replica, len(now))
	for _, one := range now {
		r.replicas[one.ReplicaName()] = one
	}
}

// change is what is different now.
func (r *reported) change(now []*client.Replica) (changed []*client.Replica, gone []client.ReplicaName) {
	known := 0
	for _, one := range now {
		was, is := r.replicas[one.ReplicaName()]
		if is {
			known++
		}
		if was != one {
			changed = append(changed, one)
		}
	}
	if known == len(r.replicas) {
		return changed, nil
	}
	there := make(map[client.ReplicaName]bool, len(now))
	for _, one := range now {
		there[one.ReplicaName()] = true
	}
	for name := range r.replicas {
		if !there[name] {
			gone = append(gone, name)
		}
	}
	return changed, gone
}

// reportSince tells a controller that took the last report what is different now, if anything. It is not known when the controller does
// not have that report, or has to be told all each time.
func (a *Agent) reportSince(ctx context.Context, host string, now []*client.Replica) (known bool, err error) {
	last := &a.reported
	changed, gone := last.change(now)
	if len(changed)+len(gone) == 0 {
		err = a.client.Unchanged(ctx, client.Unchanged{Agent: host, Revision: last.revision()})
	} else {
		change := client.ReportChange{Agent: host, Since: last.revision(), Replicas: sorted(changed), Gone: gone}
		last.number++
		// Until it has answered, it may have taken that or not.
		taken := last.replicas
		change.Revision, last.replicas = last.revision(), nil
		if err = a.client.ReportChange(ctx, change); err == nil {
			for _, name := range gone {
				delete(taken, name)
			}
			for _, one := range changed {
				taken[one.ReplicaName()] = one
			}
			last.replicas = taken
		}
	}
	if problem := (*client.Problem)(nil); errors.As(err, &problem) && (problem.Status == http.StatusConflict || problem.Status == http.StatusNotFound) {
		return false, nil
	}
	return true, err
}

// running is what runs, in no order.
func (a *Agent) running() []*client.Replica {
	all := a.unsorted()
	out := make([]*client.Replica, 0, len(all))
	for _, r := range all {
		out = append(out, r.report())
	}
	return out
}

// sorted are replicas by namespace and name.
func sorted(all []*client.Replica) []client.Replica {
	out := make([]client.Replica, 0, len(all))
	for _, r := range all {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b client.Replica) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.State.Name, b.State.Name))
	})
	return out
}
