package model

import "net/netip"

// Resolution is how proxies find the hosts of a service that a ServiceEntry declares (Istio's ServiceEntry.Resolution).
type Resolution string

// Resolutions. DNS_ROUND_ROBIN is ResolveDNS with [RoundRobin] balance.
const (
	// ResolveNone has connections go where they were going already.
	ResolveNone Resolution = "NONE"
	// ResolveStatic goes to the entry's endpoints, or to what its selector selects.
	ResolveStatic Resolution = "STATIC"
	// ResolveDNS has proxies look names up again and again.
	ResolveDNS Resolution = "DNS"
)

// Entry is what a ServiceEntry says of a service beside what all services have.
type Entry struct {
	Resolution Resolution `json:"resolution"`
	// Mesh says that the service is a part of the mesh (MESH_INTERNAL): its endpoints may speak the mesh's mutual TLS.
	Mesh bool `json:"mesh,omitempty"`
	// Addresses that DNS answers with: those of the object, or the virtual one; none when the host is a pattern.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Listen are the addresses and ranges whose connections are the service's on ports where no host is told.
	Listen []netip.Prefix `json:"listen,omitempty"`
	// ByName says that connections of TLS are told by the server name that they ask for, for want of an address.
	ByName bool `json:"byName,omitempty"`
	// Hosts are looked up by proxies, with [ResolveDNS].
	Hosts []EntryHost `json:"hosts,omitempty"`
	// Balance of [ResolveDNS] where no policy says another.
	Balance Balance `json:"balance,omitempty"`
	// SubjectNames that the server's certificate must have one of, where TLS is spoken and no policy says others.
	SubjectNames []string `json:"subjectNames,omitempty"`
	// Selector of workloads and workload entries; nil for an entry that names its endpoints.
	Selector map[string]string `json:"selector,omitempty"`
}

// EntryHost is a name, or an address, behind an entry that is resolved by DNS.
type EntryHost struct {
	Host string `json:"host"`
	// Ports by the name of the service's port, where they are others than its target port.
	Ports    map[string]uint16 `json:"ports,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Weight   uint32            `json:"weight,omitempty"`
	Locality Locality          `json:"locality,omitzero"`
}

// PortOf is the port of the host behind a service's port.
func (h *EntryHost) PortOf(p ServicePort) uint16 {
	if n, ok := h.Ports[p.Name]; ok {
		return n
	}
	return p.Target
}

// Pattern says whether the service's host stands for several ("*.example.com").
func (s *Service) Pattern() bool { return len(s.Host) > 0 && s.Host[0] == '*' }

// UsesEndpoints says whether the service's replicas are what clients connect to, as opposed to what they resolve themselves.
func (s *Service) UsesEndpoints() bool {
	return s.External == nil || s.External.Entry != nil && s.External.Entry.Resolution == ResolveStatic
}

// MeshEndpoints says whether the service's replicas may speak the mesh's mutual TLS.
func (s *Service) MeshEndpoints() bool {
	return s.External == nil || s.External.Entry != nil && s.External.Entry.Mesh
}
