// Package registry knows the replicas of workloads: where they are, who they are and whether they may get traffic. It
// also gives services their virtual addresses.
package registry

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"heddle.io/heddle/control/objects"
)

// Port is a port that a replica listens on.
type Port struct {
	// Name as the workload gives it, may be empty. Services' targetPort may use it.
	Name string `json:"name,omitempty"`
	// Number from 1 to 65535.
	Number uint16 `json:"number"`
}

// Locality is where a replica runs.
type Locality struct {
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	SubZone string `json:"subZone,omitempty"`
}

// Instance is one replica of a workload, as the agent reports it.
type Instance struct {
	// Workload that the replica belongs to; its namespace is the replica's.
	Workload objects.Key `json:"workload"`
	// Name is the replica's name, for example "cartservice-0"; unique in its namespace.
	Name string `json:"name"`
	// Address of the replica.
	Address netip.Addr `json:"address"`
	// Labels of the workload, by which Services and policies select it.
	Labels map[string]string `json:"labels,omitempty"`
	// ServiceAccount is the replica's identity in its namespace.
	ServiceAccount string `json:"serviceAccount"`
	// Ports that the application listens on.
	Ports []Port `json:"ports,omitempty"`
	// Ready says that the replica may get traffic.
	Ready bool `json:"ready"`
	// Cluster that runs it.
	Cluster string `json:"cluster"`
	// Locality of its host.
	Locality Locality `json:"locality,omitzero"`
	// HasProxy says that a sidecar terminates mutual TLS for it.
	HasProxy bool `json:"hasProxy"`
}

// Namespace of the replica.
func (i Instance) Namespace() string { return i.Workload.Namespace }

// ID names the replica in the cluster: namespace/name.
func (i Instance) ID() string { return i.Workload.Namespace + "/" + i.Name }

func (i Instance) clone() Instance {
	i.Labels = maps.Clone(i.Labels)
	i.Ports = slices.Clone(i.Ports)
	return i
}

func (i Instance) equal(o Instance) bool {
	return i.Workload == o.Workload && i.Name == o.Name && i.Address == o.Address && maps.Equal(i.Labels, o.Labels) &&
		i.ServiceAccount == o.ServiceAccount && slices.Equal(i.Ports, o.Ports) && i.Ready == o.Ready &&
		i.Cluster == o.Cluster && i.Locality == o.Locality && i.HasProxy == o.HasProxy
}

// Instances holds the replicas known at the moment. Implementations are safe for concurrent use.
type Instances interface {
	// Set adds a replica or replaces what is known of it.
	Set(Instance)
	// Delete forgets a replica.
	Delete(namespace, name string)
	// Replace sets all replicas at once and forgets all others; for an agent that reports anew after a restart.
	Replace([]Instance)
	// Snapshot gives all replicas, sorted by namespace and name.
	Snapshot() []Instance
	// Subscribe gives a channel that gets a value after one or more changes, until ctx ends; then it is closed.
	Subscribe(ctx context.Context) <-chan struct{}
}

// Memory keeps replicas in memory: agents report them again after a restart of the controller.
type Memory struct {
	mu          sync.Mutex
	instances   map[string]Instance
	subscribers map[chan struct{}]struct{}
}

var _ Instances = (*Memory)(nil)

// NewInstances makes an empty registry.
func NewInstances() *Memory {
	return &Memory{instances: map[string]Instance{}, subscribers: map[chan struct{}]struct{}{}}
}

// Set implements [Instances].
func (m *Memory) Set(i Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.instances[i.ID()]; ok && old.equal(i) {
		return
	}
	m.instances[i.ID()] = i.clone()
	m.notify()
}

// Delete implements [Instances].
func (m *Memory) Delete(namespace, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := namespace + "/" + name
	if _, ok := m.instances[id]; !ok {
		return
	}
	delete(m.instances, id)
	m.notify()
}

// Replace implements [Instances].
func (m *Memory) Replace(all []Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string]Instance, len(all))
	for _, i := range all {
		next[i.ID()] = i.clone()
	}
	if maps.EqualFunc(m.instances, next, Instance.equal) {
		return
	}
	m.instances = next
	m.notify()
}

// Snapshot implements [Instances].
func (m *Memory) Snapshot() []Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Instance, 0, len(m.instances))
	for _, id := range slices.Sorted(maps.Keys(m.instances)) {
		out = append(out, m.instances[id].clone())
	}
	return out
}

// Subscribe implements [Instances].
func (m *Memory) Subscribe(ctx context.Context) <-chan struct{} {
	// One waiting value is enough: whoever gets it takes a snapshot of everything.
	ch := make(chan struct{}, 1)
	m.mu.Lock()
	m.subscribers[ch] = struct{}{}
	m.mu.Unlock()
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.subscribers, ch)
		close(ch)
	})
	return ch
}

func (m *Memory) notify() {
	for ch := range m.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
