package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/bench/process"
)

// TurnsFlag has the benchmark's program be the client that [ByTurns] starts: standard input is for [TakeTurns].
const TurnsFlag = "-by-turns"

// turnBound is how long answers may be missing.
const turnBound = 10 * time.Second

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
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	told, err := json.Marshal(turns)
	if err != nil {
		return nil, err
	}
	command := at.Command(self, TurnsFlag)
	var out, log bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(told), &out, &log
	if err := at.Launch(command); err != nil {
		return nil, fmt.Errorf("client by turns: %w", err)
	}
	if err := command.Wait(); err != nil {
		return nil, fmt.Errorf("client by turns: %w\n%s", err, &log)
	}
	var took []Turn
	if err := json.Unmarshal(out.Bytes(), &took); err != nil {
		return nil, fmt.Errorf("client by turns wrote no result: %w", err)
	}
	return took, nil
}

// TakeTurns is the client of [ByTurns]: it does what it is told and writes what came of it as JSON.
func TakeTurns(told io.Reader, out io.Writer) error {
	var turns Turns
	if err := json.NewDecoder(told).Decode(&turns); err != nil {
		return fmt.Errorf("%s: %w", TurnsFlag, err)
	}
	took, err := turns.take()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(took)
}

func (t Turns) take() ([]Turn, error) {
	var askers []*asker
	for _, address := range t.Addresses {
		a, err := newAsker(address, t.Cookies, t.Connections)
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

// asker asks one address over all its connections, on one thread: Go's own network code takes as long for a request as the
// proxies do.
type asker struct {
	epoll    int
	sockets  []int
	requests [][]byte
	// next request that is sent.
	next int
	// got is what has come of each socket's answer.
	got map[int32][]byte
}

func newAsker(address string, cookies []string, connections int) (*asker, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !to.Addr().Is4() {
		return nil, fmt.Errorf("address %q: want IPv4 and port", address)
	}
	a := &asker{got: map[int32][]byte{}}
	for _, cookie := range cookies {
		a.requests = append(a.requests, fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", address, cookie))
	}
	if a.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	for range connections {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			a.close()
			return nil, err
		}
		a.sockets = append(a.sockets, socket)
		event := &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(socket)}
		if err := errors.Join(unix.Connect(socket, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
			unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.EpollCtl(a.epoll, unix.EPOLL_CTL_ADD, socket, event)); err != nil {
			a.close()
			return nil, fmt.Errorf("connect to %s: %w", address, err)
		}
	}
	return a, nil
}

func (a *asker) close() {
	for _, socket := range append(a.sockets, a.epoll) {
		_ = unix.Close(socket)
	}
}

// ask asks for so long over all connections, waits for what is missing then, and gives the number of answers.
func (a *asker) ask(length time.Duration) (int64, error) {
	end := time.Now().Add(length)
	for _, socket := range a.sockets {
		if err := a.send(socket); err != nil {
			return 0, err
		}
	}
	var answers int64
	events := make([]unix.EpollEvent, len(a.sockets))
	for missing := len(a.sockets); missing > 0; {
		n, err := unix.EpollWait(a.epoll, events, int(turnBound.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, fmt.Errorf("%d answers did not come within %v", missing, turnBound)
		}
		for _, event := range events[:n] {
			whole, err := a.receive(event.Fd)
			if err != nil {
				return 0, err
			}
			if !whole {
				continue
			}
			answers++
			if !time.Now().Before(end) {
				missing--
				continue
			}
			if err := a.send(int(event.Fd)); err != nil {
				return 0, err
			}
		}
	}
	return answers, nil
}

// send writes the next request; it fits the socket's buffer, because the last one was answered.
func (a *asker) send(socket int) error {
	request := a.requests[a.next]
	a.next = (a.next + 1) % len(a.requests)
	n, err := unix.Write(socket, request)
	if err == nil && n < len(request) {
		err = fmt.Errorf("%d of a request's %d bytes were sent", n, len(request))
	}
	return err
}

// receive reads what has come, and says whether the answer is whole.
func (a *asker) receive(socket int32) (bool, error) {
	var buffer [4096]byte
	n, err := unix.Read(int(socket), buffer[:])
	if err != nil {
		return false, err
	}
	if n == 0 {
		return false, errors.New("the proxy closed a connection")
	}
	a.got[socket] = append(a.got[socket], buffer[:n]...)
	answer := a.got[socket]
	head, body, found := bytes.Cut(answer, []byte("\r\n\r\n"))
	if !found {
		return false, nil
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return false, fmt.Errorf("the answer is not 200:\n%s", head)
	}
	_, rest, found := bytes.Cut(head, []byte("content-length: "))
	if !found {
		return false, fmt.Errorf("the answer has no length:\n%s", head)
	}
	text, _, _ := bytes.Cut(rest, []byte("\r\n"))
	length, err := strconv.Atoi(string(text))
	if err != nil {
		return false, err
	}
	if len(body) < length {
		return false, nil
	}
	a.got[socket] = answer[:0]
	return true, nil
}
