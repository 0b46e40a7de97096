package resolve

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// Model keeps a mesh up to date with the objects and replicas that it is made of. What each object comes to is kept
// together with the facts that were looked up for it, and is worked out again when one of those is another: a change costs
// what depends on it. Parts that come out the same stay the same pointers. Make one with [New]; it is safe for concurrent
// use.
type Model struct {
	mu       sync.Mutex
	settings model.Settings
	mesh     *model.Mesh

	entries map[objects.Key]*entry
	// readers are the objects that a fact was looked up for.
	readers map[fact]map[objects.Key]struct{}
	// dirty are objects that must be worked out again, by when.
	dirty [strata]map[objects.Key]struct{}

	// What objects say beside the parts that they make.
	namespaces map[string]bool
	accounts   map[objects.Key]bool
	secrets    map[objects.Key]*objects.Object
	// grants are the ReferenceGrants of each namespace.
	grants map[string]map[objects.Key]*gatewayv1.ReferenceGrant
	// clusterObjects and globalObjects are all Clusters and GlobalNamespaces.
	clusterObjects, globalObjects map[objects.Key]*objects.Object
	// inhabited counts what makes a namespace one of this cluster: its declaration, services and workloads.
	inhabited map[string]int
	workloads *selection[*v1alpha1.Workload]
	replicas  *selection[*model.Replica]

	// local are the services of this cluster's Service objects by namespace and name, without what global namespaces add.
	local map[string]map[string]*model.Service
	// idle are those of them whose selector selects nothing here.
	idle map[objects.Key]bool
	// services in force by host, and the hosts of those that run in other clusters too.
	services map[string]*model.Service
	remotes  map[string]bool

	global globalState
	// peers and addresses of the running world.
	peers     []registry.Peer
	addresses map[string]netip.Addr

	gateways     map[string]*model.Gateway
	destinations hostIndex[*model.DestinationPolicy]
	routes       hostIndex[*model.Routes]
	// bound are the routes of the servers that say which they take.
	bound hostIndex[*model.Routes]
	// servers are the gateways with a server on a port, and reserved the ports whose servers may conflict anew.
	servers   map[uint16]map[string]*model.Gateway
	reserved  map[uint16]bool
	peerModes map[string]map[objects.Key]*model.PeerMode
	// external are the services of ServiceEntries.
	external entryState
	// groups are WorkloadGroups.
	groups map[objects.Key]*objects.Object
	// sidecars are Sidecars for whole namespaces.
	sidecars map[string]map[objects.Key]*model.Sidecar
	// authorizers of the mesh's configuration, nil for none.
	authorizers *authorizers
	// rehosted and remoded are hosts whose routes, and namespaces whose rules of mutual TLS, may conflict anew.
	rehosted, remoded map[string]bool
	// rescoped are namespaces whose Sidecars may conflict anew.
	rescoped map[string]bool

	changed changedParts
	// clustersChanged, globalsChanged and publicChanged say that these have to be worked out again.
	clustersChanged, globalsChanged, publicChanged, credentialsChanged bool
	// relocal are hosts of services of this cluster that changed; reshaped says that more than replicas did.
	relocal  map[string]bool
	reshaped bool
	// before are parts as they were before a trial, which are to come back as the same pointers.
	before map[any]any
	// forms are what is known of the objects of a batch that is tried.
	forms map[*objects.Object]objects.Form
}

// entry is an object with what it comes to.
type entry struct {
	object  *objects.Object
	valid   bool
	created time.Time
	said    [segments]*findings
	reads   []fact
	// part of the mesh that it makes, nil for none.
	part any
	// sections of its status in the form of Gateway API.
	sections sections
	// credentials that it needs.
	credentials []*model.Credential
}

// fact is something that is looked up while an object is worked out.
type fact struct {
	kind factKind
	// a, b and c say which: a host, a namespace, a label.
	a, b, c string
}

type factKind uint8

