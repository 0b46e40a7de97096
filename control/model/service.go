package model

import (
	"net/netip"
	"strings"
)

// Protocol is what is spoken on a service's port.
type Protocol string

// Protocols that make a difference to proxies.
const (
	// TCP is any byte stream: also TLS, Redis, MongoDB and MySQL, whose contents proxies do not read.
	TCP Protocol = "TCP"
	// HTTP is HTTP/1.1.
	HTTP Protocol = "HTTP"
	// HTTP2 is HTTP/2 with prior knowledge, gRPC included.
	HTTP2 Protocol = "HTTP2"
)

// IsHTTP says whether proxies read requests of this protocol.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 }

// Service is a name under which replicas are reached.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Host is the full name, for example cart.shop.svc.cluster.local.
	Host string `json:"host"`
	// Address is the virtual address; invalid for an external service that has none.
	Address netip.Addr `json:"address,omitzero"`
	// Ports in the order of the object.
	Ports []ServicePort `json:"ports"`
	// Selector that replicas' labels must satisfy.
	Selector map[string]string `json:"selector"`
	// Identities that may answer for the service in this cluster, sorted: those of the workloads that the selector
	// selects. See [Service.Homes] for those of all clusters.
	Identities []string `json:"identities,omitempty"`
	// Replicas that the selector selects, ready or not, sorted by name.
	Replicas []*Replica `json:"-"`
	// ExportTo says which namespaces see the service.
	ExportTo Visibility `json:"exportTo,omitzero"`
	// Global is the global namespace that the service belongs to; empty for none.
	Global string `json:"global,omitempty"`
	// Aliases are its other names, sorted.
	Aliases []Alias `json:"aliases,omitempty"`
	// Imported says that only other clusters have the service: there is no Service object here.
	Imported bool `json:"imported,omitempty"`
	// Remote is where it runs in other clusters, sorted by cluster.
	Remote []Remote `json:"remote,omitempty"`
	// Spread has the endpoints of all clusters share the traffic; without it, those of this cluster go first.
	Spread bool `json:"spread,omitempty"`
	// Outlier is used by clients whose destination policy says nothing of failing endpoints.
	Outlier *Outlier `json:"outlier,omitempty"`
	// External is set for a service that is no Service object's. One of a global namespace has no namespace.
	External *External `json:"external,omitempty"`
	Source   Source    `json:"source"`
}

// ServicePort is one port of a service.
type ServicePort struct {
	Name     string   `json:"name,omitempty"`
	Number   uint16   `json:"number"`
	Protocol Protocol `json:"protocol"`
	// Target is the replicas' port; when zero, TargetName names it. A port that only other clusters have has neither.
	Target     uint16 `json:"target,omitempty"`
	TargetName string `json:"targetName,omitempty"`
	// TLS has clients of an external service speak TLS on this port.
	TLS bool `json:"tls,omitempty"`
	// Sealed says that applications speak TLS themselves, and so tell a server name (protocols TLS and HTTPS).
	Sealed bool `json:"sealed,omitempty"`
}

// Port finds a port by number, or nil.
func (s *Service) Port(number uint16) *ServicePort {
	for i := range s.Ports {
		if s.Ports[i].Number == number {
			return &s.Ports[i]
		}
	}
	return nil
}

// TargetOn is the port of a replica behind a service's port; false when the replica has no port of that name.
func (p *ServicePort) TargetOn(r *Replica) (uint16, bool) {
	if n, ok := r.ServicePorts[p.Name]; ok {
		return n, true
	}
	if p.Target != 0 || p.TargetName == "" {
		return p.Target, p.Target != 0
	}
	for _, rp := range r.Ports {
		if rp.Name == p.TargetName {
			return rp.Number, true
		}
	}
	return 0, false
}

// Locality is where a replica runs.
type Locality struct {
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	SubZone string `json:"subZone,omitempty"`
}

// ReplicaPort is a port that a replica listens on.
type ReplicaPort struct {
	Name   string `json:"name,omitempty"`
	Number uint16 `json:"number"`
}

// Replica is one running copy of a workload.
type Replica struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Workload is the name of the workload it is a copy of.
	Workload string            `json:"workload"`
	Address  netip.Addr        `json:"address"`
	Labels   map[string]string `json:"labels,omitempty"`
	// Account is its identity; empty for an endpoint outside of the mesh, which has none.
	Account string        `json:"account"`
	Ports   []ReplicaPort `json:"ports,omitempty"`
	// ServicePorts are the replica's ports by the name of the service's port; they go before the service's target
	// (Istio's WorkloadEntry.ports).
	ServicePorts map[string]uint16 `json:"servicePorts,omitempty"`
	// Weight among the others of its locality; 0 is 1.
	Weight   uint32   `json:"weight,omitempty"`
	Ready    bool     `json:"ready"`
	Cluster  string   `json:"cluster"`
	Locality Locality `json:"locality,omitzero"`
	// HasProxy says that a sidecar terminates mutual TLS for it.
	HasProxy bool `json:"hasProxy"`
}

// CanonicalName is Istio's canonical service of the replica: what telemetry calls it.
func (r *Replica) CanonicalName() string { return CanonicalName(r.Labels, r.Workload) }

// CanonicalRevision is Istio's canonical revision of the replica.
func (r *Replica) CanonicalRevision() string { return CanonicalRevision(r.Labels) }

// CanonicalName is the canonical service of labels, else the workload's name (Istio's rules).
func CanonicalName(labels map[string]string, workload string) string {
	for _, key := range []string{"service.istio.io/canonical-name", "app.kubernetes.io/name", "app"} {
		if v := labels[key]; v != "" {
			return v
		}
	}
	return workload
}

// CanonicalRevision is the canonical revision of labels, else "latest" (Istio's rules).
func CanonicalRevision(labels map[string]string) string {
	for _, key := range []string{"service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"} {
		if v := labels[key]; v != "" {
			return v
		}
	}
	return "latest"
}

// ProtocolOf chooses the protocol of a port from its appProtocol, else from its name, "protocol" or
// "protocol-suffix", as Istio does. known is false when neither says it and TCP is assumed.
func ProtocolOf(appProtocol, name string) (p Protocol, known bool) {
	word := strings.ToLower(appProtocol)
	if word == "" {
		word = strings.ToLower(name)
		// grpc-web is the one protocol whose name has a hyphen.
		if word != "grpc-web" && !strings.HasPrefix(word, "grpc-web-") {
			word, _, _ = strings.Cut(word, "-")
		} else {
			word = "grpc-web"
		}
	}
	switch word {
	case "http", "grpc-web", "kubernetes.io/ws":
		return HTTP, true
	case "http2", "grpc", "kubernetes.io/h2c":
		return HTTP2, true
	case "tcp", "tls", "https", "redis", "mongo", "mysql":
		return TCP, true
	}
	return TCP, false
}
