// Package flood attacks a proxy with much of something and measures what its other clients notice.
package flood

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// clients1 and clients2 are honest clients with a connection of their own over HTTP/1 and HTTP/2.
	clients1, clients2 = 4, 2
	// interval between the requests of one client.
	interval = 20 * time.Millisecond
	// patience of a client; what takes longer is a failure.
	patience = 5 * time.Second
)

// Figures of what the honest clients noticed in some time.
type Figures struct {
	Requests, Failures int
	P50, P99           time.Duration
	// Failure is the first one.
	Failure error
}

// Clients ask at a fixed rate, each on a connection of its own. A delay counts from the moment at which the request
// was due, so that a stall is seen by every request that it delays.
type Clients struct {
	cancel  context.CancelFunc
	group   sync.WaitGroup
	mu      sync.Mutex
	samples []time.Duration
	errors  []error
	// due is when each client's open request should have been sent; zero while it has none.
	due []time.Time
}

// StartClients starts them.
func StartClients(address string) *Clients {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Clients{cancel: cancel, due: make([]time.Time, clients1+clients2)}
	for i := range clients1 + clients2 {
		ask := &client1{address: address}
		c.group.Go(func() {
			if i < clients1 {
				c.run(ctx, i, ask.get)
				ask.hangup()
			} else {
				client, transport := newClient2()
				c.run(ctx, i, func() error { return get2(client, "http://"+address+"/client") })
				transport.CloseIdleConnections()
			}
		})
	}
	return c
}

// Stop ends them.
func (c *Clients) Stop() {
	c.cancel()
	c.group.Wait()
}

func (c *Clients) run(ctx context.Context, i int, ask func() error) {
	due := time.Now().Add(time.Duration(i) * interval / (clients1 + clients2))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		c.mu.Lock()
		c.due[i] = due
		c.mu.Unlock()
		err := ask()
		took := time.Since(due)
		c.mu.Lock()
		c.due[i] = time.Time{}
		c.samples = append(c.samples, took)
		if err != nil {
			c.errors = append(c.errors, err)
		}
		c.mu.Unlock()
		// A client that was held up catches up, but not for more than a second.
		due = due.Add(interval)
		if behind := time.Since(due); behind > time.Second {
			due = due.Add(behind - time.Second)
		}
	}
}

// Watch returns what they notice until over is closed. Requests still open then count with the time that they have taken.
func (c *Clients) Watch(over <-chan struct{}) Figures {
	c.mu.Lock()
	c.samples, c.errors = nil, nil
	c.mu.Unlock()
	<-over
	c.mu.Lock()
	defer c.mu.Unlock()
	samples := slices.Clone(c.samples)
	for _, due := range c.due {
		if !due.IsZero() {
			samples = append(samples, time.Since(due))
		}
	}
	f := Figures{Requests: len(samples), Failures: len(c.errors), P50: Percentile(samples, 50), P99: Percentile(samples, 99)}
	if len(c.errors) > 0 {
		f.Failure = c.errors[0]
	}
	return f
}

// Percentile of some durations, by nearest rank; zero for none.
func Percentile(samples []time.Duration, percent int) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	slices.Sort(samples)
	return samples[max(0, (len(samples)*percent+99)/100-1)]
}

// client1 keeps one HTTP/1 connection.
type client1 struct {
	address string
	conn    net.Conn
	reader  *bufio.Reader
}

func (k *client1) hangup() {
	if k.conn != nil {
		_ = k.conn.Close()
		k.conn = nil
	}
}

func (k *client1) get() error {
	err := k.try()
	if err != nil {
		k.hangup()
	}
	return err
}

func (k *client1) try() error {
	if k.conn == nil {
		conn, err := net.DialTimeout("tcp", k.address, patience)
		if err != nil {
			return err
		}
		k.conn, k.reader = conn, bufio.NewReader(conn)
	}
	_ = k.conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(k.conn, "GET /client HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(k.reader, nil)
	if err != nil {
		return err
	}
	return check(answer)
}

func newClient2() (*http.Client, *http.Transport) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	return &http.Client{Transport: transport, Timeout: patience}, transport
}

func get2(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	return check(answer)
}

func check(answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err == nil && (answer.StatusCode != http.StatusOK || string(body) != "GET /client") {
		err = fmt.Errorf("%s: %.100q", answer.Status, body)
	}
	return err
}
