// Package upstream is the server behind the proxies under test: it records byte for byte what they sent, judges it
// strictly, and answers as told.
package upstream

import (
	"strings"
	"sync"
	"time"
)

// Request that came in.
type Request struct {
	// Connection it came by, counted from 1 in the order of their acceptance.
	Connection int
	// Line is the request line; for HTTP/2 it is put together from the pseudo-header fields.
	Line string
	// Fields and Trailers as they came, `name: value`, names in lower case.
	Fields, Trailers []string
	// Body after decoding.
	Body []byte
	// Raw are the bytes of the head, for messages.
	Raw string
	// Cut is why the request is not whole, if it is not.
	Cut string
	// Problems are what a strict reader says of it; none for an honest request.
	Problems []string
}

// Method of the request.
func (r *Request) Method() string {
	method, _, _ := strings.Cut(r.Line, " ")
	return method
}

// Target of the request.
func (r *Request) Target() string {
	_, rest, _ := strings.Cut(r.Line, " ")
	at := strings.LastIndexByte(rest, ' ')
	if at < 0 {
		return rest
	}
	return rest[:at]
}

// Values of a field.
func (r *Request) Values(name string) []string {
	var out []string
	for _, f := range r.Fields {
		if n, v, _ := strings.Cut(f, ": "); n == name {
			out = append(out, v)
		}
	}
	return out
}

// Record of what came in since it was last taken.
type Record struct {
	mu          sync.Mutex
	requests    []*Request
	connections int
	// unfinished requests: something of them is here, and neither their end nor that of their connection.
	unfinished int
	// quiet is closed and replaced when unfinished falls to zero.
	quiet chan struct{}
}

// kept requests at most; floods make more than anybody reads.
const kept = 10_000

func (r *Record) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unfinished++
}

// finish counts a request that began; nil when nothing came of it.
func (r *Record) finish(request *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if request != nil && len(r.requests) < kept {
		r.requests = append(r.requests, request)
	}
	r.unfinished--
	if r.unfinished == 0 && r.quiet != nil {
		close(r.quiet)
		r.quiet = nil
	}
}

func (r *Record) connected() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connections++
	return r.connections
}

// whole waits until no request is unfinished.
func (r *Record) whole(deadline <-chan time.Time) {
	r.mu.Lock()
	if r.unfinished == 0 {
		r.mu.Unlock()
		return
	}
	if r.quiet == nil {
		r.quiet = make(chan struct{})
	}
	quiet := r.quiet
	r.mu.Unlock()
	select {
	case <-quiet:
	case <-deadline:
	}
}

func (r *Record) take() []*Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.requests
	r.requests = nil
	return out
}

// Connections accepted so far.
func (r *Record) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connections
}
