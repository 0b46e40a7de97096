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
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/bench/results"
)

// Connections of a client whose requests come at a fixed rate, and of one that asks as fast as it goes.
const (
	connectionsAtRate  = 10
	connectionsFastest = 16
)

// sidecarsRate of the runs at a fixed rate, in requests per second.
const sidecarsRate = 4000

// sidecarPair is a client and its server with sidecars between, which take turns with others.
type sidecarPair struct {
	name string
	// client is where a load generator belongs, and url what it asks for.
	client process.Place
	url    string
	// observe runs a load and says what it took.
	observe func(run func() (load.Result, error)) (observation, error)
	// figures by name, one of each run.
	figures map[string][]float64
}

// compareSidecars has pairs take turns; start makes them, and stop removes what was made, also when start has failed.
func compareSidecars(name string, o Options, start func(context.Context) ([]*sidecarPair, error), stop func() error) (result results.Result, err error) {
	result = results.New(name, o.Runs, time.Now())
	o.Rate = cmp.Or(o.Rate, sidecarsRate)
	// What is set up on the machine must go, also when this is interrupted.
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer end()
	defer func() { err = errors.Join(err, stop()) }()
	pairs, err := start(ctx)
	if err != nil {
		return result, err
	}
	for run := range o.Runs + 1 { // The first run warms up and is not counted.
		for _, p := range pairs {
			if ctx.Err() != nil {
				return result, errors.New("interrupted")
			}
			if err := p.measure(o, run > 0); err != nil {
				return result, fmt.Errorf("%s: %w", p.name, err)
			}
		}
		slices.Reverse(pairs)
	}
	for _, p := range pairs {
		medians := map[string]float64{}
		for figure, values := range p.figures {
			medians[figure] = results.Median(values)
		}
		medians["sidecars_us"] = medians["client_sidecar_us"] + medians["server_sidecar_us"]
		result.Subjects[p.name] = medians
	}
	return result, nil
}

// chosen are those of the list that were asked for; all where nothing was.
func chosen[T any](all []T, name func(T) string, subjects []string) ([]T, error) {
	if len(subjects) == 0 {
		return all, nil
	}
	var some []T
	var names []string
	for _, one := range all {
		names = append(names, name(one))
		if slices.Contains(subjects, name(one)) {
			some = append(some, one)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("none of the subjects %v: want some of %v", subjects, names)
	}
	return some, nil
}

// measure runs at a fixed rate, then as fast as it goes.
func (p *sidecarPair) measure(o Options, count bool) error {
	fixed, err := p.observe(func() (load.Result, error) {
		return load.AtRate(p.client, p.url, connectionsAtRate, o.Rate, o.Duration)
	})
	if err != nil {
		return fmt.Errorf("%d requests/s: %w", o.Rate, err)
	}
	if fixed.load.PerSecond < leastReached*float64(o.Rate) {
		return fmt.Errorf("%.0f requests/s were reached of %d: choose fewer with -rate, or keep other work off this machine", fixed.load.PerSecond, o.Rate)
	}
	fastest, err := p.observe(func() (load.Result, error) { return load.Wrk(p.client, p.url, connectionsFastest, o.Duration) })
	if err != nil {
		return err
	}
	if !count {
		return nil
	}
	at, most := fixed.figures(), fastest.figures()
	for _, figure := range []string{"p50_ms", "p95_ms", "p99_ms"} {
		p.figures[figure] = append(p.figures[figure], at[figure])
	}
	if most["direct_messages"] > 0 {
		p.figures["direct_messages"] = append(p.figures["direct_messages"], most["direct_messages"])
	}
	for _, figure := range []string{"requests_per_second", "cpu_us_per_request", "client_sidecar_us", "server_sidecar_us"} {
		p.figures[figure] = append(p.figures[figure], most[figure])
	}
	fmt.Fprintf(o.Progress, "%s: p95 %.2f ms at %d/s; at most %.0f/s, %.1f CPU µs per request\n",
		p.name, at["p95_ms"], o.Rate, most["requests_per_second"], most["cpu_us_per_request"])
	return nil
}
