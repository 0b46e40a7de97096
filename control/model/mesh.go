// Package model is Heddle's neutral picture of a mesh: services, routes, policies, gateways. It knows neither xDS nor
// Kubernetes. It is built by control/model/resolve, which lets nothing in that cannot work, so translation needs no
// checks. Every part keeps the object and field that it comes from.
package model

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
)

// Source is the object and field that a part of the model comes from.
type Source struct {
	Key    objects.Key    `json:"key"`
	Origin objects.Origin `json:"-"`
	// Path of the field, empty for the object as a whole.
	Path string `json:"path,omitempty"`
}

// At is the source of a field of the same object.
func (s Source) At(path string) Source {
	s.Path = path
	return s
}

// Settings hold for the whole mesh.
type Settings struct {
	// Cluster is this cluster's name.
	Cluster string `json:"cluster"`
	// TrustDomain is the SPIFFE trust domain. Default "cluster.local".
	TrustDomain string `json:"trustDomain"`
	// Domain is the DNS domain of services. Default "cluster.local".
	Domain string `json:"domain"`
	// RootNamespace is the namespace whose policies hold everywhere. Default "istio-system".
	RootNamespace string `json:"rootNamespace"`
	// Family of all addresses. Default IPv4.
	Family cluster.Family `json:"family"`
	// Services is the range of virtual addresses. Default 10.96.0.0/16.
	Services netip.Prefix `json:"services"`
	// Globals is the range of virtual addresses of imported and external services. Default 240.240.0.0/16.
	Globals netip.Prefix `json:"globals"`
	// Clusters are the names of the clusters of the mesh, sorted, besides those that have a Cluster object. A built
	// mesh has all of them here, this one included.
	Clusters []string `json:"clusters,omitempty"`
	// Issuers are the authorities whose certificates are accepted, sorted by cluster. What a mesh is built from names this
	// cluster's own here, of which there are several while it joins a mesh; none means one that holds its own root. A
	// built mesh has those of all its clusters.
	Issuers []cluster.Issuer `json:"issuers,omitempty"`
	// Federation is where the controller serves other controllers, as the east-west gateways reach it; invalid when it
	// does not.
	Federation netip.AddrPort `json:"federation,omitzero"`
	// BlockUnknown refuses traffic to hosts that the mesh does not know (Istio's outboundTrafficPolicy
	// REGISTRY_ONLY). Default: it is passed through (ALLOW_ANY).
	BlockUnknown bool `json:"blockUnknown,omitempty"`
	// RetryAttempts of routes that say nothing of retries. Istio's default is 2; 0 turns retries off.
	RetryAttempts int `json:"retryAttempts"`
	// AccessLog has proxies write a line per request and connection to their log.
	AccessLog bool `json:"accessLog"`
	// Observed has sidecars get the services that their workload was seen to use, and learn the others on demand, where the
	// namespace says nothing (see [Dependencies]). Default: they get all that they see.
	Observed bool `json:"observed,omitempty"`
	// DefaultMode of mutual TLS where no PeerAuthentication says anything. Default STRICT.
	DefaultMode MTLSMode `json:"defaultMode"`
}

// DefaultSettings are the settings of an IPv4 cluster of that name.
func DefaultSettings(name string) Settings { return SettingsFor(name, cluster.IPv4) }

// SettingsFor are the default settings of a cluster of that name and family.
func SettingsFor(name string, family cluster.Family) Settings {
	ranges := family.Ranges()
	return Settings{
		Cluster: name, TrustDomain: cluster.Domain, Domain: cluster.Domain, RootNamespace: cluster.GatewayNamespace,
		Family: family, Services: ranges.Services, Globals: ranges.Globals, RetryAttempts: 2, DefaultMode: MTLSStrict,
		AccessLog: true,
	}
}

// Mesh is everything that translation needs. It is not changed once built.
type Mesh struct {
	Settings Settings `json:"settings"`
	// Globals are the global namespaces in force, sorted by age, then by name.
	Globals []*GlobalNamespace `json:"globals,omitempty"`
	// Services in the order of [CompareServices].
	Services []*Service `json:"services,omitempty"`
	// Replicas sorted by namespace and name.
	Replicas []*Replica `json:"replicas,omitempty"`
	// Routes sorted by age, the oldest first, then by group, kind, namespace and name.
	Routes []*Routes `json:"routes,omitempty"`
	// Gateways sorted by age, then by group, namespace and name.
	Gateways []*Gateway `json:"gateways,omitempty"`
	// Destinations are the policies towards services, sorted by age, then by namespace and name.
	Destinations []*DestinationPolicy `json:"destinations,omitempty"`
	// BackendTLS are the policies for TLS from gateways to services, sorted by age, then by namespace and name.
	BackendTLS []*BackendTLS `json:"backendTLS,omitempty"`
	// PeerModes are the rules for mutual TLS, sorted by age, then by namespace and name.
	PeerModes []*PeerMode `json:"peerModes,omitempty"`
	// Access are the rules for who may call what, sorted by namespace and name.
	Access []*AccessPolicy `json:"access,omitempty"`
	// Authentications are the rules for whose tokens are taken, sorted by age, then by namespace and name.
	Authentications []*Authentication `json:"authentications,omitempty"`
	// Sidecars limit what workloads' proxies get, sorted by age, then by namespace and name.
	Sidecars []*Sidecar `json:"sidecars,omitempty"`
	// Dependencies are the namespaces that say which services their sidecars get, sorted by name.
	Dependencies []*Dependencies `json:"dependencies,omitempty"`
	// EnvoyFilters are changes of what proxies are sent, in the order in which they are made: by priority, those of the root
	// namespace first, then by age, name and namespace.
	EnvoyFilters []*EnvoyFilter `json:"envoyFilters,omitempty"`
	// Credentials are gateways' certificates, sorted by namespace and name.
	Credentials []*Credential `json:"credentials,omitempty"`
	// Anchors of the clusters that announce their intermediates, sorted by cluster.
	Anchors []*Anchors `json:"anchors,omitempty"`
	// Accepted are former meshes that clients may still go by, so that servers take their connections as well.
	Accepted []*Mesh `json:"-"`
}