const (
	// factService is the service of a host, factName what a name stands for.
	factService factKind = iota
	factName
	// factWorkload and factReplica are who has a label in a namespace, "" for any label and for any namespace.
	factWorkload
	factReplica
	factNamespace
	factAccount
	factSecret
	// factAuthorizer is a provider of the mesh's configuration.
	factAuthorizer
	factGateway
	// factClass is a GatewayClass, factGrants the ReferenceGrants of a namespace.
	factClass
	factGrants
	factConfigMap
	// factDestinations are the destination policies for a host, "" for those for patterns.
	factDestinations
	factClusters
	// factRemotes are the services of other clusters.
	factRemotes
	// factGroup is a WorkloadGroup, factAddress the virtual address of a host.
	factGroup
	factAddress
)

// Change is what is different; what is nil is as before.
type Change struct {
	// Objects as they are now, by key; nil for one that is gone.
	Objects map[objects.Key]*objects.Object
	// Instances as they are now, by their ID; nil for one that is gone.
	Instances map[string]*registry.Instance
	// Peers are the other clusters, sorted by name.
	Peers *[]registry.Peer
	// Addresses are the virtual addresses of imported and external services, by full host name (see [Model.GlobalHosts]).
	Addresses map[string]netip.Addr
	// Issuers are this cluster's own, as in [model.Settings].
	Issuers *[]cluster.Issuer
}

// New makes a model of nothing.
func New(settings model.Settings) *Model {
	m := &Model{
		settings: settings, mesh: &model.Mesh{Settings: settings}, entries: map[objects.Key]*entry{},
		readers: map[fact]map[objects.Key]struct{}{}, namespaces: map[string]bool{}, accounts: map[objects.Key]bool{},
		secrets: map[objects.Key]*objects.Object{}, grants: map[string]map[objects.Key]*gatewayv1.ReferenceGrant{}, clusterObjects: map[objects.Key]*objects.Object{}, globalObjects: map[objects.Key]*objects.Object{}, inhabited: map[string]int{},
		workloads: newSelection((*v1alpha1.Workload).GetLabels), replicas: newSelection(func(r *model.Replica) map[string]string { return r.Labels }),
		local: map[string]map[string]*model.Service{}, idle: map[objects.Key]bool{}, services: map[string]*model.Service{}, remotes: map[string]bool{},
		gateways: map[string]*model.Gateway{}, destinations: hostIndex[*model.DestinationPolicy]{}, routes: hostIndex[*model.Routes]{},
		bound: hostIndex[*model.Routes]{}, servers: map[uint16]map[string]*model.Gateway{}, reserved: map[uint16]bool{},
		peerModes: map[string]map[objects.Key]*model.PeerMode{}, rehosted: map[string]bool{}, remoded: map[string]bool{},
		relocal: map[string]bool{}, clustersChanged: true, external: newEntryState(), groups: map[objects.Key]*objects.Object{},
		sidecars: map[string]map[objects.Key]*model.Sidecar{}, rescoped: map[string]bool{},
	}
	for i := range m.dirty {
		m.dirty[i] = map[objects.Key]struct{}{}
	}
	m.settle()
	return m
}

// Mesh is the mesh as it is.
func (m *Model) Mesh() *model.Mesh {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mesh
}

// Update makes a change and gives the mesh after it, which shares all parts that are the same with the one before.
func (m *Model) Update(c Change) *model.Mesh {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update(c)
	return m.mesh
}

func (m *Model) update(c Change) {
	for key, o := range c.Objects {
		m.setObject(key, o)
	}
	for id, i := range c.Instances {
		m.setInstance(id, i)
	}
	if c.Peers != nil && !reflect.DeepEqual(m.peers, *c.Peers) {
		m.peers, m.globalsChanged = *c.Peers, true
	}
	if c.Addresses != nil && !maps.Equal(m.addresses, c.Addresses) {
		m.setAddresses(c.Addresses)
	}
	if c.Issuers != nil && !slices.Equal(m.settings.Issuers, *c.Issuers) {
		m.settings.Issuers, m.clustersChanged = *c.Issuers, true
	}
	m.settle()
}

