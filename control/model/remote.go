package model

import (
	"net/netip"
	"slices"
)

// Remote is where a service runs in another cluster: behind that cluster's east-west gateways.
type Remote struct {
	Cluster string `json:"cluster"`
	// Gateways are the addresses of the cluster's east-west gateways.
	Gateways []netip.AddrPort `json:"gateways,omitempty"`
	// Reachable says that a gateway answers; without, its endpoints are out of rotation.
	Reachable bool     `json:"reachable"`
	Locality  Locality `json:"locality,omitzero"`
	// Ports that the service has there, sorted.
	Ports []uint16 `json:"ports"`
	// Identities that may answer for it there, sorted.
	Identities []string `json:"identities,omitempty"`
	// Groups count its ready endpoints by labels.
	Groups []RemoteGroup `json:"groups,omitempty"`
}

// RemoteGroup is a number of endpoints with the same labels.
type RemoteGroup struct {
	Labels map[string]string `json:"labels,omitempty"`
	Ready  uint32            `json:"ready"`
}

// Ready counts the endpoints of a port that a subset's labels select; nil selects all.
func (r *Remote) Ready(port uint16, labels map[string]string) uint64 {
	var n uint64
	if !slices.Contains(r.Ports, port) {
		return 0
	}
	for _, g := range r.Groups {
		if Selects(labels, g.Labels) {
			n += uint64(g.Ready)
		}
	}
	return n
}

// External is a service without a Service object: one of a global namespace, which has either names or addresses, or one of
// a ServiceEntry.
type External struct {
	// Names are resolved by the proxies, again and again.
	Names []string `json:"names,omitempty"`
	// Addresses of its hosts.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Entry is set for a service of a ServiceEntry.
	Entry *Entry `json:"entry,omitempty"`
}

// Alias is another full name of a service.
type Alias struct {
	Host string `json:"host"`
	// Visible says in which namespaces the name stands for the service.
	Visible Visibility `json:"visible,omitzero"`
}

// Addresses are those that DNS answers with for its host; none for a service that is known by name alone.
func (s *Service) Addresses() []netip.Addr {
	if s.External != nil && s.External.Entry != nil {
		return s.External.Entry.Addresses
	}
	return []netip.Addr{s.Address}
}

// Local says that this cluster has a Service object for it, and so may have replicas.
func (s *Service) Local() bool { return !s.Imported && s.External == nil }

// Home is a cluster that a service lives in, with the identities that may answer for it there, sorted.
type Home struct {
	Cluster    string
	Identities []string
}

// Homes are the clusters that the service lives in; own is this one's name. Clusters that cannot be reached at the moment
// count too, so that clients' trust does not change with the link.
func (s *Service) Homes(own string) []Home {
	var out []Home
	if s.Local() || s.External != nil && len(s.Identities) > 0 {
		out = append(out, Home{Cluster: own, Identities: s.Identities})
	}
	for _, r := range s.Remote {
		out = append(out, Home{Cluster: r.Cluster, Identities: r.Identities})
	}
	return out
}

// Matches says whether a host pattern covers the service under any of its names, and how specifically.
func (s *Service) Matches(pattern string) (specificity int, ok bool) {
	specificity, ok = MatchesHost(pattern, s.Host)
	for _, a := range s.Aliases {
		if rank, is := MatchesHost(pattern, a.Host); is {
			specificity, ok = max(specificity, rank), true
		}
	}
	return specificity, ok
}

// MutualTLS says whether a replica terminates the mesh's mutual TLS on one of its ports.
func (m *Mesh) MutualTLS(r *Replica, port uint16) bool {
	mode, _ := m.InboundMode(r.Namespace, r.Labels, port)
	return r.HasProxy && mode != MTLSDisable
}

// Exported says that other clusters may use the service: a global namespace maps it, and it is not kept to some
// namespaces of this cluster.
func (s *Service) Exported() bool { return s.Local() && s.Global != "" && !s.ExportTo.Limited }
