package model

import "net/netip"

// GlobalNamespace is a global namespace as it concerns this cluster.
type GlobalNamespace struct {
	Name string `json:"name"`
	// Domain under which its services answer as <service>.<domain>.
	Domain string `json:"domain"`
	// Namespaces of this cluster that it maps, sorted.
	Namespaces []string `json:"namespaces,omitempty"`
	Source     Source   `json:"source"`
}

// Name is a full host name that workloads may look up, and what it stands for.
type Name struct {
	// Host is in lower case, without a final dot.
	Host string `json:"host"`
	// Addresses that it resolves to.
	Addresses []netip.Addr `json:"addresses"`
	// Visible says to workloads of which namespaces.
	Visible Visibility `json:"visible,omitzero"`
}
