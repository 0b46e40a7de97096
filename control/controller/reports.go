package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	return filepath.Join(c.reportsDir(), hex.EncodeToString(digest[:16])+".json")
}

// loadReports has agents' replicas be known as they were reported last.
func (c *Controller) loadReports() error {
	if err := os.MkdirAll(c.reportsDir(), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(c.reportsDir(), "*.json"))
	if err != nil {
		return fmt.Errorf("look for reports: %w", err)
	}
	for _, file := range files {
		var report client.Report
		if err := durable.ReadJSON(file, &report); err != nil {
			c.log.Warn("a kept report cannot be read; waiting for the agent", "error", err)
			continue
		}
		c.mu.Lock()
		c.setReport(report.Agent, report)
		c.mu.Unlock()
		c.instances.Report(registry.Agent(report.Agent), c.instancesOf(report), time.Now())
	}
	return nil
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
	c.setReport(agent, client.Report{})
	c.mu.Unlock()
	delete(c.unkept, agent)
	if err := os.Remove(c.reportPath(agent)); err != nil && !errors.Is(err, os.ErrNotExist) {
		c.log.Warn("a kept report cannot be removed; it is read again by the next controller", "error", err)
	}
	signal(c.restatus)
}

// Report implements [server.Controller].
func (c *Controller) Report(_ context.Context, report client.Report) error {
	if report.Agent == "" {
		return &client.Problem{Status: http.StatusBadRequest, What: "a report needs the agent's name"}
	}
	if err := c.tooMany(report); err != nil {
		return err
	}
	for _, r := range report.Replicas {
		if r.State.Address == "" {
			continue
		}
		if _, err := netip.ParseAddr(r.State.Address); err != nil || r.State.Name == "" || r.Namespace == "" {
			return &client.Problem{Status: http.StatusBadRequest, What: "a replica needs namespace, name and address", Where: r.Namespace + "/" + r.State.Name}
		}
	}
	// Until it is written: of two reports, the later one is to be on disk.
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	same := reflect.DeepEqual(c.reports[report.Agent], report)
	if !same {
		c.setReport(report.Agent, report)
	}
	c.mu.Unlock()
	if same {
		c.instances.Renew(registry.Agent(report.Agent), time.Now())
		if c.unkept[report.Agent] {
			c.keepReport(report)
		}
		return nil
	}
	// Proxies first: who reads a file afterwards is not in a hurry.
	c.instances.Report(registry.Agent(report.Agent), c.instancesOf(report), time.Now())
	c.keepReport(report)
	signal(c.restatus)
	return nil
}

// Unchanged implements [server.Controller].
func (c *Controller) Unchanged(u client.Unchanged) error {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.mu.Lock()
	report, known := c.reports[u.Agent]
	c.mu.Unlock()
	if !known || u.Revision == "" || report.Revision != u.Revision {
		return &client.Problem{Status: http.StatusConflict, What: "a whole report is needed", Where: u.Agent,
			Why: "what the controller knows of this agent is another revision, or nothing", Remedy: "the agent sends it by itself"}
	}
	c.instances.Renew(registry.Agent(u.Agent), time.Now())
	if c.unkept[u.Agent] {
		c.keepReport(report)
	}
	return nil
}

// tooMany refuses a report of more replicas than are taken, and has the status say so until the agent has fewer.
func (c *Controller) tooMany(report client.Report) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(report.Replicas) <= maxReplicas {
		if c.overfull == report.Agent {
			c.overfull = ""
		}
		return nil
	}
	if c.overfull != report.Agent {
		c.overfull = report.Agent
		c.log.Warn("an agent runs more replicas than are taken: its reports are refused, and its replicas get no traffic", "agent", report.Agent, "replicas", len(report.Replicas), "most", maxReplicas)
	}
	return &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("agent %q runs more than %d replicas", report.Agent, maxReplicas),
		Why: "a report holds at most that many, and none of them is known without it", Remedy: "run fewer replicas on this machine"}
}

// overfullProblem is what the status says of it; c.mu is held.
func (c *Controller) overfullProblem() string {
	return fmt.Sprintf("agent %s runs more than %d replicas: its reports are refused, and its replicas get no traffic; run fewer there", c.overfull, maxReplicas)
}

// keepReport writes a report for the next controller. What cannot be written is tried again with the agent's next report.
func (c *Controller) keepReport(report client.Report) {
	content, err := json.Marshal(report)
	if err == nil {
		err = durable.Write(c.reportPath(report.Agent), content, 0o600)
	}
	if err == nil {
		delete(c.unkept, report.Agent)
		return
	}
	if !c.unkept[report.Agent] {
		c.log.Warn("report not kept: a controller that is restarted now goes by an older one until the agent reports", "agent", report.Agent, "error", err)
	}
	c.unkept[report.Agent] = true
}

// instancesOf are the replicas of a report that have an address.
func (c *Controller) instancesOf(report client.Report) []registry.Instance {
	all := make([]registry.Instance, 0, len(report.Replicas))
	for _, r := range report.Replicas {
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
	for _, report := range c.reports {
		from := len(out)
		out = append(out, report.Replicas...)
		if slices.Contains(silent, report.Agent) {
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
