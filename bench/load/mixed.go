package load

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

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

// Mixed asks address over kept HTTP/1.1 connections of several classes, from these source ports of 127.0.0.1, one each, in
// the order of the ports; the classes are among each other in an order that is always the same. A latency begins when the
// request was due, so that an answer that comes late does not hide those behind it. Results are those of the classes, by path.
func Mixed(address string, ports []int, classes map[string]Class, course Course) (map[string]Result, error) {
	var order []string
	for name, class := range classes {
		order = append(order, slices.Repeat([]string{name}, class.Connections)...)
	}
	slices.Sort(order)
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	if course.Late {
		with := make([]string, 0, 2*len(order))
		for _, name := range order {
			with = append(with, name, silent)
		}
		order = with
	}
	if len(ports) < len(order) {
		return nil, fmt.Errorf("%d ports for %d connections", len(ports), len(order))
	}
	start := time.Now()
	opened := start.Add(course.Opening)
	counted := opened.Add(course.Settling)
	end := counted.Add(course.Duration)
	var (
		wait      sync.WaitGroup
		mutex     sync.Mutex
		failures  = map[string][]error{}
		latencies = map[string][]time.Duration{}
	)
	for i, name := range order {
		class := classes[name]
		client := paced{class: class, address: address, port: ports[i],
			open: start.Add(course.Opening * time.Duration(i) / time.Duration(len(order))), counted: counted, end: end}
		switch {
		case name == silent:
			client.first = end
		case course.Late:
			client.first = opened.Add(time.Duration(random.Float64() * float64(client.interval())))
		default:
			client.first = client.open.Add(time.Duration(random.Float64() * float64(client.interval())))
		}
		wait.Go(func() {
			took, failed := client.run()
			mutex.Lock()
			defer mutex.Unlock()
			latencies[name] = append(latencies[name], took...)
			if failed != nil {
				failures[name] = append(failures[name], failed)
			}
		})
	}
	wait.Wait()
	got := map[string]Result{}
	if failed := failures[silent]; len(failed) > 0 {
		return nil, fmt.Errorf("%d of the silent connections failed: %w", len(failed), failed[0])
	}
	for name := range classes {
		all := latencies[name]
		if len(all) == 0 {
			return nil, fmt.Errorf("class %s: no answers and %d errors, such as %v", name, len(failures[name]), failures[name][:min(1, len(failures[name]))])
		}
		slices.Sort(all)
		got[name] = Result{Requests: int64(len(all)), Errors: int64(len(failures[name])), PerSecond: float64(len(all)) / course.Duration.Seconds(),
			P50: all[len(all)/2], P99: all[len(all)*99/100]}
	}
	return got, nil
}

// silent is the class of connections that never ask.
const silent = ""

// paced is one connection of a mixed load.
type paced struct {
	class   Class
	address string
	port    int
	// open is when it connects, first when its first request is due, counted when those begin that count, end when none is
	// due any more.
	open, first, counted, end time.Time
}

// interval between its requests.
func (c paced) interval() time.Duration {
	return time.Duration(float64(c.class.Connections) / c.class.Rate * float64(time.Second))
}

// run asks until the end, or until it fails: then the connection is not opened again. The latencies are good in any case.
func (c paced) run() ([]time.Duration, error) {
	<-time.After(time.Until(c.open))
	conn, err := dialFrom(c.port, c.address, answerBound)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request := []byte("GET " + c.class.Path + " HTTP/1.1\r\nHost: " + c.address + "\r\n\r\n")
	// Large answers are read in pieces as large as a proxy sends them.
	reader := bufio.NewReaderSize(conn, min(int(c.class.Bytes)+1<<10, 128<<10))
	var took []time.Duration
	if c.class.Rate == 0 {
		<-time.After(time.Until(c.end))
		return nil, nil
	}
	for due := c.first; due.Before(c.end); due = due.Add(c.interval()) {
		<-time.After(time.Until(due))
		if err := c.ask(conn, reader, request); err != nil {
			return took, err
		}
		if due.After(c.counted) {
			took = append(took, time.Since(due))
		}
	}
	return took, nil
}

// ask reads the answer by hand: what a client costs here, a proxy cannot have.
func (c paced) ask(conn net.Conn, reader *bufio.Reader, request []byte) error {
	if err := conn.SetDeadline(time.Now().Add(answerBound)); err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	status, err := reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("status %q, want 200", bytes.TrimSpace(status))
	}
	length := int64(-1)
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err != nil {
				return err
			}
		}
	}
	if length != c.class.Bytes {
		return fmt.Errorf("%d bytes, want %d", length, c.class.Bytes)
	}
	_, err = reader.Discard(int(length))
	return err
}
