package load

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// answerBound is how long a connection's answer may take, from dialling or from when its request was sent, and how long all of an
// [asker]'s answers may be missing. Beyond it the run, or that connection, has failed.
const answerBound = 10 * time.Second

// asker asks one address over all its connections, on one thread.
type asker struct {
	epoll
	sockets  []int
	requests [][]byte
	// next request that is sent.
	next int
	// got is what has come of each socket's answer.
	got [][]byte
	// buffer for what a socket is read into.
	buffer [4096]byte
}

// socketAddress of an IPv4 address and port.
func socketAddress(text string) (unix.SockaddrInet4, error) {
	to, err := netip.ParseAddrPort(text)
	if err != nil || !to.Addr().Is4() {
		return unix.SockaddrInet4{}, fmt.Errorf("address %q: want IPv4 and port", text)
	}
	return unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, nil
}

// newAsker opens so many connections, over which it sends these requests by turns.
func newAsker(address string, requests [][]byte, connections int) (*asker, error) {
	to, err := socketAddress(address)
	if err != nil {
		return nil, err
	}
	a := &asker{requests: requests, got: make([][]byte, connections)}
	if a.epoll, err = newEpoll(); err != nil {
		return nil, err
	}
	for number := range connections {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			a.close()
			return nil, err
		}
		a.sockets = append(a.sockets, socket)
		// Epoll alone waits, as in other clients.
		if err := errors.Join(unix.Connect(socket, &to), unix.SetNonblock(socket, true),
			unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), a.watch(socket, number)); err != nil {
			a.close()
			return nil, fmt.Errorf("connect to %s: %w", address, err)
		}
	}
	return a, nil
}

// wait gives what there is something to read of, by its number in Fd, into events.
func (a *asker) wait(events []unix.EpollEvent) ([]unix.EpollEvent, error) {
	ready, err := a.epoll.wait(events, answerBound)
	if err == nil && len(ready) == 0 {
		err = fmt.Errorf("no answer came within %v", answerBound)
	}
	return ready, err
}

func (a *asker) close() {
	for _, socket := range append(a.sockets, a.file) {
		_ = unix.Close(socket)
	}
}

// ask asks for so long over all connections, waits for what is missing then, and gives the number of answers.
func (a *asker) ask(length time.Duration) (int64, error) {
	end := time.Now().Add(length)
	for number := range a.sockets {
		if err := a.send(number); err != nil {
			return 0, err
		}
	}
	var answers int64
	events := make([]unix.EpollEvent, len(a.sockets))
	for missing := len(a.sockets); missing > 0; {
		ready, err := a.wait(events)
		if err != nil {
			return 0, fmt.Errorf("%d answers are missing: %w", missing, err)
		}
		for _, event := range ready {
			whole, err := a.receive(int(event.Fd))
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
func (a *asker) send(number int) error {
	request := a.requests[a.next]
	a.next = (a.next + 1) % len(a.requests)
	n, err := unix.Write(a.sockets[number], request)
	if err == nil && n < len(request) {
		err = fmt.Errorf("%d of a request's %d bytes were sent", n, len(request))
	}
	return err
}

// receive reads what has come, and says whether the answer is whole.
func (a *asker) receive(number int) (bool, error) {
	n, err := unix.Read(a.sockets[number], a.buffer[:])
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if n == 0 {
		return false, errors.New("the proxy closed a connection")
	}
	a.got[number] = append(a.got[number], a.buffer[:n]...)
	answer := a.got[number]
	head, body, found := bytes.Cut(answer, []byte("\r\n\r\n"))
	if !found {
		return false, nil
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return false, fmt.Errorf("the answer is not 200:\n%s", head)
	}
	length, err := contentLength(head)
	if err != nil {
		return false, err
	}
	if len(body) < length {
		return false, nil
	}
	a.got[number] = answer[:0]
	return true, nil
}

// contentLength of an answer's head.
func contentLength(head []byte) (int, error) {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if name, value, found := bytes.Cut(line, []byte(": ")); found && bytes.EqualFold(name, []byte("content-length")) {
			return strconv.Atoi(string(value))
		}
	}
	return 0, fmt.Errorf("the answer has no length:\n%s", head)
}
