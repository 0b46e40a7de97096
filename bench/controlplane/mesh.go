// Package controlplane measures the controller: a mesh of a given size, agents that report its replicas, and proxies that
// take their configuration over incremental ADS and acknowledge it, all of them simulated; the controller is the real one,
// in a process of its own.
package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/translate"
)

// Size of a mesh.
type Size struct {
	// Services, each with a Workload of its own. Every tenth is plain TCP, the others share one HTTP port.
	Services int
	// Endpoints of each service.
	Endpoints int
	// Namespaces that the services are spread over.
	Namespaces int
	// Proxies that connect: sidecars of the services' first endpoints.
	Proxies int
	// ReplicasPerAgent is how many replicas one agent reports.
	ReplicasPerAgent int
	// Disturbed has every tenth proxy wait before it acknowledges, and another tenth leave and come back with nothing. What is
	// measured is how long the others wait.
	Disturbed bool
}

// manner is how a proxy behaves.
type manner uint8

const (
	steady manner = iota
	slow
	leaving
)

// How slow the slow ones are, and how long those stay who leave.
const (
	slowAnswer = 500 * time.Millisecond
	shortStay  = 3 * time.Second
)

func (s Size) manner(proxy int) manner {
	switch {
	case s.Disturbed && proxy%10 == 3:
		return slow
	case s.Disturbed && proxy%10 == 7:
		return leaving
	}
	return steady
}

const (
	httpPort = 8080
	tcpPort  = 9000
)

func (s Size) namespace(service int) string { return fmt.Sprintf("ns-%02d", service%s.Namespaces) }

func name(service int) string { return fmt.Sprintf("svc-%05d", service) }

func port(service int) int {
	if service%10 == 9 {
		return tcpPort
	}
	return httpPort
}

// host is a service's full name.
func (s Size) host(service int) string {
	return name(service) + "." + s.namespace(service) + ".svc.cluster.local"
}

// cluster is the name of a service's cluster and of its endpoints.
func (s Size) cluster(service int) string {
	return fmt.Sprintf("outbound|%d||%s", port(service), s.host(service))
}

// batch is how many objects are applied at once.
const batch = 500

// apply makes the mesh's objects.
func (s Size) apply(ctx context.Context, c *client.Client) error {
	var documents []string
	flush := func() error {
		if len(documents) == 0 {
			return nil
		}
		_, err := c.Apply(ctx, client.ApplyRequest{Manifests: []client.Manifest{{File: "mesh.yaml", Content: strings.Join(documents, "---\n")}}})
		documents = documents[:0]
		if err != nil {
			return fmt.Errorf("apply the mesh: %w", err)
		}
		return nil
	}
	for i := range s.Namespaces {
		documents = append(documents, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: ns-%02d}\n", i))
	}
	for i := range s.Services {
		named := "http"
		if port(i) == tcpPort {
			named = "tcp"
		}
		documents = append(documents, fmt.Sprintf(
			"apiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: %[2]s}\nspec: {selector: {app: %[1]s}, ports: [{name: %[3]s, port: %[4]d}]}\n",
			name(i), s.namespace(i), named, port(i)), fmt.Sprintf(
			"apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}}\nspec: {command: [serve], ports: [{name: %[3]s, port: %[4]d}]}\n",
			name(i), s.namespace(i), named, port(i)))
		if len(documents) >= batch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// applyRoutes changes the routes of the first service, which every sidecar has in its table.
func (s Size) applyRoutes(ctx context.Context, c *client.Client, timeout int) error {
	_, err := c.Apply(ctx, client.ApplyRequest{Manifests: []client.Manifest{{File: "routes.yaml", Content: fmt.Sprintf(
		"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: routes, namespace: %s}\nspec: {hosts: [%[2]s], http: [{timeout: %[3]ds, route: [{destination: {host: %[2]s}}]}]}\n",
		s.namespace(0), s.host(0), timeout)}}})
	if err != nil {
		return fmt.Errorf("apply the routes: %w", err)
	}
	return nil
}

// replica is one endpoint; number counts all of them. The agents say nothing of proxies: those that they said run, and that have no stream,
// would be waited for whenever a change concerns servers, and most endpoints have none here.
func (s Size) replica(number int, started time.Time) client.Replica {
	service := number / s.Endpoints
	node := s.node(number)
	return client.Replica{
		Namespace: node.Namespace, Workload: node.Workload, ServiceAccount: node.Account, Labels: node.Labels, NodeID: node.ID(), Ready: true,
		Ports: map[string]int32{"port": int32(port(service))},
		State: objects.ReplicaState{Name: node.Name, Address: node.Address.String(), PID: number + 1, Started: started, Phase: "Ready"},
	}
}

func (s Size) node(number int) translate.Node {
	service := number / s.Endpoints
	address := netip.AddrFrom4([4]byte{10, byte(64 + number>>16), byte(number >> 8), byte(number)})
	return translate.Node{
		Type: translate.Sidecar, Address: address, Name: fmt.Sprintf("%s-%d", name(service), number%s.Endpoints), Namespace: s.namespace(service),
		Domain: "cluster.local", Workload: name(service), Account: "default", Labels: map[string]string{"app": name(service)},
		Cluster: clusterName, TrustDomain: "cluster.local", Heddle: true,
	}
}

// agents are the hosts' reports.
type agents struct {
	client *client.Client
	// mu is held while a report is changed or sent.
	mu      sync.Mutex
	reports []client.Report
	size    int
}

func (s Size) agents(c *client.Client, started time.Time) *agents {
	a := &agents{client: c, size: s.ReplicasPerAgent}
	for number := range s.Services * s.Endpoints {
		if number%s.ReplicasPerAgent == 0 {
			a.reports = append(a.reports, client.Report{Agent: fmt.Sprintf("agent-%03d", len(a.reports))})
		}
		last := &a.reports[len(a.reports)-1]
		last.Replicas = append(last.Replicas, s.replica(number, started))
	}
	return a
}

// renewEvery is how often agents report though nothing has changed, as heddle's do: who is silent for long has no traffic.
const renewEvery = 2 * time.Second

// renew has every agent report again and again until ctx ends.
func (a *agents) renew(ctx context.Context) error {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := a.reportAll(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// reportAll has every agent report.
func (a *agents) reportAll(ctx context.Context) error {
	for i := range a.reports {
		if err := a.report(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// report has one agent report.
func (a *agents) report(ctx context.Context, agent int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.client.Report(ctx, a.reports[agent]); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// flip changes the readiness of a replica and has its agent report.
func (a *agents) flip(ctx context.Context, number int) error {
	a.mu.Lock()
	r := &a.reports[number/a.size].Replicas[number%a.size]
	r.Ready = !r.Ready
	a.mu.Unlock()
	return a.report(ctx, number/a.size)
}
