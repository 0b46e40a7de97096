package model

// MTLSMode is what a workload accepts from other workloads.
type MTLSMode string

// Modes of mutual TLS.
const (
	// MTLSUnset leaves the mode to the next wider scope.
	MTLSUnset MTLSMode = ""
	// MTLSStrict accepts mutual TLS only.
	MTLSStrict MTLSMode = "STRICT"
	// MTLSPermissive accepts both.
	MTLSPermissive MTLSMode = "PERMISSIVE"
	// MTLSDisable accepts plain text only.
	MTLSDisable MTLSMode = "DISABLE"
)

// PeerMode is a rule for mutual TLS.
type PeerMode struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Selector of workloads; empty for the whole namespace, or the whole mesh in the root namespace.
	Selector map[string]string `json:"selector,omitempty"`
	Mode     MTLSMode          `json:"mode,omitempty"`
	// Ports of the workload (not of services) with modes of their own.
	Ports  map[uint16]MTLSMode `json:"ports,omitempty"`
	Source Source              `json:"source"`
}

// InboundMode is what a workload accepts on a port. As in Istio: a rule that selects the workload wins over the
// namespace's, that over the root namespace's; of two rules of one scope the older wins; a port's mode wins over its
// rule's.
func (m *Mesh) InboundMode(namespace string, labels map[string]string, port uint16) (MTLSMode, *PeerMode) {
	mode, by := m.Settings.DefaultMode, (*PeerMode)(nil)
	if r := m.peerMode(m.Settings.RootNamespace, nil); r != nil && r.Mode != MTLSUnset {
		mode, by = r.Mode, r
	}
	if namespace != m.Settings.RootNamespace {
		if r := m.peerMode(namespace, nil); r != nil && r.Mode != MTLSUnset {
			mode, by = r.Mode, r
		}
	}
	r := m.peerMode(namespace, labels)
	if r == nil {
		return mode, by
	}
	if r.Mode != MTLSUnset {
		mode, by = r.Mode, r
	}
	if p, ok := r.Ports[port]; ok && p != MTLSUnset {
		mode, by = p, r
	}
	return mode, by
}

// peerMode finds the oldest rule of a namespace: with labels nil the one for the whole namespace, else the one whose
// selector selects them.
func (m *Mesh) peerMode(namespace string, labels map[string]string) *PeerMode {
	for _, p := range m.PeerModes {
		if p.Namespace != namespace {
			continue
		}
		if labels == nil && len(p.Selector) == 0 || labels != nil && len(p.Selector) > 0 && Selects(p.Selector, labels) {
			return p
		}
	}
	return nil
}
