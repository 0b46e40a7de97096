package load

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"heddle.io/heddle/bench/process"
)

// MixedFlag has the benchmark's program be the client that [Mixed] starts: standard input is for [AskMixed].
const MixedFlag = "-mixed"

// Class is a part of a mixed load: connections that ask for one thing.
type Class struct {
	// Path of the requests, and Bytes that each answer has.
	Path  string
	Bytes int64
	// Connections, each kept.
	Connections int
	// Rate of requests per second over all of them.
	Rate float64
}

// Course says when a mixed load does what.
type Course struct {
	// Opening is the time within which connections open, one after the other. They ask from then on, each for itself.
	Opening time.Duration
	// Alternate has those that ask for least, as long as there are others, at every other place of the order, and those others between them:
	// who divides connections by their number gives one side the others.
	Alternate bool
	// Late has all of them ask from the end of Opening on instead, and opens one that never asks after each.
	Late bool
	// Settling is how long they ask after Opening before what is due counts.
	Settling time.Duration
	// Duration is the time in which what is due counts.
	Duration time.Duration
}

// MixedResult is what came of a mixed load.
type MixedResult struct {
	// Classes by name. Requests are all that were due while it counted, PerSecond those of them that were answered by then.
	Classes map[string]Result
	// CPU is what the program took that was asked while it counted, and BusiestThread the share that one of its threads had of that.
	CPU           time.Duration
	BusiestThread float64
	// Client is what the client took, from its start on, and Lag how long after they were due 99 of 100 requests were sent whose connections
	// waited for nothing.
	Client, Lag time.Duration
}

// mixture is what such a client is told.
type mixture struct {
	PID     int              `json:"pid"`
	Address string           `json:"address"`
	Ports   []int            `json:"ports"`
	Classes map[string]Class `json:"classes"`
	Course  Course           `json:"course"`
}

// Mixed asks address over kept HTTP/1.1 connections of several classes, from these source ports of 127.0.0.1, one each, in
// the order of the ports; the classes are among each other in an order that is always the same. A latency begins when the
// request was due, so that an answer that comes late does not hide those behind it. pid is the program that is asked. A
// connection that fails, or an answer of another status or length, is an error of the whole.
func Mixed(at process.Place, pid int, address string, ports []int, classes map[string]Class, course Course) (MixedResult, error) {
	var got MixedResult
	client, err := inChild(at, MixedFlag, mixture{pid, address, ports, classes, course}, &got)
	if err == nil {
		got.Client = client.UserTime() + client.SystemTime()
	}
	return got, err
}

// AskMixed is the client of [Mixed]: it does what it is told and writes the results as JSON.
func AskMixed(told io.Reader, out io.Writer) error {
	return asTold(MixedFlag, told, out, mixture.run)
}

// silent is the class of connections that never ask.
const silent = ""

func (m mixture) run() (MixedResult, error) {
	start := time.Now()
	connections, err := m.connections(start)
	if err != nil {
		return MixedResult{}, err
	}
	counted := start.Add(m.Course.Opening + m.Course.Settling)
	p, err := newPacer(m.Address, connections, counted, counted.Add(m.Course.Duration))
	if err != nil {
		return MixedResult{}, err
	}
	defer p.close()
	p.pid = m.PID
	if err := p.run(); err != nil {
		return MixedResult{}, err
	}
	got := MixedResult{}
	if got.Classes, err = m.classes(connections); err != nil {
		return got, err
	}
	slices.Sort(p.lags)
	got.Lag = percentile(p.lags, 0.99)
	var busiest time.Duration
	for thread, after := range p.after {
		ran := after - p.before[thread]
		got.CPU += ran
		busiest = max(busiest, ran)
	}
	got.BusiestThread = float64(busiest) / float64(max(1, got.CPU))
	return got, nil
}

// connections in the order in which they open, from start on.
func (m mixture) connections(start time.Time) ([]*paced, error) {
	var order []string
	for name, class := range m.Classes {
		order = append(order, slices.Repeat([]string{name}, class.Connections)...)
	}
	slices.Sort(order)
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	if m.Course.Alternate {
		order = m.alternating(order)
	}
	if m.Course.Late {
		with := make([]string, 0, 2*len(order))
		for _, name := range order {
			with = append(with, name, silent)
		}
		order = with
	}
	if len(order) == 0 || len(m.Ports) < len(order) {
		return nil, fmt.Errorf("%d ports for %d connections", len(m.Ports), len(order))
	}
	opened := start.Add(m.Course.Opening)
	connections := make([]*paced, len(order))
	for i, name := range order {
		class := m.Classes[name]
		c := &paced{name: name, bytes: int(class.Bytes), port: m.Ports[i], number: i, socket: -1,
			due: start.Add(m.Course.Opening * time.Duration(i) / time.Duration(len(order)))}
		if name != silent {
			c.interval = time.Duration(float64(class.Connections) / class.Rate * float64(time.Second))
			c.request = fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", class.Path, m.Address)
			c.first = c.due
			if m.Course.Late {
				c.first = opened
			}
			c.first = c.first.Add(time.Duration(random.Float64() * float64(c.interval)))
		}
		connections[i] = c
	}
	return connections, nil
}

// alternating has the connections of the smallest answers at every other place, as long as there are others to go between.
func (m mixture) alternating(order []string) []string {
	smallest := slices.MinFunc(slices.Collect(maps.Keys(m.Classes)), func(a, b string) int { return cmp.Compare(m.Classes[a].Bytes, m.Classes[b].Bytes) })
	var small, others []string
	for _, name := range order {
		if name == smallest {
			small = append(small, name)
		} else {
			others = append(others, name)
		}
	}
	pairs := min(len(small), len(others))
	var mixed []string
	for i := range pairs {
		mixed = append(mixed, others[i], small[i])
	}
	return slices.Concat(mixed, others[pairs:], small[pairs:])
}

// classes of connections, and what they saw.
func (m mixture) classes(connections []*paced) (map[string]Result, error) {
	latencies, answered := map[string][]time.Duration{}, map[string]int{}
	for _, c := range connections {
		latencies[c.name] = append(latencies[c.name], c.took...)
		answered[c.name] += c.answered
	}
	got := map[string]Result{}
	for name := range m.Classes {
		all := latencies[name]
		if len(all) == 0 {
			return nil, fmt.Errorf("class %s: no answer to a request that counts", name)
		}
		slices.Sort(all)
		got[name] = Result{Requests: int64(len(all)), PerSecond: float64(answered[name]) / m.Course.Duration.Seconds(), P50: percentile(all, 0.50), P99: percentile(all, 0.99)}
	}
	return got, nil
}
