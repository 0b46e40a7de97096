//go:build conformance

package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"heddle.io/heddle/test/hostile/subject"
)

const (
	// lanes are connections to a proxy.
	lanes = 4
	// scansBound is the longest wait for the workers' counters.
	scansBound = 15 * time.Second
)

// kind of a question.
type kind string

const (
	alone        kind = "alone"
	firstOfGroup kind = "first"
	ruleOfGroup  kind = "rule"
)

// question is a text for a pattern, in one of the three ways.
type question struct {
	number  int
	pattern string
	kind    kind
	text    string
}

// host that answers it.
func (q question) host() string {
	if q.kind == alone {
		return hostOf(q.kind, q.number)
	}
	return hostOf(q.kind, q.number/groupSize)
}

func hostOf(k kind, number int) string { return string(k) + "-" + strconv.Itoa(number) }

// What is said of a pattern alone, or in a rule.
const (
	matches = "matches"
	differs = "does not match"
)

// verdicts of a proxy, a name of a route or what there is instead of one.
func verdicts(proxy *subject.Proxy, questions []question) ([]string, error) {
	out := make([]string, len(questions))
	errs := make([]error, lanes)
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() { errs[lane] = askLane(proxy, questions, lane, out) })
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// askLane asks every so many of the questions on one connection, one after the other: Envoy closes one that has more than two
// answers under way.
func askLane(proxy *subject.Proxy, questions []question, lane int, out []string) error {
	conn, err := net.DialTimeout("tcp", proxy.At(subject.Listener{Port: firstPort}), answerBound)
	if err != nil {
		return err
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for i := lane; i < len(questions); i += lanes {
		q := questions[i]
		if out[i], err = askOne(conn, reader, q); err != nil {
			return fmt.Errorf("%s on %q: %w", q.host(), q.text, err)
		}
	}
	return nil
}

func askOne(conn net.Conn, reader *bufio.Reader, q question) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(answerBound)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nhost: %s\r\nonly: %d\r\nx: %s\r\n\r\n", q.host(), q.number, q.text); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	switch {
	case response.StatusCode == http.StatusNotFound:
		return differs, nil
	case response.StatusCode == http.StatusForbidden && q.kind == ruleOfGroup:
		return matches, nil
	case response.StatusCode == http.StatusOK && q.kind == ruleOfGroup:
		return differs, nil
	case response.StatusCode == http.StatusOK:
		return string(body), nil
	}
	return "", errors.New(response.Status)
}

// scans counts what Hyperscan has read to the end.
const scans = "heddle_regex_hyperscan_scans_total"

// hasScanned is that a proxy has had Hyperscan read at least so many texts. Its workers add up every five seconds.
func hasScanned(proxy *subject.Proxy, atLeast int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	bound := time.After(scansBound)
	for {
		got, err := sums(proxy, []string{scans})
		if err != nil {
			return err
		}
		if got[scans] >= atLeast {
			return nil
		}
		select {
		case <-tick.C:
		case <-bound:
			return fmt.Errorf("%s is %d, want %d at least: it is another engine that answers", scans, got[scans], atLeast)
		}
	}
}