// Service finds a service by its full name, not by an alias, or nil.
func (m *Mesh) Service(host string) *Service {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	namespace, name := splitHost(host)
	i, ok := slices.BinarySearchFunc(m.Services, host, func(s *Service, _ string) int {
		if s.External != nil {
			return -1
		}
		return cmp.Or(strings.Compare(s.Namespace, namespace), strings.Compare(s.Name, name))
	})
	if ok && m.Services[i].Host == host {
		return m.Services[i]
	}
	i = sort.Search(len(m.Services), func(i int) bool { return m.Services[i].External == nil || m.Services[i].Host >= host })
	if i < len(m.Services) && m.Services[i].External != nil && m.Services[i].Host == host {
		return m.Services[i]
	}
	return nil
}

// CompareServices orders services: external ones first, by host; the others by namespace, name and host.
func CompareServices(x, y *Service) int {
	switch {
	case x.External != nil && y.External != nil:
		return strings.Compare(x.Host, y.Host)
	case x.External != nil:
		return -1
	case y.External != nil:
		return 1
	}
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Host, y.Host))
}

// ServicesIn are the services of a namespace, without external ones.
func (m *Mesh) ServicesIn(namespace string) []*Service {
	from, to := m.servicesIn(namespace)
	return m.Services[from:to]
}

func (m *Mesh) servicesIn(namespace string) (from, to int) {
	from, _ = slices.BinarySearchFunc(m.Services, namespace, func(s *Service, want string) int {
		if s.External != nil {
			return -1
		}
		return strings.Compare(s.Namespace, want)
	})
	for to = from; to < len(m.Services) && m.Services[to].Namespace == namespace; to++ {
	}
	return from, to
}

// Global finds a global namespace, or nil.
func (m *Mesh) Global(name string) *GlobalNamespace {
	for _, g := range m.Globals {
		if g.Name == name {
			return g
		}
	}
	return nil
}

func splitHost(host string) (namespace, name string) {
	name, rest, _ := strings.Cut(host, ".")
	namespace, _, _ = strings.Cut(rest, ".")
	return namespace, name
}

// Replica finds a replica, or nil.
func (m *Mesh) Replica(namespace, name string) *Replica {
	if i, ok := m.replica(namespace, name); ok {
		return m.Replicas[i]
	}
	return nil
}

// replicasIn are those of a namespace.
func (m *Mesh) replicasIn(namespace string) []*Replica {
	from, _ := m.replica(namespace, "")
	to := from
	for to < len(m.Replicas) && m.Replicas[to].Namespace == namespace {
		to++
	}
	return m.Replicas[from:to]
}

func (m *Mesh) replica(namespace, name string) (int, bool) {
	return slices.BinarySearchFunc(m.Replicas, name, func(r *Replica, want string) int {
		return cmp.Or(strings.Compare(r.Namespace, namespace), strings.Compare(r.Name, want))
	})
}

// Credential finds a gateway's certificate, or nil.
func (m *Mesh) Credential(namespace, name string) *Credential {
	for _, c := range m.Credentials {
		if c.Namespace == namespace && c.Name == name {
			return c
		}
	}
	return nil
}

// Visibility says to which namespaces something is exported. The zero value exports to all.
type Visibility struct {
	// Limited says that only Namespaces see it; none of them when empty.
	Limited    bool     `json:"limited,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
}

// In says whether a namespace sees it.
func (v Visibility) In(namespace string) bool {
	return !v.Limited || slices.Contains(v.Namespaces, namespace)
}

// Selects says whether all labels of a selector stand in labels. An empty selector selects everything.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// IssuersOf are the authorities of a cluster of the mesh; of another one, none.
func (s Settings) IssuersOf(name string) []cluster.Issuer {
	var out []cluster.Issuer
	for _, i := range s.Issuers {
		if i.Cluster == name {
			out = append(out, i)
		}
	}
	return out
}

// Identity is the SPIFFE identity of a service account.
func (s Settings) Identity(namespace, account string) string {
	return "spiffe://" + s.TrustDomain + "/ns/" + namespace + "/sa/" + account
}