// Objects are all objects, in no order.
func (m *Model) Objects() []*objects.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*objects.Object, 0, len(m.entries))
	for _, e := range m.entries {
		out = append(out, e.object)
	}
	return out
}

// setObject takes an object as it is now.
func (m *Model) setObject(key objects.Key, o *objects.Object) {
	old := m.entries[key]
	if old == nil && o == nil || old != nil && old.object == o {
		return
	}
	if old != nil && old.valid {
		m.declare(old.object, -1)
	}
	if o == nil {
		m.forget(key, old)
		delete(m.entries, key)
		return
	}
	e := old
	if e == nil {
		e = &entry{}
		m.entries[key] = e
	}
	e.object, e.said[saidForm] = o, nil
	if o.Unreadable != "" {
		m.forget(key, e)
		b := &builder{m: m, report: recorder{m, saidForm}}
		b.report.refuse(key, "Undecryptable", "", o.Unreadable, "until then it is as if it were not there")
		// Who needs a Secret says why it is of no use.
		if e.valid = o.Kind == objects.Secret; e.valid {
			m.declare(o, 1)
		}
		return
	}
	form, known := m.forms[o]
	if !known {
		form = objects.FormOf(o)
	}
	errs := form.Errors
	created := o.GetCreationTimestamp().Time
	if e.valid = len(errs) == 0; !e.valid {
		m.forget(key, e)
		b := &builder{m: m, report: recorder{m, saidForm}}
		for _, err := range errs {
			b.report.refuse(key, "Invalid", err.Path, err.Problem, err.Remedy)
		}
		return
	}
	if !e.created.Equal(created) {
		// What it makes has another place among its like.
		m.setPart(key, e, nil)
		e.created = created
		m.global.reordered = m.global.reordered || key.Kind == objects.GlobalNamespace.Kind
	}
	if len(form.Ignored) > 0 {
		e.said[saidForm] = &findings{fields: form.Ignored}
	}
	m.declare(o, 1)
	m.dirty[stratumOf(key)][key] = struct{}{}
}

// forget takes back all that an object came to.
func (m *Model) forget(key objects.Key, e *entry) {
	if e == nil {
		return
	}
	m.setReads(key, e, nil)
	m.setPart(key, e, nil)
	m.setCredentials(e, nil)
	clear(e.said[:])
	e.sections = sections{}
	delete(m.idle, key)
	delete(m.dirty[stratumOf(key)], key)
}

// declare takes note of what an object says by being there, or with -1 by being gone.
func (m *Model) declare(o *objects.Object, by int) {
	key, there := o.Key(), by > 0
	inhabit := func(namespace string) {
		was := m.inhabited[namespace]
		if m.inhabited[namespace] = was + by; was+by == 0 {
			delete(m.inhabited, namespace)
		}
		m.globalsChanged = m.globalsChanged || was == 0 || was+by == 0
	}
	switch o.Kind {
	case objects.Namespace:
		if delete(m.namespaces, key.Name); there {
			m.namespaces[key.Name] = true
		}
		m.touch(fact{kind: factNamespace, a: key.Name})
		inhabit(key.Name)
	case objects.ServiceAccount:
		if delete(m.accounts, key); there {
			m.accounts[key] = true
		}
		m.touch(fact{kind: factAccount, a: key.Namespace, b: key.Name})
	case objects.Secret:
		if delete(m.secrets, key); there {
			m.secrets[key] = o
		}
		m.touch(fact{kind: factSecret, a: key.Namespace, b: key.Name})
		m.publicChanged = true
	case objects.WorkloadGroup:
		if delete(m.groups, key); there {
			m.groups[key] = o
		}
		m.touch(fact{kind: factGroup, a: key.Namespace, b: key.Name})
	case objects.ConfigMap:
		m.touch(fact{kind: factConfigMap, a: key.Namespace, b: key.Name})
	case objects.GatewayClass:
		m.touch(fact{kind: factClass, a: key.Name})
	case objects.ReferenceGrant:
		m.grant(key, o, there)
	case objects.Cluster:
		if delete(m.clusterObjects, key); there {
			m.clusterObjects[key] = o
		}
		m.clustersChanged = true
	case objects.GlobalNamespace:
		if delete(m.globalObjects, key); there {
			m.globalObjects[key] = o
		}
		m.globalsChanged = true
	case objects.Service:
		inhabit(key.Namespace)
	case objects.Workload:
		inhabit(key.Namespace)
		if w, ok := o.Resource.(*v1alpha1.Workload); ok {
			m.workloads.set(key.Namespace, key.Name, w, there)
			m.touchLabels(factWorkload, key.Namespace, w.GetLabels())
		}
	}
}

