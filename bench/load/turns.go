package load

import (
	"fmt"
	"io"
	"time"

	"heddle.io/heddle/bench/process"
)

// TurnsFlag has the benchmark's program be the client that [ByTurns] starts: standard input is for [TakeTurns].
const TurnsFlag = "-by-turns"

// Turns has a client ask several addresses of one program by turns, there and back again: the first, the second, the second, the
// first. Each is asked over kept HTTP/1.1 connections, and a turn is over when all has been answered that was asked in it. So what
// the program takes between two turns is for the requests of one address, and what changes slowly changes both alike.
type Turns struct {
	// Addresses that are asked, IP and port.
	Addresses []string
	// Cookies of the requests, each in its turn.
	Cookies []string
	// Connections to each address.
	Connections int
	// Length of a turn, and Rounds of turns there and back.
	Length time.Duration
	Rounds int
	// PID is the process whose processor time is counted.
	PID int
}

// Turn is what all turns of one address came to.
type Turn struct {
	// Requests that were answered with 200; any other answer fails the whole.
	Requests int64
	// CPU is the processor time of the program.
	CPU time.Duration
}

// MicrosecondsEach is the processor time of a request.
func (t Turn) MicrosecondsEach() float64 {
	return float64(t.CPU.Nanoseconds()) / 1000 / float64(max(1, t.Requests))
}

// ByTurns runs such a client there, and gives a turn for each of the addresses.
func ByTurns(at process.Place, turns Turns) ([]Turn, error) {
	var took []Turn
	_, err := inChild(at, TurnsFlag, turns, &took)
	return took, err
}

// TakeTurns is the client of [ByTurns]: it does what it is told and writes what came of it as JSON.
func TakeTurns(told io.Reader, out io.Writer) error {
	return asTold(TurnsFlag, told, out, Turns.take)
}

func (t Turns) take() ([]Turn, error) {
	var askers []*asker
	for _, address := range t.Addresses {
		a, err := newAsker(address, t.requests(address), t.Connections)
		if err != nil {
			return nil, err
		}
		defer a.close()
		askers = append(askers, a)
	}
	took := make([]Turn, len(askers))
	// The first round warms up and is not counted.
	for round := range t.Rounds + 1 {
		for i := range 2 * len(askers) {
			at := min(i, 2*len(askers)-1-i)
			before, err := process.OnCPU(t.PID)
			if err != nil {
				return nil, err
			}
			requests, err := askers[at].ask(t.Length)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.Addresses[at], err)
			}
			after, err := process.OnCPU(t.PID)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				took[at].Requests += requests
				took[at].CPU += after - before
			}
		}
	}
	return took, nil
}

// requests to one of the addresses, with each of the cookies.
func (t Turns) requests(address string) [][]byte {
	var requests [][]byte
	for _, cookie := range t.Cookies {
		requests = append(requests, fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", address, cookie))
	}
	return requests
}
