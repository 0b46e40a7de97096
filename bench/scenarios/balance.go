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

// balanceShare of a processor is what the load takes of workers that are not balanced: of one, where it has all of it. Where client,
// backend and workers share two processors, that is as much as leaves the other two what they need.
const balanceShare = 0.75

// balanceClasses are 4000 connections, with the rates that they have to each other.
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
	// uneven gives all to one, as skewed, in an order by which who counts them gives one worker all that ask for more than 1 kB.
	uneven
)

var balanceSummaries = map[arrangement]string{
	even:   "4000 connections, answers of 1 kB to 1 MB, two workers, as the kernel spreads them: balance none, exact, load-aware",
	skewed: "the same where the kernel gives all of them to one worker",
	late:   "the same where all are open before any load, and one worker has those that ask then",
	uneven: "the same as p5, where every other connection asks for little: equal numbers are unequal loads",
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
	b := balanceLoad{arranged: arranged, classes: maps.Clone(balanceClasses), course: load.Course{Opening: balanceOpening, Duration: o.Duration}, binaries: o.Binaries}
	connections := 0
	for class, c := range b.classes {
		c.Bytes = peers.Sizes[c.Path]
		connections += c.Connections
		if arranged == late {
			c.Connections /= 2 // The other half are silent.
		}
		b.classes[class] = c
	}
	if arranged == late {
		b.course.Late, b.course.Settling = true, balanceSettling
	}
	b.course.Alternate = arranged == uneven
	var err error
	if b.ports, err = arrange(arranged, connections); err != nil {
		return result, err
	}
	if b.dir, err = os.MkdirTemp("", "heddle-bench"); err != nil {
		return result, err
	}
	defer os.RemoveAll(b.dir)
	if err := peers.WriteSizes(b.dir); err != nil {
		return result, err
	}
	backend, err := peers.Backend(clientPlace, b.dir, backendAddress, peers.BackendSize)
	if err != nil {
		return result, err
	}
	defer backend.Stop()
	perSecond := float64(o.Rate)
	if o.Rate == 0 {
		if perSecond, err = b.calibrate(); err != nil {
			return result, fmt.Errorf("find the rate of requests for this machine: %w", err)
		}
	}
	b.scale(perSecond / b.perSecond())
	fmt.Fprintf(o.Progress, "%s: %.0f requests per second\n", name, b.perSecond())
	figures := map[string]map[string][]float64{}
	for run := range o.Runs + 1 { // The first run warms up and is not counted.
		// Each begins as often as the others: what comes after another one's load is slower by some percent.
		first := run % len(names)
		for _, subject := range slices.Concat(names[first:], names[:first]) {
			got, err := b.once(subject)
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
	if arranged == skewed || arranged == uneven {
		each = connections
	}
	bySocket, err := load.PortsBySocket(balanceAddress, balanceWorkers, each)
	if err != nil {
		return nil, err
	}
	switch arranged {
	case skewed, uneven:
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

// balanceLoad is what every subject of a run has to do.
type balanceLoad struct {
	dir      string
	ports    []int
	arranged arrangement
	classes  map[string]load.Class
	course   load.Course
	binaries peers.Binaries
}

// perSecond is how many requests come per second.
func (b balanceLoad) perSecond() float64 {
	sum := 0.0
	for _, c := range b.classes {
		sum += c.Rate
	}
	return sum
}

// scale makes it so many times the requests.
func (b *balanceLoad) scale(by float64) {
	for name, c := range b.classes {
		c.Rate *= by
		b.classes[name] = c
	}
}

// calibrate finds the requests per second that take [balanceShare] of a processor here, of workers that are not balanced.
func (b balanceLoad) calibrate() (float64, error) {
	b.course.Duration = balanceOpening
	figures, err := b.once("none")
	if err != nil {
		return 0, err
	}
	used := figures["cpu_percent"]
	if used <= 0 {
		return 0, fmt.Errorf("%.0f requests per second took no processor time: choose a rate with -rate", b.perSecond())
	}
	return b.perSecond() * 100 * balanceShare / used, nil
}

// once starts a subject, loads it and stops it.
func (b balanceLoad) once(name string) (map[string]float64, error) {
	chosen, known := balanceSubjects[name]
	if !known {
		return nil, fmt.Errorf("unknown subject %q: want one of %v", name, slices.Sorted(maps.Keys(balanceSubjects)))
	}
	work := peers.Work{Workers: balanceWorkers, Balance: chosen.balance}
	subject, err := peers.Start(chosen.proxy, b.dir, proxyPlace, work, balanceAddress, backendAddress, b.binaries)
	if err != nil {
		return nil, err
	}
	defer subject.Stop()
	got, err := load.Mixed(connectingPlace, subject.PID(), balanceAddress, b.ports, b.classes, b.course)
	if err != nil {
		return nil, err
	}
	cost, err := subject.Cost()
	if err != nil {
		return nil, err
	}
	did, err := placed(balanceAddress)
	if err != nil {
		return nil, fmt.Errorf("what became of the connections: %w", err)
	}
	if got.BusiestThread < 0.9 && chosen.balance == "" && b.arranged != even {
		return nil, fmt.Errorf("one worker did %.0f %% of the work, not nearly all: this run measures nothing", 100*got.BusiestThread)
	}
	figures := map[string]float64{
		"rss_mb": float64(cost.RSS) / 1e6,
		// What is asked is the same of all subjects, whatever they take for it.
		"cpu_percent":               100 * got.CPU.Seconds() / b.course.Duration.Seconds(),
		"busiest_worker_percent":    100 * got.BusiestThread,
		"client_cpu_ms":             float64(got.Client.Milliseconds()),
		"client_lag_p99_ms":         float64(got.Lag.Microseconds()) / 1000,
		"requests_per_second_asked": b.perSecond(),
	}
	maps.Copy(figures, did)
	for class, r := range got.Classes {
		figures["requests_per_second"] += r.PerSecond
		figures["p50_ms_"+class] = float64(r.P50.Microseconds()) / 1000
		figures["p99_ms_"+class] = float64(r.P99.Microseconds()) / 1000
	}
	return figures, nil
}
