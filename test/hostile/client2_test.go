//go:build hostile

package hostile

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"heddle.io/heddle/test/hostile/corpus"
	"heddle.io/heddle/test/hostile/frame"
)

// client2 does a case over HTTP/2 with frames written by hand.
type client2 struct {
	conn    net.Conn
	encoder *frame.Encoder
	opened  []uint32
	fin     bool

	mu sync.Mutex
	// outcome per stream: 200, reset:CODE; empty while it has none.
	outcome map[uint32]string
	status  map[uint32]string
	ended   string
	// changed is closed and replaced at every event.
	changed chan struct{}
}

// drive2 does the steps of a case and says what came of it.
func drive2(address string, c corpus.Case) (corpus.Observed, error) {
	conn, err := net.DialTimeout("tcp", address, answerBound)
	if err != nil {
		return corpus.Observed{}, err
	}
	k := &client2{conn: conn, encoder: frame.NewEncoder(), outcome: map[uint32]string{}, status: map[uint32]string{}, changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		k.read()
		close(done)
	}()
	defer func() {
		_ = conn.Close()
		<-done
	}()
	if !slices.ContainsFunc(c.Steps, func(s corpus.Step) bool { return s.Verb == "nopreface" }) {
		k.write([]byte(frame.Preface))
		if err := k.step(corpus.Step{Verb: "SETTINGS", Text: "0"}); err != nil {
			return corpus.Observed{}, err
		}
	}
	for _, s := range c.Steps {
		if err := k.step(s); err != nil {
			return corpus.Observed{}, err
		}
	}
	return k.observe(c), nil
}

func (k *client2) write(b []byte) {
	_ = k.conn.SetWriteDeadline(time.Now().Add(answerBound))
	// A proxy may end the connection before it has read everything.
	_, _ = k.conn.Write(b)
}

func (k *client2) step(s corpus.Step) error {
	switch s.Verb {
	case "nopreface":
	case "fin":
		k.fin = true
		if tcp, ok := k.conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	case "wait":
		n, err := strconv.ParseUint(s.Text, 10, 31)
		if err != nil {
			return err
		}
		if !k.wait(answerBound, func() bool { return k.outcome[uint32(n)] != "" }) {
			return fmt.Errorf("stream %d has no answer after %v", n, answerBound)
		}
	default:
		b, err := k.encoder.Frame(s.Verb, s.Text)
		if err != nil {
			return err
		}
		if s.Verb == "HEADERS" {
			id, err := strconv.ParseUint(strings.Fields(s.Text)[0], 0, 32)
			if err == nil && id&0x7fffffff != 0 {
				k.opened = append(k.opened, uint32(id&0x7fffffff))
			}
		}
		k.write(b)
	}
	return nil
}

// wait until something holds, under the lock; it also ends with the connection. Says whether it holds.
func (k *client2) wait(bound time.Duration, holds func() bool) bool {
	deadline := time.After(bound)
	for {
		k.mu.Lock()
		ok, over, changed := holds(), k.ended == "closed", k.changed
		k.mu.Unlock()
		if ok || over {
			return ok
		}
		select {
		case <-changed:
		case <-deadline:
			return false
		}
	}
}

// observe says what became of the streams and of the connection.
func (k *client2) observe(c corpus.Case) corpus.Observed {
	bound := answerBound
	if c.Want[0].Connection == "open" {
		bound = openBound
	}
	follow := uint32(1)
	for _, id := range k.opened {
		follow = max(follow, id+100|1)
	}
	followed := false
	if follow < 1<<31 && !k.fin && c.Want[0].Connection != "open" {
		b, err := k.encoder.Frame("HEADERS", fmt.Sprintf("%d end | ?:method: GET | ?:scheme: http | ?:authority: host | ?:path: %s", follow, followTarget))
		if err == nil {
			k.write(b)
		}
		followed = k.wait(bound, func() bool {
			return k.outcome[follow] != "" || strings.HasPrefix(k.ended, "goaway:") && k.ended != "goaway:NO_ERROR"
		})
	} else {
		k.wait(bound, func() bool { return k.ended != "" })
	}
	// What a want names has to be there; what it does not name may still be under way, such as a request without end.
	named := map[uint32]bool{}
	for _, o := range append(c.Want, c.Envoy...) {
		for _, a := range o.Answers {
			if number, _, found := strings.Cut(a, ":"); found {
				if id, err := strconv.ParseUint(number, 10, 31); err == nil {
					named[uint32(id)] = true
				}
			}
			if a == "refused" && len(k.opened) > 0 {
				named[k.opened[0]] = true
			}
		}
	}
	k.wait(min(bound, time.Second), func() bool {
		for id := range named {
			if k.outcome[id] == "" {
				return k.ended != ""
			}
		}
		return true
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := corpus.Observed{Connection: k.ended}
	if k.ended == "" {
		seen.Connection = "open"
		if followed && k.outcome[follow] == "200" {
			seen.Connection = "kept"
		}
	}
	ids := slices.Compact(slices.Sorted(slices.Values(k.opened)))
	for _, id := range ids {
		switch o := k.outcome[id]; {
		case o != "":
			seen.Answers = append(seen.Answers, fmt.Sprintf("%d:%s", id, o))
		case named[id]:
			seen.Answers = append(seen.Answers, fmt.Sprintf("%d:none", id))
		}
	}
	return seen
}

func (k *client2) event(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.changed)
	k.changed = make(chan struct{})
}

// read notes what comes until the connection ends.
func (k *client2) read() {
	framer := http2.NewFramer(io.Discard, k.conn)
	framer.SetMaxReadFrameSize(1 << 24)
	decoder := hpack.NewDecoder(4096, nil)
	var block []byte
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			var stream http2.StreamError
			if errors.As(err, &stream) {
				continue
			}
			k.event(func() {
				if !strings.HasPrefix(k.ended, "goaway:") {
					k.ended = "closed"
				}
			})
			return
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.HeadersFrame:
			block = append(block[:0], f.HeaderBlockFragment()...)
			if f.HeadersEnded() {
				k.headers(decoder, id, block, f.StreamEnded())
			} else if f.StreamEnded() {
				k.event(func() { k.status[id] = "end" })
			}
		case *http2.ContinuationFrame:
			block = append(block, f.HeaderBlockFragment()...)
			if f.HeadersEnded() {
				k.headers(decoder, id, block, k.status[id] == "end")
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				k.event(func() { k.outcome[id] = k.status[id] })
			}
		case *http2.RSTStreamFrame:
			k.event(func() {
				// A reset behind a whole answer only says that the rest of the request is not wanted.
				if k.outcome[id] == "" {
					k.outcome[id] = "reset:" + f.ErrCode.String()
				}
			})
		case *http2.GoAwayFrame:
			k.event(func() { k.ended = "goaway:" + f.ErrCode.String() })
		}
	}
}

func (k *client2) headers(decoder *hpack.Decoder, id uint32, block []byte, end bool) {
	fields, err := decoder.DecodeFull(block)
	k.event(func() {
		if err != nil {
			k.outcome[id] = "undecodable"
			return
		}
		for _, f := range fields {
			if f.Name == ":status" && !strings.HasPrefix(f.Value, "1") {
				k.status[id] = f.Value
			}
		}
		if end {
			k.outcome[id] = k.status[id]
		}
	})
}
