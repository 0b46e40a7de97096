package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/agent/users"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/objects"
)

// Annotations of a Workload that the agent heeds.
const (
	// AnnotationStopped, set to "true", keeps the workload's replicas stopped: `heddle stop`.
	AnnotationStopped = "heddle.io/stopped"
	// AnnotationRestarted changes whenever the replicas are to be replaced: `heddle restart`.
	AnnotationRestarted = "heddle.io/restarted-at"
	// AnnotationProxyPath names another proxy program that understands the same bootstrap, for example a stock Envoy.
	AnnotationProxyPath = "heddle.io/proxy-path"
	// AnnotationCapture says how the workload's traffic is captured, ebpf or nftables; without it, as the cluster's is.
	AnnotationCapture = objects.AnnotationCapture
	// AnnotationTCPBypass says what of the workload's traffic bypasses TCP where the cluster has the bypass: send, both or off.
	AnnotationTCPBypass = objects.AnnotationTCPBypass
)

// replicaSpec is everything that one replica is made from. Replicas whose specs have equal hashes are the same.
type replicaSpec struct {
	Namespace      string
	Workload       string
	Name           string
	Gateway        bool
	ServiceAccount string
	Labels         map[string]string
	Command        []string
	Env            []v1alpha1.EnvVar
	User           string
	Ports          []v1alpha1.WorkloadPort
	Readiness      *v1alpha1.Readiness
	Limits         process.Limits
	Restart        v1alpha1.RestartPolicy
	ProxyPath      string
	RestartedAt    string
	// Capture is ebpf, or nftables where the workload asks for it; empty for nftables where the cluster has that. Running replicas of
	// before there was a choice have none.
	Capture string `json:",omitempty"`
	// Interception is what of it is captured; the zero value is everything, as of replicas of before there was a choice.
	Interception interception.Rules `json:",omitzero"`
	// TCPBypass is send, both or off; empty for send.
	TCPBypass string `json:",omitempty"`
	// Capabilities of the application, without CAP_.
	Capabilities []string
	// Unconfined runs the application without a sandbox.
	Unconfined bool
	// KeyProvider does the proxy's operations with keys that it takes; nil leaves them to its TLS library. No part of the hash: a proxy
	// learns of another one with its certificate, and need not be replaced.
	KeyProvider *objects.KeyProvider `json:"-"`
}

// hash changes when a running replica must be replaced.
func (s replicaSpec) hash() string {
	// A struct of strings, numbers and maps always encodes, and maps in the order of their keys.
	content, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// key names the replica within its cluster.
func (s replicaSpec) key() string { return s.Namespace + "/" + s.Name }

// maxReplicaPIDs bounds the processes of a replica, so that none can exhaust the machine's.
const maxReplicaPIDs = 4096

// replicas of a workload that this cluster is to run: none when it is another cluster's or stopped. Their keys are used by
// the mesh's default provider, unless the workload names another.
func replicas(w *v1alpha1.Workload, clusterName string, unconfined bool, meshProvider *objects.KeyProvider) []replicaSpec {
	if w.Spec.Cluster != "" && w.Spec.Cluster != clusterName || w.Annotations[AnnotationStopped] == "true" {
		return nil
	}
	limits := process.Limits{PIDs: maxReplicaPIDs}
	if q := w.Spec.Resources.CPU; q != nil {
		limits.MilliCPU = q.MilliValue()
	}
	if q := w.Spec.Resources.Memory; q != nil {
		limits.Memory = q.Value()
	}
	account := w.Spec.ServiceAccount
	if account == "" {
		account = "default"
	}
	// What was admitted can be read; a version that admitted more serves with the default.
	provider, err := objects.WorkloadKeyProvider(w)
	if err != nil || provider == nil {
		provider = meshProvider
	}
	// What cannot be read leaves nothing out.
	left, err := objects.WorkloadInterception(w)
	if err != nil {
		left = interception.Rules{}
	}
	specs := make([]replicaSpec, 0, w.ReplicaCount())
	for i := range w.ReplicaCount() {
		specs = append(specs, replicaSpec{
			Namespace: w.Namespace, Workload: w.Name, Name: w.Name + "-" + strconv.Itoa(i),
			ServiceAccount: account, Labels: w.Labels,
			Command: append(append([]string(nil), w.Spec.Command...), w.Spec.Args...), Env: w.Spec.Env, User: w.Spec.User,
			Ports: w.Spec.Ports, Readiness: w.Spec.Readiness, Limits: limits, Restart: w.Spec.Restart,
			ProxyPath: w.Annotations[AnnotationProxyPath], RestartedAt: w.Annotations[AnnotationRestarted],
			Capture: w.Annotations[AnnotationCapture], Interception: left, TCPBypass: w.Annotations[AnnotationTCPBypass],
			Capabilities: w.Spec.Capabilities, Unconfined: unconfined, KeyProvider: provider,
		})
	}
	return specs
}

// owner is whom an application runs as.
type owner struct {
	uid, gid int
	home     string
}

// account is whom the application runs as: the replica's own user, unless the workload names one.
func (r *replica) account() (owner, error) {
	switch {
	case r.spec.User != "":
		return account(r.spec.User)
	case r.spec.Unconfined:
		return account("nobody")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Its home is the only directory that it may write to.
	return owner{uid: r.user, gid: r.user, home: "/tmp"}, nil
}

// account resolves a user name or number. Those of the cluster's own range are refused: they are replicas', and capture
// leaves the traffic of proxies' alone.
func account(name string) (owner, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			var unknown user.UnknownUserIdError
			if number, numberErr := strconv.Atoi(name); numberErr == nil && number >= 0 && errors.As(err, &unknown) {
				u, err = &user.User{Uid: name, Gid: name, HomeDir: "/"}, nil
			}
		}
	}
	if err != nil {
		return owner{}, fmt.Errorf("user %q does not exist on this machine; create it or change spec.user", name)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return owner{}, fmt.Errorf("user %q: %w", name, err)
	}
	if users.Ours(uid) || users.Ours(gid) {
		return owner{}, fmt.Errorf("user %q has an id that Heddle gives to replicas and proxies, whose traffic bypasses the mesh; use another one in spec.user, or none", name)
	}
	return owner{uid: uid, gid: gid, home: u.HomeDir}, nil
}
