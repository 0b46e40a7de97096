package model

import (
	"strings"
	"time"
)

// DestinationPolicy says how clients treat a service.
type DestinationPolicy struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Host is a full name, "*.suffix" or "*".
	Host string `json:"host"`
	// Clients limits the policy to clients with these labels in its own namespace; empty for all.
	Clients  map[string]string `json:"clients,omitempty"`
	ExportTo Visibility        `json:"exportTo,omitzero"`
	Policy   TrafficPolicy     `json:"policy,omitzero"`
	Subsets  []Subset          `json:"subsets,omitempty"`
	Source   Source            `json:"source"`
}

// Subset is a part of a service's endpoints.
type Subset struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Policy TrafficPolicy     `json:"policy,omitzero"`
}

// Subset finds a subset by name, or nil.
func (d *DestinationPolicy) Subset(name string) *Subset {
	for i := range d.Subsets {
		if d.Subsets[i].Name == name {
			return &d.Subsets[i]
		}
	}
	return nil
}

// TrafficPolicy is how connections are made, balanced and bounded; nil parts are left to defaults.
type TrafficPolicy struct {
	PortPolicy
	// Ports override the whole of the policy for their port: what they leave out has its default, as in Istio.
	Ports map[uint16]PortPolicy `json:"ports,omitempty"`
}

// NamesFiles says whether connections need files of the client's machine.
func (t *TrafficPolicy) NamesFiles() bool {
	names := func(c *ClientTLS) bool { return c != nil && c.CertificateFile+c.KeyFile+c.AuthorityFile != "" }
	for _, p := range t.Ports {
		if names(p.TLS) {
			return true
		}
	}
	return names(t.TLS)
}

// PortPolicy is the policy of one port.
type PortPolicy struct {
	Balance Balance    `json:"balance,omitempty"`
	Pool    *Pool      `json:"pool,omitempty"`
	Outlier *Outlier   `json:"outlier,omitempty"`
	TLS     *ClientTLS `json:"tls,omitempty"`
}

// ForPort is the policy of a port, with a subset's policy (nil for none) laid over the destination's.
func (t *TrafficPolicy) ForPort(port uint16, subset *TrafficPolicy) PortPolicy {
	out := t.PortPolicy
	if p, ok := t.Ports[port]; ok {
		out = p
	}
	if subset == nil {
		return out
	}
	if p, ok := subset.Ports[port]; ok {
		return p
	}
	if subset.Balance != "" {
		out.Balance = subset.Balance
	}
	if subset.Pool != nil {
		out.Pool = subset.Pool
	}
	if subset.Outlier != nil {
		out.Outlier = subset.Outlier
	}
	if subset.TLS != nil {
		out.TLS = subset.TLS
	}
	return out
}

// Balance is how endpoints are chosen.
type Balance string

// Ways to choose endpoints; empty means LeastRequest, Istio's default.
const (
	RoundRobin   Balance = "ROUND_ROBIN"
	LeastRequest Balance = "LEAST_REQUEST"
	Random       Balance = "RANDOM"
)

// Upgrade says whether HTTP/1.1 requests are forwarded over HTTP/2.
type Upgrade string

// Protocols towards endpoints.
const (
	// AsPort speaks the protocol of the port.
	AsPort Upgrade = ""
	// ToHTTP2 always speaks HTTP/2.
	ToHTTP2 Upgrade = "HTTP2"
	// AsClient speaks what the client speaks.
	AsClient Upgrade = "CLIENT"
)

// Pool bounds connections and requests; zero means no bound of its own.
type Pool struct {
	MaxConnections           uint32        `json:"maxConnections,omitempty"`
	ConnectTimeout           time.Duration `json:"connectTimeout,omitempty"`
	TCPIdleTimeout           time.Duration `json:"tcpIdleTimeout,omitempty"`
	MaxPendingRequests       uint32        `json:"maxPendingRequests,omitempty"`
	MaxRequests              uint32        `json:"maxRequests,omitempty"`
	MaxRequestsPerConnection uint32        `json:"maxRequestsPerConnection,omitempty"`
	MaxRetries               uint32        `json:"maxRetries,omitempty"`
	HTTPIdleTimeout          time.Duration `json:"httpIdleTimeout,omitempty"`
	MaxConcurrentStreams     uint32        `json:"maxConcurrentStreams,omitempty"`
	Upgrade                  Upgrade       `json:"upgrade,omitempty"`
}

