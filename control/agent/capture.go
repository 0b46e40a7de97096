package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/agent/capture"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// captures brings workloads' traffic to their proxies: by eBPF programs or by the packet filter, as the cluster or the workload says.
type captures struct {
	dir    string
	wanted string
	// byPrograms says that eBPF is what workloads have that say nothing.
	byPrograms bool

	mu       sync.Mutex
	attached *capture.Capture
	// problem is why there are no programs, where they were asked for.
	problem error
}

// attachCapture attaches the programs if the cluster is to have them, or takes over what the agent before attached. Where the machine
// lacks something, a cluster that takes what there is has the packet filter; one that asked for them has no agent, and what
// runs goes on as it is.
func (a *Agent) attachCapture() error {
	c := &a.captures
	c.dir, c.wanted = a.config.Cluster.Capture(), cmp.Or(a.options.Capture, cluster.CaptureNFTables)
	before := capture.IsAttached(c.dir)
	if c.wanted == cluster.CaptureNFTables && !before {
		return nil
	}
	attached, err := a.programs()
	switch {
	case err == nil:
		c.byPrograms = c.wanted != cluster.CaptureNFTables
		return a.sweepCapture(attached)
	case c.wanted == cluster.CaptureNFTables:
		// Those of workloads that ask for it are told so themselves.
		a.log.Warn("the capture programs of the agent before are not taken over, and go on", "error", err)
		return nil
	case c.wanted == cluster.CaptureAuto && !before:
		a.log.Info("traffic is captured by nftables", "why not by eBPF", err)
		return nil
	}
	return fmt.Errorf("capture by eBPF: %w; `heddle down --keep-data` and `heddle up --capture %s` do without", err, cluster.CaptureNFTables)
}

// programs are attached when they are first needed.
func (a *Agent) programs() (*capture.Capture, error) {
	c := &a.captures
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached != nil {
		return c.attached, nil
	}
	c.attached, c.problem = a.openCapture()
	return c.attached, c.problem
}

func (a *Agent) openCapture() (*capture.Capture, error) {
	if a.hierarchies.V2 == "" {
		return nil, process.ErrNoVersion2
	}
	group := filepath.Join(a.hierarchies.V2, a.config.Cluster.Cgroup())
	if err := os.MkdirAll(group, 0o755); err != nil {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	return capture.Attach(a.config.Cluster.Capture(), group)
}

// sweepCapture removes what is left of workloads whose network namespace went while no agent was there.
func (a *Agent) sweepCapture(attached *capture.Capture) error {
	alive, err := a.namespaces()
	if err != nil {
		return err
	}
	return attached.Sweep(alive)
}

// namespaces are the files of the replicas' network namespaces that there are.
func (a *Agent) namespaces() ([]string, error) {
	names, err := network.Names(a.config.Cluster.NetnsPrefix())
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if network.Exists(name) {
			paths = append(paths, network.Path(name))
		}
	}
	return paths, nil
}

// proxyGroup is the directory of the proxy's control group, of version 2.
func (r *replica) proxyGroup() string {
	return filepath.Join(r.agent.hierarchies.V2, r.cgroup("proxy"))
}

// there is what is attached, or nil.
func (c *captures) there() *capture.Capture {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attached
}

// close leaves it attached.
func (c *captures) close() {
	if attached := c.there(); attached != nil {
		attached.Close()
	}
}

// settle says of each replica how it is captured, where its workload does not: a replica of which that changes is replaced.
func (c *captures) settle(specs []replicaSpec) []replicaSpec {
	open := func(s replicaSpec) bool { return s.Capture == "" && !s.Gateway }
	if !c.byPrograms || !slices.ContainsFunc(specs, open) {
		return specs
	}
	specs = slices.Clone(specs)
	for i := range specs {
		if open(specs[i]) {
			specs[i].Capture = cluster.CaptureEBPF
		}
	}
	return specs
}

// capturedByPrograms says whether it is not the packet filter that captures the replica.
func (r *replica) capturedByPrograms() bool { return r.spec.Capture == cluster.CaptureEBPF }

// capture brings the replica's traffic to its proxy, in one of the two ways; the other one ends when this one holds.
func (r *replica) capture(address netip.Addr, proxyUser int) error {
	a := r.agent
	path := network.Path(r.netns)
	if !r.capturedByPrograms() {
		if err := network.Capture(r.netns, a.options.Family, proxyUser, r.spec.Interception); err != nil {
			return err
		}
		if attached := a.captures.there(); attached != nil {
			return attached.Remove(path)
		}
		return nil
	}
	attached, err := a.programs()
	if err != nil {
		return fmt.Errorf("capture by eBPF: %w; annotation %s: %s of the workload does without", err, AnnotationCapture, cluster.CaptureNFTables)
	}
	// By its group the proxy is known.
	if _, _, err := a.hierarchies.Create(r.cgroup("proxy"), process.Limits{PIDs: maxReplicaPIDs}); err != nil {
		return err
	}
	w := capture.Workload{Netns: path, Address: address, DNS: a.gateway(), ProxyGroup: r.proxyGroup(), Rules: r.spec.Interception}
	for _, p := range r.spec.Ports {
		w.Ports = append(w.Ports, uint16(p.Port))
	}
	if err := attached.Add(w); err != nil {
		return err
	}
	if r.inherited {
		return network.Release(r.netns)
	}
	return nil
}