// setInstance takes a replica as it is now; without an address its agent will tell more.
func (m *Model) setInstance(id string, i *registry.Instance) {
	var r *model.Replica
	if i != nil && i.Address.IsValid() {
		r = replicaOf(*i)
	}
	old := m.replicas.find(id)
	switch {
	case old == nil && r == nil || old != nil && r != nil && reflect.DeepEqual(old, r):
		return
	case old != nil:
		m.setReplica(old, false)
	}
	if r != nil {
		m.setReplica(r, true)
	}
}

// setReplica takes note of a replica that is there, or not any more.
func (m *Model) setReplica(r *model.Replica, there bool) {
	m.replicas.set(r.Namespace, r.Name, r, there)
	m.touchLabels(factReplica, r.Namespace, r.Labels)
	m.changed.replicas.set(r, there)
}

// touch has the objects worked out again that a fact was looked up for.
func (m *Model) touch(f fact) {
	for key := range m.readers[f] {
		m.dirty[stratumOf(key)][key] = struct{}{}
	}
}

func (m *Model) touchLabels(kind factKind, namespace string, labels map[string]string) {
	for _, ns := range []string{namespace, ""} {
		m.touch(fact{kind: kind, a: ns})
		for k, v := range labels {
			m.touch(fact{kind: kind, a: ns, b: k, c: v})
		}
	}
}

func (m *Model) setReads(key objects.Key, e *entry, reads []fact) {
	for _, f := range e.reads {
		if of := m.readers[f]; of != nil {
			if delete(of, key); len(of) == 0 {
				delete(m.readers, f)
			}
		}
	}
	e.reads = reads
	for _, f := range reads {
		if m.readers[f] == nil {
			m.readers[f] = map[objects.Key]struct{}{}
		}
		m.readers[f][key] = struct{}{}
	}
}

// settle works out what depends on what changed.
func (m *Model) settle() {
	settings := m.mesh.Settings
	if m.clustersChanged {
		m.clustersChanged = false
		settings = m.clusters()
		if !slices.Equal(settings.Clusters, m.mesh.Settings.Clusters) {
			m.mesh = m.meshWith(settings)
			m.touch(fact{kind: factClusters})
			m.globalsChanged = true
		}
	}
	m.settleStratum(stratumEndpoints)
	m.settleStratum(stratumServices)
	m.settleGlobals()
	m.settleStratum(stratumDestinations)
	m.settleStratum(stratumPolicies)
	m.settlePublic()
	m.settleStratum(stratumRoutes)
	m.settleConflicts()
	m.assemble(settings)
}

// meshWith is the mesh with other settings.
func (m *Model) meshWith(settings model.Settings) *model.Mesh {
	mesh := *m.mesh
	mesh.Settings = settings
	return &mesh
}

func (m *Model) settleStratum(s int) {
	for len(m.dirty[s]) > 0 {
		for key := range m.dirty[s] {
			delete(m.dirty[s], key)
			if e := m.entries[key]; e != nil && e.valid {
				m.evaluate(key, e)
			}
		}
	}
}

