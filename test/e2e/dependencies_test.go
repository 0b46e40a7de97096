//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/test/e2e/harness"
)

// Three services, each another way to be told apart: HTTP on a port of its own, HTTP on another port than its replica's, bytes.
const observed = `apiVersion: v1
kind: Namespace
metadata: { name: observed, labels: { heddle.io/dependencies: observed } }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: caller, namespace: observed, labels: { app: caller } }
spec: { command: [/bin/sleep, "100000"] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: server, namespace: observed, labels: { app: server } }
spec: { command: [/bin/sleep, "100000"] }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: observed }
spec: { selector: { app: server }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: v1
kind: Service
metadata: { name: api, namespace: observed }
spec: { selector: { app: server }, ports: [{ name: http, port: 80, targetPort: 8081 }] }
---
apiVersion: v1
kind: Service
metadata: { name: bytes, namespace: observed }
spec: { selector: { app: server }, ports: [{ name: tcp, port: 7000, targetPort: 8082 }] }
`

// A sidecar with observed dependencies starts with nothing. The first request to each service passes, what it used is all that it
// has, and so it is after the controller and the proxy were killed.
func TestObservedDependencies(t *testing.T) {
	shop(t)
	apply(t, observed)
	harness.Eventually(t, time.Minute, "the workloads run", func() error {
		for _, r := range here.Replicas(t) {
			if r.Namespace == "observed" && !r.Ready {
				return fmt.Errorf("%s is not ready", r.State.Name)
			}
		}
		return nil
	})
	caller, server := replicaIn(t, "observed", "caller"), replicaIn(t, "observed", "server")
	for port, word := range map[int]string{8080: "web", 8081: "api", 8082: "bytes"} {
		outside(t, listenIn(t, server.State.PID, fmt.Sprintf("0.0.0.0:%d", port)), word, false)
	}
	other := here.ReplicaOf(t, "frontend")
	status := func(r harness.Replica) (client.ProxyStatus, error) {
		var all []client.ProxyStatus
		out, err := heddle("proxy", "status", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &all)
		}
		if err != nil {
			return client.ProxyStatus{}, fmt.Errorf("%w: %s", err, out)
		}
		at := slices.IndexFunc(all, func(p client.ProxyStatus) bool { return p.Namespace == r.Namespace && p.Name == r.State.Name })
		if at < 0 || !all[at].Connected {
			return client.ProxyStatus{}, fmt.Errorf("%s is not connected", r.State.Name)
		}
		return all[at], nil
	}
	if s, err := status(caller); err != nil || !s.Observed || len(s.Dependencies) > 0 {
		t.Fatalf("before the first request: %+v, %v", s, err)
	}
	if s, err := status(other); err != nil || s.Observed {
		t.Fatalf("in a namespace that says nothing: %+v, %v", s, err)
	}
	if has := outboundOf(t, caller); len(has) > 0 {
		t.Fatalf("before the first request, the proxy has %q", has)
	}
	for _, service := range []string{"web", "api", "bytes"} {
		harness.Eventually(t, 20*time.Second, "the mesh's DNS answers for "+service, func() error {
			_, err := lookup(caller, service+".observed.svc.cluster.local")
			return err
		})
	}
	uses := []string{}
	for _, service := range []string{"web", "api", "bytes"} {
		host := service + ".observed.svc.cluster.local"
		url := "http://" + host + "/"
		if service == "bytes" {
			url = "http://" + host + ":7000/"
		}
		began := time.Now()
		// Once: nothing is tried again.
		got, err := fetches(caller, host, url)
		if want := service + " " + strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"); err != nil || got != want {
			t.Fatalf("the first request to %s: %q, %v", service, got, err)
		}
		t.Logf("the first request to %s took %s, the look-up of its name included", service, time.Since(began).Round(time.Millisecond))
		uses = append(uses, host)
		slices.Sort(uses)
		if has := outboundOf(t, caller); !slices.Equal(has, uses) {
			t.Errorf("the proxy has %q, and used %q", has, uses)
		}
		if s, err := status(caller); err != nil || !slices.Equal(s.Dependencies, uses) {
			t.Errorf("shown are %q, %v; used were %q", s.Dependencies, err, uses)
		}
	}
	if out := must(t, "describe", "workload", "caller", "-n", "observed"); !strings.Contains(out, "Dependencies:  3 observed") {
		t.Errorf("describe says:\n%s", out)
	}
	for name, want := range map[string]int{"heddle_on_demand_listener_timeouts": 0, "heddle_on_demand_listener_success": 3} {
		if got := sum(harness.OnlyLines(caller.ProxyStats(t), name)); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}

	// Kept by then: it is written once a second.
	harness.Eventually(t, 10*time.Second, "what was learned is kept", func() error {
		out, err := os.ReadFile("/var/lib/heddle/" + clusterName + "/dependencies.db")
		if err != nil || !strings.Contains(string(out), uses[2]) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	connected := func(what string, since time.Time) {
		harness.Eventually(t, time.Minute, what, func() error {
			s, err := status(caller)
			if err != nil {
				return err
			}
			if !s.Since.After(since) || s.Types["LDS"] != "SYNCED" || s.Types["RDS"] != "SYNCED" {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		if has := outboundOf(t, caller); !slices.Equal(has, uses) {
			t.Errorf("%s: the proxy has %q, and used %q", what, has, uses)
		}
		for _, service := range []string{"web", "api"} {
			host := service + ".observed.svc.cluster.local"
			if got, err := fetches(caller, host, "http://"+host+"/"); err != nil || got != service+" "+host {
				t.Errorf("%s: %s answers %q, %v", what, service, got, err)
			}
		}
	}
	killed := time.Now()
	kill(t, controllerPID(t))
	connected("the controller was killed", killed)
	killed = time.Now()
	kill(t, caller.State.ProxyPID)
	connected("the proxy was killed", killed)
}

// replicaIn is the first replica of a workload in a namespace.
func replicaIn(t *testing.T, namespace, workload string) harness.Replica {
	t.Helper()
	for _, r := range here.Replicas(t) {
		if r.Namespace == namespace && r.Workload == workload {
			return r
		}
	}
	t.Fatalf("no replica of %s/%s", namespace, workload)
	return harness.Replica{}
}

// outboundOf are the hosts that a proxy has clusters for, as it says itself.
func outboundOf(t *testing.T, r harness.Replica) []string {
	t.Helper()
	out, err := r.InNetwork("curl", "-sS", "--max-time", "10", "http://127.0.0.1:15000/clusters")
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(out)))
	}
	var hosts []string
	for line := range strings.Lines(out) {
		if name, is := strings.CutPrefix(line, "outbound|"); is {
			name, _, _ = strings.Cut(name, "::")
			hosts = append(hosts, name[strings.LastIndexByte(name, '|')+1:])
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// sum adds up the values of metrics.
func sum(lines string) int {
	total := 0
	for line := range strings.Lines(lines) {
		var value int
		if fields := strings.Fields(line); len(fields) == 2 {
			if _, err := fmt.Sscan(fields[1], &value); err == nil {
				total += value
			}
		}
	}
	return total
}
