//go:build hostile

package hostile

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

// hoarders send nearly the whole of a body of 1 MiB each: together three times what a worker keeps for filters that wait for
// bodies, and for retries.
const hoarders = 192

// TestBodiesThatNeverEnd has connections send bodies that the proxy keeps, for a filter or for a retry, and never end them.
// Others' bodies of an ordinary size get through a filter that waits for them all the same.
func TestBodiesThatNeverEnd(t *testing.T) {
	forSubjects(t, true, func(t *testing.T, name string) {
		for _, attacked := range []struct{ listener, target string }{{"buffered", "/"}, {"plain", "/retried"}} {
			t.Run(attacked.listener, func(t *testing.T) {
				counted(t)
				address := subject.Address()
				at := net.JoinHostPort(address, "20000")
				up, err := upstream.NewHTTP1(at)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(up.Close)
				p, err := subject.Start(subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: t.TempDir(), Listeners: []subject.Listener{
					{Name: "plain", Kind: "plain", Port: 10000, Upstream: at},
					{Name: "buffered", Kind: "buffered", Port: 10001, Upstream: at},
				}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Stop)
				ports := map[string]string{"plain": p.At(p.Listeners[0]), "buffered": p.At(p.Listeners[1])}
				for range hoarders {
					hoard(t, ports[attacked.listener], attacked.target)
				}
				client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
				for n := range 20 {
					answer, err := client.Post("http://"+ports["buffered"]+"/", "text/plain", bytes.NewReader(make([]byte, 8<<10)))
					if err != nil {
						t.Fatalf("request %d: %v", n, err)
					}
					_ = answer.Body.Close()
					if answer.StatusCode != http.StatusOK {
						t.Errorf("request %d: %s", n, answer.Status)
					}
				}
			})
		}
	})
}

// hoard sends all of a body but the last byte. One that is refused meanwhile is what the proxy may do.
func hoard(t *testing.T, address, target string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	const size = 1 << 20
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", target, size); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(make([]byte, size-1))
}