// evaluate works an object out again.
func (m *Model) evaluate(key objects.Key, e *entry) {
	e.said[saidSelf], e.said[saidNamespace] = nil, nil
	b := &builder{m: m, settings: m.settings, report: recorder{m, saidSelf}}
	part := b.part(e.object)
	b.report.segment = saidNamespace
	b.namespace(e.object)
	m.setReads(key, e, b.read)
	// Conflicts are found again when the part is another.
	b.said.conflicts = e.sections.conflicts
	e.sections = b.said
	m.setPart(key, e, part)
	m.setCredentials(e, b.credentials)
}

// same gives the part as it was when it says the same, else the new one; either may be nil. id names the part.
func same[T any](m *Model, id any, was, now *T) *T {
	if was != nil && now != nil && reflect.DeepEqual(was, now) {
		return was
	}
	if m.before == nil {
		return now
	}
	old, known := m.before[id].(*T)
	if known && now != nil && reflect.DeepEqual(old, now) {
		return old
	}
	if !known && was != nil {
		m.before[id] = was
	}
	return now
}

// samePart is [same] for the part of an object.
func (m *Model) samePart(key objects.Key, was, now any) any {
	if was != nil && reflect.DeepEqual(was, now) {
		return was
	}
	if m.before == nil {
		return now
	}
	old, known := m.before[key]
	if known && reflect.DeepEqual(old, now) {
		return old
	}
	if !known && was != nil {
		m.before[key] = was
	}
	return now
}

// setPart puts the part of an object into force, nil for none.
func (m *Model) setPart(key objects.Key, e *entry, part any) {
	was := e.part
	if was == nil && part == nil {
		return
	}
	if part = m.samePart(key, was, part); part == was {
		return
	}
	e.part = part
	m.replacePart(was, part)
}

// replacePart puts a part into the mesh in place of another; either may be nil.
func (m *Model) replacePart(was, now any) {
	for _, side := range []struct {
		part  any
		there bool
	}{{was, false}, {now, true}} {
		switch p := side.part.(type) {
		case *model.Service:
			m.setLocal(p, side.there)
		case *entryServices:
			m.setEntry(p, side.there)
		case *entryReplica:
			m.setReplica(p.Replica, side.there)
		case *model.Sidecar:
			m.setSidecar(p, side.there)
		case *model.DestinationPolicy:
			m.changed.destinations.set(p, side.there)
			m.destinations.set(p.Host, p.Source.Key, p, side.there)
			if isPattern(p.Host) {
				m.touch(fact{kind: factDestinations})
			} else {
				m.touch(fact{kind: factDestinations, a: p.Host})
			}
		case *model.Gateway:
			m.changed.gateways.set(p, side.there)
			if delete(m.gateways, p.FullName()); side.there {
				m.gateways[p.FullName()] = p
			}
			m.setServers(p, side.there)
			m.say(p.Source.Key, saidConflict, nil)
			m.touch(fact{kind: factGateway, a: p.FullName()})
		case *model.BackendTLS:
			m.changed.backendTLS.set(p, side.there)
		case *model.PeerMode:
			m.changed.peerModes.set(p, side.there)
			if len(p.Selector) == 0 {
				if m.peerModes[p.Namespace] == nil {
					m.peerModes[p.Namespace] = map[objects.Key]*model.PeerMode{}
				}
				if delete(m.peerModes[p.Namespace], p.Source.Key); side.there {
					m.peerModes[p.Namespace][p.Source.Key] = p
				}
				m.remoded[p.Namespace] = true
			}
			m.say(p.Source.Key, saidConflict, nil)
		case *authorizers:
			if m.authorizers = nil; side.there {
				m.authorizers = p
			}
			for name := range p.by {
				m.touch(fact{kind: factAuthorizer, a: name})
			}
		case *model.AccessPolicy:
			m.changed.access.set(p, side.there)
		case *model.Authentication:
			m.changed.authentications.set(p, side.there)
		case *model.Dependencies:
			m.changed.dependencies.set(p, side.there)
		case *model.EnvoyFilter:
			m.changed.envoyFilters.set(p, side.there)
		case *model.Routes:
			m.changed.routes.set(p, side.there)
			if p.Ranked {
				for _, server := range p.Gateways {
					m.bound.set(server, p.Source.Key, p, side.there)
				}
				continue
			}
			if slices.Contains(p.Gateways, model.GatewayMesh) {
				for _, h := range p.Hosts {
					m.routes.set(h, p.Source.Key, p, side.there)
					m.rehosted[h] = true
				}
			}
			m.say(p.Source.Key, saidConflict, nil)
		}
	}
}

