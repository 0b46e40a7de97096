package model

import (
	"net/netip"
	"slices"
	"strings"
)

// Dependencies says which of the services that they see the sidecars of a namespace get.
type Dependencies struct {
	Namespace string `json:"namespace"`
	// Observed are those that their workload was seen to use; without it, all.
	Observed bool   `json:"observed"`
	Source   Source `json:"source"`
}

// Observes says whether sidecars of a namespace get the services that their workload was seen to use, instead of all.
func (m *Mesh) Observes(namespace string) bool {
	i, found := slices.BinarySearchFunc(m.Dependencies, namespace, func(d *Dependencies, n string) int { return strings.Compare(d.Namespace, n) })
	if found {
		return m.Dependencies[i].Observed
	}
	return m.Settings.Observed
}

// At says whether connections to an address are for the service.
func (s *Service) At(a netip.Addr) bool {
	if slices.Contains(s.Addresses(), a) {
		return true
	}
	return s.External != nil && s.External.Entry != nil &&
		slices.ContainsFunc(s.External.Entry.Listen, func(l netip.Prefix) bool { return l.Contains(a) })
}

// Addressed says whether the addresses of connections alone tell that they are for the service. Of a ServiceEntry without
// addresses, the names in requests and handshakes do.
func (s *Service) Addressed() bool {
	if s.External == nil || s.External.Entry == nil {
		return s.Address.IsValid()
	}
	e := s.External.Entry
	return !e.ByName && len(e.Addresses)+len(e.Listen) > 0
}
