// Package cluster says where one cluster lives on this machine: its directories, sockets, addresses and the names of
// the kernel objects that belong to it. Every name that `heddle down` must find again is made here and nowhere else.
package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
)

// Defaults.
const (
	// DefaultDataRoot holds one directory per cluster with what must survive a reboot.
	DefaultDataRoot = "/var/lib/heddle"
	// DefaultRunRoot holds one directory per cluster with sockets, states and generated files.
	DefaultRunRoot = "/run/heddle"
	// Domain is the DNS domain of a cluster's services, and the SPIFFE trust domain.
	Domain = "cluster.local"
	// GatewayNamespace is where gateways live.
	GatewayNamespace = "istio-system"
)

// Ports are Istio's.
const (
	PortAdmin    = 15000
	PortOutbound = 15001
	PortInbound  = 15006
	PortXDS      = 15012
	PortHealth   = 15021
	PortDNS      = 15053
	PortMetrics  = 15090
	PortEastWest = 15443
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// Cluster is one cluster's place on this machine. The zero value is not usable: take one from [New].
type Cluster struct {
	Name     string
	DataRoot string
	RunRoot  string
}

// New checks the name, which becomes part of paths, host names and certificates, and returns the cluster's place under
// the default roots. It touches nothing.
func New(name string) (Cluster, error) {
	if !namePattern.MatchString(name) {
		return Cluster{}, fmt.Errorf("cluster name %q: use 1 to 40 lower-case letters, digits and inner hyphens, for example \"cluster1\"", name)
	}
	if CertificateName("", name) == FederationName("") {
		return Cluster{}, fmt.Errorf("cluster name %q is what clusters find their primary by: use another one, for example \"cluster1\"", name)
	}
	if (Cluster{Name: name}).Bridge() == WANBridge {
		return Cluster{}, fmt.Errorf("cluster name %q: its bridge would be %s, which joins the isolated clusters of a machine; use another one, for example \"cluster1\"", name, WANBridge)
	}
	return Cluster{Name: name, DataRoot: DefaultDataRoot, RunRoot: DefaultRunRoot}, nil
}

// Data is the directory that survives restarts: store, keys, logs, addresses.
func (c Cluster) Data() string { return filepath.Join(c.DataRoot, c.Name) }

// Run is the directory of sockets, process records and generated files.
func (c Cluster) Run() string { return filepath.Join(c.RunRoot, c.Name) }

// Logs is the directory of all log files: controller.log, agent.log, and <namespace>/<replica>/{app,proxy}.log.
func (c Cluster) Logs() string { return filepath.Join(c.Data(), "logs") }

// Audit is the directory of the audit log, which only root can read.
func (c Cluster) Audit() string { return filepath.Join(c.Data(), "audit") }

// APISocket serves the REST API.
func (c Cluster) APISocket() string { return filepath.Join(c.Run(), "api.sock") }

// XDSSocket serves the controller's xDS to the agent.
func (c Cluster) XDSSocket() string { return filepath.Join(c.Run(), "xds.sock") }

// AgentSocket serves the agent's own API: replicas, proxies' admin, checks.
func (c Cluster) AgentSocket() string { return filepath.Join(c.Run(), "agent.sock") }

// Bypass is where the programs of the TCP bypass are pinned.
func (c Cluster) Bypass() string { return filepath.Join(c.Run(), "bypass") }

// Capture is where the programs of capture by eBPF are pinned.
func (c Cluster) Capture() string { return filepath.Join(c.Run(), "capture") }

// Lock is held while `up` or `down` works. It lies beside the run directory so that `down` can remove that.
func (c Cluster) Lock() string { return filepath.Join(c.RunRoot, c.Name+".lock") }

// Workload is the directory of one replica's sockets and files.
func (c Cluster) Workload(namespace, replica string) string {
	return filepath.Join(c.Run(), "workloads", namespace, replica)
}

// short is the name where the kernel leaves room for eight characters.
func (c Cluster) short() string {
	if len(c.Name) <= 8 {
		return c.Name
	}
	return hash(c.Name, 8)
}

// Bridge is the interface that joins the cluster's workloads.
func (c Cluster) Bridge() string { return "heddle-" + c.short() }

// Table is the name of the cluster's nftables table.
func (c Cluster) Table() string { return "heddle-" + c.Name }

// Cgroup is the path of the cluster's control group below each hierarchy's root.
func (c Cluster) Cgroup() string { return "heddle-" + c.Name }

// NetnsPrefix starts the name of each of the cluster's network namespaces. Cluster names have no dot, so that one
// cluster's prefix never matches another's.
func (c Cluster) NetnsPrefix() string { return "heddle." + c.Name + "." }

// Netns is the name of a replica's network namespace, as `ip netns` shows it.
func (c Cluster) Netns(namespace, replica string) string {
	return c.NetnsPrefix() + namespace + "." + replica
}

// Veth is the host's end of a replica's veth pair: unique, and short enough for the kernel's fifteen characters.
func (c Cluster) Veth(namespace, replica string) string {
	return "hv" + hash(c.Name+"/"+namespace+"/"+replica, 12)
}

func hash(s string, n int) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:n]
}
