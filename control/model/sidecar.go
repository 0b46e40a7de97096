package model

import "slices"

// Sidecar limits what the proxies of some workloads get.
type Sidecar struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Selector of the workloads; empty for all of the namespace, or of the root namespace for all of the mesh that have
	// none of their own.
	Selector map[string]string `json:"selector,omitempty"`
	// Egress are the services that clients may use; nil for all that are visible.
	Egress []EgressHost `json:"egress,omitempty"`
	// Ingress are the ports that are served; nil for those that services lead to.
	Ingress []IngressPort `json:"ingress,omitempty"`
	// BlockUnknown says whether traffic to unknown hosts is refused, nil for what holds in the mesh.
	BlockUnknown *bool  `json:"blockUnknown,omitempty"`
	Source       Source `json:"source"`
}

// EgressHost is a set of services.
type EgressHost struct {
	// Namespace is a name, "*" for every one, "." for the client's own, "~" for none.
	Namespace string `json:"namespace"`
	// Host is a full name, "*.suffix" or "*".
	Host string `json:"host"`
}

// IngressPort is a port that a workload serves.
type IngressPort struct {
	Number   uint16   `json:"number"`
	Name     string   `json:"name,omitempty"`
	Protocol Protocol `json:"protocol"`
	// Target is the port of the workload's loopback that connections are handed to; 0 for where they were going.
	Target uint16 `json:"target,omitempty"`
}

// FullName is namespace/name.
func (s *Sidecar) FullName() string { return s.Namespace + "/" + s.Name }

// Sees says whether clients of a namespace get a service. A service of no namespace is in every one.
func (s *Sidecar) Sees(client string, svc *Service) bool {
	return s.sees(client, svc.Namespace, func(pattern string) bool {
		_, ok := svc.Matches(pattern)
		return ok
	})
}

// SeesHost is [Sidecar.Sees] for a host that is no service, of routes of a namespace.
func (s *Sidecar) SeesHost(client, namespace, host string) bool {
	return s.sees(client, namespace, func(pattern string) bool {
		_, ok := MatchesHost(pattern, host)
		return ok
	})
}

func (s *Sidecar) sees(client, namespace string, matches func(pattern string) bool) bool {
	if s == nil || s.Egress == nil {
		return true
	}
	return slices.ContainsFunc(s.Egress, func(h EgressHost) bool {
		if h.Namespace == "~" {
			return false
		}
		in := h.Namespace == "*" || namespace == "" || h.Namespace == namespace || h.Namespace == "." && namespace == client
		return in && matches(h.Host)
	})
}

// SidecarFor is the Sidecar that holds for a workload, or nil: the oldest of its namespace that selects it, else the namespace's,
// else the root namespace's (Istio's rules).
func (m *Mesh) SidecarFor(namespace string, labels map[string]string) *Sidecar {
	var whole, root *Sidecar
	for _, s := range m.Sidecars {
		switch {
		case s.Namespace == namespace && len(s.Selector) > 0:
			if Selects(s.Selector, labels) {
				return s
			}
		case len(s.Selector) > 0:
		case s.Namespace == namespace && whole == nil:
			whole = s
		case s.Namespace == m.Settings.RootNamespace && root == nil:
			root = s
		}
	}
	if whole != nil {
		return whole
	}
	return root
}

// Sidecar finds one by namespace/name, or nil.
func (m *Mesh) Sidecar(fullName string) *Sidecar {
	if fullName == "" {
		return nil
	}
	for _, s := range m.Sidecars {
		if s.FullName() == fullName {
			return s
		}
	}
	return nil
}
