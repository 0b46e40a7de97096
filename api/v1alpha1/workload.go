package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Workload is an application that the node agent runs as processes, each replica in a network namespace of its own
// with a sidecar. Services select a workload by its metadata.labels.
type Workload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkloadSpec `json:"spec"`
}

// WorkloadSpec says what to run and how.
type WorkloadSpec struct {
	// Cluster that runs the workload; empty means the cluster whose controller stores the object.
	Cluster string `json:"cluster,omitempty"`
	// Replicas is how many copies run, 0 to 1000. Default 1.
	Replicas *int32 `json:"replicas,omitempty"`
	// ServiceAccount names the identity of the replicas. Default "default".
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Command is the program and its leading arguments; the first is an absolute path or is looked up in PATH.
	Command []string `json:"command"`
	// Args follow the command.
	Args []string `json:"args,omitempty"`
	// Env are environment variables, in order; a later one of the same name is refused.
	Env []EnvVar `json:"env,omitempty"`
	// User of the machine that the application runs as, by name or number. Default is one that is the replica's alone; any
	// other one needs a namespace with the label heddle.io/privileged: "true".
	User string `json:"user,omitempty"`
	// Capabilities that the application has, without CAP_: NET_BIND_SERVICE, for example. Default none. They need a namespace
	// with the label heddle.io/privileged: "true".
	Capabilities []string `json:"capabilities,omitempty"`
	// Ports that the application listens on. Services may name them in targetPort.
	Ports []WorkloadPort `json:"ports,omitempty"`
	// Readiness says when a replica may get traffic. Without it, a replica is ready once its process runs.
	Readiness *Readiness `json:"readiness,omitempty"`
	// Resources are upper bounds for each replica.
	Resources Resources `json:"resources,omitempty"`
	// Restart says what happens when the application ends: Always (default), OnFailure or Never.
	Restart RestartPolicy `json:"restart,omitempty"`
}

// Capabilities are those that a workload may be given: they leave it in its namespaces. CAP_SYS_ADMIN and others, which give
// the machine, are not among them.
var Capabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SETGID",
	"SETUID", "SYS_CHROOT", "SYS_NICE", "SYS_RESOURCE",
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// WorkloadPort is a port that the application listens on.
type WorkloadPort struct {
	// Name that a Service's targetPort may use; at most 15 characters.
	Name string `json:"name,omitempty"`
	// Port number, 1 to 65535.
	Port int32 `json:"port"`
	// Protocol is TCP, the default and the only one.
	Protocol string `json:"protocol,omitempty"`
}

// Readiness is one probe: exactly one of TCP, HTTP and GRPC is set.
type Readiness struct {
	TCP  *TCPProbe  `json:"tcp,omitempty"`
	HTTP *HTTPProbe `json:"http,omitempty"`
	GRPC *GRPCProbe `json:"grpc,omitempty"`
	// InitialDelaySeconds before the first probe. Default 0.
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// PeriodSeconds between probes. Default 1.
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// TimeoutSeconds of one probe. Default 1.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// SuccessThreshold is how many probes in a row make a replica ready. Default 1.
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// FailureThreshold is how many failures in a row make it not ready. Default 3.
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// TCPProbe succeeds when a connection is accepted.
type TCPProbe struct {
	Port int32 `json:"port"`
}

// HTTPProbe succeeds on a status from 200 to 399.
type HTTPProbe struct {
	Port int32 `json:"port"`
	// Path asked for. Default "/".
	Path string `json:"path,omitempty"`
}

// GRPCProbe asks grpc.health.v1.Health/Check.
type GRPCProbe struct {
	Port int32 `json:"port"`
	// Service asked about; empty asks about the server as a whole.
	Service string `json:"service,omitempty"`
}

// Resources are upper bounds for one replica.
type Resources struct {
	// CPU in Kubernetes' notation, for example "500m"; none means no bound.
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// Memory in Kubernetes' notation, for example "128Mi"; none means no bound.
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// RestartPolicy says what happens when an application ends.
type RestartPolicy string

// Restart policies.
const (
	// RestartAlways starts it again, with growing pauses.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure starts it again unless it exited with code 0.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever leaves it.
	RestartNever RestartPolicy = "Never"
)

// ReplicaCount is spec.replicas with its default.
func (w *Workload) ReplicaCount() int {
	if w.Spec.Replicas == nil {
		return 1
	}
	return int(*w.Spec.Replicas)
}

// DeepCopyObject copies the workload.
func (w *Workload) DeepCopyObject() runtime.Object { return w.DeepCopy() }

// DeepCopy copies the workload.
func (w *Workload) DeepCopy() *Workload {
	if w == nil {
		return nil
	}
	out := &Workload{TypeMeta: w.TypeMeta}
	w.DeepCopyInto(&out.ObjectMeta)
	out.Spec = *w.Spec.DeepCopy()
	return out
}

// DeepCopy copies the specification.
func (s *WorkloadSpec) DeepCopy() *WorkloadSpec {
	if s == nil {
		return nil
	}
	out := *s
	if s.Replicas != nil {
		n := *s.Replicas
		out.Replicas = &n
	}
	out.Command = append([]string(nil), s.Command...)
	out.Args = append([]string(nil), s.Args...)
	out.Capabilities = append([]string(nil), s.Capabilities...)
	out.Env = append([]EnvVar(nil), s.Env...)
	out.Ports = append([]WorkloadPort(nil), s.Ports...)
	out.Readiness = s.Readiness.DeepCopy()
	if s.Resources.CPU != nil {
		q := s.Resources.CPU.DeepCopy()
		out.Resources.CPU = &q
	}
	if s.Resources.Memory != nil {
		q := s.Resources.Memory.DeepCopy()
		out.Resources.Memory = &q
	}
	return &out
}

// DeepCopy copies the probe.
func (r *Readiness) DeepCopy() *Readiness {
	if r == nil {
		return nil
	}
	out := *r
	if r.TCP != nil {
		p := *r.TCP
		out.TCP = &p
	}
	if r.HTTP != nil {
		p := *r.HTTP
		out.HTTP = &p
	}
	if r.GRPC != nil {
		p := *r.GRPC
		out.GRPC = &p
	}
	return &out
}
