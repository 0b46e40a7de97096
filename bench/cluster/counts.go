package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
)

// Cost is how long processes have run, the load generator excepted.
type Cost struct{ ClientSidecar, ServerSidecar, Server time.Duration }

// Cost is what has been used so far.
func (p *Pair) Cost() (c Cost, err error) {
	var errs [3]error
	c.ClientSidecar, errs[0] = p.clientSidecar.OnCPU()
	c.ServerSidecar, errs[1] = p.serverSidecar.OnCPU()
	c.Server, errs[2] = p.server.OnCPU()
	return c, errors.Join(errs[:]...)
}

// Counts tell what was done with requests so far.
type Counts struct {
	// outbound requests that the client's sidecar has sent to services, inbound ones that the server's has sent to the server.
	outbound, inbound float64
	// handshakes of TLS that the server's sidecar has completed.
	handshakes float64
	// requests by Istio's metrics of the server's sidecar, and those of them by mutual TLS.
	requests, mutualTLS float64
	// logged is when each sidecar last wrote to its log.
	logged [2]time.Time
	// Messages that have bypassed TCP in the whole cluster.
	Messages uint64
}

// Counts asks both sidecars and the agent.
func (p *Pair) Counts(ctx context.Context) (c Counts, err error) {
	for i, workload := range []string{clientWorkload, serverWorkload} {
		families, err := p.metrics(ctx, workload)
		if err != nil {
			return c, fmt.Errorf("metrics of the %s's sidecar: %w", workload, err)
		}
		if workload == clientWorkload {
			c.outbound = upstreamRequests(families, "outbound|")
		} else {
			c.inbound = upstreamRequests(families, "inbound|")
			c.handshakes = total(families["envoy_listener_ssl_handshake"], fmt.Sprintf("0.0.0.0_%d", cluster.PortInbound))
			c.requests = total(families["istio_requests_total"], "destination")
			c.mutualTLS = total(families["istio_requests_total"], "mutual_tls")
		}
		log, err := os.Stat(filepath.Join(p.cluster.place.Logs(), p.Name, replica(workload), "proxy.log"))
		if err != nil {
			return c, err
		}
		c.logged[i] = log.ModTime()
	}
	status, err := p.cluster.bypass(ctx)
	c.Messages = status.Messages
	return c, err
}

// upstreamRequests to clusters whose names begin so. A stock Envoy puts what follows a host's first dot into the metric's name.
func upstreamRequests(families map[string]*dto.MetricFamily, prefix string) (sum float64) {
	for name, family := range families {
		if strings.HasPrefix(name, "envoy_cluster_") && strings.HasSuffix(name, "_upstream_rq_total") {
			sum += where(family, func(value string) bool { return strings.HasPrefix(value, prefix) })
		}
	}
	return sum
}

// total of the metrics that have this value of any label.
func total(family *dto.MetricFamily, value string) float64 {
	return where(family, func(v string) bool { return v == value })
}

func where(family *dto.MetricFamily, is func(string) bool) (sum float64) {
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			if is(label.GetValue()) {
				sum += m.GetCounter().GetValue() + m.GetUntyped().GetValue()
				break
			}
		}
	}
	return sum
}

// metrics of a sidecar.
func (p *Pair) metrics(ctx context.Context, workload string) (map[string]*dto.MetricFamily, error) {
	netns := p.cluster.place.Netns(p.Name, replica(workload))
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
		return network.Dial(ctx, netns, kind, address)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/stats/prometheus", cluster.PortAdmin), nil)
	if err != nil {
		return nil, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", request.URL, answer.Status)
	}
	return parse(answer.Body)
}

func parse(text io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(text)
}
