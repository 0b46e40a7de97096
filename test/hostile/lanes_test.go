//go:build hostile

package hostile

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/corpus"
	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

const (
	// lanes that run cases beside each other, each with listeners and upstreams of its own, so that what an upstream
	// saw belongs to one case.
	lanes = 16
	// canaryBound is how long an honest request may take beside other lanes' cases, on two busy processors.
	canaryBound = 3 * time.Second
	// logBytesPerCase that a proxy may write: a line or two.
	logBytesPerCase = 1024
)

// lane is where one case at a time runs.
type lane struct {
	proxy     *subject.Proxy
	listeners map[string]subject.Listener
	up1       *upstream.HTTP1
	up2       *upstream.HTTP2
	canaries  int
}

// startLanes starts a subject with all its lanes.
func startLanes(t *testing.T, name string) []*lane {
	t.Helper()
	address := subject.Address()
	settings := subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: t.TempDir()}
	all := make([]*lane, lanes)
	for i := range all {
		l := &lane{listeners: map[string]subject.Listener{}}
		var err error
		at := func(port int) string { return net.JoinHostPort(address, strconv.Itoa(port)) }
		if l.up1, err = upstream.NewHTTP1(at(20000 + i)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.up1.Close)
		if l.up2, err = upstream.NewHTTP2(at(21000 + i)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.up2.Close)
		for k, kind := range subject.Kinds {
			listener := subject.Listener{Name: fmt.Sprintf("%s-%d", kind, i), Kind: kind, Port: 10000 + 10*i + k, Upstream: at(20000 + i)}
			if kind == "upstream2" {
				listener.Upstream, listener.Upstream2 = at(21000+i), true
			}
			l.listeners[kind] = listener
			settings.Listeners = append(settings.Listeners, listener)
		}
		all[i] = l
	}
	proxy, err := subject.Start(settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	for _, l := range all {
		l.proxy = proxy
	}
	return all
}

// runLanes runs every case on some lane.
func runLanes(t *testing.T, all []*lane, cases []corpus.Case, run func(t *testing.T, l *lane, c corpus.Case)) {
	queue, logged := make(chan corpus.Case), all[0].proxy.LogBytes()
	var group sync.WaitGroup
	for _, l := range all {
		group.Go(func() {
			for c := range queue {
				t.Run(c.Name, func(t *testing.T) { run(t, l, c) })
			}
		})
	}
	for _, c := range cases {
		if all[0].proxy.Alive() != nil {
			break
		}
		queue <- c
	}
	close(queue)
	group.Wait()
	t.Run("alive at the end", func(t *testing.T) {
		counted(t)
		if err := all[0].proxy.Alive(); err != nil {
			t.Fatal(err)
		}
		if written, bound := all[0].proxy.LogBytes()-logged, int64(len(cases)*logBytesPerCase); written > bound {
			t.Errorf("the log has grown by %d bytes, more than %d for each of %d cases:\n%s", written, logBytesPerCase, len(cases), all[0].proxy.Log())
		}
	})
}

// at is the address of the listener that a case wants.
func (l *lane) at(t *testing.T, c corpus.Case) string {
	t.Helper()
	listener, found := l.listeners[c.On]
	if !found {
		t.Fatalf("%s: there is no listener %q, only %v", c.Place, c.On, subject.Kinds)
	}
	return l.proxy.At(listener)
}

// settle sends an honest request behind a case and returns what the upstreams saw of the case.
func (l *lane) settle(address string) ([]*upstream.Request, error) {
	l.canaries++
	target := fmt.Sprintf("/canary/%d", l.canaries)
	conn, err := net.DialTimeout("tcp", address, canaryBound)
	if err != nil {
		return nil, fmt.Errorf("no connection for an honest request afterwards: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(canaryBound))
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", target); err != nil {
		return nil, err
	}
	answer, err := read1(newReader(conn), "GET")
	if err != nil {
		return nil, fmt.Errorf("an honest request afterwards: %w", err)
	}
	if answer.status != 200 || answer.body != "GET "+target {
		return nil, fmt.Errorf("an honest request afterwards is answered by %d %.100q, want what is meant for it: GET %s", answer.status, answer.body, target)
	}
	var seen []*upstream.Request
	for _, r := range append(l.up1.Take(time.Second), l.up2.Take(time.Second)...) {
		if !strings.HasPrefix(r.Target(), "/canary/") && r.Target() != followTarget {
			seen = append(seen, r)
		}
	}
	return seen, nil
}
