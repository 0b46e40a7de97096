package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"heddle.io/heddle/bench/cluster"
	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/bench/results"
	"heddle.io/heddle/bench/samehost"
	"heddle.io/heddle/control/objects"
)

// connectionCounts of a client, each measured by itself.
var connectionCounts = []int{16, 32, 64, 128}

// bypassWays are what is compared, with the messages of a request that bypass TCP. A run in which fewer did does not measure the bypass.
var bypassWays = []way{{name: "off"}, {name: "on", messages: cluster.Bypassable(objects.BypassSend)}, {name: "both", messages: cluster.Bypassable(objects.BypassBoth)}}

// bypassShare of the requests per second that go at the most without the bypass is the fixed rate.
const bypassShare = 0.6

// leastReached is the share of the asked rate that a run at a fixed rate must reach.
const leastReached = 0.9

// tcpBypass measures a client and a server of one host, their sidecars between, without and with the bypass of TCP, and with all that it
// can bypass. (nginx and wrk are not for what has several messages each way then: docs/reference/bypass.md. Here there is one.)
func tcpBypass(name, summary string, mutualTLS bool) Scenario {
	return Scenario{Name: name, Summary: summary, Run: func(o Options) (result results.Result, err error) {
		result = results.New(name, o.Runs, time.Now())
		// What is set up on the machine must go, also when this is interrupted.
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		host, err := samehost.Open()
		if err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, host.Close()) }()
		work := peers.SidecarWork{MutualTLS: mutualTLS, IstioMetrics: true}
		var ways []*way
		for _, w := range bypassWays {
			w.figures = map[int]map[string][]float64{}
			if w.Pair, err = host.Pair(w.name, samehost.Setup{Bypass: w.messages > 0, Both: w.name == "both", Sidecars: work}, o.Binaries); err != nil {
				return result, fmt.Errorf("bypass %s: %w", w.name, err)
			}
			ways = append(ways, &w)
		}
		if o.Rate == 0 {
			most, err := ways[0].observe(func() (load.Result, error) {
				return load.Wrk(ways[0].Client, ways[0].URL, connectionCounts[0], o.Duration)
			})
			if err != nil {
				return result, fmt.Errorf("find the rate of requests for this machine: %w", err)
			}
			o.Rate = int(bypassShare * most.load.PerSecond)
			fmt.Fprintf(o.Progress, "%s: %d requests per second at the fixed rate\n", name, o.Rate)
		}
		for run := range o.Runs + 1 { // The first run warms up and is not counted.
			for _, connections := range connectionCounts {
				for _, w := range ways {
					if ctx.Err() != nil {
						return result, errors.New("interrupted")
					}
					busy, err := w.measure(connections, o, run > 0)
					if err != nil {
						return result, fmt.Errorf("bypass %s, %d connections: %w", w.name, connections, err)
					}
					result.ClientBound = result.ClientBound || busy >= busyShare
				}
			}
			// Neither is always the first.
			slices.Reverse(ways)
		}
		for _, w := range ways {
			for connections, figures := range w.figures {
				medians := map[string]float64{}
				for figure, values := range figures {
					medians[figure] = results.Median(values)
				}
				result.Subjects[fmt.Sprintf("%s-%d", w.name, connections)] = medians
			}
		}
		return result, nil
	}}
}

// way is a pair and its figures, by connections and name.
type way struct {
	*samehost.Pair
	name string
	// messages of a request that bypass TCP.
	messages int
	figures  map[int]map[string][]float64
}

