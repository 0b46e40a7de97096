package load

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/bench/process"
)

// RateFlag has the benchmark's program be the client that [AtRate] starts: standard input is for [AskAtRate].
const RateFlag = "-at-rate"

// MostPerSecond is the highest rate that can be asked for; far above what one client does.
const MostPerSecond = 1_000_000

// fixedRate is what such a client is told.
type fixedRate struct {
	Address     string        `json:"address"`
	Target      string        `json:"target"`
	Connections int           `json:"connections"`
	PerSecond   int           `json:"per_second"`
	Duration    time.Duration `json:"duration"`
}

// AtRate asks url (http, an IPv4 address and a port) over kept HTTP/1.1 connections, so many times a second. The requests are due one
// after the other, evenly, each on the connection after the one before. A latency begins when its request was due: what waits
// for the answer before it on its connection waits longer. (h2load asks on all of its connections in the same moment, every 10 ms
// at the most, so that its p99 is the end of a queue that it made itself.)
func AtRate(at process.Place, from string, connections, perSecond int, duration time.Duration) (Result, error) {
	u, err := url.Parse(from)
	if err != nil {
		return Result{}, err
	}
	var r Result
	_, err = inChild(at, RateFlag, fixedRate{u.Host, u.RequestURI(), connections, perSecond, duration}, &r)
	return r, err
}

// AskAtRate is the client of [AtRate]: it does what it is told and writes the [Result] as JSON.
func AskAtRate(told io.Reader, out io.Writer) error {
	return asTold(RateFlag, told, out, fixedRate.run)
}

// run asks once on each connection, which opens the way behind it and is not counted, and then at the rate: 1 to [MostPerSecond].
func (f fixedRate) run() (Result, error) {
	if f.PerSecond < 1 || f.PerSecond > MostPerSecond {
		return Result{}, fmt.Errorf("%d requests per second: want 1 to %d", f.PerSecond, MostPerSecond)
	}
	interval := time.Second / time.Duration(f.PerSecond)
	if f.Connections < 1 || f.Duration < interval {
		return Result{}, fmt.Errorf("no request of %d per second is due in %v over %d connections", f.PerSecond, f.Duration, f.Connections)
	}
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", f.Target, f.Address)
	a, err := newAsker(f.Address, [][]byte{request}, f.Connections)
	if err != nil {
		return Result{}, err
	}
	defer a.close()
	if _, err := a.ask(0); err != nil {
		return Result{}, err
	}
	ticks, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(ticks)
	every := unix.NsecToTimespec(interval.Nanoseconds())
	s := &schedule{asker: a, interval: interval, total: int(f.Duration / interval), answered: make([]int, f.Connections), waiting: make([]bool, f.Connections)}
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		return Result{}, err
	}
	s.begun = time.Now()
	if err := unix.TimerfdSettime(ticks, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		return Result{}, err
	}
	if err := a.watch(ticks, f.Connections); err != nil {
		return Result{}, err
	}
	r, err := s.run(ticks)
	if err != nil {
		return r, err
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		return Result{}, err
	}
	// What the requests took, not to start this program.
	r.CPU = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	r.Switches = after.Nvcsw + after.Nivcsw - before.Nvcsw - before.Nivcsw
	return r, nil
}

// schedule of requests: number n is due n+1 intervals after the beginning, on connection n modulo their number.
type schedule struct {
	*asker
	begun    time.Time
	interval time.Duration
	// total of requests, and how many of them have been due.
	total, due int
	// answered requests of each connection, and whether it waits for an answer.
	answered []int
	waiting  []bool
	times    []time.Duration
}

func (s *schedule) run(ticks int) (Result, error) {
	s.times = make([]time.Duration, 0, s.total)
	events := make([]unix.EpollEvent, len(s.sockets)+1)
	end := s.begun.Add(time.Duration(s.total)*s.interval + answerBound)
	for len(s.times) < s.total {
		ready, err := s.wait(events)
		now := time.Now()
		if err == nil && now.After(end) {
			err = fmt.Errorf("%v after the last one was due; choose fewer per second, or keep other work off this machine", answerBound)
		}
		if err != nil {
			return Result{}, fmt.Errorf("%d of %d answers are missing: %w", s.total-len(s.times), s.total, err)
		}
		for _, event := range ready {
			if number := int(event.Fd); number == len(s.sockets) {
				err = s.tick(ticks, now)
			} else {
				err = s.answer(number)
			}
			if err != nil {
				return Result{}, err
			}
		}
	}
	slices.Sort(s.times)
	return Result{Requests: int64(s.total), PerSecond: float64(s.total) / time.Since(s.begun).Seconds(),
		P50: percentile(s.times, 0.50), P95: percentile(s.times, 0.95), P99: percentile(s.times, 0.99)}, nil
}

// tick sends what is due, on connections that wait for nothing.
func (s *schedule) tick(ticks int, now time.Time) error {
	var expired [8]byte
	if _, err := unix.Read(ticks, expired[:]); err != nil {
		return err
	}
	due := min(s.total, int(now.Sub(s.begun)/s.interval))
	for ; s.due < due; s.due++ {
		number := s.due % len(s.sockets)
		if s.waiting[number] {
			continue
		}
		s.waiting[number] = true
		if err := s.send(number); err != nil {
			return err
		}
	}
	if s.due == s.total {
		return unix.TimerfdSettime(ticks, 0, &unix.ItimerSpec{}, nil)
	}
	return nil
}

// answer takes what has come on a connection, and sends what is due there already.
func (s *schedule) answer(number int) error {
	whole, err := s.receive(number)
	if err != nil || !whole {
		return err
	}
	due := s.begun.Add(time.Duration(number+len(s.sockets)*s.answered[number]+1) * s.interval)
	s.times = append(s.times, time.Since(due))
	s.answered[number]++
	s.waiting[number] = number+len(s.sockets)*s.answered[number] < s.due
	if !s.waiting[number] {
		return nil
	}
	return s.send(number)
}