// Outlier ejects endpoints that fail. Zero durations and nil counters leave the proxy's defaults.
type Outlier struct {
	Consecutive5xx     *uint32       `json:"consecutive5xx,omitempty"`
	ConsecutiveGateway *uint32       `json:"consecutiveGateway,omitempty"`
	SplitLocalOrigin   bool          `json:"splitLocalOrigin,omitempty"`
	ConsecutiveLocal   *uint32       `json:"consecutiveLocal,omitempty"`
	Interval           time.Duration `json:"interval,omitempty"`
	BaseEjection       time.Duration `json:"baseEjection,omitempty"`
	MaxEjectionPercent uint32        `json:"maxEjectionPercent,omitempty"`
	// MinHealthPercent is the panic threshold: below it, all endpoints are used. Zero turns panic off.
	MinHealthPercent uint32 `json:"minHealthPercent,omitempty"`
}

// TLSMode is what clients speak towards a service.
type TLSMode string

// Modes; without any, mutual TLS is used wherever the endpoint has a sidecar that speaks it.
const (
	TLSDisable TLSMode = "DISABLE"
	TLSSimple  TLSMode = "SIMPLE"
	TLSMutual  TLSMode = "MUTUAL"
	// TLSMesh is mutual TLS with the mesh's own certificates (ISTIO_MUTUAL).
	TLSMesh TLSMode = "ISTIO_MUTUAL"
)

// ClientTLS is how clients speak TLS with a service.
type ClientTLS struct {
	Mode TLSMode `json:"mode"`
	// CertificateFile, KeyFile and AuthorityFile are absolute paths on the host of the client's proxy.
	CertificateFile string `json:"certificateFile,omitempty"`
	KeyFile         string `json:"keyFile,omitempty"`
	AuthorityFile   string `json:"authorityFile,omitempty"`
	// Authorities are PEM, in place of AuthorityFile. Without either, the system's are trusted.
	Authorities  []byte   `json:"authorities,omitempty"`
	ServerName   string   `json:"serverName,omitempty"`
	SubjectNames []string `json:"subjectNames,omitempty"`
	// Untrusted says that there is no authority to verify servers with, though one is asked for: nothing is sent.
	Untrusted bool `json:"untrusted,omitempty"`
	// SkipVerify accepts any certificate of the server.
	SkipVerify bool `json:"skipVerify,omitempty"`
}

// MatchesHost says whether a pattern (a name, "*.suffix" or "*") covers a host, and how specifically.
func MatchesHost(pattern, host string) (specificity int, ok bool) {
	switch {
	case pattern == host:
		return 1 << 16, true
	case pattern == "*":
		return 1, true
	case strings.HasPrefix(pattern, "*.") && strings.HasSuffix(host, pattern[1:]) && len(host) >= len(pattern):
		return len(pattern), true
	}
	return 0, false
}

// Destination finds the policy that a client (its namespace and labels) uses towards a service, or nil. As in Istio:
// first policies of the client's namespace, then of the service's, then of the root namespace; within one namespace
// the most specific host wins, then the oldest; policies are not merged.
func (m *Mesh) Destination(clientNamespace string, clientLabels map[string]string, s *Service) *DestinationPolicy {
	return m.DestinationAmong(m.Destinations, clientNamespace, clientLabels, s)
}

// DestinationAmong is [Mesh.Destination] for whoever knows which policies may be for the service; they are in the mesh's
// order.
func (m *Mesh) DestinationAmong(all []*DestinationPolicy, clientNamespace string, clientLabels map[string]string, s *Service) *DestinationPolicy {
	namespaces := []string{clientNamespace, s.Namespace, m.Settings.RootNamespace}
	if clientNamespace == m.Settings.RootNamespace {
		namespaces = namespaces[1:]
	}
	for _, ns := range namespaces {
		var best *DestinationPolicy
		bestRank := 0
		for _, d := range all {
			if d.Namespace != ns || !d.ExportTo.In(clientNamespace) {
				continue
			}
			if len(d.Clients) > 0 && (d.Namespace != clientNamespace || !Selects(d.Clients, clientLabels)) {
				continue
			}
			rank, ok := s.Matches(d.Host)
			if !ok {
				continue
			}
			// A policy for these very clients is more specific than one for all, whatever the host.
			if len(d.Clients) > 0 {
				rank += 1 << 17
			}
			if rank > bestRank {
				best, bestRank = d, rank
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}
