package load

import (
	"fmt"
	"io"
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
	// Late has all of them ask from the end of Opening on instead, and opens one that never asks after each.
	Late bool
	// Settling is how long they ask after Opening before what is due counts.
	Settling time.Duration
	// Duration is the time in which what is due counts.
	Duration time.Duration
}

// mixture is what such a client is told.
type mixture struct {
	Address string           `json:"address"`
	Ports   []int            `json:"ports"`
	Classes map[string]Class `json:"classes"`
	Course  Course           `json:"course"`
}

// Mixed asks address over kept HTTP/1.1 connections of several classes, from these source ports of 127.0.0.1, one each, in
// the order of the ports; the classes are among each other in an order that is always the same. A latency begins when the
// request was due, so that an answer that comes late does not hide those behind it. Results are those of the classes, by name. A
// connection that fails, or an answer of another status or length, is an error of the whole.
func Mixed(at process.Place, address string, ports []int, classes map[string]Class, course Course) (map[string]Result, error) {
	var got map[string]Result
	_, err := inChild(at, MixedFlag, mixture{address, ports, classes, course}, &got)
	return got, err
}

// AskMixed is the client of [Mixed]: it does what it is told and writes the results as JSON.
func AskMixed(told io.Reader, out io.Writer) error {
	return asTold(MixedFlag, told, out, mixture.run)
}

// silent is the class of connections that never ask.
const silent = ""

func (m mixture) run() (map[string]Result, error) {
	connections, err := m.connections(time.Now())
	if err != nil {
		return nil, err
	}
	counted := connections[0].counted
	p, err := newPacer(m.Address, connections, counted.Add(m.Course.Duration))
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.run(); err != nil {
		return nil, err
	}
	return m.results(connections)
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
	counted := opened.Add(m.Course.Settling)
	connections := make([]*paced, len(order))
	for i, name := range order {
		class := m.Classes[name]
		c := &paced{name: name, bytes: int(class.Bytes), port: m.Ports[i], number: i, socket: -1, counted: counted,
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

// results of the classes, of what their connections saw.
func (m mixture) results(connections []*paced) (map[string]Result, error) {
	latencies := map[string][]time.Duration{}
	for _, c := range connections {
		latencies[c.name] = append(latencies[c.name], c.took...)
	}
	got := map[string]Result{}
	for name := range m.Classes {
		all := latencies[name]
		if len(all) == 0 {
			return nil, fmt.Errorf("class %s: no answer to a request that counts", name)
		}
		slices.Sort(all)
		got[name] = Result{Requests: int64(len(all)), PerSecond: float64(len(all)) / m.Course.Duration.Seconds(), P50: percentile(all, 0.50), P99: percentile(all, 0.99)}
	}
	return got, nil
}
