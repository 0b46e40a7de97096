package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/objects"
)

// tcpBypass is the TCP bypass of the cluster's control group, or why there is none.
type tcpBypass struct {
	wanted   bool
	dir      string
	attached *bypass.Bypass
	problem  error
}

// attachBypass attaches the TCP bypass, or takes over what the agent before attached; where it is not wanted any more, what is
// left of it sends connections back to TCP. Where it cannot be had, connections use TCP.
func (a *Agent) attachBypass() {
	a.bypass.wanted, a.bypass.dir = a.options.TCPBypass, a.config.Cluster.Bypass()
	if !a.bypass.wanted && !bypass.IsAttached(a.bypass.dir) {
		return
	}
	a.bypass.attached, a.bypass.problem = a.openBypass()
	if a.bypass.problem == nil {
		a.bypass.problem = errors.Join(a.bypass.attached.Enable(a.bypass.wanted), a.sweepBypass())
	}
	if a.bypass.problem != nil {
		a.log.Warn("the TCP bypass is not as it was asked for; see `heddle bypass status`", "wanted", a.bypass.wanted, "error", a.bypass.problem)
	}
}

func (a *Agent) openBypass() (*bypass.Bypass, error) {
	if a.hierarchies.V2 == "" {
		return nil, process.ErrNoVersion2
	}
	group := filepath.Join(a.hierarchies.V2, a.config.Cluster.Cgroup())
	if err := os.MkdirAll(group, 0o755); err != nil {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	return bypass.Attach(a.config.Cluster.Bypass(), group)
}

// sweepBypass has the bypass forget workloads whose network namespace went while no agent was there.
func (a *Agent) sweepBypass() error {
	alive, err := a.namespaces()
	if err != nil {
		return err
	}
	return a.bypass.attached.Sweep(alive)
}

// modes of the bypass, by the annotation's value.
var modes = map[string]bypass.Mode{"": bypass.Send, objects.BypassSend: bypass.Send, objects.BypassBoth: bypass.Both, objects.BypassOff: bypass.Off}

// bypassMode is what of the replica bypasses TCP.
func (r *replica) bypassMode() bypass.Mode {
	if r.spec.Interception.LeavesOutbound() {
		// Whoever dials another workload's sidecar may then be the application itself, which must not be sent to past TCP.
		return bypass.Off
	}
	return modes[r.spec.TCPBypass]
}

// bypass says what of the replica bypasses TCP. That it cannot be said only matters to who wants none of it.
func (r *replica) bypass() error {
	b := r.agent.bypass
	attached := b.attached
	if attached == nil {
		if r.bypassMode() == bypass.Off && bypass.IsAttached(b.dir) {
			return fmt.Errorf("the workload's traffic must not bypass TCP, and the bypass programs that an agent before attached cannot be told: %w", b.problem)
		}
		return nil
	}
	group := ""
	if r.capturedByPrograms() {
		group = r.proxyGroup()
	}
	mode := r.bypassMode()
	err := attached.Set(network.Path(r.netns), group, mode)
	if err != nil && mode != bypass.Off {
		r.log.Warn("less of the workload's traffic bypasses TCP than was asked for", "error", err)
		return nil
	}
	return err
}

// forget ends what [replica.bypass] said, by the file of the network namespace.
func (b *tcpBypass) forget(netns string) error {
	if b.attached == nil {
		return nil
	}
	return b.attached.Forget(netns)
}

// close leaves it attached.
func (b *tcpBypass) close() {
	if b.attached != nil {
		b.attached.Close()
	}
}

func (b *tcpBypass) status() bypass.Status {
	if b.attached == nil {
		// What an agent before attached goes on without this one.
		s := bypass.Status{Wanted: b.wanted, Attached: bypass.IsAttached(b.dir)}
		if b.problem != nil {
			s.Problem = b.problem.Error()
		}
		return s
	}
	s, err := b.attached.Status()
	s.Wanted = b.wanted
	if err = errors.Join(b.problem, err); err != nil {
		s.Problem = err.Error()
	}
	return s
}

// check is what `heddle check` says of it.
func (b *tcpBypass) check() Check {
	s := b.status()
	check := Check{Subject: "agent", Name: "tcp-bypass", How: Read, OK: s.Attached && s.Problem == "", Detail: fmt.Sprintf("%d connections, %d bytes", s.Connections, s.Bytes)}
	if !check.OK {
		check.Detail, check.Remedy = s.Problem, "connections use TCP meanwhile; `heddle down --keep-data` and `heddle up --tcp-bypass=false` leave it so"
		if s.Attached {
			check.Remedy = "what was attached before goes on; `heddle down --keep-data` and `heddle up` replace it"
		}
	}
	return check
}

var (
	bypassAttached    = prometheus.NewDesc("heddle_bypass_attached", "1 where the TCP bypass is attached.", nil, nil)
	bypassSockets     = prometheus.NewDesc("heddle_bypass_sockets", "Open sockets that the TCP bypass has recorded.", nil, nil)
	bypassConnections = prometheus.NewDesc("heddle_bypass_connections_total", "Connections of which both ends were found on this machine.", nil, nil)
	bypassMessages    = prometheus.NewDesc("heddle_bypass_messages_total", "Messages that bypassed TCP.", nil, nil)
	bypassBytes       = prometheus.NewDesc("heddle_bypass_bytes_total", "Bytes that bypassed TCP.", nil, nil)
	bypassFallbacks   = prometheus.NewDesc("heddle_bypass_fallbacks_total", "Messages of such connections that went by TCP.", []string{"reason"}, nil)
	bypassRefused     = prometheus.NewDesc("heddle_bypass_refused_total", "Connections that use TCP alone although both ends might be here.", []string{"reason"}, nil)
)

// Describe implements [prometheus.Collector].
func (b *tcpBypass) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, to) }

// Collect implements [prometheus.Collector].
func (b *tcpBypass) Collect(to chan<- prometheus.Metric) {
	s := b.status()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	attached := 0.0
	if s.Attached {
		attached = 1
	}
	send(bypassAttached, prometheus.GaugeValue, attached)
	send(bypassSockets, prometheus.GaugeValue, float64(s.Sockets))
	send(bypassConnections, prometheus.CounterValue, float64(s.Connections))
	send(bypassMessages, prometheus.CounterValue, float64(s.Messages))
	send(bypassBytes, prometheus.CounterValue, float64(s.Bytes))
	for reason, n := range s.Fallbacks {
		send(bypassFallbacks, prometheus.CounterValue, float64(n), reason)
	}
	for reason, n := range s.Refused {
		send(bypassRefused, prometheus.CounterValue, float64(n), reason)
	}
}
