package resolve

import (
	"cmp"
	"maps"
	"net/netip"
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

	entries map[objects.Key]*keptObject
	// clusterIPs are the virtual addresses of Services.
	clusterIPs registry.Addresses
	// readers are the objects that a fact was looked up for.
	readers map[fact]map[objects.Key]struct{}
	// dirty are objects that must be worked out again, by when.
	dirty [strata]map[objects.Key]struct{}

	// What objects say beside the parts that they make.
	namespaces map[string]bool
	accounts   map[objects.Key]bool
	secrets    map[objects.Key]*objects.Object
	readables  map[*objects.Object]*readable
	// regexSizes are those of all objects of a namespace.
	regexSizes map[string]int
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
	peers      []registry.Peer
	ownAnchors []string
	addresses  map[string]netip.Addr

	gateways     map[string]*model.Gateway
	destinations hostIndex[*model.DestinationPolicy]
	routes       hostIndex[*model.Routes]
	// backendTLS are the policies for a service, and retargeted the services whose policies may conflict anew.
	backendTLS hostIndex[*model.BackendTLS]
	retargeted map[string]bool
	// attached are the routes of Gateway API.
	attached attachedRoutes
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
	// config is the mesh's configuration, nil for none.
	config *meshConfig
	// rehosted and remoded are hosts whose routes, and namespaces whose rules of mutual TLS, may conflict anew.
	rehosted, remoded map[string]bool
	// rescoped are namespaces whose Sidecars may conflict anew.
	rescoped map[string]bool

	changed changedParts
	// clustersChanged, globalsChanged and publicChanged say that these have to be worked out again.
	clustersChanged, globalsChanged, publicChanged, credentialsChanged bool
	// relocal are hosts of services of this cluster that changed; reshaped says that more than replicas did. reoffered are services
	// of other clusters of which no more changed than who is behind them, and where those are.
	relocal   map[string]bool
	reshaped  bool
	reoffered map[offered]bool
	// anchorsChanged says that those of some cluster did.
	anchorsChanged bool
	// before are parts as they were before a trial, which are to come back as the same pointers, and untried is the mesh before it;
	// both are nil while nothing is tried. moved are objects with another age in the trial: what they make has another place among
	// its like, and so is another part, until the trial is returning to what was before.
	before    map[any]any
	untried   *model.Mesh
	moved     map[objects.Key]bool
	returning bool
	// restated are the objects of which something else may be said than when [Model.Restated] was asked last.
	restated map[objects.Key]struct{}
	// forms are those of objects that are tried and of those in whose place they are, nil while nothing is tried: to look at an object
	// by itself is most of what a large one costs.
	forms map[*objects.Object]objects.Form
}

// keptObject is an object with what it comes to.
type keptObject struct {
	object  *objects.Object
	valid   bool
	created time.Time
	// regexSize is as in [objects.Form].
	regexSize int
	said      [segments]*findings
	reads     []fact
	// part of the mesh that it makes, nil for none.
	part any
	// sections of its status in the form of Gateway API.
	sections sections
	// credentials that it needs.
	credentials []*model.Credential
}

// form of an object that is valid.
func (e *keptObject) form() objects.Form {
	form := objects.Form{RegexSize: e.regexSize}
	if said := e.said[saidForm]; said != nil {
		form.Ignored = said.fields
	}
	return form
}

// setRegexSize takes note of how large an object's regular expressions are.
func (m *Model) setRegexSize(key objects.Key, e *keptObject, size int) {
	now := m.regexSizes[key.Namespace] + size - e.regexSize
	if m.regexSizes[key.Namespace], e.regexSize = now, size; now == 0 {
		delete(m.regexSizes, key.Namespace)
	}
}

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
	// Anchors are this cluster's own (PEM); those of others come with [Change.Peers].
	Anchors *[]string
}

// New makes a model of nothing.
func New(settings model.Settings) *Model {
	m := &Model{
		settings: settings, mesh: &model.Mesh{Settings: settings}, entries: map[objects.Key]*keptObject{},
		readers: map[fact]map[objects.Key]struct{}{}, namespaces: map[string]bool{}, accounts: map[objects.Key]bool{},
		secrets: map[objects.Key]*objects.Object{}, readables: map[*objects.Object]*readable{}, regexSizes: map[string]int{}, grants: map[string]map[objects.Key]*gatewayv1.ReferenceGrant{}, clusterObjects: map[objects.Key]*objects.Object{}, globalObjects: map[objects.Key]*objects.Object{}, inhabited: map[string]int{},
		workloads: newSelection((*v1alpha1.Workload).GetLabels), replicas: newSelection(func(r *model.Replica) map[string]string { return r.Labels }),
		local: map[string]map[string]*model.Service{}, idle: map[objects.Key]bool{}, services: map[string]*model.Service{}, remotes: map[string]bool{},
		gateways: map[string]*model.Gateway{}, destinations: hostIndex[*model.DestinationPolicy]{}, routes: hostIndex[*model.Routes]{},
		attached: newAttachedRoutes(), backendTLS: hostIndex[*model.BackendTLS]{}, retargeted: map[string]bool{}, servers: map[uint16]map[string]*model.Gateway{}, reserved: map[uint16]bool{},
		peerModes: map[string]map[objects.Key]*model.PeerMode{}, rehosted: map[string]bool{}, remoded: map[string]bool{},
		relocal: map[string]bool{}, reoffered: map[offered]bool{}, clustersChanged: true, external: newEntryState(), groups: map[objects.Key]*objects.Object{},
		sidecars: map[string]map[objects.Key]*model.Sidecar{}, rescoped: map[string]bool{}, restated: map[objects.Key]struct{}{},
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
	if c.Peers != nil {
		m.setPeers(*c.Peers)
	}
	if c.Anchors != nil && !slices.Equal(m.ownAnchors, *c.Anchors) {
		m.ownAnchors, m.anchorsChanged = *c.Anchors, true
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
func (m *Model) evaluate(key objects.Key, e *keptObject) {
	m.restate(key)
	e.said[saidSelf], e.said[saidNamespace] = nil, nil
	b := &builder{m: m, settings: m.settings, report: recorder{m, saidSelf}}
	part := b.part(e.object)
	b.report.segment = saidNamespace
	b.namespace(e.object)
	m.setReads(key, e, b.read)
	// Conflicts are found again when the part is another.
	b.said.conflicts, b.said.keptOut = e.sections.conflicts, e.sections.keptOut
	e.sections = b.said
	m.setPart(key, e, part)
	m.setCredentials(e, b.credentials)
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
	m.attached.rehosted(m.rehosted)
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
	m.settleAttachments()
	m.settlePolicies()
}
