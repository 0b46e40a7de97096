package controller

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/durable/faults"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

// A report that the disk did not take is kept with the next one, though nothing has changed since.
func TestAReportThatWasNotKeptIsKeptLater(t *testing.T) {
	place, err := killedCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{config: Config{Cluster: place}, log: slog.New(slog.DiscardHandler), reports: map[string]client.Report{}, unkept: map[string]bool{},
		instances: registry.NewInstances(registry.Silence{}), restatus: make(chan struct{}, 1)}
	if err := os.MkdirAll(c.reportsDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	report := func(serviceAccount string) {
		if err := c.Report(t.Context(), client.Report{Agent: "one", Replicas: []client.Replica{{Namespace: "shop", Workload: "cart", ServiceAccount: serviceAccount}}}); err != nil {
			t.Error(err)
		}
	}
	kept := func() string {
		content, err := os.ReadFile(c.reportPath("one"))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	report("before")
	if err := faults.Do(faults.Nth(faults.Rename, c.reportsDir(), 1, false, unix.EIO), func() { report("after") }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(kept(), "before") {
		t.Fatalf("the disk took it: %s", kept())
	}
	report("after")
	if !strings.Contains(kept(), "after") {
		t.Errorf("kept: %s", kept())
	}
}

// An agent with more replicas than are taken is told so, as the status is, until it has fewer.
func TestTooManyReplicasAreSaid(t *testing.T) {
	place, err := killedCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	c := &Controller{config: Config{Cluster: place}, log: slog.New(slog.NewTextHandler(&said, nil)), reports: map[string]client.Report{}, unkept: map[string]bool{},
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