// measure runs as fast as it goes and at a fixed rate. It returns the share of a processor that the busier of client and
// server used in the first.
func (w *way) measure(connections int, o Options, count bool) (float64, error) {
	fastest, err := w.observe(func() (load.Result, error) { return load.Wrk(w.Client, w.URL, connections, o.Duration) })
	if err != nil {
		return 0, err
	}
	fixed, err := w.observe(func() (load.Result, error) {
		return load.AtRate(w.Client, w.URL, connections, o.Rate, o.Duration)
	})
	if err != nil {
		return 0, fmt.Errorf("%d requests/s: %w", o.Rate, err)
	}
	if fixed.load.PerSecond < leastReached*float64(o.Rate) {
		return 0, fmt.Errorf("%.0f requests/s were reached of %d: choose fewer with -rate, or keep other work off this machine", fixed.load.PerSecond, o.Rate)
	}
	busy := max(fastest.client, fastest.server).Seconds() / fastest.wall.Seconds()
	if !count {
		return busy, nil
	}
	figures := w.figures[connections]
	if figures == nil {
		figures = map[string][]float64{}
		w.figures[connections] = figures
	}
	for suffix, run := range map[string]observation{"": fastest, "_at_rate": fixed} {
		for figure, value := range run.figures() {
			figures[figure+suffix] = append(figures[figure+suffix], value)
		}
	}
	fmt.Fprintf(o.Progress, "%s-%d: %.2f CPU µs per request, %.0f requests/s, p99 %.2f ms; at %d/s p99 %.2f ms\n", w.name, connections,
		last(figures["cpu_us_per_request"]), fastest.load.PerSecond, last(figures["p99_ms"]), o.Rate, last(figures["p99_ms_at_rate"]))
	return busy, nil
}

// observation is a run's load and what each process used meanwhile.
type observation struct {
	load                                         load.Result
	client, clientSidecar, serverSidecar, server time.Duration
	wall                                         time.Duration
	// bypassed are the messages that went past TCP.
	bypassed uint64
	// switches from one of the four processes to something else.
	switches int64
}

func (w *way) observe(run func() (load.Result, error)) (observation, error) {
	var o observation
	used := map[*process.Process]*time.Duration{w.ClientSidecar: &o.clientSidecar, w.ServerSidecar: &o.serverSidecar, w.Server: &o.server}
	for p, into := range used {
		cost, err := p.Cost()
		if err != nil {
			return o, err
		}
		*into = -(cost.User + cost.System)
		o.switches -= cost.Switches
	}
	before, err := w.bypassed()
	if err != nil {
		return o, err
	}
	started := time.Now()
	if o.load, err = run(); err != nil {
		return o, err
	}
	o.wall = time.Since(started)
	for p, into := range used {
		cost, err := p.Cost()
		if err != nil {
			return o, err
		}
		*into += cost.User + cost.System
		o.switches += cost.Switches
	}
	after, err := w.bypassed()
	if err != nil {
		return o, err
	}
	o.client, o.bypassed = o.load.CPU, after-before
	o.switches += o.load.Switches
	return o, o.check(w.messages)
}

// check says why a run measures nothing.
func (o observation) check(messages int) error {
	if o.load.Requests == 0 || o.load.Errors*1000 > o.load.Requests {
		return fmt.Errorf("%d good answers and %d errors: this run measures nothing", o.load.Requests, o.load.Errors)
	}
	if o.each(o.bypassed) < cluster.LeastBypassed*float64(messages) {
		return fmt.Errorf("%.2f messages of a request bypassed TCP, of %d: this run does not measure the bypass", o.each(o.bypassed), messages)
	}
	return nil
}

// bypassed is how many messages have gone past TCP.
func (w *way) bypassed() (uint64, error) {
	if w.Bypass == nil {
		return 0, nil
	}
	s, err := w.Bypass.Status()
	return s.Messages, err
}

// each is a number per request.
func (o observation) each(n uint64) float64 { return float64(n) / float64(o.load.Requests) }

func (o observation) figures() map[string]float64 {
	cpu := func(d time.Duration) float64 { return o.each(uint64(d.Microseconds())) }
	return map[string]float64{
		"cpu_us_per_request":  cpu(o.client + o.clientSidecar + o.serverSidecar + o.server),
		"client_us":           cpu(o.client),
		"client_sidecar_us":   cpu(o.clientSidecar),
		"server_sidecar_us":   cpu(o.serverSidecar),
		"server_us":           cpu(o.server),
		"requests_per_second": o.load.PerSecond,
		"p50_ms":              float64(o.load.P50.Microseconds()) / 1000,
		"p95_ms":              float64(o.load.P95.Microseconds()) / 1000,
		"p99_ms":              float64(o.load.P99.Microseconds()) / 1000,
		"direct_messages":     o.each(o.bypassed),
		"context_switches":    float64(o.switches) / float64(o.load.Requests),
	}
}
