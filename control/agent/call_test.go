package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/server/client"
)

// countingProxy counts as a sidecar does, by what the test says.
type countingProxy struct {
	// looks are how often it was asked; the counts rise at the look of that number, or never when it is 0.
	looks, risesAt atomic.Int64
	rising         []*dto.Metric
	err            error
}

func metric(n float64, labels ...string) *dto.Metric {
	m := &dto.Metric{Counter: &dto.Counter{Value: proto.Float64(n)}}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: proto.String(labels[i]), Value: proto.String(labels[i+1])})
	}
	return m
}

const testHost = "cart.shop.svc.cluster.local"

func (p *countingProxy) metrics(_ context.Context, name string) ([]*dto.Metric, error) {
	if p.err != nil {
		return nil, p.err
	}
	base := []*dto.Metric{
		metric(7, "reporter", "source", "destination_service", testHost, "response_flags", "-", "response_code", "200", "destination_principal", "spiffe://old"),
		metric(7, "reporter", "destination", "destination_service", testHost, "response_flags", "-", "response_code", "200"),
	}
	n := p.looks.Add(1)
	if at := p.risesAt.Load(); at == 0 || n < at || name == "" {
		return base, nil
	}
	return append(base, p.rising...), nil
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestCall(t *testing.T) {
	web := listen(t)
	go func() {
		_ = (&http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != testHost || r.URL.Path != "/healthz" || r.UserAgent() != "heddle-check" {
				w.WriteHeader(http.StatusTeapot)
			}
		})}).Serve(web)
	}()
	serving, plain := listen(t), listen(t)
	withHealth, without := grpc.NewServer(), grpc.NewServer()
	healthv1.RegisterHealthServer(withHealth, health.NewServer())
	for l, s := range map[net.Listener]*grpc.Server{serving: withHealth, plain: without} {
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
	}
	silent := listen(t)
	label := func(code, flags, identity string) []*dto.Metric {
		return []*dto.Metric{metric(1, "reporter", "source", "destination_service", testHost, "response_flags", flags, "response_code", code, "destination_principal", identity)}
	}
	for name, c := range map[string]struct {
		server   net.Listener
		protocol string
		rising   []*dto.Metric
		at       int64
		want     client.CallResult
	}{
		"HTTP":                  {web, "HTTP", label("200", "-", "spiffe://cart"), 4, client.CallResult{Answer: "200 OK", Counted: true, Flags: "-", Identity: "spiffe://cart"}},
		"HTTP, other's answer":  {web, "HTTP", label("503", "UF", "unknown"), 2, client.CallResult{Answer: "200 OK"}},
		"HTTP, plaintext":       {web, "HTTP", label("200", "-", "unknown"), 2, client.CallResult{Answer: "200 OK", Counted: true, Flags: "-"}},
		"HTTP, other service's": {web, "HTTP", []*dto.Metric{metric(1, "reporter", "source", "destination_service", "ads", "response_code", "200")}, 2, client.CallResult{Answer: "200 OK"}},
		"gRPC":                  {serving, "HTTP2", label("200", "-", "spiffe://cart"), 2, client.CallResult{Answer: "OK, SERVING", Counted: true, Flags: "-", Identity: "spiffe://cart"}},
		"gRPC without health":   {plain, "HTTP2", label("200", "-", "spiffe://cart"), 2, client.CallResult{Answer: "Unimplemented", Counted: true, Flags: "-", Identity: "spiffe://cart"}},
		"TCP":                   {silent, "TCP", label("", "-", "spiffe://cart"), 3, client.CallResult{Answer: "opened", Counted: true, Flags: "-", Identity: "spiffe://cart"}},
		"TCP, nobody there":     {silent, "TCP", label("", "UF", "unknown"), 3, client.CallResult{Answer: "opened", Counted: true, Flags: "UF"}},
		"TCP, not counted":      {silent, "TCP", nil, 0, client.CallResult{Answer: "opened"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &countingProxy{rising: c.rising}
			p.risesAt.Store(c.at)
			got, err := caller{request: client.CallRequest{Host: testHost, Port: 80, Protocol: c.protocol, Path: "/healthz"}, target: c.server.Addr().String(), metrics: p.metrics,
				dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "tcp", c.server.Addr().String())
				}}.call(t.Context())
			if c.protocol == "HTTP2" {
				// The authority is what the port says.
				if !strings.Contains(got.Did, "gRPC") {
					t.Errorf("%+v", got)
				}
			}
			got.Did, got.Took = "", 0
			if err != nil || got != c.want {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestCallFails(t *testing.T) {
	closing := listen(t)
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", closing.Addr().String())
	}
	request := client.CallRequest{Host: testHost, Port: 80, Protocol: "HTTP"}
	if got, err := (caller{request: request, dial: dial, metrics: (&countingProxy{}).metrics}).call(t.Context()); err == nil {
		t.Errorf("%+v", got)
	}
	broken := errors.New("no metrics")
	if _, err := (caller{request: request, dial: dial, metrics: (&countingProxy{err: broken}).metrics}).call(t.Context()); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if got, err := (caller{request: client.CallRequest{Host: testHost, Protocol: "TCP"}, dial: dial, uncaptured: true}).call(t.Context()); err != nil || got.Foreign || got.Counted || !got.Uncaptured {
		t.Errorf("left out of capture: %+v %v", got, err)
	}
	if got, err := (caller{request: client.CallRequest{Host: testHost, Protocol: "TCP"}, dial: dial}).call(t.Context()); err != nil || !got.Foreign || got.Counted {
		t.Errorf("%+v, %v", got, err)
	}
}

// flood is a page of metrics that never ends.
type flood struct{ line, sent int }

func (f *flood) Read(b []byte) (int, error) {
	if f.sent > 4*maxMetrics {
		return 0, errors.New("read on and on")
	}
	f.line++
	n := copy(b, fmt.Sprintf("istio_requests_total{response_code=\"%d\"} 1\n", f.line))
	f.sent += n
	return n, nil
}

func (f *flood) Close() error { return nil }

// What has a proxy's place in a namespace does not fill the agent's memory.
func TestMetricsThatNeverEnd(t *testing.T) {
	page := &flood{}
	if _, err := readMetrics(page, "istio_requests_total"); !errors.As(err, new(*http.MaxBytesError)) {
		t.Errorf("after %d bytes: %v", page.sent, err)
	}
}
