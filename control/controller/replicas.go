package controller

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// replicaStates are the states of workloads' replicas, by the agent that reported them.
type replicaStates map[objects.Key]map[string][]objects.ReplicaState

// of are those of one workload, sorted by name.
func (s replicaStates) of(workload objects.Key) []objects.ReplicaState {
	of := s[workload]
	var all []objects.ReplicaState
	// Of two of one name, as a host that was renamed reports, the order is the same each time: the status would change for ever.
	for _, agent := range slices.Sorted(maps.Keys(of)) {
		all = append(all, of[agent]...)
	}
	slices.SortStableFunc(all, func(a, b objects.ReplicaState) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// statesIn are the states of replicas in a report.
func statesIn(report client.Report) map[objects.Key][]objects.ReplicaState {
	out := map[objects.Key][]objects.ReplicaState{}
	for _, r := range report.Replicas {
		if !r.Gateway {
			key := objects.Key{Group: objects.Workload.Group, Kind: objects.Workload.Kind, Namespace: r.Namespace, Name: r.Workload}
			out[key] = append(out[key], r.State)
		}
	}
	return out
}

// setReport takes an agent's report in the place of the one before; one of no agent forgets it. c.mu is held.
func (c *Controller) setReport(agent string, report client.Report) {
	before, now := statesIn(c.reports[agent]), statesIn(report)
	if c.reports[agent] = report; report.Agent == "" {
		delete(c.reports, agent)
	}
	for _, in := range []map[objects.Key][]objects.ReplicaState{before, now} {
		for key := range in {
			if !reflect.DeepEqual(before[key], now[key]) {
				c.setReplicas(key, agent, now[key])
			}
		}
	}
}

// setReplicas takes the states of a workload's replicas that an agent runs, none for an agent that runs none.
func (c *Controller) setReplicas(workload objects.Key, agent string, states []objects.ReplicaState) {
	if c.replicas == nil {
		c.replicas = replicaStates{}
	}
	of := c.replicas[workload]
	if delete(of, agent); len(states) > 0 {
		if of == nil {
			of = map[string][]objects.ReplicaState{}
			c.replicas[workload] = of
		}
		of[agent] = states
	}
	if len(of) == 0 {
		delete(c.replicas, workload)
	}
	c.restate(workload)
}

// restate has it be looked whether an object has the status that it should have. c.mu is held.
func (c *Controller) restate(key objects.Key) {
	if c.stale == nil {
		c.stale = map[objects.Key]struct{}{}
	}
	c.stale[key] = struct{}{}
}
