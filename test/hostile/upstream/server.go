package upstream

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server accepts connections and records what comes in by them.
type server struct {
	Record
	listener net.Listener
	opening  sync.Mutex
	open     map[*conn]struct{}
	// markers are connections of Take's own, by their local addresses; each is closed when it has been accepted.
	markers map[string]chan struct{}
}

// listen begins to accept on an address; serve runs for each connection, which is closed when it returns.
func (s *server) listen(address string, serve func(*conn)) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.listener, s.open, s.markers = listener, map[*conn]struct{}{}, map[string]chan struct{}{}
	go s.accept(serve)
	return nil
}

func (s *server) accept(serve func(*conn)) {
	for {
		accepted, err := s.listener.Accept()
		if err != nil {
			return
		}
		c, marker := s.opened(accepted.(*net.TCPConn))
		if marker {
			continue
		}
		go func() {
			serve(c)
			_ = c.Close()
			s.opening.Lock()
			delete(s.open, c)
			s.opening.Unlock()
		}()
	}
}

// opened notes a connection, unless it is a marker.
func (s *server) opened(tcp *net.TCPConn) (c *conn, marker bool) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if accepted, marker := s.markers[tcp.RemoteAddr().String()]; marker {
		close(accepted)
		_ = tcp.Close()
		return nil, true
	}
	c = &conn{TCPConn: tcp}
	s.open[c] = struct{}{}
	return c, false
}

// Take returns the requests since the last call, in the order in which they were complete. Before it does, it waits, for
// at most so long, until everything that the kernel had for this server has been read and no request is unfinished: what
// a proxy has sent belongs to this call, however late a reader's turn comes.
func (s *server) Take(bound time.Duration) []*Request {
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	if s.drained(deadline.C) {
		s.whole(deadline.C)
	}
	return s.take()
}

// drained waits until all connections that were made have been accepted and read empty; false when time is up.
func (s *server) drained(deadline <-chan time.Time) bool {
	if !s.mark(deadline) {
		return false
	}
	// The kernel does not tell when a queue has become empty.
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for !s.empty() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// mark connects and waits to be accepted: connections are accepted in the order in which they were made.
func (s *server) mark(deadline <-chan time.Time) bool {
	accepted := make(chan struct{})
	s.opening.Lock()
	marker, err := net.Dial("tcp", s.listener.Addr().String())
	if err != nil {
		s.opening.Unlock()
		return false
	}
	defer marker.Close()
	from := marker.LocalAddr().String()
	s.markers[from] = accepted
	s.opening.Unlock()
	defer func() {
		s.opening.Lock()
		defer s.opening.Unlock()
		delete(s.markers, from)
	}()
	select {
	case <-accepted:
		return true
	case <-deadline:
		return false
	}
}

func (s *server) empty() bool {
	s.opening.Lock()
	defer s.opening.Unlock()
	for c := range s.open {
		if !c.empty() {
			return false
		}
	}
	return true
}

// Close ends it and its connections.
func (s *server) Close() {
	_ = s.listener.Close()
	s.Hangup()
}

// Hangup ends its connections.
func (s *server) Hangup() {
	s.opening.Lock()
	defer s.opening.Unlock()
	for c := range s.open {
		_ = c.Close()
	}
}

// conn knows whether all that came by it has been read and worked on.
type conn struct {
	*net.TCPConn
	// blocked in Read, with nothing there at its last look.
	blocked atomic.Bool
}

// WriteTo hides the connection's own, by which [io.Copy] would get around Read.
func (c *conn) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

// Read is no longer blocked before it takes anything out of the kernel's queue.
func (c *conn) Read(p []byte) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	waited := raw.Read(func(fd uintptr) bool {
		c.blocked.Store(false)
		for {
			if n, err = unix.Read(int(fd), p); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		c.blocked.Store(errors.Is(err, unix.EAGAIN))
		return !c.blocked.Load()
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// empty asks for the queue first: what is no longer in it has ended the block.
func (c *conn) empty() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var queued int
	if err := raw.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), syscall.TIOCINQ) }); err != nil {
		return true
	}
	return queued == 0 && c.blocked.Load()
}
