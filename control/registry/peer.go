package registry

import "net/netip"

// Peer is another cluster of the mesh, as federation tells it: where its east-west gateways are and which services it
// exports to this cluster.
type Peer struct {
	// Cluster is the peer's name.
	Cluster string `json:"cluster"`
	// Gateways are the reachable addresses of its east-west gateways.
	Gateways []netip.AddrPort `json:"gateways,omitempty"`
	// Reachable says that a gateway answered lately; without, its endpoints are out of rotation.
	Reachable bool `json:"reachable"`
	// Locality of the peer.
	Locality Locality `json:"locality,omitzero"`
	// Anchors are its intermediates (PEM), by which clients know its servers; none for a cluster that announces none.
	Anchors []string `json:"anchors,omitempty"`
	// Services that it exports.
	Services *Exports `json:"services,omitempty"`
}

// Export is a service that a cluster offers to other clusters. It is shared, and not changed once it is among [Exports].
type Export struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Ports     []ExportPort `json:"ports"`
	// Identities (SPIFFE) that may answer for it, sorted.
	Identities []string `json:"identities,omitempty"`
	// Groups count its ready endpoints by their labels, so that subsets work across clusters.
	Groups []ExportGroup `json:"groups,omitempty"`
}

// ExportPort is a port of an exported service.
type ExportPort struct {
	Name   string `json:"name,omitempty"`
	Number uint16 `json:"number"`
	// Protocol is TCP, HTTP or HTTP2.
	Protocol string `json:"protocol"`
}

// ExportGroup is a number of endpoints that carry the same labels.
type ExportGroup struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Ready endpoints of the group.
	Ready uint32 `json:"ready"`
}
