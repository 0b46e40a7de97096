package scenarios

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/results"
	"heddle.io/heddle/bench/samehost"
)

// Connections of a client whose requests come at a fixed rate, and of one that asks as fast as it goes.
const (
	connectionsAtRate  = 10
	connectionsFastest = 16
)

// sidecarsRate of the runs at a fixed rate, in requests per second.
const sidecarsRate = 4000

// sidecarSetup is what is between a client and its server.
type sidecarSetup struct {
	name  string
	setup samehost.Setup
}

// sidecarSetups of p3, in the order in which they take turns first.
var sidecarSetups = []sidecarSetup{
	{"direct", samehost.Setup{Direct: true}},
	{"heddle", samehost.Setup{Sidecars: peers.SidecarWork{IstioMetrics: true, AccessLog: true}}},
	{"heddle-mtls", samehost.Setup{Sidecars: peers.SidecarWork{MutualTLS: true, IstioMetrics: true, AccessLog: true}}},
	{"heddle-mtls-no-telemetry", samehost.Setup{Sidecars: peers.SidecarWork{MutualTLS: true}}},
	{"heddle-mtls-bypass", samehost.Setup{Bypass: true, Sidecars: peers.SidecarWork{MutualTLS: true, IstioMetrics: true, AccessLog: true}}},
	{"envoy", samehost.Setup{Sidecars: peers.SidecarWork{Envoy: true, AccessLog: true}}},
	{"envoy-mtls", samehost.Setup{Sidecars: peers.SidecarWork{Envoy: true, MutualTLS: true, AccessLog: true}}},
}

// meshSetups are pairs that do all that a mesh asks of them, and such as only pass requests on. Envoy has none of Istio's metrics.
var meshSetups = []sidecarSetup{
	{"heddle-bare", samehost.Setup{}},
	{"heddle-mesh", samehost.Setup{Sidecars: peers.SidecarWork{MutualTLS: true, IstioMetrics: true, AccessLog: true, Policy: true}}},
	{"envoy-bare", samehost.Setup{Sidecars: peers.SidecarWork{Envoy: true}}},
	{"envoy-mesh", samehost.Setup{Sidecars: peers.SidecarWork{Envoy: true, MutualTLS: true, AccessLog: true, Policy: true}}},
}

// sidecars is a scenario that measures what pairs of sidecars add to requests within one host.
func sidecars(name, summary string, setups []sidecarSetup) Scenario {
	return Scenario{Name: name, Summary: summary, Run: func(o Options) (results.Result, error) { return runSidecars(name, setups, o) }}
}

func runSidecars(name string, setups []sidecarSetup, o Options) (result results.Result, err error) {
	result = results.New(name, o.Runs, time.Now())
	o.Rate = cmp.Or(o.Rate, sidecarsRate)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	host, err := samehost.Open()
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	var ways []*sidecarWay
	for _, s := range setups {
		if len(o.Subjects) > 0 && !slices.Contains(o.Subjects, s.name) {
			continue
		}
		w := &sidecarWay{way: way{name: s.name}, figures: map[string][]float64{}}
		if w.Pair, err = host.Pair(s.name, s.setup, o.Binaries); err != nil {
			return result, fmt.Errorf("%s: %w", s.name, err)
		}
		ways = append(ways, w)
	}
	if len(ways) == 0 {
		return result, fmt.Errorf("none of the subjects %v: want some of %v", o.Subjects, names(setups))
	}
	for run := range o.Runs + 1 { // The first run warms up and is not counted.
		for _, w := range ways {
			if ctx.Err() != nil {
				return result, errors.New("interrupted")
			}
			if err := w.measure(o, run > 0); err != nil {
				return result, fmt.Errorf("%s: %w", w.name, err)
			}
		}
		slices.Reverse(ways)
	}
	for _, w := range ways {
		medians := map[string]float64{}
		for figure, values := range w.figures {
			medians[figure] = results.Median(values)
		}
		result.Subjects[w.name] = medians
	}
	addedTo(result.Subjects)
	for _, figures := range result.Subjects {
		figures["sidecars_us"] = figures["client_sidecar_us"] + figures["server_sidecar_us"]
	}
	return result, nil
}

func names(setups []sidecarSetup) []string {
	out := make([]string, 0, len(setups))
	for _, s := range setups {
		out = append(out, s.name)
	}
	return out
}

// addedTo says what each way adds to the latency of the direct one, where that was measured.
func addedTo(subjects map[string]map[string]float64) {
	direct, ok := subjects["direct"]
	if !ok {
		return
	}
	for name, figures := range subjects {
		if name != "direct" {
			figures["added_p95_ms"] = figures["p95_ms"] - direct["p95_ms"]
		}
	}
}

// sidecarWay is a pair and its figures by name.
type sidecarWay struct {
	way
	figures map[string][]float64
}

// measure runs at a fixed rate, then as fast as it goes.
func (w *sidecarWay) measure(o Options, count bool) error {
	fixed, err := w.observe(func() (load.Result, error) {
		return load.AtRate(w.Client, w.URL, connectionsAtRate, o.Rate, o.Duration)
	})
	if err != nil {
		return fmt.Errorf("%d requests/s: %w", o.Rate, err)
	}
	if fixed.load.PerSecond < leastReached*float64(o.Rate) {
		return fmt.Errorf("%.0f requests/s were reached of %d: choose fewer with -rate, or keep other work off this machine", fixed.load.PerSecond, o.Rate)
	}
	fastest, err := w.observe(func() (load.Result, error) { return load.Wrk(w.Client, w.URL, connectionsFastest, o.Duration) })
	if err != nil {
		return err
	}
	if !count {
		return nil
	}
	at, most := fixed.figures(), fastest.figures()
	for _, figure := range []string{"p50_ms", "p95_ms", "p99_ms"} {
		w.figures[figure] = append(w.figures[figure], at[figure])
	}
	for _, figure := range []string{"requests_per_second", "cpu_us_per_request", "client_sidecar_us", "server_sidecar_us"} {
		w.figures[figure] = append(w.figures[figure], most[figure])
	}
	fmt.Fprintf(o.Progress, "%s: p95 %.2f ms at %d/s; at most %.0f/s, %.1f CPU µs per request\n",
		w.name, at["p95_ms"], o.Rate, most["requests_per_second"], most["cpu_us_per_request"])
	return nil
}
