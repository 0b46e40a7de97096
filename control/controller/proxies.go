package controller

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/xds"
)

// Proxies implements [server.Controller].
func (c *Controller) Proxies() []client.ProxyStatus {
	connected := map[string]xds.NodeStatus{}
	for _, n := range c.xds.Nodes() {
		connected[n.ID] = n
	}
	out := []client.ProxyStatus{}
	observed := c.pusher.Observed()
	for _, r := range c.Replicas() {
		p := client.ProxyStatus{NodeID: r.NodeID, Name: r.State.Name, Namespace: r.Namespace, Type: "sidecar", Types: map[string]string{}, Errors: map[string]string{}}
		if r.Gateway {
			p.Type = "router"
		}
		if n, ok := connected[r.NodeID]; ok {
			runs(&p, n)
			p.Dependencies, p.Observed = observed[r.NodeID], observed[r.NodeID] != nil
		}
		out = append(out, p)
	}
	return out
}

// Running implements [server.Controller]. It asks for as many objects at a time as a round of statuses: the model may change in between.
func (c *Controller) Running(of []objects.Key) map[objects.Key]int {
	out := make(map[objects.Key]int, len(of))
	for some := range slices.Chunk(of, statusBatch) {
		for key, p := range c.pusher.Progress(some) {
			out[key] = p.Running()
		}
	}
	return out
}

// runs fills in what a connected proxy runs.
func runs(p *client.ProxyStatus, n xds.NodeStatus) {
	p.Connected, p.Since, p.Revision, p.Synced, p.Behind = true, n.Connected, n.Revision, n.Synced, n.Behind
	p.Versions = map[string]string{}
	if n.Failure != "" {
		p.Errors["configuration"] = n.Failure
	}
	for _, t := range n.Types {
		p.Types[t.Type] = string(t.State)
		if t.Version != "" {
			p.Versions[t.Type] = t.Version
		}
		if t.Reason != "" {
			p.Errors[t.Type] = t.Reason
		}
	}
}

// ProxyConfig implements [server.Controller].
func (c *Controller) ProxyConfig(nodeID string) (map[string][]proto.Message, bool) {
	return c.xds.Config(nodeID)
}
