package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

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
	// rounds is why the last round failed.
	rounds atomic.Pointer[error]
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
		a.bypass.problem = a.bypass.attached.Enable(a.bypass.wanted)
		if err := a.sweepBypass(); err != nil {
			a.log.Warn("the TCP bypass may hold modes of workloads that are gone", "error", err)
		}
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

// bypassRound is told how a round went that went otherwise than the one before.
func (a *Agent) bypassRound(err error) {
	if err == nil {
		a.bypass.rounds.Store(nil)
		a.log.Info("new connections bypass TCP again")
		return
	}
	a.bypass.rounds.Store(&err)
	a.log.Warn("new connections do not bypass TCP", "error", err)
}

// mayRedirect says whether proxies are or may be sent to past TCP, also by programs that an agent before attached.
func (b *tcpBypass) mayRedirect() bool { return b.wanted || bypass.IsAttached(b.dir) }

// sweepBypass removes the modes of workloads whose network namespace went while no agent was there.
func (a *Agent) sweepBypass() error {
	alive, err := a.namespaces()
	if err != nil {
		return err
	}
	return a.bypass.attached.KeepWorkloads(alive)
}

// bypassModes by the annotation's value.
var bypassModes = map[string]bypass.Mode{"": bypass.ModeSend, objects.BypassSend: bypass.ModeSend, objects.BypassBoth: bypass.ModeBoth, objects.BypassOff: bypass.ModeOff}

// bypassMode is what of the replica bypasses TCP, and why.
func (r *replica) bypassMode() (mode bypass.Mode, why string) {
	switch {
	case r.spec.Interception.LeavesOutbound():
		// Whoever dials another workload's sidecar may then be the application itself, which must not be sent to past TCP.
		return bypass.ModeOff, "something that it dials is not captured"
	case r.foreign():
		// It does not look twice at what a short read has left.
		return bypass.ModeOff, "its proxy is not heddle-proxy"
	}
	return bypassModes[r.spec.TCPBypass], fmt.Sprintf("annotation %s: %s", AnnotationTCPBypass, r.spec.TCPBypass)
}

// setBypassMode has the bypass keep to what the replica's workload asks for. That it cannot only matters to who wants none of it.
func (r *replica) setBypassMode() error {
	b := &r.agent.bypass
	attached := b.attached
	mode, why := r.bypassMode()
	if attached == nil {
		if mode == bypass.ModeOff && bypass.IsAttached(b.dir) {
			return fmt.Errorf("the TCP bypass cannot be kept off this workload (%s): the programs of an earlier agent run, and this one has not taken them over; `heddle down --keep-data` and `heddle up` replace them: %w", why, b.problem)
		}
		return nil
	}
	group, unset := "", ""
	if r.capturedByPrograms() {
		// Only by its group such a proxy is known to those that call it.
		group, unset = r.proxyGroup(), ", and what other sidecars send it uses TCP"
	}
	err := attached.SetWorkload(network.Path(r.netns), group, mode)
	if err != nil && mode != bypass.ModeOff {
		r.log.Warn("the workload's mode of the TCP bypass is not set; it is treated as send"+unset, "error", err)
		return nil
	}
	return err
}

// forget ends what [replica.setBypassMode] set, by the file of the network namespace.
func (b *tcpBypass) forget(netns string) error {
	if b.attached == nil {
		return nil
	}
	return b.attached.ForgetWorkload(netns)
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
	if rounds := b.rounds.Load(); rounds != nil {
		err = errors.Join(err, fmt.Errorf("new connections do not bypass TCP: %w", *rounds))
	}
	if err = errors.Join(b.problem, err); err != nil {
		s.Problem = err.Error()
	}
	return s
}

// isToCheck says whether there is something of which `heddle check` may tell.
func (b *tcpBypass) isToCheck() bool { return b.wanted || b.problem != nil }

// check is what `heddle check` says of it.
func (b *tcpBypass) check() Check {
	s := b.status()
	check := Check{Subject: "agent", Name: "tcp-bypass", How: Read, OK: s.Attached == s.Wanted && s.Problem == "", Detail: fmt.Sprintf("%d connections, %d bytes", s.Connections, s.Bytes)}
	switch {
	case check.OK:
	case s.Attached:
		check.Detail, check.Remedy = s.Problem, "what is attached goes on; `heddle down --keep-data` and `heddle up` replace it"
	default:
		check.Detail, check.Remedy = s.Problem, "connections use TCP; repair the cause, or `heddle down --keep-data` and `heddle up --tcp-bypass=false`"
	}
	return check
}

var (
	bypassAttached    = prometheus.NewDesc("heddle_bypass_attached", "1 where the TCP bypass is attached, also while it is switched off.", nil, nil)
	bypassSockets     = prometheus.NewDesc("heddle_bypass_sockets", "Sockets that have a place among the recorded ones, or wait with one for their other end.", nil, nil)
	bypassConnections = prometheus.NewDesc("heddle_bypass_connections_total", "Connections of which both ends were found on this machine.", nil, nil)
	bypassMessages    = prometheus.NewDesc("heddle_bypass_messages_total", "Messages that bypassed TCP.", nil, nil)
	bypassBytes       = prometheus.NewDesc("heddle_bypass_bytes_total", "Bytes that bypassed TCP.", nil, nil)
	bypassFallbacks   = prometheus.NewDesc("heddle_bypass_fallbacks_total", "Messages of bypassed connections that went by TCP.", []string{"reason"}, nil)
	bypassRefused     = prometheus.NewDesc("heddle_bypass_refused_total", "Ends of connections of which both are here that were kept from bypassing TCP once.", []string{"reason"}, nil)
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
	if s.Fallbacks == nil {
		return // Nothing was read: 0 would say that counters began anew.
	}
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
