package xds

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// lines of a log, as they are written.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// next line, checked to say this; what differs from run to run is not looked at.
func (l lines) next(t *testing.T, want map[string]any) {
	t.Helper()
	select {
	case line := <-l:
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%s is %v, not %v: %s", key, got[key], value, line)
			}
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("the log does not say %v", want)
	}
}

// TestEachStepOfAProxyIsInTheLog: at debug level, a line for one that connects, is sent something, answers and leaves.
func TestEachStepOfAProxyIsInTheLog(t *testing.T) {
	w, connect := start(t)
	log := make(lines, 100)
	w.server.log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.server.refusals.log = w.server.log
	version := w.has(clusters("a", "b")...)
	id := "n\x1b" + strings.Repeat("x", maxWords)
	says := "n " + strings.Repeat("x", maxWords-2) + "…"
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: id}})
	log.next(t, map[string]any{"level": "DEBUG", "msg": "proxy connected", "proxy": says, "fresh": true})
	first := p.receive()
	size := 0
	for _, r := range w.resources(clusters("a", "b")...) {
		size += r.size()
	}
	log.next(t, map[string]any{"msg": "sent", "proxy": says, "type": "CDS", "version": float64(version), "resources": 2.0, "size": float64(size)})
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: first.GetNonce()})
	log.next(t, map[string]any{"msg": "answered", "proxy": says, "type": "CDS", "version": float64(version), "size": float64(size), "refused": false})
	w.has(clusters("a", "b", "c")...)
	second := p.receive()
	log.next(t, map[string]any{"msg": "sent", "version": float64(version + 1), "resources": 1.0})
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: second.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "no"}})
	log.next(t, map[string]any{"msg": "answered", "version": float64(version + 1), "refused": true})
	log.next(t, map[string]any{"level": "WARN", "reason": "no"})
	if err := p.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	log.next(t, map[string]any{"msg": "proxy left", "proxy": says})
}

// TestLogIsQuietAboveDebug: nothing is formatted that nobody reads.
func TestLogIsQuietAboveDebug(t *testing.T) {
	w, connect := start(t)
	log := make(lines, 100)
	w.server.log = slog.New(slog.NewJSONHandler(log, nil))
	w.has(clusters("a")...)
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}})
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: p.receive().GetNonce()})
	stateOf(w, Synced)
	if got := counted(t, w.server.metrics.pushTime, "CDS"); got != 1 {
		t.Errorf("%v times of sending are counted", got)
	}
	if len(log) > 0 {
		t.Errorf("the log says %s", <-log)
	}
}

// counted is the value of a metric for a label, empty for all.
func counted(t *testing.T, c prometheus.Collector, label string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return total
}

// TestWaitsAreCounted: a proxy that does not answer, or does not ask for endpoints, in time, and a response that finds no room.
func TestWaitsAreCounted(t *testing.T) {
	w, c := connected(t, "a")
	gaveUp := func(answer, endpoints float64) {
		t.Helper()
		m := w.server.metrics.givenUp
		if got := []float64{counted(t, m, forAnswer), counted(t, m, forEndpoints)}; !slices.Equal(got, []float64{answer, endpoints}) {
			t.Errorf("given up on answers and endpoints %v, not %v, %v", got, answer, endpoints)
		}
	}
	gaveUp(0, 0)
	w.has(mesh("a", "b")...)
	c.hears("CDS b")
	c.answers(Clusters)
	c.hears()
	gaveUp(0, 0)
	c.now = c.now.Add(warmLimit)
	c.hears("RDS 80")
	gaveUp(0, 1)
	w.has(mesh("a", "b", "c")...)
	c.hears("CDS c")
	c.now = c.now.Add(holdLimit)
	c.hears("RDS 80")
	// Of the routes before, too, there is no answer.
	gaveUp(1, 2)

	weight := int64(maxInFlight)
	if !w.server.inFlight.TryAcquire(weight) {
		t.Fatal("something is in flight")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- w.server.reserve(ctx, cancel, c.p, largeResponse+1) }()
	cancel(context.Canceled)
	if err := <-waited; err == nil {
		t.Error("there is room where none is left")
	}
	if got := counted(t, w.server.metrics.budgetWaits, ""); got != 1 {
		t.Errorf("%v responses waited for room", got)
	}
	if got := counted(t, w.server.metrics.inFlight, ""); got != 0 {
		t.Errorf("%v bytes are in flight", got)
	}
}
