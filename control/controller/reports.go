package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"time"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

// maxReplicas bounds one agent's report.
const maxReplicas = 10000

// reportsDir keeps what agents reported, a file for each: a controller that was killed comes back knowing every endpoint, so
// that the proxies do not lose them before the agents report again.
func (c *Controller) reportsDir() string { return filepath.Join(c.config.Cluster.Run(), "reports") }

// reportPath is an agent's file. Agents' names are their own choice.
func (c *Controller) reportPath(agent string) string {
	digest := sha256.Sum256([]byte(agent))
	return filepath.Join(c.reportsDir(), hex.EncodeToString(digest[:16])+".db")
}

// loadReports has agents' replicas be known as they were reported last.
func (c *Controller) loadReports() error {
	if err := os.MkdirAll(c.reportsDir(), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(c.reportsDir(), "*.db"))
	if err != nil {
		return fmt.Errorf("look for reports: %w", err)
	}
	for _, path := range files {
		file, kept, err := objectfile.OpenSet[client.ReplicaName, keptReplica](path)
		if err != nil || kept == nil {
			c.log.Warn("a kept report cannot be read; waiting for the agent", "error", err)
			continue
		}
		c.loadReport(&agentReport{keptReport: kept, file: file})
	}
	return c.loadFormerReports()
}

// loadFormerReports reads the files of versions that had one in JSON for each agent, and writes them anew.
func (c *Controller) loadFormerReports() error {
	files, err := filepath.Glob(filepath.Join(c.reportsDir(), "*.json"))
	if err != nil {
		return fmt.Errorf("look for reports: %w", err)
	}
	for _, path := range files {
		var former client.Report
		if err := durable.ReadJSON(path, &former); err != nil {
			c.log.Warn("a kept report cannot be read; waiting for the agent", "error", err)
		} else if c.reports[former.Agent] == nil {
			report := newReport(former)
			c.loadReport(report)
			c.keepReport(report)
		}
		if err := durable.Remove(path); err != nil {
			return fmt.Errorf("remove a report of another form: %w", err)
		}
	}
	return nil
}

func (c *Controller) loadReport(report *agentReport) {
	agent := report.agent()
	c.mu.Lock()
	c.setReport(agent, report)
	c.mu.Unlock()
	c.instances.Report(registry.Agent(agent), c.instancesOf(report.all()), time.Now())
}

// closeReports leaves the files to the next controller.
func (c *Controller) closeReports() {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for agent, report := range c.reports {
		if err := report.file.Close(); err != nil {
			c.log.Warn("file of a report closed with an error", "agent", agent, "error", err)
		}
	}
}

// silenceLook is how often it is looked who is silent.
const silenceLook = time.Second

// silenceLoop takes the replicas of agents that are not heard of out of rotation, and in the end forgets them.
func (c *Controller) silenceLoop(ctx context.Context) {
	look := time.NewTicker(silenceLook)
	defer look.Stop()
	var silent []string
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			for _, agent := range c.instances.Expire(now) {
				c.log.Warn("an agent was silent for long: its replicas are forgotten", "agent", agent)
				c.forgetAgent(agent)
			}
		}
		if now := c.instances.Silent(); !slices.Equal(now, silent) {
			c.log.Warn("agents whose replicas get no traffic, for nothing is heard of them", "before", silent, "now", now)
			silent = now
			signal(c.restatus)
		}
	}
}

// forgetAgent forgets what an agent reported; it may come back as a new one.
func (c *Controller) forgetAgent(agent string) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	var file *reportFile
	if report := c.reports[agent]; report != nil {
		file = report.file
	}
	c.setReport(agent, nil)
	c.mu.Unlock()
	delete(c.unkept, agent)
	if err := errors.Join(file.Close(), objectfile.Remove(c.reportPath(agent))); err != nil {
		c.log.Warn("a kept report cannot be removed; it is read again by the next controller", "error", err)
	}
	signal(c.restatus)
}

// Report implements [server.Controller].
func (c *Controller) Report(_ context.Context, report client.Report) error {
	if err := checkReplicas(report.Agent, report.Replicas); err != nil {
		return err
	}
	if err := c.tooMany(report.Agent, len(report.Replicas)); err != nil {
		return err
	}
	// Until it is written: of two reports, the later one is to be on disk.
	c.keeping.Lock()
	defer c.keeping.Unlock()
	now := newReport(report)
	c.mu.Lock()
	was := c.reports[report.Agent]
	same := was != nil && reflect.DeepEqual(was.keptReport, now.keptReport)
	if !same {
		if was != nil {
			now.file = was.file
		}
		c.setReport(report.Agent, now)
	}
	c.mu.Unlock()
	if same {
		c.instances.Renew(registry.Agent(report.Agent), time.Now())
		if c.unkept[report.Agent] {
			c.keepReport(was)
		}
		return nil
	}
	// Proxies first: who reads a file afterwards is not in a hurry.
	c.instances.Report(registry.Agent(report.Agent), c.instancesOf(report.Replicas), time.Now())
	c.keepReport(now)
	signal(c.restatus)
	return nil
}

