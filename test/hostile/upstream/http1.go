package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxHead and maxBody that the upstream reads; a proxy that sends more of one request has lost its bounds.
const (
	maxHead = 1 << 20
	maxBody = 8 << 20
	// sendBuffer of the kernel for each connection.
	sendBuffer = 32 << 10
)

// SlowTarget is answered a moment later.
const SlowTarget = "/slow"

const slowness = 100 * time.Millisecond

// Script is what a hostile upstream answers.
type Script struct {
	// Answer goes out as soon as the request's head is there, or, with Whole, when all of it is.
	Answer []byte
	Whole  bool
	// Then says what follows: "fin", "rst" or "open".
	Then string
	// Endless repeats Answer until the peer goes away.
	Endless bool
}

// HTTP1 serves HTTP/1.1.
type HTTP1 struct {
	server
	mu     sync.Mutex
	script *Script
	// plays are connections that a script is played on; played is closed when the last of them has ended.
	plays  int
	played chan struct{}
}

// NewHTTP1 listens on an address.
func NewHTTP1(address string) (*HTTP1, error) {
	u := &HTTP1{}
	return u, u.listen(address, u.serve)
}

// Play makes requests for targets that begin with /case be answered by a script; nil ends that.
func (u *HTTP1) Play(script *Script) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.script = script
}

// Played waits, for so long at most, until the connections that a script was played on have ended: a proxy that has the answer
// may not have seen yet that nothing more comes, and would send the next request by the same connection.
func (u *HTTP1) Played(bound time.Duration) {
	u.mu.Lock()
	if u.plays == 0 {
		u.mu.Unlock()
		return
	}
	if u.played == nil {
		u.played = make(chan struct{})
	}
	played := u.played
	u.mu.Unlock()
	select {
	case <-played:
	case <-time.After(bound):
	}
}

func (u *HTTP1) playing(target string) *Script {
	u.mu.Lock()
	defer u.mu.Unlock()
	if strings.HasPrefix(target, "/case") {
		return u.script
	}
	return nil
}

// serve reads requests of a connection until one is not understood.
func (u *HTTP1) serve(conn *conn) {
	number := u.connected()
	// What a proxy does not read must stay here, and not in the kernel's memory a thousand times.
	_ = conn.SetWriteBuffer(sendBuffer)
	reader := bufio.NewReaderSize(conn, 64<<10)
	for {
		// The end of a kept connection between requests is no request.
		if _, err := reader.Peek(1); err != nil {
			return
		}
		u.begin()
		request, script, err := u.read(reader)
		request.Connection = number
		u.finish(request)
		switch {
		case script != nil:
			u.play(conn, script)
			return
		case err != nil:
			return
		}
		if strings.HasPrefix(request.Target(), SlowTarget) {
			// It has to be under way for a while, for what a proxy does to a request that is given up.
			<-time.After(slowness)
		}
		head, body := answer(request)
		if _, err := conn.Write(head); err != nil {
			return
		}
		if _, err := conn.Write(body); err != nil || len(request.Problems) > 0 {
			return
		}
	}
}

// read reads one request, without its body when a script answers it before.
func (u *HTTP1) read(reader *bufio.Reader) (*Request, *Script, error) {
	head, err := readHead(reader)
	if err != nil {
		return &Request{Raw: string(head), Cut: "head: " + err.Error()}, nil, err
	}
	request, framing := parse(head)
	script := u.playing(request.Target())
	if script != nil && !script.Whole {
		return request, script, nil
	}
	if err := readBody(reader, request, framing); err != nil {
		request.Cut = "body: " + err.Error()
		return request, nil, err
	}
	return request, script, nil
}

func (u *HTTP1) play(conn *conn, script *Script) {
	u.mu.Lock()
	u.plays++
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.plays--; u.plays == 0 && u.played != nil {
			close(u.played)
			u.played = nil
		}
	}()
	for {
		if _, err := conn.Write(script.Answer); err != nil || !script.Endless {
			break
		}
		<-time.After(endlessBeat)
	}
	switch script.Then {
	case "rst":
		_ = conn.SetLinger(0)
	case "open":
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.Copy(io.Discard, conn)
	default:
		_ = conn.CloseWrite()
		// What the proxy still sends must not turn the FIN into a reset.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, conn)
	}
}

// answer tells method and target, so that a client that gets another's answer can see it. /size/N is answered by N
// bytes. Behind a request with problems it says that the connection closes.
func answer(r *Request) (head, body []byte) {
	body = []byte(r.Method() + " " + r.Target())
	if size, found := strings.CutPrefix(r.Target(), "/size/"); found {
		if n, err := strconv.Atoi(size); err == nil && n <= maxBody {
			body = large[:n]
		}
	}
	head = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ncontent-length: %d\r\n", len(body))
	if len(r.Problems) > 0 {
		// This connection ends here; a proxy that is not told could send the next request by it, and would answer 503.
		head = append(head, "connection: close\r\n"...)
	}
	head = append(head, "\r\n"...)
	if r.Method() == "HEAD" {
		return head, nil
	}
	// A small answer goes out in one packet.
	if len(body) < 1024 {
		return append(head, body...), nil
	}
	return head, body
}

// large is what all big answers are cut from: a thousand that nobody reads must not fill the memory of the test.
var large = bytes.Repeat([]byte("x"), maxBody)

// readHead reads up to and with the empty line. A line that ends in a bare LF ends there too: what a lenient upstream
// would read must be seen.
func readHead(reader *bufio.Reader) ([]byte, error) {
	var head []byte
	for {
		l, err := reader.ReadBytes('\n')
		head = append(head, l...)
		if err != nil {
			if errors.Is(err, io.EOF) && len(head) == 0 {
				return nil, io.EOF
			}
			return head, err
		}
		if len(head) > maxHead {
			return head, errors.New("larger than 1 MiB")
		}
		if string(l) == "\r\n" || string(l) == "\n" {
			return head, nil
		}
	}
}

// readBody reads it by what the head says.
func readBody(reader *bufio.Reader, r *Request, f framing) error {
	if !f.chunked {
		if f.length > maxBody {
			return fmt.Errorf("%d bytes announced", f.length)
		}
		r.Body = make([]byte, f.length)
		_, err := io.ReadFull(reader, r.Body)
		return err
	}
	for {
		sizeLine, err := reader.ReadString('\n')
		if err != nil {
			return err
		}
		digits, crlf := strings.CutSuffix(sizeLine, "\r\n")
		size, err := strconv.ParseUint(digits, 16, 32)
		if err != nil || !crlf {
			r.Problems = append(r.Problems, fmt.Sprintf("chunk size line %q", sizeLine))
			return errors.New("no chunk")
		}
		if size == 0 {
			break
		}
		if len(r.Body)+int(size) > maxBody {
			return errors.New("too large")
		}
		chunk := make([]byte, size+2)
		if _, err := io.ReadFull(reader, chunk); err != nil {
			return err
		}
		if string(chunk[size:]) != "\r\n" {
			r.Problems = append(r.Problems, fmt.Sprintf("chunk ends in %q", chunk[size:]))
			return errors.New("no chunk")
		}
		r.Body = append(r.Body, chunk[:size]...)
	}
	trailers, err := readHead(reader)
	if err != nil {
		return err
	}
	r.Trailers = fields(strings.TrimSuffix(string(trailers), "\r\n"), r)
	for _, t := range r.Trailers {
		if name, _, _ := strings.Cut(t, ": "); !mayTrail(name) {
			r.Problems = append(r.Problems, "trailer "+t)
		}
	}
	return nil
}
