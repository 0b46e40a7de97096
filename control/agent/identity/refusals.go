package identity

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Refusals counts what an agent's sockets refuse, of all workloads together. It is a collector of metrics; the zero value is ready.
type Refusals struct {
	// peers are connections of somebody else than the proxy, the others what is more than a proxy may have at once, or
	// certificates more than it is granted in the time, or names or bytes of a message more than it needs.
	peers, connections, streams, configStreams, certificates, names, messages atomic.Uint64
}

var refusalsDesc = prometheus.NewDesc("heddle_agent_socket_refused_total",
	"What the agent refused at the sockets of proxies: connections of another peer (peer) or too many (connections), streams too many (streams), of them for configuration (configuration_streams), certificates over Istio's API (certificates), requests with more or longer names than resources have (names), and messages that are too large (messages).",
	[]string{"reason"}, nil)

// Describe implements [prometheus.Collector].
func (*Refusals) Describe(to chan<- *prometheus.Desc) { to <- refusalsDesc }

// Collect implements [prometheus.Collector].
func (r *Refusals) Collect(to chan<- prometheus.Metric) {
	for reason, n := range map[string]*atomic.Uint64{
		"peer": &r.peers, "connections": &r.connections, "streams": &r.streams, "configuration_streams": &r.configStreams, "certificates": &r.certificates, "names": &r.names, "messages": &r.messages,
	} {
		to <- prometheus.MustNewConstMetric(refusalsDesc, prometheus.CounterValue, float64(n.Load()), reason)
	}
}
