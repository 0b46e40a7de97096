package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"sort"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

// maxReplicas bounds one agent's report.
const maxReplicas = 10000

// reportsPath keeps what agents reported: a controller that was killed comes back knowing every endpoint, so that the
// proxies do not lose them before the agents report again.
func (c *Controller) reportsPath() string {
	return filepath.Join(c.config.Cluster.Run(), "reports.json")
}

func (c *Controller) loadReports() {
	reports := map[string]client.Report{}
	if err := durable.ReadJSON(c.reportsPath(), &reports); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			c.log.Warn("kept reports cannot be read; waiting for the agents", "error", err)
		}
		return
	}
	c.mu.Lock()
	c.reports = reports
	c.mu.Unlock()
	c.register()
}

// Report implements [server.Controller].
func (c *Controller) Report(_ context.Context, report client.Report) error {
	if report.Agent == "" || len(report.Replicas) > maxReplicas {
		return &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("a report needs the agent's name and at most %d replicas", maxReplicas)}
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
	c.reports[report.Agent] = report
	content, err := json.Marshal(c.reports)
	c.mu.Unlock()
	if same {
		return nil
	}
	if err == nil {
		err = durable.Write(c.reportsPath(), content, 0o600)
	}
	if err != nil {
		c.log.Warn("report not kept: a restarted controller waits for the agents", "error", err)
	}
	c.register()
	signal(c.restatus)
	return nil
}

// register tells the registry every replica that has an address.
func (c *Controller) register() {
	var all []registry.Instance
	for _, r := range c.Replicas() {
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
	c.instances.Replace(all)
}

// Replicas implements [server.Controller].
func (c *Controller) Replicas() []client.Replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []client.Replica{}
	for _, report := range c.reports {
		out = append(out, report.Replicas...)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Namespace != out[j].Namespace {
			return out[i].Namespace < out[j].Namespace
		}
		return out[i].State.Name < out[j].State.Name
	})
	return out
}
