package scenarios

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/results"
)

const (
	balanceWorkers = 2
	// All subjects have it in turns: the kernel's hash of a connection depends on it.
	balanceAddress = "127.0.0.1:19001"
	// Long enough that load is seen before the last connection comes.
	balanceOpening = 4 * time.Second
	// What load-aware balancing takes to see load that comes late, and to move connections.
	balanceSettling = 6 * time.Second
)

// balanceClasses are 4000 connections. One worker alone can do it, and is busy.
var balanceClasses = map[string]load.Class{
	"1k":   {Path: "/sizes/1k", Connections: 2800, Rate: 8000},
	"10k":  {Path: "/sizes/10k", Connections: 800, Rate: 2000},
	"100k": {Path: "/sizes/100k", Connections: 320, Rate: 500},
	"1m":   {Path: "/sizes/1m", Connections: 80, Rate: 250},
}

// balanceSubjects are a proxy and its balance each.
var balanceSubjects = map[string]struct {
	proxy   string
	balance peers.Balance
}{
	"none":        {"heddle", ""},
	"exact":       {"heddle", peers.ByCount},
	"load-aware":  {"heddle", peers.ByLoad},
	"envoy-none":  {"envoy", ""},
	"envoy-exact": {"envoy", peers.ByCount},
}

// arrangement is how the kernel spreads connections over the workers.
type arrangement int

const (
	// even gives each worker half of them, as they come.
	even arrangement = iota
	// skewed gives all to one.
	skewed
	// late gives them to the workers in turns, before any load: those that ask later to one, those that never do to the other.
	late
)

var balanceSummaries = map[arrangement]string{
	even:   "4000 connections, answers of 1 kB to 1 MB, two workers, as the kernel spreads them: balance none, exact, load-aware",
	skewed: "the same where the kernel gives all of them to one worker",
	late:   "the same where all are open before any load, and one worker has those that ask then",
}

// balance compares what connections of all sizes wait.
func balance(name string, arranged arrangement) Scenario {
	return Scenario{Name: name, Summary: balanceSummaries[arranged], Run: func(o Options) (results.Result, error) { return runBalance(name, arranged, o) }}
}

func runBalance(name string, arranged arrangement, o Options) (results.Result, error) {
	result := results.New(name, o.Runs, time.Now())
	names := o.Subjects
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(balanceSubjects))
	}
	connections := 0
	classes := maps.Clone(balanceClasses)
	for class, c := range classes {
		c.Bytes = peers.Sizes[c.Path]
		connections += c.Connections
		if arranged == late {
			c.Connections /= 2 // The other half are silent.
		}
		classes[class] = c
	}
	ports, err := arrange(arranged, connections)
	if err != nil {
		return result, err
	}
	dir, err := os.MkdirTemp("", "heddle-bench")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	if err := peers.WriteSizes(dir); err != nil {
		return result, err
	}
	backend, err := peers.Backend(clientPlace, dir, backendAddress, peers.BackendSize)
	if err != nil {
		return result, err
	}
	defer backend.Stop()
	figures := map[string]map[string][]float64{}
	for run := range o.Runs + 1 { // The first run warms up and is not counted.
		for _, subject := range names {
			course := load.Course{Opening: balanceOpening, Duration: o.Duration}
			if arranged == late {
				course.Late, course.Settling = true, balanceSettling
			}
			got, err := balanceOnce(subject, dir, ports, classes, course, o)
			if err != nil {
				return result, fmt.Errorf("%s: %w", subject, err)
			}
			if run == 0 {
				continue
			}
			if figures[subject] == nil {
				figures[subject] = map[string][]float64{}
			}
			for figure, value := range got {
				figures[subject][figure] = append(figures[subject][figure], value)
			}
			fmt.Fprintf(o.Progress, "%s %s run %d/%d: p99 of 1 kB %.2f ms, of 1 MB %.2f ms\n", name, subject, run, o.Runs, got["p99_ms_1k"], got["p99_ms_1m"])
		}
	}
	for subject, values := range figures {
		result.Subjects[subject] = map[string]float64{}
		for figure := range maps.Keys(values) {
			result.Subjects[subject][figure] = results.Median(values[figure])
		}
	}
	return result, nil
}

// arrange finds the connections' source ports, in the order in which they open.
func arrange(arranged arrangement, connections int) ([]int, error) {
	each := connections / balanceWorkers
	if arranged == skewed {
		each = connections
	}
	bySocket, err := load.PortsBySocket(balanceAddress, balanceWorkers, each)
	if err != nil {
		return nil, err
	}
	switch arranged {
	case skewed:
		return bySocket[0], nil
	case late:
		return inTurns(bySocket), nil
	default:
		ports := slices.Concat(bySocket...)
		slices.Sort(ports) // As they come, not one worker's after the other's.
		return ports, nil
	}
}

// inTurns takes one port of each socket after the other.
func inTurns(bySocket [][]int) []int {
	var ports []int
	for i := range bySocket[0] {
		for _, of := range bySocket {
			ports = append(ports, of[i])
		}
	}
	return ports
}

// balanceOnce starts a subject, loads it and stops it.
func balanceOnce(name, dir string, ports []int, classes map[string]load.Class, course load.Course, o Options) (map[string]float64, error) {
	chosen, known := balanceSubjects[name]
	if !known {
		return nil, fmt.Errorf("unknown subject %q: want one of %v", name, slices.Sorted(maps.Keys(balanceSubjects)))
	}
	work := peers.Work{Workers: balanceWorkers, Balance: chosen.balance}
	subject, err := peers.Start(chosen.proxy, dir, proxyPlace, work, balanceAddress, backendAddress, o.Binaries)
	if err != nil {
		return nil, err
	}
	defer subject.Stop()
	before, err := subject.Cost()
	if err != nil {
		return nil, err
	}
	got, err := load.Mixed(balanceAddress, ports, classes, course)
	if err != nil {
		return nil, err
	}
	cost, err := subject.Cost()
	if err != nil {
		return nil, err
	}
	used := cost.User - before.User + cost.System - before.System
	figures := map[string]float64{
		"rss_mb": float64(cost.RSS) / 1e6,
		// What is asked is the same of all subjects, whatever they take for it.
		"cpu_percent": 100 * used.Seconds() / (course.Opening + course.Settling + course.Duration).Seconds(),
	}
	var requests int64
	for class, r := range got {
		if r.Errors > 0 {
			return nil, fmt.Errorf("class %s: %d errors among %d answers: this run measures nothing", class, r.Errors, r.Requests)
		}
		requests += r.Requests
		figures["p50_ms_"+class] = float64(r.P50.Microseconds()) / 1000
		figures["p99_ms_"+class] = float64(r.P99.Microseconds()) / 1000
	}
	figures["requests_per_second"] = float64(requests) / o.Duration.Seconds()
	return figures, nil
}
