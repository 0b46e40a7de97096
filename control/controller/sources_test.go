package controller

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// TestANewSource is the recipe of ARCHITECTURE.md for a source of endpoints: a file, which this test stands for, and a line in
// sources. What it knows at the start is in the first model, and what it reports later gets there.
func TestANewSource(t *testing.T) {
	pod := func(name string) registry.Instance {
		return registry.Instance{Workload: objects.Key{Group: objects.Workload.Group, Kind: objects.Workload.Kind, Namespace: "shop", Name: "pod"}, Name: name,
			Address: netip.MustParseAddr("10.0.0.1"), Labels: map[string]string{"app": "pod"}, Ready: true, Cluster: "one"}
	}
	// replicas of the service in the model.
	replicas := func(c *Controller) []string {
		s := c.model.Mesh().Service("pod.shop.svc.cluster.local")
		if s == nil {
			return nil
		}
		names := []string{}
		for _, r := range s.Replicas {
			names = append(names, r.Name)
		}
		return names
	}
	known := []registry.Instance{pod("pod-0")}
	first := make(chan []string, 1)
	more := make(chan []registry.Instance)
	var running *Controller
	was := sources
	t.Cleanup(func() { sources = was })
	sources = append(slices.Clone(was), source{"pods", func(c *Controller) error {
		c.instances.Report(registry.Within("pods"), known, time.Now())
		return nil
	}, func(c *Controller, ctx context.Context) {
		running = c
		first <- replicas(c)
		for {
			select {
			case <-ctx.Done():
				return
			case all := <-more:
				c.instances.Report(registry.Within("pods"), all, time.Now())
			}
		}
	}})

	i := newInstance(t, "one")
	i.start()
	<-first
	i.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: pod, namespace: shop}\nspec: {selector: {app: pod}, ports: [{name: http, port: 80}]}\n")
	i.stop()
	i.start()
	if got := <-first; !slices.Equal(got, []string{"pod-0"}) {
		t.Errorf("the first model after a restart has %q", got)
	}
	more <- []registry.Instance{pod("pod-1")}
	eventually(t, "the model has what it reports later", func() bool { return slices.Equal(replicas(running), []string{"pod-1"}) })
	more <- nil
	eventually(t, "and not what is gone", func() bool { return len(replicas(running)) == 0 })
	// Agents have no part in it.
	if got := running.Replicas(); len(got) > 0 {
		t.Errorf("agents run %+v", got)
	}
}
