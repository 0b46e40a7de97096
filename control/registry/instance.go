// Package registry knows the replicas of workloads: where they are, who they are and whether they may get traffic. It
// also gives services their virtual addresses.
package registry

import (
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

// SameShape says whether two states of a replica differ in nothing but whether it is ready, where it is and its locality.
func (i Instance) SameShape(o Instance) bool {
	i.Ready, i.Address, i.Locality = o.Ready, o.Address, o.Locality
	return i.equal(o)
}

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

// Change is what became of a replica; nil is one that was not or is not there.
type Change struct {
	Before, After *Instance
}

// Instances holds the replicas known at the moment, in memory: agents report them again after a restart of the controller.
// It is safe for concurrent use. What it gives out is shared and must not be changed.
type Instances struct {
	mu        sync.Mutex
	instances map[string]*Instance
	// reporters are who reported each.
	reporters map[string]string
	// changes since they were taken last; before is what was known then.
	before map[string]*Instance
	wake   chan struct{}
}

// NewInstances makes an empty registry.
func NewInstances() *Instances {
	return &Instances{instances: map[string]*Instance{}, reporters: map[string]string{}, before: map[string]*Instance{}, wake: make(chan struct{}, 1)}
}

// Report sets all replicas that a reporter knows. Those that it alone reported before and does not now are forgotten.
func (m *Instances) Report(reporter string, all []Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	told := make(map[string]bool, len(all))
	for _, i := range all {
		id := i.ID()
		told[id] = true
		m.reporters[id] = reporter
		if old := m.instances[id]; old == nil || !old.equal(i) {
			now := i.clone()
			m.set(id, &now)
		}
	}
	for id, by := range m.reporters {
		if by == reporter && !told[id] {
			delete(m.reporters, id)
			m.set(id, nil)
		}
	}
}

func (m *Instances) set(id string, now *Instance) {
	if _, noted := m.before[id]; !noted {
		m.before[id] = m.instances[id]
	}
	if now == nil {
		delete(m.instances, id)
	} else {
		m.instances[id] = now
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Changed gets a value after one or more changes.
func (m *Instances) Changed() <-chan struct{} { return m.wake }

// Changes are what changed since the last call.
func (m *Instances) Changes() []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Change, 0, len(m.before))
	for id, before := range m.before {
		out = append(out, Change{Before: before, After: m.instances[id]})
	}
	clear(m.before)
	return out
}

// Snapshot gives all replicas, sorted by namespace and name.
func (m *Instances) Snapshot() []Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Instance, 0, len(m.instances))
	for _, id := range slices.Sorted(maps.Keys(m.instances)) {
		out = append(out, *m.instances[id])
	}
	return out
}
