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
	"heddle.io/heddle/control/cluster"
)

// Annotations of a Workload that the agent heeds.
const (
	// AnnotationStopped, set to "true", keeps the workload's replicas stopped: `heddle stop`.
	AnnotationStopped = "heddle.io/stopped"
	// AnnotationRestarted changes whenever the replicas are to be replaced: `heddle restart`.
	AnnotationRestarted = "heddle.io/restarted-at"
	// AnnotationProxyPath names another proxy program that understands the same bootstrap, for example a stock Envoy.
	AnnotationProxyPath = "heddle.io/proxy-path"
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

// replicas of a workload that this cluster is to run: none when it is another cluster's or stopped.
func replicas(w *v1alpha1.Workload, clusterName string) []replicaSpec {
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
	specs := make([]replicaSpec, 0, w.ReplicaCount())
	for i := range w.ReplicaCount() {
		specs = append(specs, replicaSpec{
			Namespace: w.Namespace, Workload: w.Name, Name: w.Name + "-" + strconv.Itoa(i),
			ServiceAccount: account, Labels: w.Labels,
			Command: append(append([]string(nil), w.Spec.Command...), w.Spec.Args...), Env: w.Spec.Env, User: w.Spec.User,
			Ports: w.Spec.Ports, Readiness: w.Spec.Readiness, Limits: limits, Restart: w.Spec.Restart,
			ProxyPath: w.Annotations[AnnotationProxyPath], RestartedAt: w.Annotations[AnnotationRestarted],
		})
	}
	return specs
}

// account resolves a user name or number. The proxy's own is refused: capture leaves its traffic alone, so an
// application running as it would bypass the mesh.
func account(name string) (uid, gid int, home string, err error) {
	if name == "" {
		name = "nobody"
	}
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
		return 0, 0, "", fmt.Errorf("user %q does not exist on this machine; create it or change spec.user", name)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return 0, 0, "", fmt.Errorf("user %q: %w", name, err)
	}
	if uid == cluster.ProxyUID || gid == cluster.ProxyUID {
		return 0, 0, "", fmt.Errorf("user %q has the id %d, which is the proxies' and bypasses the mesh; use another one in spec.user", name, cluster.ProxyUID)
	}
	return uid, gid, u.HomeDir, nil
}
