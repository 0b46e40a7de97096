// Package client is the REST API's protocol and its client, for the command line, the agent and other programs on this
// machine. The server is package server.
package client

import (
	"fmt"
	"strings"
	"time"

	"heddle.io/heddle/control/objects"
)

// Problem is the body of every answer that is not a success.
type Problem struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// What went wrong, Where (object, field, file and line), Why, and the Remedy.
	What   string `json:"what"`
	Where  string `json:"where,omitempty"`
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Errors lists every error of a refused batch.
	Errors []objects.Error `json:"errors,omitempty"`
	// cause is the error behind it, where it arose on this side.
	cause error
}

// Unwrap gives the error behind the problem, for example fs.ErrNotExist when there is no controller's socket.
func (p *Problem) Unwrap() error { return p.cause }

// Error puts the parts in one line, and the errors of a batch below it.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.Where != "" {
		b.WriteString(p.Where + ": ")
	}
	b.WriteString(p.What)
	if p.Why != "" {
		b.WriteString(": " + p.Why)
	}
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	for i := range p.Errors {
		b.WriteString("\n  " + p.Errors[i].Error())
	}
	return b.String()
}

// Manifest is the text of one file.
type Manifest struct {
	// File is its name, for messages and origins.
	File    string `json:"file"`
	Content string `json:"content"`
}

// ApplyRequest asks for a batch of writes: all are made or none.
type ApplyRequest struct {
	Manifests []Manifest `json:"manifests"`
	// Namespace of objects that name none; empty means "default".
	Namespace string `json:"namespace,omitempty"`
	// Delete removes the objects named by the manifests instead.
	Delete bool `json:"delete,omitempty"`
	// IgnoreNotFound makes the deletion of what does not exist no error.
	IgnoreNotFound bool `json:"ignoreNotFound,omitempty"`
	// DryRun checks everything and changes nothing.
	DryRun bool `json:"dryRun,omitempty"`
	// SkipOthers passes over objects that belong to another cluster, instead of refusing the batch. An object belongs
	// to the cluster that its label heddle.io/cluster names (a Workload also: its spec.cluster), a Cluster or
	// GlobalNamespace to the primary, and any other to the cluster that is asked.
	SkipOthers bool `json:"skipOthers,omitempty"`
	// User who asks, for the objects' origin.
	User string `json:"user,omitempty"`
}

// Actions of a [Result], in kubectl's words.
const (
	ActionCreated    = "created"
	ActionConfigured = "configured"
	ActionUnchanged  = "unchanged"
	ActionDeleted    = "deleted"
)

// Result of one object of a batch.
type Result struct {
	Key    objects.Key `json:"key"`
	Action string      `json:"action"`
	// Warnings, for example fields that have no effect.
	Warnings []string `json:"warnings,omitempty"`
}

// Name gives the object in kubectl's form, for example "virtualservice.networking.istio.io/shop".
func (r Result) Name() string {
	kind := strings.ToLower(r.Key.Kind)
	if r.Key.Group != "" {
		kind += "." + r.Key.Group
	}
	return kind + "/" + r.Key.Name
}

// ApplyResponse lists the results in the order of the manifests.
type ApplyResponse struct {
	Results []Result `json:"results"`
	DryRun  bool     `json:"dryRun,omitempty"`
	// Skipped are the objects that belong to other clusters, see [ApplyRequest.SkipOthers].
	Skipped []objects.Key `json:"skipped,omitempty"`
}

// List is the answer to a list.
type List struct {
	Items []*objects.Object `json:"items"`
	// Position that a watch goes on from. It is opaque.
	Position string `json:"position"`
}

// Change is one line of a watch.
type Change struct {
	// Type is ADDED, MODIFIED, DELETED, or ERROR with Problem set.
	Type     string          `json:"type"`
	Key      objects.Key     `json:"key"`
	Object   *objects.Object `json:"object,omitempty"`
	Position string          `json:"position,omitempty"`
	Problem  *Problem        `json:"problem,omitempty"`
}

// SigningRequest asks for a workload certificate. Only the agent, which has attested the workload, may ask.
type SigningRequest struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Request is the PEM certificate request.
	Request string `json:"request"`
	// Lifetime that is wanted; zero and more than the authority's own mean that one.
	Lifetime time.Duration `json:"lifetime,omitempty"`
	// Outside says that the agent does not renew the certificate: a change of the mesh's root waits for its end.
	Outside bool `json:"outside,omitempty"`
}

// SigningResponse is the issued certificate.
type SigningResponse struct {
	Chain   string    `json:"chain"`
	Roots   string    `json:"roots"`
	Expires time.Time `json:"expires"`
	Serial  string    `json:"serial"`
	Issuer  string    `json:"issuer"`
}

