// Package objects holds the kinds that users write: how they are decoded, defaulted and checked for form, and where
// each came from. It knows nothing of the store, the model or xDS.
package objects

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Kind describes one kind of object. The list of all kinds is [Kinds].
type Kind struct {
	// Group is the API group, empty for core kinds.
	Group string
	// Version is the version that is stored, for example "v1".
	Version string
	// Versions are all versions accepted in manifests, the stored one included.
	Versions []string
	// Kind is the name used in manifests, for example "VirtualService".
	Kind string
	// Plural is the lower-case plural used on the command line and in REST paths.
	Plural string
	// Short are abbreviations accepted on the command line, for example "vs".
	Short []string
	// Namespaced says whether objects of this kind live in a namespace.
	Namespaced bool
	// New makes an empty resource of this kind.
	New func() Resource
}

// APIVersion is the value of the manifest's apiVersion field, for example "networking.istio.io/v1".
func (k *Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Resource is a typed object: Kubernetes' and Istio's own Go types, and Heddle's.
type Resource interface {
	metav1.Object
	runtime.Object
}

// Key names an object in a cluster.
type Key struct {
	// Group and Kind of the object, as in [Kind].
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind"`
	// Namespace is empty for cluster-wide kinds.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String gives Kind/namespace/name, for messages.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Namespace + "/" + k.Name
}

// Compare orders keys by group, kind, namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Group, other.Group), strings.Compare(k.Kind, other.Kind),
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name))
}

// Origin says where an object came from.
type Origin struct {
	// File and Line (1-based) of the manifest document; empty when it came over the API without a file.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// Cluster is the cluster the object was written in.
	Cluster string `json:"cluster,omitempty"`
	// User is who wrote it.
	User string `json:"user,omitempty"`
}

// String gives file:line or cluster/user.
func (o Origin) String() string {
	if o.File != "" {
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return o.Cluster + "/" + o.User
}

// Condition types of every object's status.
const (
	// ConditionAccepted: the object is valid and part of the model.
	ConditionAccepted = "Accepted"
	// ConditionResolvedRefs: every object it names exists.
	ConditionResolvedRefs = "ResolvedRefs"
	// ConditionProgrammed: every proxy that it concerns has acknowledged it.
	ConditionProgrammed = "Programmed"
)

// Status is what the controller says about an object.
type Status struct {
	// Conditions by the types above, Kubernetes' form.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Proxies counts the proxies that run the object as it is read; it is stored with none.
	Proxies int `json:"proxies,omitempty"`
	// Fields lists fields that are set but ignored or changed in meaning, each with its reason.
	Fields []FieldMessage `json:"fields,omitempty"`
	// Addresses and Listeners of a Gateway of Gateway API, SupportedFeatures of its classes, Parents of its routes, Ancestors of
	// its policies, as the API has them.
	Addresses []gatewayv1.GatewayStatusAddress `json:"addresses,omitempty"`
	Listeners []gatewayv1.ListenerStatus       `json:"listeners,omitempty"`
	Parents   []gatewayv1.RouteParentStatus    `json:"parents,omitempty"`
	Ancestors []gatewayv1.PolicyAncestorStatus `json:"ancestors,omitempty"`

	SupportedFeatures []gatewayv1.SupportedFeature `json:"supportedFeatures,omitempty"`
	// Workload is set for workloads only.
	Workload *WorkloadState `json:"workload,omitempty"`
}

// FieldMessage says something about one field of an object.
type FieldMessage struct {
	// Path of the field, for example "spec.http[0].mirror".
	Path string `json:"path"`
	// Message says what happens to it and what to do instead.
	Message string `json:"message"`
}

// WorkloadState is what the agent reports of a workload's replicas.
type WorkloadState struct {
	Replicas []ReplicaState `json:"replicas,omitempty"`
}

// ReplicaState is one running copy of a workload.
type ReplicaState struct {
	// Name is the workload's name and an ordinal, for example "cartservice-0".
	Name string `json:"name"`
	// Phase is Pending, Running, Ready, Stopped, Failed.
	Phase string `json:"phase"`
	// Address is the workload's IP address.
	Address string `json:"address,omitempty"`
	// PID of the application, ProxyPID of its sidecar.
	PID      int `json:"pid,omitempty"`
	ProxyPID int `json:"proxyPid,omitempty"`
	// Restarts counts restarts of the application.
	Restarts int `json:"restarts,omitempty"`
	// Started is when the application was last started.
	Started time.Time `json:"started,omitzero"`
	// Message explains Pending and Failed.
	Message string `json:"message,omitempty"`
}

// Version is a store's name for a state of an object. Two can be equal or not; nothing else may be read from them.
type Version string

// Object is a resource with what the store and the controller know about it. Objects are not changed once shared:
// copy with DeepCopyObject first.
type Object struct {
	Resource
	Kind   *Kind
	Origin Origin
	Status Status
	// Version is the store's name for this content; empty when it is not stored yet. It is another one after every write,
	// and the same after a change of the status.
	Version Version
	// StatusVersion is the store's name for this status; empty when it is not stored yet.
	StatusVersion Version
	// Unreadable is why the store cannot give the object's content, of which it then has nothing but kind and name; mostly
	// empty. It is never stored.
	Unreadable string

	// lines are the lines of the fields in Origin.File, by field path; only where the object was decoded.
	lines map[string]int
}

// Unknown is an object of which no more than its name can be read, and why.
func Unknown(kind *Kind, key Key, why string) *Object {
	o := &Object{Resource: kind.New(), Kind: kind, Unreadable: why}
	setTypeMeta(o)
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	return o
}

// FieldLine gives the line of a field, or of what encloses it, in the file that the object was decoded from, and
// zero when the object came from elsewhere.
func (o *Object) FieldLine(path string) int {
	if line := nearestLine(o.lines, path); line != 0 {
		return line
	}
	return o.Origin.Line
}

// DeepCopy copies the object so that the copy may be changed.
func (o *Object) DeepCopy() *Object {
	out := *o
	out.Resource = o.DeepCopyObject().(Resource)
	out.Status = o.Status.DeepCopy()
	return &out
}

// DeepCopy copies the status.
func (s Status) DeepCopy() Status {
	s.Conditions = slices.Clone(s.Conditions)
	s.Fields = slices.Clone(s.Fields)
	s.Addresses, s.SupportedFeatures = slices.Clone(s.Addresses), slices.Clone(s.SupportedFeatures)
	s.Listeners, s.Parents, s.Ancestors = slices.Clone(s.Listeners), slices.Clone(s.Parents), slices.Clone(s.Ancestors)
	s.EachConditions(func(list *[]metav1.Condition) { *list = slices.Clone(*list) })
	if s.Workload != nil {
		s.Workload = &WorkloadState{Replicas: slices.Clone(s.Workload.Replicas)}
	}
	return s
}

// EachConditions visits the lists of conditions of the status: its own, then those of its sections, in order.
func (s *Status) EachConditions(visit func(*[]metav1.Condition)) {
	visit(&s.Conditions)
	for i := range s.Listeners {
		visit(&s.Listeners[i].Conditions)
	}
	for i := range s.Parents {
		visit(&s.Parents[i].Conditions)
	}
	for i := range s.Ancestors {
		visit(&s.Ancestors[i].Conditions)
	}
}

// Key names the object.
func (o *Object) Key() Key {
	return Key{Group: o.Kind.Group, Kind: o.Kind.Kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}
