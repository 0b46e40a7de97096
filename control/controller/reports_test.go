package controller

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/durable/faults"
	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

// A report that the disk did not take is kept with the next one, though nothing has changed since.
func TestAReportThatWasNotKeptIsKeptLater(t *testing.T) {
	place, err := killedCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{config: Config{Cluster: place}, log: slog.New(slog.DiscardHandler), reports: map[string]*agentReport{}, unkept: map[string]bool{},
		instances: registry.NewInstances(registry.Silence{}), restatus: make(chan struct{}, 1)}
	if err := os.MkdirAll(c.reportsDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	report := func(serviceAccount string) {
		if err := c.Report(t.Context(), client.Report{Agent: "one", Replicas: []client.Replica{{Namespace: "shop", Workload: "cart", ServiceAccount: serviceAccount}}}); err != nil {
			t.Error(err)
		}
	}
	kept := func() (account string) {
		c.closeReports()
		_, kept, err := objectfile.OpenSet[client.ReplicaName, keptReplica](c.reportPath("one"))
		if err != nil {
			t.Fatal(err)
		}
		if r := kept[client.ReplicaName{Namespace: "shop"}].Replica; r != nil {
			account = r.ServiceAccount
		}
		return account
	}
	report("before")
	if err := faults.Do(faults.Nth(faults.Rename, c.reportsDir(), 1, false, unix.EIO), func() { report("after") }); err != nil {
		t.Fatal(err)
	}
	if got := kept(); got != "" {
		t.Fatalf("kept is %q, which does not hold any more, or was not taken", got)
	}
	report("after")
	if got := kept(); got != "after" {
		t.Errorf("kept: %q", got)
	}
}

// An agent's word that nothing changed counts where what it means is known: also by a controller that was started since, from
// what was kept, and not by one that has another report.
func TestUnchangedReports(t *testing.T) {
	place, err := killedCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	start := func() *Controller {
		c := &Controller{config: Config{Cluster: place}, log: slog.New(slog.DiscardHandler), reports: map[string]*agentReport{}, unkept: map[string]bool{},
			instances: registry.NewInstances(registry.Silence{NotReady: time.Minute, Gone: time.Hour}), restatus: make(chan struct{}, 1)}
		if err := c.loadReports(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	unknown := func(c *Controller, u client.Unchanged) {
		t.Helper()
		if problem := (*client.Problem)(nil); !errors.As(c.Unchanged(u), &problem) || problem.Status != http.StatusConflict {
			t.Errorf("%+v is taken", u)
		}
	}
	c := start()
	unknown(c, client.Unchanged{Agent: "one", Revision: "a-1"})
	report := client.Report{Agent: "one", Revision: "a-1", Replicas: []client.Replica{{Namespace: "shop", Workload: "cart", Ready: true,
		State: objects.ReplicaState{Name: "cart-0", Address: "10.0.0.1"}}}}
	if err := c.Report(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Unchanged(client.Unchanged{Agent: "one", Revision: "a-1"}); err != nil {
			t.Error(err)
		}
		unknown(c, client.Unchanged{Agent: "one", Revision: "a-2"})
		unknown(c, client.Unchanged{Agent: "two", Revision: "a-1"})
		c.closeReports()
		c = start()
	}
	// It is a sign of life: who was silent has its traffic again.
	now := time.Now()
	for _, at := range []time.Duration{0, 20, 40, 60, 80} {
		// Another one is heard of, or it would be this controller that hears nothing.
		c.instances.Report(registry.Agent("two"), nil, now.Add(at*time.Second))
		c.instances.Expire(now.Add(at * time.Second))
	}
	if !slices.Equal(c.instances.Silent(), []string{"one"}) {
		t.Fatal("it is not silent")
	}
	if err := c.Unchanged(client.Unchanged{Agent: "one", Revision: "a-1"}); err != nil || len(c.instances.Silent()) > 0 || !c.Replicas()[0].Ready {
		t.Errorf("%v, silent are %q", err, c.instances.Silent())
	}
	// Without a revision nothing is meant.
	report.Revision = ""
	if err := c.Report(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	unknown(c, client.Unchanged{Agent: "one"})
	c.forgetAgent("one")
	unknown(c, client.Unchanged{Agent: "one", Revision: "a-1"})
}

// An agent with more replicas than are taken is told so, as the status is, until it has fewer.
func TestTooManyReplicasAreSaid(t *testing.T) {
	place, err := killedCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	c := &Controller{config: Config{Cluster: place}, log: slog.New(slog.NewTextHandler(&said, nil)), reports: map[string]*agentReport{}, unkept: map[string]bool{},
		instances: registry.NewInstances(registry.Silence{}), restatus: make(chan struct{}, 1)}
	if err := os.MkdirAll(c.reportsDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	many := make([]client.Replica, maxReplicas+1)
	for range 3 {
		if err := c.Report(t.Context(), client.Report{Agent: "one", Replicas: many}); err == nil || !strings.Contains(err.Error(), "more than 10000 replicas") {
			t.Fatalf("answered %v", err)
		}
	}
	if n := strings.Count(said.String(), "level=WARN"); n != 1 || !strings.Contains(said.String(), "replicas=10001") {
		t.Errorf("%d warnings: %s", n, said.String())
	}
	if c.overfull != "one" || !strings.Contains(c.overfullProblem(), "agent one runs more than 10000 replicas") {
		t.Errorf("the status does not say it: %q", c.overfull)
	}
	if err := c.Report(t.Context(), client.Report{Agent: "one", Replicas: many[1:]}); err != nil || c.overfull != "" {
		t.Errorf("fewer are not taken: %v, %q", err, c.overfull)
	}
}
