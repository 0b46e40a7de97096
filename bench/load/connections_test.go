package load

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"heddle.io/heddle/bench/process"
)

// serve gives the address of a TLS server whose handshakes take so long by the clock.
func serve(t *testing.T, answer http.HandlerFunc, clock *atomic.Int64, handshake time.Duration) string {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(answer)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		clock.Add(int64(handshake))
		return nil, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "https://")
}

func TestNewConnectionsSeeTheHandshake(t *testing.T) {
	var clock, connections atomic.Int64
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.DidResume {
			t.Error("a connection resumed a session")
		}
		connections.Add(1)
		_, _ = w.Write([]byte("answer"))
	}, &clock, 70*time.Millisecond)
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	r, err := client{order: order{Address: address, Target: "/", Clients: 1, Duration: 210 * time.Millisecond}, config: tls13, now: now}.run()
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Requests: 3, PerSecond: 3 / 0.21, P50: 70 * time.Millisecond, P99: 70 * time.Millisecond}
	if r != want || connections.Load() != 3 {
		t.Errorf("got %+v of %d connections, want %+v of 3", r, connections.Load(), want)
	}
}

func TestNewConnectionsCountErrors(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"an answer that breaks off": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nansw"))
			_ = conn.(*tls.Conn).NetConn().Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var clock atomic.Int64
			address := serve(t, answer, &clock, time.Second)
			r, err := client{order: order{Address: address, Target: "/", Clients: 2, Duration: time.Second}, config: tls13,
				now: func() time.Time { return time.Unix(0, clock.Load()) }}.run()
			if err == nil || r.Requests != 0 || r.Errors == 0 {
				t.Errorf("got %+v and error %v, want errors alone", r, err)
			}
		})
	}
}

func TestOpenConnectionsRefusesAnOrderThatIsNone(t *testing.T) {
	if err := OpenConnections(strings.NewReader("10"), nil, nil); err == nil {
		t.Error("was accepted")
	}
}

func TestSTime(t *testing.T) {
	var clock, connections atomic.Int64
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.Version != tls.VersionTLS12 || r.TLS.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 || r.TLS.DidResume || r.Proto != "HTTP/1.1" {
			t.Errorf("a request by %s over %s, resumed %v", r.Proto, tls.CipherSuiteName(r.TLS.CipherSuite), r.TLS.DidResume)
		}
		connections.Add(1)
		_, _ = w.Write([]byte("answer"))
	}, &clock, 0)
	r, err := STime(process.Place{}, address, "/", 2, time.Second)
	// One more connection looked at the answer.
	if err != nil || r.Requests < 2 || r.Requests != connections.Load()-1 || r.PerSecond <= 0 {
		t.Errorf("got %+v of %d connections, error %v", r, connections.Load(), err)
	}
}

func TestSTimeEndsWithAnErrorWhereConnectionsFail(t *testing.T) {
	var clock, connections atomic.Int64
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		size := 6
		if connections.Add(1) > 1 {
			size = 600
		}
		_, _ = w.Write(make([]byte, size))
	}, &clock, 0)
	if r, err := STime(process.Place{}, address, "/", 1, time.Second); err == nil || !strings.Contains(err.Error(), "bytes per connection") {
		t.Errorf("got %+v and %v where answers differ from the first", r, err)
	}
	if r, err := STime(process.Place{}, "127.0.0.1:1", "/", 1, time.Second); err == nil {
		t.Errorf("got %+v where nobody listens", r)
	}
}

func TestParseSTime(t *testing.T) {
	out := "Collecting connection statistics for 2 seconds\n****\n\n4 connections in 0.01s; 400.00 connections/user sec, bytes read 860\n4 connections in 3 real seconds, 215 bytes read per connection\n"
	if n, each, err := parseSTime(out); err != nil || n != 4 || each != 215 {
		t.Errorf("got %d connections of %d bytes, error %v", n, each, err)
	}
	if _, _, err := parseSTime("Call to SSL_CTX_new failed"); err == nil {
		t.Error("output without counts was accepted")
	}
}
