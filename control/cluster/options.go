package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"heddle.io/heddle/control/durable"
)

// Options of a cluster are chosen by its first `heddle up` and kept with its data, so that every part, and a later up or
// down, goes by them.
type Options struct {
	// Family of all addresses.
	Family Family `json:"family"`
	// Isolated says that the cluster runs in a network namespace and a mount namespace of its own.
	Isolated bool `json:"isolated,omitempty"`
	// Advertise is the address of this machine (of the isolated cluster's own interface) by which other clusters reach
	// the east-west gateways, on port 15443; invalid when there is none.
	Advertise netip.Addr `json:"advertise,omitzero"`
	// ExposeIngress has the ports of the ingress gateway opened on that address too: always in an isolated cluster, on
	// a shared host only when the user named the address.
	ExposeIngress bool `json:"exposeIngress,omitempty"`
	// EastWestGateways is how many run. Default 2; 0 without an address to advertise.
	EastWestGateways int `json:"eastWestGateways,omitempty"`
	// GatewayProxy is another proxy program for the gateways, one that takes a stock Envoy's arguments; empty for the
	// cluster's own.
	GatewayProxy string `json:"gatewayProxy,omitempty"`
	// RegexEngine finds regular expressions in heddle-proxy, as ParseRegexEngine reads it; empty for the portable one.
	RegexEngine string `json:"regexEngine,omitempty"`
	// APIAddress is where the API is served over TLS beside its socket; invalid for nowhere.
	APIAddress netip.AddrPort `json:"apiAddress,omitzero"`
	// APIClientCA is a file (PEM) with the authority whose client certificates name users of the API; empty for none.
	APIClientCA string `json:"apiClientCA,omitempty"`
	// WorkloadKeyType is the kind of key that workloads' certificates are for, as ca.ParseKeyType reads it; empty for the
	// default, ecdsa-p256.
	WorkloadKeyType string `json:"workloadKeyType,omitempty"`
	// UserBlock is the block of user ids that is the cluster's alone on this machine (package users).
	UserBlock int `json:"userBlock,omitempty"`
	// PrivilegedWorkloads runs workloads without sandboxes, as whichever user they name.
	PrivilegedWorkloads bool `json:"privilegedWorkloads,omitempty"`
	// TCPBypass has traffic between workloads and proxies of this machine bypass TCP (package bypass).
	TCPBypass bool `json:"tcpBypass,omitempty"`
	// Capture is how workloads' traffic is brought to their proxies, where they do not say: CaptureNFTables (as empty), CaptureEBPF,
	// or CaptureAuto.
	Capture string `json:"capture,omitempty"`
	// SecretsKeyFile holds the keys that Secrets are encrypted with; empty for [Cluster.SecretsKey] in the cluster's data.
	SecretsKeyFile string `json:"secretsKeyFile,omitempty"`
	// KMSCommand is a program that wraps these keys with a key management service; empty leaves them in the file as they
	// are.
	KMSCommand string `json:"kmsCommand,omitempty"`
	// StageLimit is how long a change that concerns two ends waits for a proxy that does not take it; zero for the default.
	StageLimit time.Duration `json:"stageLimit,omitempty"`
	// Observed has sidecars get the services that their workload was seen to use, where the namespace says nothing
	// (model.Dependencies).
	Observed bool `json:"observed,omitempty"`
	// Etcd is the external cluster that objects are kept in; empty for a member inside the controller.
	Etcd Etcd `json:"etcd,omitzero"`
}

// Ways of capture.
const (
	// CaptureNFTables is by rules of the packet filter in the workload's network namespace.
	CaptureNFTables = "nftables"
	// CaptureEBPF is by eBPF programs (package capture).
	CaptureEBPF = "ebpf"
	// CaptureAuto takes the programs where the machine has what they need, and the packet filter elsewhere.
	CaptureAuto = "auto"
)

// Hyperscan is the engine of that library, which proxies load.
const Hyperscan = "hyperscan"

