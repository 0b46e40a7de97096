//go:build conformance

package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// ourWindow is what both windows of an answer begin with, so that none has to grow.
	ourWindow = 8 << 20
	// theirWindow is what a request begins with until the peer says something else.
	theirWindow = 65535
	// maxFrame of a request.
	maxFrame = 16384
)

// http2Client is a connection of HTTP/2 without TLS, by prior knowledge.
type http2Client struct {
	conn net.Conn
	// out are frames that next sends before it waits: a request's last bytes and its end arrive together, so that no
	// answer comes between the two, to which Envoy gives no x-envoy-upstream-service-time.
	out    *bufio.Writer
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	last   uint32
	// window is what may still be sent on the connection, initial on a new stream.
	window, initial int64
	goingAway       bool
}

func newHTTP2Client(address string) (*http2Client, error) {
	conn, err := net.DialTimeout("tcp", address, answerBound)
	if err != nil {
		return nil, err
	}
	c := &http2Client{conn: conn, out: bufio.NewWriterSize(conn, theirWindow), window: theirWindow, initial: theirWindow}
	c.framer = http2.NewFramer(c.out, conn)
	c.hpack = hpack.NewEncoder(&c.block)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = conn.SetDeadline(time.Now().Add(answerBound))
	if _, err := io.WriteString(c.out, http2.ClientPreface); err != nil {
		return nil, err
	}
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: ourWindow}); err != nil {
		return nil, err
	}
	return c, c.framer.WriteWindowUpdate(0, ourWindow)
}

func (c *http2Client) close() { _ = c.conn.Close() }

// headers encodes a section of fields.
func (c *http2Client) headers(fields [][2]string) []byte {
	c.block.Reset()
	for _, f := range fields {
		_ = c.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // To memory, which never fails.
	}
	return c.block.Bytes()
}

// pieces of a request's body, a frame or more each.
func pieces(c testCase) [][]byte {
	var out [][]byte
	for _, p := range c.Chunks {
		out = append(out, []byte(p))
	}
	if body := c.Body + string(c.Body64); len(out) == 0 && body != "" {
		out = append(out, []byte(body))
	}
	return out
}

// ask sends a request on a stream of its own and reads the answer.
func (c *http2Client) ask(line string, test testCase) (answer, error) {
	_ = c.conn.SetDeadline(time.Now().Add(answerBound))
	method, target, _ := strings.Cut(line, " ")
	host, fields := "h", [][2]string(nil)
	for _, f := range test.Fields {
		name, value, _ := strings.Cut(f, ":")
		name, value = strings.ToLower(name), strings.TrimSpace(value)
		if name == "host" {
			host = value
			continue
		}
		fields = append(fields, [2]string{name, value})
	}
	body := pieces(test)
	if test.Chunks == nil && len(body) > 0 {
		fields = append(fields, [2]string{"content-length", strconv.Itoa(len(body[0]))})
	}
	head := append([][2]string{{":method", method}, {":scheme", "http"}, {":authority", host}, {":path", target}}, fields...)
	c.last += 2
	s := &http2Stream{id: c.last - 1, window: c.initial, body: body}
	for _, t := range test.Trailers {
		name, value, _ := strings.Cut(t, ":")
		s.trailers = append(s.trailers, [2]string{strings.ToLower(name), strings.TrimSpace(value)})
	}
	s.sent = len(body) == 0 && len(s.trailers) == 0
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: s.id, BlockFragment: c.headers(head), EndHeaders: true, EndStream: s.sent,
	}); err != nil {
		return answer{}, err
	}
	for !s.ended {
		if err := c.upload(s); err != nil {
			return answer{}, err
		}
		if err := c.read(s); err != nil {
			return answer{}, fmt.Errorf("%w, after %v", err, s.lines)
		}
	}
	out := answer{status: s.status, lines: s.lines}
	out.lines = append(out.lines, fmt.Sprintf("status %d", s.status), "body "+decoded(s.coding, s.content))
	return out, nil
}

// http2Stream is a request under way.
type http2Stream struct {
	id       uint32
	window   int64
	body     [][]byte
	trailers [][2]string
	// sent is that all of the request is, ended that all of the answer is here.
	sent, ended bool
	status      int
	coding      string
	content     []byte
	lines       []string
}

// upload sends of the body what the windows let pass. Its end comes by itself, as in a chunked body: what ends with its
// last bytes is not held by Envoy's filters, and so never found too long.
func (c *http2Client) upload(s *http2Stream) error {
	for !s.sent {
		if len(s.body) == 0 {
			s.sent = true
			if len(s.trailers) == 0 {
				return c.framer.WriteData(s.id, true, nil)
			}
			return c.framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: s.id, BlockFragment: c.headers(s.trailers), EndHeaders: true, EndStream: true,
			})
		}
		n := min(int64(len(s.body[0])), s.window, c.window, maxFrame)
		if n <= 0 && len(s.body[0]) > 0 {
			return nil
		}
		piece := s.body[0][:n]
		if s.body[0] = s.body[0][n:]; len(s.body[0]) == 0 {
			s.body = s.body[1:]
		}
		s.window, c.window = s.window-n, c.window-n
		if err := c.framer.WriteData(s.id, false, piece); err != nil {
			return err
		}
	}
	return nil
}

// next frame of the peer, to whom everything is sent before.
func (c *http2Client) next() (http2.Frame, error) {
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	return c.framer.ReadFrame()
}

// read reads one frame. s is the stream that is asked about, nil for none.
func (c *http2Client) read(s *http2Stream) error {
	frame, err := c.next()
	if err != nil {
		return err
	}
	ours := s != nil && frame.Header().StreamID == s.id
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			if s != nil {
				s.window += int64(v) - c.initial
			}
			c.initial = int64(v)
		}
		return c.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.framer.WritePing(true, f.Data)
		}
		return errPong
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.window += int64(f.Increment)
		} else if ours {
			s.window += int64(f.Increment)
		}
	case *http2.GoAwayFrame:
		c.goingAway = true
	case *http2.RSTStreamFrame:
		if ours {
			s.ended = true
			s.lines = append(s.lines, "reset "+f.ErrCode.String())
		}
	case *http2.MetaHeadersFrame:
		if ours {
			s.head(f)
		}
	case *http2.DataFrame:
		if ours {
			s.content = append(s.content, f.Data()...)
			s.ended = f.StreamEnded()
		}
	}
	return nil
}

// head takes the fields of an answer, or its trailers.
func (s *http2Stream) head(f *http2.MetaHeadersFrame) {
	kind := "field "
	if s.status != 0 {
		kind = "trailer "
	}
	if status := f.PseudoValue("status"); status != "" {
		number, err := strconv.Atoi(status)
		if err != nil || number < 200 {
			return
		}
		s.status = number
	}
	for _, field := range f.RegularFields() {
		switch {
		case field.Name == "content-length":
			s.lines = append(s.lines, "length "+field.Value)
			continue
		case field.Name == "content-encoding" && kind == "field ":
			s.coding = field.Value
		}
		s.lines = append(s.lines, settled(kind+field.Name+": "+field.Value))
	}
	s.ended = f.StreamEnded()
}

// errPong is that what was sent before has arrived, and what was to be said of it has been said.
var errPong = errors.New("pong")

// kept says what has become of the connection.
func (c *http2Client) kept() string {
	_ = c.conn.SetDeadline(time.Now().Add(answerBound))
	err := c.framer.WritePing(false, [8]byte{1})
	for err == nil {
		err = c.read(nil)
	}
	if errors.Is(err, errPong) && !c.goingAway {
		return "kept"
	}
	return "closed"
}
