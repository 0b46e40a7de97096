package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

// reporting is a controller that takes reports and does nothing else.
func reporting(tb testing.TB, dir string) *Controller {
	tb.Helper()
	place, err := killedCluster(dir)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Controller{config: Config{Cluster: place}, log: slog.New(slog.DiscardHandler), reports: map[string]*agentReport{}, unkept: map[string]bool{},
		instances: registry.NewInstances(registry.DefaultSilence), restatus: make(chan struct{}, 1)}
	if err := c.loadReports(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.closeReports)
	return c
}

// knows is all that a controller has of the agents' reports.
func (c *Controller) knows() map[string]any {
	states := map[objects.Key][]objects.ReplicaState{}
	for key := range c.replicas {
		states[key] = c.replicas.of(key)
	}
	instances := map[string]registry.Instance{}
	for _, change := range c.instances.Changes() {
		if change.After != nil {
			instances[change.After.ID()] = *change.After
		}
	}
	return map[string]any{"replicas": c.Replicas(), "states": states, "instances": instances}
}

// TestChangesOfReportsGiveWhatWholeOnesGive: what a controller knows by what changed, and what the next one reads of it, is what it would
// know of whole reports.
func TestChangesOfReportsGiveWhatWholeOnesGive(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	c := reporting(t, dir)
	instances := map[string]registry.Instance{}
	agents := []string{"one", "two"}
	run := map[string]map[client.ReplicaName]client.Replica{"one": {}, "two": {}}
	number := map[string]int{}
	whole := func(agent string) client.Report {
		return client.Report{Agent: agent, Revision: fmt.Sprint(number[agent]), Replicas: slices.Collect(maps.Values(run[agent]))}
	}
	for _, agent := range agents {
		if err := c.Report(t.Context(), whole(agent)); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 300 {
		agent := agents[random.IntN(2)]
		change := client.ReportChange{Agent: agent, Since: fmt.Sprint(number[agent])}
		number[agent]++
		change.Revision = fmt.Sprint(number[agent])
		for range 1 + random.IntN(3) {
			// Each agent has names of its own, and some workloads run on both.
			r := client.Replica{Namespace: "shop", Workload: fmt.Sprint("w", random.IntN(4)), Gateway: random.IntN(8) == 0, Ready: random.IntN(2) == 0, Labels: map[string]string{"app": "a"},
				State: objects.ReplicaState{Name: fmt.Sprint(agent, "-", random.IntN(12)), Restarts: random.IntN(2)}}
			if random.IntN(4) > 0 {
				r.State.Address = fmt.Sprintf("10.0.0.%d", random.IntN(200))
			}
			name := r.ReplicaName()
			if slices.ContainsFunc(change.Gone, func(n client.ReplicaName) bool { return n.Name == name.Name }) ||
				slices.ContainsFunc(change.Replicas, func(r client.Replica) bool { return r.State.Name == name.Name }) {
				continue
			}
			other := name
			other.Gateway = !name.Gateway
			if _, is := run[agent][other]; is {
				delete(run[agent], other)
				change.Gone = append(change.Gone, other)
			}
			if _, is := run[agent][name]; is && random.IntN(3) == 0 {
				delete(run[agent], name)
				change.Gone = append(change.Gone, name)
			} else {
				run[agent][name] = r
				change.Replicas = append(change.Replicas, r)
			}
		}
		if err := c.ReportChange(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		for _, change := range c.instances.Changes() {
			if change.After != nil {
				instances[change.After.ID()] = *change.After
			} else if change.Before != nil {
				delete(instances, change.Before.ID())
			}
		}
		if round%20 != 0 {
			continue
		}
		got := c.knows()
		got["instances"] = maps.Clone(instances)
		fresh := reporting(t, t.TempDir())
		for _, agent := range agents {
			if err := fresh.Report(t.Context(), whole(agent)); err != nil {
				t.Fatal(err)
			}
		}
		want := fresh.knows()
		c.closeReports()
		next := reporting(t, dir)
		read := next.knows()
		next.closeReports()
		for part := range want {
			if !reflect.DeepEqual(got[part], want[part]) {
				t.Fatalf("round %d: %s are\n%+v\nwant\n%+v", round, part, got[part], want[part])
			}
			if !reflect.DeepEqual(read[part], want[part]) {
				t.Fatalf("round %d: of %s the next controller knows\n%+v\nwant\n%+v", round, part, read[part], want[part])
			}
		}
	}
}

// A change counts where the report before is known.
func TestChangesOfReportsThatAreNotKnown(t *testing.T) {
	c := reporting(t, t.TempDir())
	refused := func(why string, status int, change client.ReportChange) {
		t.Helper()
		if problem := (*client.Problem)(nil); !errors.As(c.ReportChange(t.Context(), change), &problem) || problem.Status != status {
			t.Errorf("%s: %+v", why, problem)
		}
	}
	refused("an agent that is not known", http.StatusConflict, client.ReportChange{Agent: "one", Since: "a-1", Revision: "a-2"})
	if err := c.Report(t.Context(), client.Report{Agent: "one", Revision: "a-1"}); err != nil {
		t.Fatal(err)
	}
	refused("another report", http.StatusConflict, client.ReportChange{Agent: "one", Since: "a-0", Revision: "a-2"})
	refused("no report", http.StatusConflict, client.ReportChange{Agent: "one", Revision: "a-2"})
	refused("no agent", http.StatusBadRequest, client.ReportChange{Since: "a-1", Revision: "a-2"})
	refused("no address", http.StatusBadRequest, client.ReportChange{Agent: "one", Since: "a-1", Revision: "a-2", Replicas: []client.Replica{{State: objects.ReplicaState{Address: "x"}}}})
	many := make([]client.Replica, maxReplicas+1)
	for i := range many {
		many[i].State.Name = fmt.Sprint(i)
	}
	refused("too many", http.StatusBadRequest, client.ReportChange{Agent: "one", Since: "a-1", Revision: "a-2", Replicas: many})
	if err := c.ReportChange(t.Context(), client.ReportChange{Agent: "one", Since: "a-1", Revision: "a-2", Replicas: many[1:]}); err != nil || c.overfull != "" {
		t.Errorf("not taken: %v", err)
	}
	c.forgetAgent("one")
	refused("one that was forgotten", http.StatusConflict, client.ReportChange{Agent: "one", Since: "a-2", Revision: "a-3"})
	if left, err := os.ReadDir(c.reportsDir()); err != nil || len(left) > 0 {
		t.Errorf("kept are %v, %v", left, err)
	}
}

// A controller that takes the place of one that kept reports in JSON knows what that one knew.
func TestReportsOfAFormerVersion(t *testing.T) {
	dir := t.TempDir()
	c := reporting(t, dir)
	former := client.Report{Agent: "one", Revision: "a-1", Replicas: []client.Replica{{Namespace: "shop", Workload: "cart", Ready: true, State: objects.ReplicaState{Name: "cart-0", Address: "10.0.0.1"}}}}
	if err := durable.WriteJSON(filepath.Join(c.reportsDir(), "1.json"), former, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c.closeReports()
		c = reporting(t, dir)
		if got := c.Replicas(); !reflect.DeepEqual(got, former.Replicas) {
			t.Errorf("known are %+v", got)
		}
		if files, err := filepath.Glob(filepath.Join(c.reportsDir(), "*.json")); err != nil || len(files) > 0 {
			t.Errorf("left are %v, %v", files, err)
		}
	}
}

// BenchmarkReport is that one replica of so many on a host is ready, or not any more: from the agent's words to what the next controller
// finds.
func BenchmarkReport(b *testing.B) {
	for _, n := range []int{50, 1000, 5000} {
		report := client.Report{Agent: "host", Revision: "0"}
		for i := range n {
			report.Replicas = append(report.Replicas, client.Replica{Namespace: "shop", Workload: fmt.Sprint("w", i), Labels: map[string]string{"app": fmt.Sprint("w", i), "version": "v1"}, Ports: map[string]int32{"http": 8080}, Ready: true,
				NodeID: fmt.Sprintf("sidecar~10.0.%d.%d~w%d-0.shop~shop.svc.cluster.local", i/250, i%250, i),
				State:  objects.ReplicaState{Name: fmt.Sprintf("w%d-0", i), Phase: "Ready", Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250), PID: 1000 + i, ProxyPID: 2000 + i}})
		}
		b.Run(fmt.Sprintf("whole/%d", n), func(b *testing.B) {
			c := reporting(b, b.TempDir())
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				report.Replicas[7].Ready, report.Revision = i%2 == 0, fmt.Sprint(i+1)
				var got client.Report
				said(b, report, &got)
				if err := c.Report(b.Context(), got); err != nil {
					b.Fatal(err)
				}
				c.instances.Changes()
			}
		})
		b.Run(fmt.Sprintf("change/%d", n), func(b *testing.B) {
			c := reporting(b, b.TempDir())
			report.Revision = "0"
			var whole client.Report
			said(b, report, &whole)
			if err := c.Report(b.Context(), whole); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				one := report.Replicas[7]
				one.Ready = i%2 == 0
				var got client.ReportChange
				said(b, client.ReportChange{Agent: "host", Since: fmt.Sprint(i), Revision: fmt.Sprint(i + 1), Replicas: []client.Replica{one}}, &got)
				if err := c.ReportChange(b.Context(), got); err != nil {
					b.Fatal(err)
				}
				c.instances.Changes()
			}
		})
	}
}

// said is what a controller hears of what an agent says.
func said(b *testing.B, what, heard any) {
	b.Helper()
	text, err := json.Marshal(what)
	if err == nil {
		err = json.Unmarshal(text, heard)
	}
	if err != nil {
		b.Fatal(err)
	}
}
