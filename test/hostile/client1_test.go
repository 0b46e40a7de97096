//go:build hostile

package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"heddle.io/heddle/test/hostile/corpus"
)

const (
	// followTarget is asked for on the same connection, to see whether it is still good.
	followTarget = "/follow"
	// answerBound is the longest wait for an answer or an end; above request_headers_timeout, which is 2 s.
	answerBound = 3500 * time.Millisecond
	// openBound is how long nothing must happen for a connection to count as open.
	openBound = 200 * time.Millisecond
	// maxAnswer that is read of one body.
	maxAnswer = 8 << 20
)

var requestLines = regexp.MustCompile(`([!-~]+) \S* HTTP/1\.`)

// answer1 is an HTTP/1 answer.
type answer1 struct {
	status   int
	body     string
	closes   bool
	cut      bool
	trailers http.Header
	header   http.Header
}

func newReader(conn net.Conn) *bufio.Reader { return bufio.NewReaderSize(conn, 16<<10) }

// read1 reads an answer; those of 100 to 199 are passed over, up to a hundred.
func read1(reader *bufio.Reader, method string) (answer1, error) {
	for range 100 {
		response, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			return answer1{}, err
		}
		body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		_ = response.Body.Close()
		a := answer1{response.StatusCode, string(body), response.Close, err != nil, response.Trailer, response.Header}
		if a.status >= 200 || a.status == 101 {
			return a, nil
		}
	}
	return answer1{}, errors.New("more than 100 interim answers")
}

// client1 does a case over HTTP/1.
type client1 struct {
	conn    net.Conn
	reader  *bufio.Reader
	methods []string
	seen    corpus.Observed
	fin     bool
	written strings.Builder
	last    answer1
}

// drive1 does the steps of a case and says what came of it.
func drive1(address string, c corpus.Case) (corpus.Observed, error) {
	conn, err := net.DialTimeout("tcp", address, answerBound)
	if err != nil {
		return corpus.Observed{}, err
	}
	defer conn.Close()
	k := &client1{conn: conn, reader: newReader(conn)}
	k.seen.Connection = "open"
	for _, s := range c.Steps {
		if err := k.step(s); err != nil {
			return k.seen, err
		}
	}
	for _, m := range requestLines.FindAllStringSubmatch(k.written.String(), -1) {
		k.methods = append(k.methods, m[1])
	}
	expected := 0
	for _, o := range append(c.Want, c.Envoy...) {
		expected = max(expected, len(o.Answers))
	}
	bound := answerBound
	if c.Want[0].Connection == "open" {
		bound = openBound
	}
	k.observe(expected, bound)
	return k.seen, nil
}

func (k *client1) step(s corpus.Step) error {
	switch s.Verb {
	case "send":
		b, err := corpus.Bytes(s.Text)
		if err != nil {
			return err
		}
		k.written.Write(b)
		_ = k.conn.SetWriteDeadline(time.Now().Add(answerBound))
		// A proxy may refuse before it has read everything; what it answers is judged.
		_, _ = k.conn.Write(b)
	case "wait":
		return k.waitInterim(s.Text)
	case "fin":
		k.fin = true
		if tcp, ok := k.conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	default:
		return fmt.Errorf("unknown step %q: want send, wait or fin", s.Verb)
	}
	return nil
}

// waitInterim reads the head of an interim answer.
func (k *client1) waitInterim(status string) error {
	_ = k.conn.SetReadDeadline(time.Now().Add(answerBound))
	first, err := k.reader.ReadString('\n')
	if err != nil {
		return fmt.Errorf("no interim answer %s: %w", status, err)
	}
	if !strings.HasPrefix(first, "HTTP/1.1 "+status) {
		return fmt.Errorf("want an interim answer %s, got %q", status, first)
	}
	for {
		l, err := k.reader.ReadString('\n')
		if err != nil || l == "\r\n" {
			return err
		}
	}
}

// next reads one more answer; false when the connection has none within the bound.
func (k *client1) next(bound time.Duration) bool {
	_ = k.conn.SetReadDeadline(time.Now().Add(bound))
	method := "GET"
	if i := len(k.seen.Answers); i < len(k.methods) {
		method = k.methods[i]
	}
	a, err := read1(k.reader, method)
	if err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			k.seen.Connection = "closed"
		}
		return false
	}
	k.last = a
	text := strconv.Itoa(a.status)
	if a.cut {
		text += "cut"
	}
	k.seen.Answers = append(k.seen.Answers, text)
	if a.cut {
		k.seen.Connection = "closed"
	}
	return !a.cut
}

// observe reads as many answers as are expected and finds out whether the connection is still good.
func (k *client1) observe(expected int, bound time.Duration) {
	for len(k.seen.Answers) < expected {
		if !k.next(bound) {
			return
		}
		if k.last.closes {
			break
		}
	}
	if k.fin || expected == 0 || k.last.closes {
		for k.next(bound) {
			continue
		}
		return
	}
	_, _ = fmt.Fprintf(k.conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", followTarget)
	k.methods = append(k.methods[:min(len(k.methods), len(k.seen.Answers))], "GET")
	for k.next(bound) {
		if k.last.body == "GET "+followTarget {
			k.seen.Connection = "kept"
			k.seen.Answers = k.seen.Answers[:len(k.seen.Answers)-1]
			return
		}
	}
}
