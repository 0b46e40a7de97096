package load

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"heddle.io/heddle/bench/process"
)

// ClientFlag has the benchmark's program be the client that [NewConnections] starts: standard input is for [OpenConnections].
const ClientFlag = "-open-connections"

// order is what such a client is told.
type order struct {
	Address  string        `json:"address"`
	Target   string        `json:"target"`
	Clients  int           `json:"clients"`
	Duration time.Duration `json:"duration"`
}

// NewConnections has clients open a TLS 1.3 connection to address (host:port), ask once for target and close it, over and
// over. Latency is from opening the connection to the answer's last byte: wrk's begins when the
// handshake is over, so that it does not see what a handshake waits for.
func NewConnections(at process.Place, address, target string, clients int, duration time.Duration) (Result, error) {
	var r Result
	_, err := inChild(at, ClientFlag, order{address, target, clients, duration}, &r)
	return r, err
}

// OpenConnections does what an order of [NewConnections] says and writes the [Result] as JSON. What the first failed
// connection failed with goes to log.
func OpenConnections(told io.Reader, out, log io.Writer) error {
	return asTold(ClientFlag, told, out, func(o order) (Result, error) {
		// The garbage of a handshake is small; to collect it seldom leaves the processor to the clients.
		debug.SetGCPercent(400)
		r, failure := client{order: o, config: tls13, now: time.Now}.run()
		if failure != nil {
			fmt.Fprintf(log, "first of %d failed connections: %v\n", r.Errors, failure)
		}
		return r, nil
	})
}

// tls13 is what the clients of Debian's OpenSSL 3.0 offer: no hybrid groups, which not all subjects have. Whose the
// certificate is does not matter here, and to verify it would take the client's time.
var tls13 = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}, NextProtos: []string{"http/1.1"}}

// client opens connections.
type client struct {
	order
	config *tls.Config
	now    func() time.Time
}

// run has all clients at work until the duration is over; the error is the first of those that are counted.
func (c client) run() (Result, error) {
	var (
		clients sync.WaitGroup
		lock    sync.Mutex
		times   []time.Duration
		errs    int64
		first   error
	)
	started := c.now()
	for range c.Clients {
		clients.Go(func() {
			for c.now().Sub(started) < c.Duration {
				took, _, err := c.transaction()
				lock.Lock()
				if err != nil {
					errs++
					first = cmp.Or(first, err)
				} else {
					times = append(times, took)
				}
				lock.Unlock()
			}
		})
	}
	clients.Wait()
	r := Result{Requests: int64(len(times)), Errors: errs}
	if len(times) > 0 {
		slices.Sort(times)
		r.PerSecond = float64(len(times)) / c.now().Sub(started).Seconds()
		r.P50, r.P99 = percentile(times, 0.50), percentile(times, 0.99)
	}
	return r, first
}

// transaction is one connection with one request. It says how long it took and how many bytes the answer had.
func (c client) transaction() (time.Duration, int, error) {
	started := c.now()
	raw, err := net.DialTimeout("tcp", c.Address, answerBound)
	if err != nil {
		return 0, 0, err
	}
	// The connection is closed without close_notify, as by openssl s_time: the server has closed it before.
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(answerBound)); err != nil {
		return 0, 0, err
	}
	conn := tls.Client(raw, c.config)
	if _, err := io.WriteString(conn, "GET "+c.Target+" HTTP/1.1\r\nHost: "+c.Address+"\r\nConnection: close\r\n\r\n"); err != nil {
		return 0, 0, err
	}
	answer := make([]byte, 0, 2048)
	var took time.Duration
	for {
		if len(answer) == cap(answer) {
			return 0, 0, fmt.Errorf("an answer of more than %d bytes", cap(answer))
		}
		n, err := conn.Read(answer[len(answer):cap(answer)])
		if n > 0 {
			took = c.now().Sub(started)
			answer = answer[:len(answer)+n]
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return took, len(answer), whole(answer)
}

// whole says what is wrong with an answer: crypto/tls takes any end of a connection for a good one.
func whole(answer []byte) error {
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// percentile of sorted values, of which there is at least one.
func percentile[T any](sorted []T, q float64) T {
	return sorted[int(q*float64(len(sorted)-1))]
}