// ParseRegexEngine reads an engine's name: portable, for which it returns "", or hyperscan.
func ParseRegexEngine(text string) (string, error) {
	switch text {
	case "", "portable":
		return "", nil
	case Hyperscan:
		return Hyperscan, nil
	default:
		return "", fmt.Errorf("%q is no engine for regular expressions: use portable or hyperscan", text)
	}
}

// Etcd names an external etcd cluster, which is spoken to over TLS.
type Etcd struct {
	// Endpoints are the members' client URLs, separated by commas.
	Endpoints string `json:"endpoints"`
	// CACert, Cert and Key are PEM files: who signs the members' certificates, and the controller's own certificate and key.
	CACert string `json:"caCert"`
	Cert   string `json:"cert"`
	Key    string `json:"key"`
}

func (c Cluster) optionsPath() string { return filepath.Join(c.Data(), "cluster.json") }

// SecretsKey is the file with the keys that Secrets are encrypted with.
func (c Cluster) SecretsKey(o Options) string {
	if o.SecretsKeyFile != "" {
		return o.SecretsKeyFile
	}
	return filepath.Join(c.Data(), "store", "secrets.key")
}

// runningPath is a second copy of the options, of what the agent runs by. It goes with a restart of the machine.
func (c Cluster) runningPath() string { return filepath.Join(c.Run(), "agent", "cluster.json") }

// Options reads what [Cluster.Keep] kept; without it, the defaults. Of a torn file, it is what the cluster's agent runs by.
func (c Cluster) Options() (Options, error) {
	var o Options
	err := durable.ReadJSON(c.optionsPath(), &o)
	if errors.Is(err, os.ErrNotExist) {
		return Options{Family: IPv4}, nil
	}
	if errors.Is(err, durable.ErrTorn) {
		var running Options
		if durable.ReadJSON(c.runningPath(), &running) == nil {
			return running, nil
		}
	}
	if err != nil {
		return Options{}, fmt.Errorf("options of cluster %s: %w; restore the file from a backup", c.Name, err)
	}
	return o, nil
}

// Kept says whether options were kept: whether the cluster has been made.
func (c Cluster) Kept() bool {
	_, err := os.Stat(c.optionsPath())
	return err == nil
}

// Keep writes the options. The data directory must exist.
func (c Cluster) Keep(o Options) error {
	if err := durable.WriteJSON(c.optionsPath(), o, 0o644); err != nil {
		return fmt.Errorf("keep options of cluster %s: %w", c.Name, err)
	}
	return nil
}

// KeepRunning writes the options that the cluster's agent runs by, and repairs what [Cluster.Keep] kept if that is torn. The
// agent's runtime directory must exist.
func (c Cluster) KeepRunning(o Options) error {
	if err := durable.WriteJSON(c.runningPath(), o, 0o600); err != nil {
		return fmt.Errorf("keep options of cluster %s for repairs: %w", c.Name, err)
	}
	var kept Options
	if err := durable.ReadJSON(c.optionsPath(), &kept); errors.Is(err, durable.ErrTorn) {
		return c.Keep(o)
	}
	return nil
}

// IsolatedNetns is the name of an isolated cluster's network namespace, as `ip netns` shows it.
func (c Cluster) IsolatedNetns() string { return "heddle-" + c.Name }

// MountNamespace is the file that an isolated cluster's mount namespace is bound to.
func (c Cluster) MountNamespace() string { return filepath.Join(c.RunRoot, ".isolated", c.Name) }

// Names of the network that joins the isolated clusters of one machine.
const (
	// WANBridge is the bridge in the machine's own namespace.
	WANBridge = "heddle-wan"
	// WANInside is the name of a cluster's own end of its cable to the bridge.
	WANInside = "wan0"
)

// WANVeth is the bridge's end of the cluster's cable.
func (c Cluster) WANVeth() string { return "hw" + hash(c.Name, 12) }