func (m *Model) say(key objects.Key, segment int, f *findings) {
	if e := m.entries[key]; e != nil {
		e.said[segment] = f
	}
}

// setLocal takes note of a service of this cluster that is there, or not any more.
func (m *Model) setLocal(s *model.Service, there bool) {
	in := m.local[s.Namespace]
	if in == nil {
		in = map[string]*model.Service{}
		m.local[s.Namespace] = in
	}
	old := in[s.Name]
	if old == nil && !there {
		return
	}
	if there {
		in[s.Name] = s
	} else if delete(in, s.Name); len(in) == 0 {
		delete(m.local, s.Namespace)
	}
	m.relocal[s.Host] = true
	m.reshaped = m.reshaped || !there || !m.onlyReplicas(s)
}

// onlyReplicas says whether a service that is there now differs from the one in force in its replicas alone.
func (m *Model) onlyReplicas(s *model.Service) bool {
	was := m.services[s.Host]
	if was == nil || was.Imported || was.External != nil {
		return false
	}
	now := withGlobal(s, was)
	now.Replicas, now.Identities = was.Replicas, was.Identities
	return reflect.DeepEqual(now, was)
}

// withGlobal is a service of this cluster with what global namespaces add to another state of it.
func withGlobal(s, of *model.Service) *model.Service {
	out := *s
	out.Global, out.Aliases, out.Remote, out.Spread, out.Outlier = of.Global, of.Aliases, of.Remote, of.Spread, of.Outlier
	return &out
}

func (m *Model) setCredentials(e *entry, credentials []*model.Credential) {
	if len(e.credentials)+len(credentials) > 0 {
		e.credentials, m.credentialsChanged = credentials, true
	}
}

// createdOf says when the object of a part was made, for precedence.
func (m *Model) createdOf(key objects.Key) time.Time {
	if e := m.entries[key]; e != nil {
		return e.created
	}
	return time.Time{}
}

// age compares objects: the oldest first. Where two want the same, the older has it, as in Istio. An object that is not
// stored yet has no age and is the youngest.
func (m *Model) age(x, y objects.Key) int {
	return cmp.Or(compareAge(m.createdOf(x), m.createdOf(y)), compareKeys(x, y))
}

// settleConflicts says which routes an older set for the same host keeps out: within the mesh a host has one set. Of
// rules of mutual TLS, a namespace has one for all of it.
func (m *Model) settleConflicts() {
	concerned := map[objects.Key]*model.Routes{}
	for host := range m.rehosted {
		for key, r := range m.routes[host] {
			concerned[key] = r
		}
	}
	clear(m.rehosted)
	ordered := map[string][]*model.Routes{}
	for key, r := range concerned {
		m.say(key, saidConflict, nil)
		report := recorder{m, saidConflict}
		for i, h := range r.Hosts {
			if ordered[h] == nil {
				ordered[h] = sortedBy(m.routes[h], m.age)
			}
			if first := keptOut(ordered[h], r); first != nil {
				report.conflict(r, i, first)
			}
		}
	}
	for namespace := range m.remoded {
		rules, report := sortedBy(m.peerModes[namespace], m.age), recorder{m, saidConflict}
		for i, p := range rules {
			if m.say(p.Source.Key, saidConflict, nil); i > 0 {
				report.twice(p, rules[0])
			}
		}
		if len(m.peerModes[namespace]) == 0 {
			delete(m.peerModes, namespace)
		}
	}
	clear(m.remoded)
	m.settleSidecarConflicts()
	m.settleEntryConflicts()
	m.settleServers()
}
