package load

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/bench/process"
)

// paced is one connection that asks at its own pace.
type paced struct {
	name         string
	number, port int
	request      []byte
	// bytes that each answer has.
	bytes int
	// due is when it has to do something next: to open, or to ask. first is when its first request is due, interval the time between
	// two of them (zero: it never asks).
	due, first time.Time
	interval   time.Duration
	// socket is negative while it is not open.
	socket int
	// head is what has come of an answer's head, missing what has not come of its body, once the head has.
	head    []byte
	missing int
	// took are the latencies that count, and answered how many of them were there before the end.
	took     []time.Duration
	answered int
	// late says that it was to ask before it had the answer before.
	late bool
}

// agenda has the connection first that has to do something next.
type agenda []*paced

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].due.Before(a[j].due) }
func (a agenda) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(c any)        { *a = append(*a, c.(*paced)) }
func (a *agenda) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	*a = (*a)[:last]
	return c
}

// pacer has connections ask when they have to, on one thread.
type pacer struct {
	epoll
	to          unix.SockaddrInet4
	connections []*paced
	// counted is when those begin whose latencies count, end when nothing is due any more.
	counted, end time.Time
	// pid of the program that is asked, zero for none, and what its threads had taken at those times.
	pid           int
	before, after map[int]time.Duration
	// lags of requests that count, whose connections waited for nothing: how long after they were due they were sent.
	lags []time.Duration
	// agenda of those that wait for nothing else, and how many wait for an answer.
	agenda  agenda
	waiting int
	buffer  [4096]byte
}

func newPacer(address string, connections []*paced, counted, end time.Time) (*pacer, error) {
	to, err := socketAddress(address)
	if err != nil {
		return nil, err
	}
	p := &pacer{to: to, connections: connections, counted: counted, end: end}
	p.epoll, err = newEpoll()
	return p, err
}

func (p *pacer) close() {
	for _, c := range p.connections {
		if c.socket >= 0 {
			_ = unix.Close(c.socket)
		}
	}
	_ = unix.Close(p.file)
}

// run asks until the end and waits for what has not been answered then, for [answerBound].
func (p *pacer) run() error {
	p.agenda = append(agenda(nil), p.connections...)
	heap.Init(&p.agenda)
	last := p.end.Add(answerBound)
	for events := make([]unix.EpollEvent, 256); ; {
		now := time.Now()
		if err := p.watchCost(now); err != nil {
			return err
		}
		for len(p.agenda) > 0 && !p.agenda[0].due.After(now) {
			c := heap.Pop(&p.agenda).(*paced)
			if err := p.turn(c); err != nil {
				return c.failed(err)
			}
		}
		until := p.end
		switch {
		case len(p.agenda) > 0:
			until = p.agenda[0].due
		case now.Before(p.end): // All wait for answers, or never ask.
		case p.waiting == 0:
			return nil
		case now.After(last):
			return fmt.Errorf("%d answers are missing %v after the last request", p.waiting, answerBound)
		default:
			until = last
		}
		ready, err := p.wait(events, until.Sub(now))
		if err != nil {
			return err
		}
		for _, event := range ready {
			c := p.connections[event.Fd]
			if err := p.receive(c); err != nil {
				return c.failed(err)
			}
		}
	}
}

// watchCost reads what the program that is asked has taken, when counting begins and when it ends.
func (p *pacer) watchCost(now time.Time) (err error) {
	switch {
	case p.pid == 0:
	case p.before == nil && !now.Before(p.counted):
		p.before, err = process.OnCPUByThread(p.pid)
	case p.after == nil && !now.Before(p.end):
		p.after, err = process.OnCPUByThread(p.pid)
	}
	return err
}

func (c *paced) failed(err error) error {
	return fmt.Errorf("class %s, connection from port %d: %w", c.name, c.port, err)
}

// turn opens a connection, or asks.
func (p *pacer) turn(c *paced) error {
	if c.socket < 0 {
		if err := p.open(c); err != nil {
			return err
		}
		if c.interval > 0 {
			p.plan(c, c.first)
		}
		return nil
	}
	if !c.late && c.due.After(p.counted) {
		p.lags = append(p.lags, time.Since(c.due))
	}
	p.waiting++
	n, err := unix.Write(c.socket, c.request)
	if err == nil && n < len(c.request) {
		// It fits the socket's buffer, because the last one was answered.
		err = fmt.Errorf("%d of a request's %d bytes were sent", n, len(c.request))
	}
	return err
}

// plan has it ask then, unless that is after the end.
func (p *pacer) plan(c *paced, due time.Time) {
	if c.due = due; due.Before(p.end) {
		heap.Push(&p.agenda, c)
	}
}

// open connects, which waits for no more than the kernel's own answer on loopback. Closing resets, so that the port can be used
// again at once.
func (p *pacer) open(c *paced) error {
	var err error
	if c.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	return errors.Join(unix.SetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptLinger(c.socket, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(c.socket, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 3), // Gives up after fifteen seconds.
		unix.SetsockoptInt(c.socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Bind(c.socket, &unix.SockaddrInet4{Port: c.port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.Connect(c.socket, &p.to), p.watch(c.socket, c.number))
}

// receive takes what has come. What a client costs here, a proxy cannot have: bodies are counted, not copied.
func (p *pacer) receive(c *paced) error {
	var err error
	if c.missing > 0 {
		err = c.discard(p.buffer[:])
	} else {
		err = c.readHead(p.buffer[:])
	}
	if err != nil || len(c.head) > 0 || c.missing > 0 {
		return err
	}
	p.waiting--
	now := time.Now()
	if c.due.After(p.counted) {
		c.took = append(c.took, now.Sub(c.due))
		if now.Before(p.end) {
			c.answered++
		}
	}
	next := c.due.Add(c.interval)
	c.late = next.Before(now)
	p.plan(c, next)
	return nil
}

var errClosed = errors.New("the proxy closed it")

// readHead reads an answer's head, and what comes with it of its body.
func (c *paced) readHead(buffer []byte) error {
	n, err := unix.Read(c.socket, buffer)
	if err != nil {
		return err
	} else if n == 0 {
		return errClosed
	}
	c.head = append(c.head, buffer[:n]...)
	head, body, found := bytes.Cut(c.head, []byte("\r\n\r\n"))
	if !found {
		return nil
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("the answer is not 200:\n%s", head)
	}
	length, err := contentLength(head)
	if err != nil {
		return err
	}
	if length != c.bytes || len(body) > length {
		return fmt.Errorf("an answer of %d bytes, of which %d came, want %d", length, len(body), c.bytes)
	}
	c.missing, c.head = length-len(body), c.head[:0]
	return nil
}

// discard takes what has come of a body out of the socket. With MSG_TRUNC nothing is written into the buffer (tcp(7)), so that its
// length may be more than it has.
func (c *paced) discard(buffer []byte) error {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.socket), uintptr(unsafe.Pointer(unsafe.SliceData(buffer))), uintptr(c.missing),
		unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
	switch {
	case errno == unix.EINTR || errno == unix.EAGAIN:
		return nil
	case errno != 0:
		return errno
	case n == 0:
		return errClosed
	}
	c.missing -= int(n)
	return nil
}
