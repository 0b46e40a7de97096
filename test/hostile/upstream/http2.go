package upstream

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"heddle.io/heddle/test/hostile/corpus"
	"heddle.io/heddle/test/hostile/frame"
)

// Play2 is what a hostile HTTP/2 upstream does about requests for /case.
type Play2 struct {
	// Settings are the parts of its first SETTINGS frame.
	Settings string
	// Steps are frames that answer; the stream @ is the request's.
	Steps []corpus.Step
	// Endless repeats the last step until the connection ends.
	Endless bool
}

// endlessly many frames are sent each endlessBeat: enough to find what has no bound, and not so many that other cases
// beside have to wait.
const (
	endlessly   = 100
	endlessBeat = 5 * time.Millisecond
)

// HTTP2 serves HTTP/2 with prior knowledge.
type HTTP2 struct {
	server
	mu   sync.Mutex
	play *Play2
}

// NewHTTP2 listens on an address.
func NewHTTP2(address string) (*HTTP2, error) {
	u := &HTTP2{}
	return u, u.listen(address, u.serve)
}

// Play sets what happens from now on; nil ends that.
func (u *HTTP2) Play(p *Play2) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.play = p
}

func (u *HTTP2) playing() *Play2 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.play
}

func (u *HTTP2) serve(conn *conn) {
	c := &connection2{upstream: u, conn: conn, number: u.connected(), encoder: frame.NewEncoder(), streams: map[uint32]*Request{}}
	c.serve()
}

// connection2 is one connection from a proxy.
type connection2 struct {
	upstream *HTTP2
	conn     *conn
	number   int
	encoder  *frame.Encoder
	writing  sync.Mutex
	streams  map[uint32]*Request
}

func (c *connection2) serve() {
	preface := make([]byte, len(frame.Preface))
	if _, err := io.ReadFull(c.conn, preface); err != nil || string(preface) != frame.Preface {
		if err == nil {
			c.upstream.begin()
			c.upstream.finish(&Request{Connection: c.number, Raw: string(preface), Problems: []string{"no HTTP/2 preface"}})
		}
		return
	}
	settings := "0"
	if p := c.upstream.playing(); p != nil && p.Settings != "" {
		settings += " | " + p.Settings
	}
	if c.write("SETTINGS", settings) != nil || c.write("WINDOW_UPDATE", "0 | 0x3fffffff") != nil {
		return
	}
	framer := http2.NewFramer(io.Discard, c.conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.SetMaxReadFrameSize(1 << 20)
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			for _, r := range c.streams {
				r.Cut = "connection: " + err.Error()
				c.upstream.finish(r)
			}
			return
		}
		if err := c.frame(f); err != nil {
			return
		}
	}
}

func (c *connection2) write(verb, text string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	b, err := c.encoder.Frame(verb, text)
	if err == nil {
		_ = c.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, err = c.conn.Write(b)
	}
	return err
}

func (c *connection2) frame(f http2.Frame) error {
	id := f.Header().StreamID
	ended := false
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.write("SETTINGS", "0 ack")
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.write("PING", fmt.Sprintf("0 ack | hex: %x", f.Data))
		}
	case *http2.RSTStreamFrame:
		if r := c.streams[id]; r != nil {
			r.Cut = "reset: " + f.ErrCode.String()
			c.upstream.finish(r)
			delete(c.streams, id)
		}
	case *http2.MetaHeadersFrame:
		if r := c.streams[id]; r != nil {
			r.Trailers = judge2(f.Fields, r)
		} else {
			c.upstream.begin()
			r := head2(f.Fields)
			r.Connection = c.number
			c.streams[id] = r
			if p := c.upstream.playing(); p != nil && strings.HasPrefix(r.Target(), "/case") {
				c.upstream.finish(r)
				delete(c.streams, id)
				c.encoder.Current = id
				go c.perform(p)
				return nil
			}
		}
		ended = f.StreamEnded()
	case *http2.DataFrame:
		if r := c.streams[id]; r != nil && len(r.Body) < maxBody {
			r.Body = append(r.Body, f.Data()...)
			if n := len(f.Data()); n > 0 && !f.StreamEnded() {
				if err := c.write("WINDOW_UPDATE", fmt.Sprintf("%d | %d", id, n)); err != nil {
					return err
				}
			}
		}
		ended = f.StreamEnded()
	}
	if r := c.streams[id]; ended && r != nil {
		delete(c.streams, id)
		c.upstream.finish(r)
		body := r.Method() + " " + r.Target()
		if err := c.write("HEADERS", fmt.Sprintf("%d | @ok | content-length: %d", id, len(body))); err != nil {
			return err
		}
		if r.Method() == "HEAD" {
			return c.write("DATA", fmt.Sprintf("%d end", id))
		}
		return c.write("DATA", fmt.Sprintf("%d end | hex: %x", id, body))
	}
	return nil
}

// perform does the steps of a play; what cannot be written has met a proxy that ended the connection.
func (c *connection2) perform(p *Play2) {
	for _, s := range p.Steps {
		if c.write(s.Verb, s.Text) != nil {
			return
		}
	}
	for p.Endless {
		s := p.Steps[len(p.Steps)-1]
		for range endlessly {
			if c.write(s.Verb, s.Text) != nil {
				return
			}
		}
		<-time.After(endlessBeat)
	}
}

// head2 puts a head together as HTTP/1 would write it.
func head2(list []hpack.HeaderField) *Request {
	r := &Request{}
	pseudo := map[string]string{}
	var rest []hpack.HeaderField
	for _, f := range list {
		r.Raw += f.Name + ": " + f.Value + "\n"
		if strings.HasPrefix(f.Name, ":") {
			if _, twice := pseudo[f.Name]; twice || len(rest) > 0 {
				r.Problems = append(r.Problems, "pseudo-header field "+f.Name+" twice or behind others")
			}
			pseudo[f.Name] = f.Value
			continue
		}
		rest = append(rest, f)
	}
	r.Line = pseudo[":method"] + " " + pseudo[":path"] + " HTTP/2"
	r.Fields = append([]string{"host: " + pseudo[":authority"]}, judge2(rest, r)...)
	if !isToken(pseudo[":method"]) || pseudo[":authority"] == "" || !strings.HasPrefix(pseudo[":path"], "/") && pseudo[":path"] != "*" {
		r.Problems = append(r.Problems, fmt.Sprintf("pseudo-header fields %v", pseudo))
	}
	return r
}

// judge2 writes fields as lines and notes what HTTP/2 forbids.
func judge2(list []hpack.HeaderField, r *Request) []string {
	var out []string
	trailers := len(r.Fields) > 0 // A head has at least its authority.
	for _, f := range list {
		l := f.Name + ": " + f.Value
		out = append(out, l)
		switch {
		case strings.HasPrefix(f.Name, ":"), !isToken(f.Name), f.Name != strings.ToLower(f.Name),
			strings.ContainsFunc(f.Value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }),
			f.Name == "te" && f.Value != "trailers", f.Name == "host":
			r.Problems = append(r.Problems, fmt.Sprintf("field %q", l))
		case f.Name == "content-length":
			if _, ok := length(f.Value); !ok || trailers {
				r.Problems = append(r.Problems, fmt.Sprintf("field %q", l))
			}
		case trailers && !mayTrail(f.Name):
			r.Problems = append(r.Problems, "trailer "+l)
		}
		for _, name := range append([]string{"transfer-encoding"}, hopByHop...) {
			if f.Name == name {
				r.Problems = append(r.Problems, "hop-by-hop field "+l)
			}
		}
	}
	return out
}