// Report is everything that an agent runs. Each report replaces the agent's previous one.
type Report struct {
	// Agent names the reporting agent: the host.
	Agent string `json:"agent"`
	// Revision names the content, and is never that of another one; empty for an agent that reports all each time.
	Revision string    `json:"revision,omitempty"`
	Replicas []Replica `json:"replicas"`
}

// ReportChange is what is different in an agent's report than in the one before, which the controller took.
type ReportChange struct {
	Agent string `json:"agent"`
	// Since is the revision of the report before, Revision that of this one.
	Since    string `json:"since"`
	Revision string `json:"revision"`
	// Replicas are new or have changed, Gone are there no more.
	Replicas []Replica     `json:"replicas,omitempty"`
	Gone     []ReplicaName `json:"gone,omitempty"`
}

// ReplicaName names a replica in the report of an agent.
type ReplicaName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Gateway says that it is one of the cluster's gateways.
	Gateway bool `json:"gateway,omitempty"`
}

// ReplicaName of the replica.
func (r *Replica) ReplicaName() ReplicaName { return ReplicaName{r.Namespace, r.State.Name, r.Gateway} }

// Unchanged is what an agent says while its last report holds: it runs, and runs the same.
type Unchanged struct {
	Agent    string `json:"agent"`
	Revision string `json:"revision"`
}

// Replica is one running copy of a workload, or a gateway.
type Replica struct {
	Namespace string `json:"namespace"`
	// Workload is the name of the Workload object, or of the gateway.
	Workload string `json:"workload"`
	// Gateway says that it is a proxy without an application.
	Gateway        bool              `json:"gateway,omitempty"`
	ServiceAccount string            `json:"serviceAccount"`
	Labels         map[string]string `json:"labels,omitempty"`
	// Ports that the application names.
	Ports map[string]int32 `json:"ports,omitempty"`
	// NodeID is the proxy's xDS node id.
	NodeID string `json:"nodeId"`
	// Ready says that it may get traffic.
	Ready bool                 `json:"ready"`
	State objects.ReplicaState `json:"state"`
	// CertificateExpires and CertificateProblem describe its identity.
	CertificateExpires time.Time `json:"certificateExpires,omitzero"`
	CertificateProblem string    `json:"certificateProblem,omitempty"`
}

// ProxyStatus is what the controller knows of one connected proxy.
type ProxyStatus struct {
	NodeID    string `json:"nodeId"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Type      string `json:"type"`
	Connected bool   `json:"connected"`
	// Revision is the controller's count of changes that its configuration was made from.
	Revision int64     `json:"revision,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	// Types maps LDS, RDS, CDS, EDS, SDS to SYNCED, STALE, NACK, NOT SENT or IGNORED, in istioctl's words. STALE is what the proxy
	// has not acknowledged, be it sent or held back until it has answered something else.
	Types map[string]string `json:"types"`
	// Synced says that the proxy acknowledged everything that there is for it.
	Synced bool `json:"synced,omitempty"`
	// Behind is the oldest change that the proxy has not answered, by the number of its push in the controller's log; zero when
	// there is none.
	Behind int64 `json:"behind,omitempty"`
	// Versions are the newest changes that the proxy acknowledged, by type.
	Versions map[string]string `json:"versions,omitempty"`
	// Errors are the last refusals, per type, with the proxy's words.
	Errors map[string]string `json:"errors,omitempty"`
	// Observed says that it gets the services that its workload was seen to use, which are the Dependencies, and learns others
	// on demand; without it, it gets all.
	Observed     bool     `json:"observed,omitempty"`
	Dependencies []string `json:"dependencies,omitempty"`
}

// Status of the controller.
type Status struct {
	Cluster string    `json:"cluster"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	PID     int       `json:"pid"`
	// Revision counts the changes of objects that this controller has seen.
	Revision int64 `json:"revision"`
	// ModelRevision is the newest revision that the proxies' configuration was computed from.
	ModelRevision int64  `json:"modelRevision"`
	RootHash      string `json:"rootHash"`
	Objects       int    `json:"objects"`
	Proxies       int    `json:"proxies"`
	// Problem says why the configuration could not be computed, empty when it could.
	Problem string `json:"problem,omitempty"`
	// Counters of the API since the controller started, by name.
	Counters map[string]uint64 `json:"counters,omitempty"`
	// Audit is how far back the audit log goes, by series of its files.
	Audit []AuditSeries `json:"audit,omitempty"`
}

func (k Change) String() string { return fmt.Sprintf("%s %s @%s", k.Type, k.Key, k.Position) }
