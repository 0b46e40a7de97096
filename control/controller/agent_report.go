package controller

import (
	"maps"
	"reflect"
	"slices"

	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// keptReport is a report as it is kept: the replicas by their names, and under no name what the report is.
type keptReport = map[client.ReplicaName]keptReplica

// keptReplica is one entry of it.
type keptReplica struct {
	// Agent and Revision of the report, where it is no replica.
	Agent    string          `json:"agent,omitempty"`
	Revision string          `json:"revision,omitempty"`
	Replica  *client.Replica `json:"replica,omitempty"`
}

// reportFile is where a report is kept.
type reportFile = objectfile.Set[client.ReplicaName, keptReplica]

// agentReport is the last report of an agent. Who changes it holds Controller.keeping and Controller.mu; who holds either may read.
type agentReport struct {
	keptReport
	// file holds it; nil before it is kept for the first time. Controller.keeping guards it.
	file *reportFile
}

func newReport(report client.Report) *agentReport {
	kept := make(keptReport, 1+len(report.Replicas))
	for i := range report.Replicas {
		kept[report.Replicas[i].ReplicaName()] = keptReplica{Replica: &report.Replicas[i]}
	}
	kept[client.ReplicaName{}] = keptReplica{Agent: report.Agent, Revision: report.Revision}
	return &agentReport{keptReport: kept}
}

func (r *agentReport) agent() string    { return r.keptReport[client.ReplicaName{}].Agent }
func (r *agentReport) revision() string { return r.keptReport[client.ReplicaName{}].Revision }

// all are the replicas, in no order.
func (r *agentReport) all() []client.Replica {
	out := make([]client.Replica, 0, len(r.keptReport))
	for _, one := range r.keptReport {
		if one.Replica != nil {
			out = append(out, *one.Replica)
		}
	}
	return out
}

// sizeAfter is how many replicas there are after a change.
func (r *agentReport) sizeAfter(change client.ReportChange) int {
	is := map[client.ReplicaName]bool{}
	for _, name := range change.Gone {
		is[name] = false
	}
	for i := range change.Replicas {
		is[change.Replicas[i].ReplicaName()] = true
	}
	n := len(r.keptReport) - 1
	for name, there := range is {
		switch was := r.keptReport[name].Replica != nil; {
		case there && !was:
			n++
		case !there && was:
			n--
		}
	}
	return n
}

// setReport takes an agent's report in the place of the one before; nil forgets it. c.mu is held.
func (c *Controller) setReport(agent string, report *agentReport) {
	var was keptReport
	if before := c.reports[agent]; before != nil {
		was = before.keptReport
	}
	var now keptReport
	if report != nil {
		c.reports[agent], now = report, report.keptReport
	} else {
		delete(c.reports, agent)
	}
	before, after := statesIn(maps.Values(was)), statesIn(maps.Values(now))
	for _, in := range []map[objects.Key][]objects.ReplicaState{before, after} {
		for key := range in {
			if !reflect.DeepEqual(before[key], after[key]) {
				c.setReplicas(key, agent, after[key])
			}
		}
	}
}

// changeReport puts a change into a report, and names the entries that are others now. c.mu is held.
func (c *Controller) changeReport(report *agentReport, change client.ReportChange) []client.ReplicaName {
	agent, kept := report.agent(), report.keptReport
	now := map[client.ReplicaName]*client.Replica{}
	for _, name := range change.Gone {
		now[name] = nil
	}
	for i := range change.Replicas {
		now[change.Replicas[i].ReplicaName()] = &change.Replicas[i]
	}
	// No name is that of the report itself.
	delete(now, client.ReplicaName{})
	for name, is := range now {
		was := kept[name].Replica
		if was == nil || is == nil || was.Workload != is.Workload || !reflect.DeepEqual(was.State, is.State) {
			c.changeState(agent, was, is)
		}
		if is == nil {
			delete(kept, name)
		} else {
			kept[name] = keptReplica{Replica: is}
		}
	}
	kept[client.ReplicaName{}] = keptReplica{Agent: agent, Revision: change.Revision}
	return slices.AppendSeq([]client.ReplicaName{{}}, maps.Keys(now))
}
