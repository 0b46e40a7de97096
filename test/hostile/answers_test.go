//go:build hostile

package hostile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/corpus"
	"heddle.io/heddle/test/hostile/frame"
	"heddle.io/heddle/test/hostile/upstream"
)

// answerPatience is how long a client waits for an answer unless a case says `within`: a little more than the route's
// timeout of 10 s, since a wait for it is a legal end.
const answerPatience = 11 * time.Second

// exchange is what a case about upstreams' answers asks for.
type exchange struct {
	method string
	warm   bool
	times  int
	within time.Duration
	script upstream.Script
	play   upstream.Play2
	absent []string
}

// TestAnswers1 has HTTP/1 upstreams answer in hostile ways.
func TestAnswers1(t *testing.T) { testAnswers(t, "answers1", "plain") }

// TestAnswers2 has HTTP/2 upstreams answer in hostile ways.
func TestAnswers2(t *testing.T) { testAnswers(t, "answers2", "upstream2") }

func testAnswers(t *testing.T, folder, kind string) {
	cases, err := corpus.Folder(folder)
	if err != nil {
		t.Fatal(err)
	}
	forSubjects(t, true, func(t *testing.T, name string) {
		runLanes(t, startLanes(t, name), cases, func(t *testing.T, l *lane, c corpus.Case) {
			counted(t)
			c.On = kind
			address := l.at(t, c)
			e, err := readExchange(c)
			if err != nil {
				t.Fatalf("%s: %v", c.Place, err)
			}
			if e.warm {
				if _, err := l.settle(address); err != nil {
					t.Fatalf("%s: before the case: %v", c.Place, err)
				}
			}
			if kind == "upstream2" {
				// Settings are said at the beginning of a connection.
				l.up2.Play(&e.play)
				l.up2.Hangup()
			} else {
				l.up1.Play(&e.script)
			}
			var seen corpus.Observed
			var took time.Duration
			var problem error
			for range e.times {
				if seen, took, problem = ask(address, e); seen.Connection == "open" {
					break
				}
			}
			l.up1.Play(nil)
			if e.script.Then != "open" && !e.script.Endless {
				l.up1.Played(time.Second)
			}
			l.up2.Play(nil)
			l.up2.Hangup()
			// The connections of the other kind are just ending, which an honest request might meet.
			requests, err := l.settle(l.proxy.At(l.listeners["plain"]))
			if err != nil {
				t.Errorf("%s: %v", c.Place, err)
			}
			seen.Requests = len(requests)
			if name == "heddle" && took > e.within {
				t.Errorf("%s: %s: took %v, want at most %v", c.Place, c.Name, took.Round(time.Millisecond), e.within)
			}
			if problem != nil && name == "heddle" && len(seen.Answers) > 0 {
				t.Errorf("%s: %v", c.Place, problem)
			}
			judge(t, name, c, seen, requests)
		})
	})
}

// readExchange reads the steps of a case.
func readExchange(c corpus.Case) (exchange, error) {
	e := exchange{method: "GET", absent: c.AnswerAbsent, within: answerPatience, times: 1, script: upstream.Script{Then: "fin"}}
	for _, s := range c.Steps {
		var err error
		switch {
		case s.Verb == "request":
			e.method, _, _ = strings.Cut(s.Text, " ")
		case s.Verb == "warm":
			e.warm = true
		case s.Verb == "within":
			e.within, err = time.ParseDuration(s.Text)
		case s.Verb == "times":
			e.times, err = strconv.Atoi(s.Text)
		case s.Verb == "then":
			e.script.Then = s.Text
		case s.Verb == "endless":
			e.script.Endless, e.play.Endless = true, true
		case s.Verb == "answer":
			e.script.Answer, err = corpus.Bytes(s.Text)
		case s.Verb == "settings":
			e.play.Settings = s.Text
		case frame.Known(s.Verb):
			e.play.Steps = append(e.play.Steps, s)
		default:
			err = fmt.Errorf("unknown step %q", s.Verb)
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// ask sends the request and says how the answer ends: whole, cut, or open when it does not come.
func ask(address string, e exchange) (seen corpus.Observed, took time.Duration, problem error) {
	seen.Connection = "cut"
	conn, err := net.DialTimeout("tcp", address, canaryBound)
	if err != nil {
		return seen, 0, err
	}
	defer conn.Close()
	began := time.Now()
	_ = conn.SetDeadline(began.Add(e.within + time.Second))
	length := ""
	if e.method != "GET" && e.method != "HEAD" {
		length = "Content-Length: 5\r\n\r\nhello"
	} else {
		length = "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "%s /case HTTP/1.1\r\nHost: h\r\n%s", e.method, length); err != nil {
		return seen, 0, err
	}
	a, err := read1(newReader(conn), e.method)
	took = time.Since(began)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		seen.Connection = "open"
		return seen, took, err
	case err != nil:
		return seen, took, err
	}
	seen.Answers = []string{strconv.Itoa(a.status)}
	if !a.cut {
		seen.Connection = "whole"
	}
	for _, name := range e.absent {
		if a.trailers.Get(name) != "" {
			problem = fmt.Errorf("the client got the trailer %s: %s", name, a.trailers.Get(name))
		}
	}
	return seen, took, problem
}
