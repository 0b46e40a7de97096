// Package registry knows the replicas of workloads: where they are, who they are and whether they may get traffic. It
// also gives services their virtual addresses.
package registry

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

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

// Instance is one replica of a workload, as its reporter knows it.
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

// Reporter is who reports replicas: one of [Agent], or of [Within].
type Reporter struct {
	name string
	// watched for silence.
	watched bool
}

// Agent is the reporter on a host, by the name that it gives itself. It is watched for silence: who is not heard of has no
// replicas in rotation.
func Agent(name string) Reporter { return Reporter{name: name, watched: true} }

// Within is a source of replicas within this process, by its name among its like: no agent can take it. It ends with the
// process, so it is not watched for silence: its replicas are as it reported them last, and that it is there says nothing of
// whether agents are heard.
func Within(name string) Reporter { return Reporter{name: name} }

// Silence is how long an agent may say nothing.
type Silence struct {
	// NotReady is when its replicas get no traffic any more, Gone when they are forgotten.
	NotReady, Gone time.Duration
}

// DefaultSilence has replicas out of rotation after five seconds, and forgotten after ten minutes.
var DefaultSilence = Silence{NotReady: 5 * time.Second, Gone: 10 * time.Minute}

// Instances holds the replicas known at the moment, in memory: reporters report them again after a restart of the controller.
// It is safe for concurrent use. What it gives out is shared and must not be changed.
type Instances struct {
	silence Silence

	mu        sync.Mutex
	instances map[string]*Instance
	// reported is what each reporter said last; owners are who reported each replica last, and have it among what they said.
	reported map[Reporter]*reported
	owners   map[string]Reporter
	// expired is when Expire was called last.
	expired time.Time
	// changes since they were taken last; before is what was known then.
	before map[string]*Instance
	wake   chan struct{}
}

// reported is what a reporter said last.
type reported struct {
	heard  time.Time
	silent bool
	// ready are the replicas, and whether they were said to be ready.
	ready map[string]bool
}

// NewInstances makes an empty registry.
func NewInstances(silence Silence) *Instances {
	return &Instances{
		silence: silence, instances: map[string]*Instance{}, reported: map[Reporter]*reported{}, owners: map[string]Reporter{},
		before: map[string]*Instance{}, wake: make(chan struct{}, 1),
	}
}

// Report sets all replicas that a reporter knows. Those that it alone reported before and does not now are forgotten.
func (m *Instances) Report(by Reporter, all []Instance, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, said := m.reported[by], &reported{heard: now, ready: make(map[string]bool, len(all))}
	m.reported[by] = said
	for _, i := range all {
		m.tell(by, said, i)
	}
	if before == nil {
		return
	}
	for id := range before.ready {
		if _, told := said.ready[id]; !told {
			m.forget(by, id)
		}
	}
}

// Revise is [Instances.Report] for a reporter of whom all is known but these: replicas that are new or that changed, and the IDs of those
// that it does not know any more. It costs what it says, and is false for a reporter of whom nothing is known.
func (m *Instances) Revise(by Reporter, changed []Instance, gone []string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	said := m.reported[by]
	if said == nil {
		return false
	}
	for _, id := range gone {
		delete(said.ready, id)
		m.forget(by, id)
	}
	for _, i := range changed {
		m.tell(by, said, i)
	}
	m.renew(by, said, now)
	return true
}

// tell notes what a reporter says of a replica.
func (m *Instances) tell(by Reporter, said *reported, i Instance) {
	id := i.ID()
	said.ready[id], m.owners[id] = i.Ready, by
	if old := m.instances[id]; old == nil || !old.equal(i) {
		now := i.clone()
		m.set(id, &now)
	}
}

// Renew says that a reporter has nothing new to report. One that is not watched need not say so.
func (m *Instances) Renew(by Reporter, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if said := m.reported[by]; said != nil {
		m.renew(by, said, now)
	}
}

func (m *Instances) renew(by Reporter, said *reported, now time.Time) {
	if said.heard = now; said.silent {
		said.silent = false
		m.rotate(by, said)
	}
}

// Expire takes the replicas of agents that have been silent out of rotation, and in the end forgets them; it gives the names
// of agents that are forgotten. It is to be called about every second. When all agents are silent, or it was not called for
// long itself, nobody is taken to be gone: then it is rather this process that hears nothing.
func (m *Instances) Expire(now time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	late := m.expired.IsZero() || now.Sub(m.expired) > m.silence.NotReady/2
	m.expired = now
	heard := false
	for by, said := range m.reported {
		if !by.watched {
			continue
		}
		if late && !said.silent {
			said.heard = now
		}
		heard = heard || now.Sub(said.heard) < m.silence.NotReady
	}
	if late || !heard {
		return nil
	}
	var gone []string
	for by, said := range m.reported {
		switch quiet := now.Sub(said.heard); {
		case !by.watched:
		case quiet >= m.silence.Gone:
			delete(m.reported, by)
			for id := range said.ready {
				m.forget(by, id)
			}
			gone = append(gone, by.name)
		case quiet >= m.silence.NotReady && !said.silent:
			said.silent = true
			m.rotate(by, said)
		}
	}
	slices.Sort(gone)
	return gone
}

// Silent are the names of agents whose replicas are out of rotation because nothing is heard of them, sorted.
func (m *Instances) Silent() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for by, said := range m.reported {
		if said.silent {
			out = append(out, by.name)
		}
	}
	slices.Sort(out)
	return out
}

// rotate puts a reporter's replicas into rotation, or out of it.
func (m *Instances) rotate(by Reporter, said *reported) {
	for id, ready := range said.ready {
		if old := m.instances[id]; old != nil && m.owners[id] == by {
			if now := ready && !said.silent; old.Ready != now {
				is := old.clone()
				is.Ready = now
				m.set(id, &is)
			}
		}
	}
}

// forget forgets a replica of a reporter, unless another one has reported it since.
func (m *Instances) forget(by Reporter, id string) {
	if owner, known := m.owners[id]; known && owner == by {
		delete(m.owners, id)
		m.set(id, nil)
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