// captured says what is missing of its capture.
func (r *replica) captured() (how string, err error) {
	left := ""
	if !r.spec.Interception.CaptureAll() {
		left = ", which leave alone what its annotations say: " + r.spec.Interception.String()
	}
	if !r.capturedByPrograms() {
		return "rules in place" + left, network.Captured(r.netns, r.agent.options.Family)
	}
	attached := r.agent.captures.there()
	if attached == nil {
		return "", errors.New("the capture programs are not attached")
	}
	return "programs in place" + left, attached.Captured(network.Path(r.netns))
}

// dialAsApplication connects as the application would: by the proxy, unless that is left out of capture.
func (r *replica) dialAsApplication(ctx context.Context, who owner, captured bool, target netip.AddrPort) (net.Conn, error) {
	if attached := r.agent.captures.there(); r.capturedByPrograms() && attached != nil && captured {
		return attached.Dial(ctx, r.netns, target)
	}
	// The application's user and group: what belongs to the proxy's is not captured.
	return network.DialAs(ctx, r.netns, who.uid, who.gid, "tcp", target.String())
}

// isToCheck says whether there is something of which `heddle check` may tell: eBPF was asked for, by the cluster or by a workload.
func (c *captures) isToCheck() bool {
	return c.there() != nil || c.wanted != "" && c.wanted != cluster.CaptureNFTables
}

// check is what `heddle check` says of it.
func (c *captures) check() Check {
	check := Check{Subject: "agent", Name: "ebpf-capture", How: Read, OK: true}
	attached := c.there()
	if attached == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		check.Detail = fmt.Sprintf("traffic is captured by %s, as eBPF cannot be had: %v", cluster.CaptureNFTables, c.problem)
		return check
	}
	s, err := attached.Status()
	if err != nil {
		check.OK, check.Detail, check.Remedy = false, err.Error(), "`heddle down --keep-data` and `heddle up` attach it anew"
		return check
	}
	check.Detail = fmt.Sprintf("%d connections of applications, %d from outside, %d to the cluster's DNS, %s", s.Outbound, s.Inbound, s.DNS, refusedByReason(s.Refused))
	return check
}

// refusedByReason says how many were refused, and why.
func refusedByReason(refused map[string]uint64) string {
	sum := uint64(0)
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(refused)) {
		if n := refused[reason]; n > 0 {
			sum += n
			reasons = append(reasons, fmt.Sprintf("%s %d", reason, n))
		}
	}
	if sum == 0 {
		return "0 refused"
	}
	return fmt.Sprintf("%d refused (%s)", sum, strings.Join(reasons, ", "))
}

var (
	captureAttached = prometheus.NewDesc("heddle_capture_attached", "1 where capture by eBPF is attached.", nil, nil)
	captureOutbound = prometheus.NewDesc("heddle_capture_outbound_total", "Connections of applications that eBPF brought to their proxies.", nil, nil)
	captureInbound  = prometheus.NewDesc("heddle_capture_inbound_total", "Packets that asked for a connection with a workload, given to its proxy by eBPF.", nil, nil)
	captureDNS      = prometheus.NewDesc("heddle_capture_dns_total", "Connected sockets, and datagrams of others, that eBPF brought to the cluster's DNS server.", nil, nil)
	captureRefused  = prometheus.NewDesc("heddle_capture_refused_total", "Connections, and datagrams to DNS, that capture by eBPF refused.", []string{"reason"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *captures) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements [prometheus.Collector].
func (c *captures) Collect(to chan<- prometheus.Metric) {
	programs := c.there()
	if programs == nil {
		to <- prometheus.MustNewConstMetric(captureAttached, prometheus.GaugeValue, 0)
		return
	}
	to <- prometheus.MustNewConstMetric(captureAttached, prometheus.GaugeValue, 1)
	s, err := programs.Status()
	if err != nil {
		return // `heddle check` says why. 0 would say that counters began anew.
	}
	to <- prometheus.MustNewConstMetric(captureOutbound, prometheus.CounterValue, float64(s.Outbound))
	to <- prometheus.MustNewConstMetric(captureInbound, prometheus.CounterValue, float64(s.Inbound))
	to <- prometheus.MustNewConstMetric(captureDNS, prometheus.CounterValue, float64(s.DNS))
	for reason, n := range s.Refused {
		to <- prometheus.MustNewConstMetric(captureRefused, prometheus.CounterValue, float64(n), reason)
	}
}
