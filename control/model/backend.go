package model

// BackendTLS says that gateways speak TLS with services that are outside of the mesh's mutual TLS, whatever destination
// policies say (Gateway API's BackendTLSPolicy).
type BackendTLS struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Targets   []BackendTarget `json:"targets"`
	TLS       ClientTLS       `json:"tls"`
	Source    Source          `json:"source"`
}

// BackendTarget is a service, or one port of it.
type BackendTarget struct {
	// Host is the full name of a service.
	Host string `json:"host"`
	// Port; zero for all that have no target of their own.
	Port uint16 `json:"port,omitempty"`
}

// BackendTLSByTarget are the policies by what they are for: of several for the same target, the oldest. What is for a port wins
// over what is for the whole service.
func (m *Mesh) BackendTLSByTarget() map[BackendTarget]*BackendTLS {
	out := make(map[BackendTarget]*BackendTLS, len(m.BackendTLS))
	for _, b := range m.BackendTLS {
		for _, t := range b.Targets {
			if out[t] == nil {
				out[t] = b
			}
		}
	}
	return out
}
