package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// GlobalNamespace makes namespaces of several clusters one: their services find each other under short name,
// Kubernetes name and <service>.<domain>, whichever cluster they run in. It is cluster-scoped, belongs to the primary
// and is replicated to every member.
type GlobalNamespace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GlobalNamespaceSpec `json:"spec"`
}

// GlobalNamespaceSpec says what belongs together and how it behaves.
type GlobalNamespaceSpec struct {
	// Domain under which every service answers as <service>.<domain>, for example "acme.demo". No two global
	// namespaces may have the same, and none the cluster's own domain.
	Domain string `json:"domain"`
	// Mappings name the namespaces that belong to it; at least one.
	Mappings []NamespaceMapping `json:"mappings"`
	// ExternalServices answer as <name>.<domain> and lead out of the mesh.
	ExternalServices []ExternalService `json:"externalServices,omitempty"`
	// PublicServices are offered to the outside by the ingress gateways.
	PublicServices []PublicService `json:"publicServices,omitempty"`
	// DefaultDeny refuses every call to the mapped namespaces that no AuthorizationPolicy allows. Default false.
	DefaultDeny bool `json:"defaultDeny,omitempty"`
	// Resilience says what happens when endpoints fail.
	Resilience Resilience `json:"resilience,omitzero"`
}

// NamespaceMapping names namespaces of clusters. Both fields take a name, or a pattern with "*" for any characters.
type NamespaceMapping struct {
	// Cluster name or pattern.
	Cluster string `json:"cluster"`
	// Namespace name or pattern.
	Namespace string `json:"namespace"`
}

// ExternalService is a service outside of the mesh.
type ExternalService struct {
	// Name, a DNS label.
	Name string `json:"name"`
	// Hosts are where it runs: DNS names, or IP addresses; not both kinds together.
	Hosts []string `json:"hosts"`
	// Ports of the service; at least one.
	Ports []ExternalPort `json:"ports"`
}

// ExternalPort is one port of an external service.
type ExternalPort struct {
	// Name says the protocol as in a Service, for example "http" or "tcp-db".
	Name string `json:"name,omitempty"`
	// Port number, 1 to 65535.
	Port int32 `json:"port"`
	// TargetPort on the hosts. Default: the same as Port.
	TargetPort int32 `json:"targetPort,omitempty"`
	// TLS has proxies speak TLS to the hosts, verified against the system's authorities. Default false.
	TLS bool `json:"tls,omitempty"`
}

// PublicService offers a service to the outside.
type PublicService struct {
	// Service of the global namespace, by its short name.
	Service string `json:"service"`
	// Port of the service. Default: its first HTTP port.
	Port int32 `json:"port,omitempty"`
	// Host is the public name that requests carry.
	Host string `json:"host"`
	// CredentialName is the Secret in istio-system with certificate and key; with it, the host is served by HTTPS on
	// port 443, without it by HTTP on port 80.
	CredentialName string `json:"credentialName,omitempty"`
}

// Resilience of a global namespace. A DestinationRule for the same service goes before it.
type Resilience struct {
	// LocalityFailover prefers endpoints of the caller's own cluster, and uses others while those have none. Default
	// true; with false, all endpoints share the traffic.
	LocalityFailover *bool `json:"localityFailover,omitempty"`
	// OutlierDetection takes failing endpoints out of rotation for a while.
	OutlierDetection *OutlierDetection `json:"outlierDetection,omitempty"`
}

// OutlierDetection bounds failures of an endpoint.
type OutlierDetection struct {
	// ConsecutiveErrors in a row (connection failures, 502, 503, 504) eject an endpoint. Default 5.
	ConsecutiveErrors int32 `json:"consecutiveErrors,omitempty"`
	// Interval between sweeps. Default 1s.
	Interval *metav1.Duration `json:"interval,omitempty"`
	// BaseEjectionTime is the first time out; it grows with each ejection. Default 5s.
	BaseEjectionTime *metav1.Duration `json:"baseEjectionTime,omitempty"`
	// MaxEjectionPercent of the endpoints may be out together. Default 100.
	MaxEjectionPercent int32 `json:"maxEjectionPercent,omitempty"`
}

// Failover is resilience.localityFailover with its default.
func (s *GlobalNamespaceSpec) Failover() bool {
	return s.Resilience.LocalityFailover == nil || *s.Resilience.LocalityFailover
}

// DeepCopyObject copies the global namespace.
func (g *GlobalNamespace) DeepCopyObject() runtime.Object { return g.DeepCopy() }

// DeepCopy copies the global namespace.
func (g *GlobalNamespace) DeepCopy() *GlobalNamespace {
	if g == nil {
		return nil
	}
	out := &GlobalNamespace{TypeMeta: g.TypeMeta, Spec: g.Spec}
	g.DeepCopyInto(&out.ObjectMeta)
	s := &out.Spec
	s.Mappings = slices.Clone(g.Spec.Mappings)
	s.PublicServices = slices.Clone(g.Spec.PublicServices)
	s.ExternalServices = slices.Clone(g.Spec.ExternalServices)
	for i := range s.ExternalServices {
		e := &s.ExternalServices[i]
		e.Hosts, e.Ports = slices.Clone(e.Hosts), slices.Clone(e.Ports)
	}
	s.Resilience.LocalityFailover = clone(g.Spec.Resilience.LocalityFailover)
	if o := clone(g.Spec.Resilience.OutlierDetection); o != nil {
		o.Interval, o.BaseEjectionTime = clone(o.Interval), clone(o.BaseEjectionTime)
		s.Resilience.OutlierDetection = o
	}
	return out
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
