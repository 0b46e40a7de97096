package xds

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics have Istio's names where Istio has them.
type metrics struct {
	pushes      *prometheus.CounterVec
	pushTime    *prometheus.HistogramVec
	rejects     *prometheus.CounterVec
	convergence prometheus.Histogram
	inFlight    prometheus.Gauge
	budgetWaits prometheus.Counter
	givenUp     *prometheus.CounterVec
	// namesRefused counts streams that ended since they named too much.
	namesRefused prometheus.Counter
}

// What was waited for, and did not come in time.
const (
	forAnswer    = "answer"
	forEndpoints = "endpoints"
)

// newMetrics registers what a server counts.
func newMetrics(s *Server, registry prometheus.Registerer) metrics {
	m := metrics{
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_xds_pushes", Help: "Responses that were sent to proxies, by type of resources.",
		}, []string{"type"}),
		pushTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "pilot_xds_push_time",
			Help:    "Seconds that sending a response took, by type of resources: waiting for room among the bytes in flight, and for gRPC to take it.",
			Buckets: []float64{.0001, .001, .01, .1, 1, 3, 5, 10, 20, 30, 60},
		}, []string{"type"}),
		rejects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_total_xds_rejects", Help: "Responses that proxies refused, by type of resources.",
		}, []string{"type"}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pilot_proxy_convergence_time",
			Help:    "Seconds from a change, or a proxy's arrival, until the proxy has acknowledged everything there is.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 3, 5, 10, 20, 30},
		}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_xds_in_flight_bytes", Help: "Bytes of large responses that proxies have not answered, as they count towards the bound of 64 MiB.",
		}),
		budgetWaits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_xds_in_flight_waits_total", Help: "Large responses that waited until others were answered, for want of room among the bytes in flight.",
		}),
		givenUp: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_xds_waits_given_up_total",
			Help: "Waits that ended without what they were for: the answer to an earlier response, within 10 s, or that the proxy asks for the endpoints of new clusters, within 1 s.",
		}, []string{"for"}),
		namesRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_xds_names_refused_total", Help: "Streams that were ended since the proxy named too many resources, or gave too long a name.",
		}),
	}
	registry.MustRegister(m.pushes, m.pushTime, m.rejects, m.convergence, m.inFlight, m.budgetWaits, m.givenUp, m.namesRefused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pilot_xds", Help: "Proxies that are connected.",
	}, func() float64 { return float64(s.Connected()) }))
	return m
}