// ReportChange implements [server.Controller]. It costs what changed.
func (c *Controller) ReportChange(_ context.Context, change client.ReportChange) error {
	if err := checkReplicas(change.Agent, change.Replicas); err != nil {
		return err
	}
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	report := c.reports[change.Agent]
	c.mu.Unlock()
	if report == nil || change.Since == "" || change.Revision == "" || report.revision() != change.Since {
		return wholeReportNeeded(change.Agent)
	}
	if err := c.tooMany(change.Agent, report.sizeAfter(change)); err != nil {
		return err
	}
	var gone []string
	for _, name := range change.Gone {
		gone = append(gone, name.Namespace+"/"+name.Name)
	}
	instances := c.instancesOf(change.Replicas)
	for i := range change.Replicas {
		// One that has no address any more is none that gets traffic.
		if r := &change.Replicas[i]; r.State.Address == "" {
			gone = append(gone, r.Namespace+"/"+r.State.Name)
		}
	}
	if !c.instances.Revise(registry.Agent(change.Agent), instances, gone, time.Now()) {
		// It was silent for so long that it is being forgotten.
		return wholeReportNeeded(change.Agent)
	}
	c.mu.Lock()
	changed := c.changeReport(report, change)
	c.mu.Unlock()
	c.keepReport(report, changed...)
	signal(c.restatus)
	return nil
}

// Unchanged implements [server.Controller].
func (c *Controller) Unchanged(u client.Unchanged) error {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	report := c.reports[u.Agent]
	c.mu.Unlock()
	if report == nil || u.Revision == "" || report.revision() != u.Revision {
		return wholeReportNeeded(u.Agent)
	}
	c.instances.Renew(registry.Agent(u.Agent), time.Now())
	if c.unkept[u.Agent] {
		c.keepReport(report)
	}
	return nil
}

// wholeReportNeeded asks an agent to say all that it runs.
func wholeReportNeeded(agent string) error {
	return &client.Problem{Status: http.StatusConflict, What: "a whole report is needed", Where: agent,
		Why: "what the controller knows of this agent is another revision, or nothing", Remedy: "the agent sends it by itself"}
}

// checkReplicas refuses what is no report.
func checkReplicas(agent string, replicas []client.Replica) error {
	if agent == "" {
		return &client.Problem{Status: http.StatusBadRequest, What: "a report needs the agent's name"}
	}
	for i := range replicas {
		r := &replicas[i]
		if r.State.Address == "" {
			continue
		}
		if _, err := netip.ParseAddr(r.State.Address); err != nil || r.State.Name == "" || r.Namespace == "" {
			return &client.Problem{Status: http.StatusBadRequest, What: "a replica needs namespace, name and address", Where: r.Namespace + "/" + r.State.Name}
		}
	}
	return nil
}

// tooMany refuses a report of more replicas than are taken, and has the status say so until the agent has fewer.
func (c *Controller) tooMany(agent string, replicas int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replicas <= maxReplicas {
		if c.overfull == agent {
			c.overfull = ""
		}
		return nil
	}
	if c.overfull != agent {
		c.overfull = agent
		c.log.Warn("an agent runs more replicas than are taken: its reports are refused, and its replicas get no traffic", "agent", agent, "replicas", replicas, "most", maxReplicas)
	}
	return &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("agent %q runs more than %d replicas", agent, maxReplicas),
		Why: "a report holds at most that many, and none of them is known without it", Remedy: "run fewer replicas on this machine"}
}

// overfullProblem is what the status says of it; c.mu is held.
func (c *Controller) overfullProblem() string {
	return fmt.Sprintf("agent %s runs more than %d replicas: its reports are refused, and its replicas get no traffic; run fewer there", c.overfull, maxReplicas)
}

// keepReport writes what changed of a report for the next controller, or all of it where nothing is named. What cannot be written is
// tried again with the agent's next report, and until then nothing is kept of it.
func (c *Controller) keepReport(report *agentReport, changed ...client.ReplicaName) {
	agent := report.agent()
	var err error
	if len(changed) == 0 {
		if report.file == nil {
			// What is there is of an agent that was forgotten, or cannot be read: it gives way to this.
			report.file = objectfile.NewSet[client.ReplicaName, keptReplica](c.reportPath(agent))
		}
		err = report.file.Replace(report.keptReport)
	} else {
		err = report.file.Change(report.keptReport, changed...)
	}
	if err == nil {
		delete(c.unkept, agent)
		return
	}
	if !c.unkept[agent] {
		c.log.Warn("report not kept: a controller that is restarted now knows nothing of the agent until it reports", "agent", agent, "error", err)
	}
	c.unkept[agent] = true
}

// instancesOf are those of replicas that have an address.
func (c *Controller) instancesOf(replicas []client.Replica) []registry.Instance {
	all := make([]registry.Instance, 0, len(replicas))
	for i := range replicas {
		r := &replicas[i]
		address, err := netip.ParseAddr(r.State.Address)
		if err != nil {
			continue
		}
		instance := registry.Instance{
			Workload: objects.Key{Group: objects.Workload.Group, Kind: objects.Workload.Kind, Namespace: r.Namespace, Name: r.Workload},
			Name:     r.State.Name, Address: address, Labels: r.Labels, ServiceAccount: r.ServiceAccount, Ready: r.Ready,
			Cluster: c.config.Cluster.Name, HasProxy: true,
		}
		for name, number := range r.Ports {
			instance.Ports = append(instance.Ports, registry.Port{Name: name, Number: uint16(number)})
		}
		sort.Slice(instance.Ports, func(i, j int) bool { return instance.Ports[i].Name < instance.Ports[j].Name })
		all = append(all, instance)
	}
	return all
}

// Replicas implements [server.Controller]: what agents run. Those of a silent agent are not ready, whatever it said last.
func (c *Controller) Replicas() []client.Replica {
	silent := c.instances.Silent()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []client.Replica{}
	for agent, report := range c.reports {
		from := len(out)
		out = append(out, report.all()...)
		if slices.Contains(silent, agent) {
			for i := range out[from:] {
				out[from+i].Ready = false
			}
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Namespace != out[j].Namespace {
			return out[i].Namespace < out[j].Namespace
		}
		return out[i].State.Name < out[j].State.Name
	})
	return out
}
