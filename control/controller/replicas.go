package controller

import (
	"cmp"
	"iter"
	"maps"
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

// statesIn are the states of workloads' replicas in a report, by their workloads, sorted by name.
func statesIn(report iter.Seq[keptReplica]) map[objects.Key][]objects.ReplicaState {
	out := map[objects.Key][]objects.ReplicaState{}
	for one := range report {
		if r := one.Replica; r != nil && !r.Gateway {
			out[workloadOf(r)] = append(out[workloadOf(r)], r.State)
		}
	}
	for _, states := range out {
		slices.SortFunc(states, func(a, b objects.ReplicaState) int { return cmp.Compare(a.Name, b.Name) })
	}
	return out
}

// workloadOf is the workload of a replica.
func workloadOf(r *client.Replica) objects.Key {
	return objects.Key{Group: objects.Workload.Group, Kind: objects.Workload.Kind, Namespace: r.Namespace, Name: r.Workload}
}

// changeState takes what became of one replica that an agent runs; nil for one that was not or is not there. c.mu is held.
func (c *Controller) changeState(agent string, was, now *client.Replica) {
	if was != nil && !was.Gateway {
		// Who was given the states before may still read them.
		of := slices.Clone(c.replicas[workloadOf(was)][agent])
		c.setReplicas(workloadOf(was), agent, slices.DeleteFunc(of, func(s objects.ReplicaState) bool { return s.Name == was.State.Name }))
	}
	if now != nil && !now.Gateway {
		of := c.replicas[workloadOf(now)][agent]
		at, _ := slices.BinarySearchFunc(of, now.State.Name, func(s objects.ReplicaState, name string) int { return cmp.Compare(s.Name, name) })
		c.setReplicas(workloadOf(now), agent, slices.Insert(slices.Clone(of), at, now.State))
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
