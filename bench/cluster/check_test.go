package cluster

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

func replicasOf(t *testing.T, text string) (all []client.Replica) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWhatARunMeasures(t *testing.T) {
	earlier := time.Unix(1, 0)
	logged, silent := [2]time.Time{earlier.Add(time.Second), earlier.Add(time.Second)}, [2]time.Time{earlier, earlier}
	mutual := Counts{outbound: 1010, inbound: 1010, handshakes: 2, requests: 1010, mutualTLS: 1010, logged: logged}
	with := func(change func(*Counts)) Counts {
		c := mutual
		change(&c)
		return c
	}
	tls := Way{MutualTLS: true}
	for name, c := range map[string]struct {
		way   Way
		after Counts
		want  string
	}{
		"mutual TLS":               {tls, mutual, ""},
		"plaintext":                {Way{}, with(func(c *Counts) { c.handshakes, c.mutualTLS = 0, 0 }), ""},
		"Envoy":                    {Way{Envoy: true, MutualTLS: true}, with(func(c *Counts) { c.requests, c.mutualTLS = 0, 0 }), ""},
		"no telemetry":             {Way{MutualTLS: true, NoTelemetry: true}, with(func(c *Counts) { c.requests, c.mutualTLS, c.logged = 0, 0, silent }), ""},
		"the bypass":               {Way{MutualTLS: true, Bypass: "send"}, with(func(c *Counts) { c.Messages = 3990 }), ""},
		"the bypass, both":         {Way{MutualTLS: true, Bypass: "both"}, with(func(c *Counts) { c.Messages = 5990 }), ""},
		"direct":                   {Way{Direct: true}, Counts{logged: silent}, ""},
		"by no client's sidecar":   {tls, with(func(c *Counts) { c.outbound = 0 }), "the client's sidecar passed on 0 requests"},
		"by no server's sidecar":   {tls, with(func(c *Counts) { c.inbound = 500 }), "the server's sidecar passed on 500 requests"},
		"others' requests":         {tls, with(func(c *Counts) { c.inbound = 1500 }), "the server's sidecar passed on 1500 requests"},
		"plaintext for mutual TLS": {tls, with(func(c *Counts) { c.handshakes = 0 }), "0 handshakes of TLS"},
		"half of it plaintext":     {tls, with(func(c *Counts) { c.mutualTLS = 500 }), "500 requests by mutual TLS"},
		"mutual TLS for plaintext": {Way{}, mutual, "2 handshakes of TLS"},
		"telemetry for none":       {Way{MutualTLS: true, NoTelemetry: true}, mutual, "Istio's metrics counted 1010 requests"},
		"a log for none":           {Way{MutualTLS: true, NoTelemetry: true}, with(func(c *Counts) { c.requests, c.mutualTLS = 0, 0 }), "is to write an access log: false"},
		"no log":                   {tls, with(func(c *Counts) { c.logged = silent }), "is to write an access log: true"},
		"no metrics":               {tls, with(func(c *Counts) { c.requests, c.mutualTLS = 0, 0 }), "Istio's metrics counted 0 requests"},
		"a bypass for none":        {tls, with(func(c *Counts) { c.Messages = 10 }), "where none may"},
		"TCP for the bypass":       {Way{MutualTLS: true, Bypass: "send"}, with(func(c *Counts) { c.Messages = 3000 }), "3.00 messages of a request bypassed TCP, of 4"},
		"send for both":            {Way{MutualTLS: true, Bypass: "both"}, with(func(c *Counts) { c.Messages = 4000 }), "4.00 messages of a request bypassed TCP, of 6"},
		"sidecars for direct":      {Way{Direct: true}, with(func(c *Counts) { c.logged = silent }), "the client's sidecar passed on 1010 requests"},
	} {
		err := c.way.Check(Counts{logged: silent}, c.after, 1000)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Names of metrics are those that heddle-proxy and a stock Envoy have.
func TestRequestsThatASidecarPassedOn(t *testing.T) {
	for program, text := range map[string]string{
		"heddle-proxy": `# TYPE envoy_cluster_upstream_rq_total counter
envoy_cluster_upstream_rq_total{cluster_name="agent"} 3
envoy_cluster_upstream_rq_total{cluster_name="inbound|8080||"} 7
envoy_cluster_upstream_rq_total{cluster_name="outbound|80||server.a.svc.cluster.local"} 5
envoy_cluster_upstream_rq_total{cluster_name="outbound|80||server.b.svc.cluster.local"} 0
# TYPE envoy_listener_ssl_handshake counter
envoy_listener_ssl_handshake{listener_address="0.0.0.0_15006"} 2
envoy_listener_ssl_handshake{listener_address="0.0.0.0_80"} 1
# TYPE istio_requests_total counter
istio_requests_total{reporter="destination",connection_security_policy="mutual_tls"} 4
istio_requests_total{reporter="destination",connection_security_policy="none"} 3
`,
		"Envoy": `# TYPE envoy_cluster_a_svc_cluster_local_upstream_rq_total counter
envoy_cluster_a_svc_cluster_local_upstream_rq_total{envoy_cluster_name="outbound|80||server"} 5
# TYPE envoy_cluster_upstream_rq_total counter
envoy_cluster_upstream_rq_total{envoy_cluster_name="inbound|8080||"} 7
envoy_cluster_upstream_rq_total{envoy_cluster_name="xds-grpc"} 1
# TYPE envoy_listener_ssl_handshake counter
envoy_listener_ssl_handshake{envoy_listener_address="0.0.0.0_15006"} 2
`,
	} {
		families, err := parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if out, in := upstreamRequests(families, "outbound|"), upstreamRequests(families, "inbound|"); out != 5 || in != 7 {
			t.Errorf("%s: %v outbound, %v inbound", program, out, in)
		}
		if n := total(families["envoy_listener_ssl_handshake"], "0.0.0.0_15006"); n != 2 {
			t.Errorf("%s: %v handshakes", program, n)
		}
		if n := total(families["istio_requests_total"], "mutual_tls"); program == "heddle-proxy" && n != 4 {
			t.Errorf("%s: %v by mutual TLS", program, n)
		}
	}
}
