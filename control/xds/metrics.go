package xds

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics have Istio's names where Istio has them.
type metrics struct {
	pushes      *prometheus.CounterVec
	rejects     *prometheus.CounterVec
	convergence prometheus.Histogram
}

// newMetrics registers what a server counts.
func newMetrics(s *Server, registry prometheus.Registerer) metrics {
	m := metrics{
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_xds_pushes", Help: "Responses that were sent to proxies, by type of resources.",
		}, []string{"type"}),
		rejects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_total_xds_rejects", Help: "Responses that proxies refused, by type of resources.",
		}, []string{"type"}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pilot_proxy_convergence_time",
			Help:    "Seconds from a change, or a proxy's arrival, until the proxy has acknowledged everything there is.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 3, 5, 10, 20, 30},
		}),
	}
	registry.MustRegister(m.pushes, m.rejects, m.convergence, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilot_xds", Help: "Proxies that are connected.",
	}, func() float64 { return float64(s.Connected()) }))
	return m
}
