package scenarios

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/bench/results"
)

// The proxy has a processor for itself, the client and the backend share the other. Clients that open connections take longer for each
// than the proxy does, and get both: alone on the other, they would leave it waiting for them, and nothing would come together.
var proxyPlace, clientPlace, connectingPlace = process.Place{CPU: 0}, process.Place{CPU: 1}, process.Place{CPU: 0, CPUs: 2}

const backendAddress = "127.0.0.1:19000"

// busyShare of its processor that a proxy must use to count as the bottleneck.
const busyShare = 0.9

// proxyWork is one comparison of proxies in front of the same backend.
type proxyWork struct {
	peers.Work
	// connections kept by the client, streams on each (HTTP/2 only).
	connections, streams int
	// closing asks for a new connection per request.
	closing bool
	// sTime has `openssl s_time` open them, with TLS 1.2.
	sTime bool
	// subjects to compare where the user names none; [peers.Names] if empty.
	subjects []string
	// called are subjects that the result has under another name.
	called map[string]string
	// message is the file with that of a gRPC call, once there is one.
	message string
	// baseline is the subject, as the result calls it, that the others are compared with.
	baseline string
}

func proxyScenario(name, summary string, work proxyWork) Scenario {
	return Scenario{Name: name, Summary: summary, Shares: true, Run: func(o Options) (results.Result, error) { return work.run(name, o) }}
}

// subject is a running proxy and the figures of its runs.
type subject struct {
	*process.Process
	address string
	// rate of the run before, in requests per second; zero before the first.
	rate    float64
	figures map[string][]float64
}

func (w proxyWork) run(name string, o Options) (result results.Result, err error) {
	result = results.New(name, o.Runs, time.Now())
	result.Baseline, result.Share = w.baseline, o.Share
	names := o.Subjects
	if len(names) == 0 {
		names = w.subjects
	}
	if len(names) == 0 {
		names = peers.Names
	}
	dir, err := os.MkdirTemp("", "heddle-bench")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	if w.GRPC {
		if w.message, err = peers.GRPCMessage(dir); err != nil {
			return result, err
		}
	}
	backend, err := w.backend(dir)
	if err != nil {
		return result, err
	}
	defer backend.Stop()

	place := proxyPlace
	if o.Share > 0 {
		if place.Quota, err = process.NewQuota(o.Share); err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, place.Quota.Remove()) }()
	}
	subjects := map[string]*subject{}
	for i, name := range names {
		s := &subject{address: fmt.Sprintf("127.0.0.1:%d", 19001+i), figures: map[string][]float64{}}
		subjectDir := dir + "/" + name
		if err := os.Mkdir(subjectDir, 0o755); err != nil {
			return result, err
		}
		if s.Process, err = peers.Start(name, subjectDir, place, w.Work, s.address, backendAddress, o.Binaries); err != nil {
			return result, err
		}
		defer s.Stop()
		if w.GRPC {
			if err := peers.CheckGRPC(s.address); err != nil {
				return result, fmt.Errorf("%s: a call: %w", name, err)
			}
		}
		subjects[name] = s
	}
	for run := range o.Runs + 1 { // The first run warms up and is not counted.
		for _, name := range names {
			s := subjects[name]
			busy, err := w.once(s, o.Duration, run > 0)
			if err != nil {
				return result, fmt.Errorf("%s: %w", name, err)
			}
			if run > 0 {
				fmt.Fprintf(o.Progress, "%s %s run %d/%d: %.2f CPU µs per request, %.0f requests/s, proxy %.0f %% busy\n", result.Scenario, name, run, o.Runs,
					last(s.figures["cpu_us_per_request"]), s.rate, 100*busy)
				result.ClientBound = result.ClientBound || busy < busyShare*float64(cmp.Or(o.Share, 100))/100
			}
		}
	}
	for name, s := range subjects {
		figures := map[string]float64{}
		for figure, values := range s.figures {
			figures[figure] = results.Median(values)
		}
		result.Subjects[cmp.Or(w.called[name], name)] = figures
	}
	return result, nil
}

// backend is the server behind all subjects.
func (w proxyWork) backend(dir string) (*process.Process, error) {
	if w.GRPC {
		return peers.GRPCBackend(clientPlace, backendAddress)
	}
	return peers.Backend(clientPlace, dir, backendAddress, peers.BackendSize)
}

// once loads a subject for a while and returns the share of its processor that it used.
func (w proxyWork) once(s *subject, duration time.Duration, count bool) (float64, error) {
	before, err := s.Cost()
	if err != nil {
		return 0, err
	}
	started := time.Now()
	got, err := w.load(s.address, duration, s.rate)
	if err != nil {
		return 0, err
	}
	wall := time.Since(started)
	after, err := s.Cost()
	if err != nil {
		return 0, err
	}
	if got.Requests == 0 || got.Errors*1000 > got.Requests {
		return 0, fmt.Errorf("%d good answers and %d errors: this run measures nothing", got.Requests, got.Errors)
	}
	user, system := after.User-before.User, after.System-before.System
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(got.Requests) }
	s.rate = got.PerSecond
	if !count {
		return 0, nil
	}
	figures := map[string]float64{
		"cpu_us_per_request":      each(user + system),
		"user_us_per_request":     each(user),
		"requests_per_cpu_second": float64(got.Requests) / (user + system).Seconds(),
		"requests_per_second":     got.PerSecond,
		"errors":                  float64(got.Errors),
		"rss_mb":                  float64(after.RSS) / 1e6,
	}
	if got.P99 > 0 {
		figures["p50_ms"] = float64(got.P50.Microseconds()) / 1000
		figures["p99_ms"] = float64(got.P99.Microseconds()) / 1000
	}
	for figure, value := range figures {
		s.figures[figure] = append(s.figures[figure], value)
	}
	return (user + system).Seconds() / wall.Seconds(), nil
}

func (w proxyWork) load(address string, duration time.Duration, rate float64) (load.Result, error) {
	scheme := "http"
	if w.TLS != "" {
		scheme = "https"
	}
	url := scheme + "://" + address + w.Target()
	if w.HTTP2 {
		// h2load in this mode is told a number of requests; the first, uncounted run finds out the rate.
		requests := 20000
		if rate > 0 {
			requests = int(rate * duration.Seconds())
		}
		if w.GRPC {
			return load.H2loadGRPC(clientPlace, url, w.message, w.connections, w.streams, requests)
		}
		return load.H2load(clientPlace, url, w.connections, w.streams, requests)
	}
	if w.sTime {
		return load.STime(clientPlace, address, w.Target(), w.connections, duration)
	}
	if w.closing {
		return load.NewConnections(connectingPlace, address, w.Target(), w.connections, duration)
	}
	return load.Wrk(clientPlace, url, w.connections, duration)
}

func last(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}
