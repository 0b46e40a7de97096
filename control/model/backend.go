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

// BackendTLSFor finds how gateways speak TLS with a port of a service, or nil: what is for the port wins, then the oldest.
func (m *Mesh) BackendTLSFor(host string, port uint16) *BackendTLS {
	var whole *BackendTLS
	for _, b := range m.BackendTLS {
		for _, t := range b.Targets {
			switch {
			case t.Host != host:
			case t.Port == port:
				return b
			case t.Port == 0 && whole == nil:
				whole = b
			}
		}
	}
	return whole
}
