//go:build hostile

package hostile

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

const (
	// resting connections, each of which has had one request.
	resting = 5000
	// restingBytes that each may cost: 80 MB for ten thousand. A debug build's tasks are no larger than others.
	restingBytes = 8000
)

// TestIdleConnections has many clients keep TLS connections open and say nothing. What they cost is printed, for Envoy too,
// which is not judged.
func TestIdleConnections(t *testing.T) {
	forSubjects(t, false, func(t *testing.T, name string) {
		counted(t)
		address := subject.Address()
		at := net.JoinHostPort(address, "20000")
		up, err := upstream.NewHTTP1(at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(up.Close)
		p, err := subject.Start(subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: t.TempDir(),
			Listeners: []subject.Listener{{Name: "tls", Kind: "plain", Port: 10000, Upstream: at, TLS: true}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		empty, err := p.RSS()
		if err != nil {
			t.Fatal(err)
		}
		open := make([]*tls.Conn, resting)
		t.Cleanup(func() {
			for _, conn := range open {
				if conn != nil {
					_ = conn.Close()
				}
			}
		})
		for i := range open {
			if open[i], err = rest(p.At(p.Listeners[0])); err != nil {
				t.Fatal(err)
			}
		}
		full, err := p.RSS()
		if err != nil {
			t.Fatal(err)
		}
		each := float64(full-empty) / resting
		fmt.Printf("%s: %d idle TLS connections cost %.1f MB, %.1f kB each, above %.1f MB\n", name, resting, float64(full-empty)/1e6,
			each/1e3, float64(empty)/1e6)
		if name == "heddle" && each > restingBytes {
			t.Errorf("an idle connection costs %.0f bytes, want at most %d", each, restingBytes)
		}
	})
}

// rest opens a connection, has one request answered, and leaves it open.
func rest(target string) (*tls.Conn, error) {
	// The certificate is the test's own, made for this run.
	conn, err := tls.Dial("tcp", target, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // G402: see above
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nhost: host\r\n\r\n"); err != nil {
		return conn, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return conn, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return conn, fmt.Errorf("the answer is %s", answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return conn, err
}
