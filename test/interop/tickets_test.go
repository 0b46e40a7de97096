//go:build interop

package interop

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
)

const ticketsPort = 10004

// ticketKeyLength is that of Envoy's session_ticket_keys.
const ticketKeyLength = 80

// A client of one proxy resumes its session at another that has the same key for tickets, and at no other; of Heddle as of
// Envoy.
func TestTicketsAcrossProxies(t *testing.T) {
	folder, envoy := os.Getenv("HEDDLE_E2E_BIN"), os.Getenv("HEDDLE_TEST_ENVOY")
	if folder == "" || envoy == "" {
		t.Fatal("run this test by `make interop`, which builds heddle-proxy and sets HEDDLE_E2E_BIN and HEDDLE_TEST_ENVOY")
	}
	for name, binary := range map[string]string{"heddle": filepath.Join(folder, "heddle-proxy"), "envoy": envoy} {
		t.Run(name, func(t *testing.T) {
			first, second, stranger := ticketing(t, name, binary, 'a'), ticketing(t, name, binary, 'a'), ticketing(t, name, binary, 'b')
			for version, config := range map[string]*tls.Config{
				"TLS 1.2": {MaxVersion: tls.VersionTLS12}, "TLS 1.3": {MinVersion: tls.VersionTLS13},
			} {
				t.Run(version, func(t *testing.T) {
					// The certificates are made for the run; who answers is no subject here.
					config.InsecureSkipVerify, config.ServerName = true, "edge.example" //nolint:gosec // See above.
					config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
					for _, visit := range []struct {
						at      *subject.Proxy
						resumes bool
						what    string
					}{
						{first, false, "with no session"}, {first, true, "to the same"}, {second, true, "to another with the key"}, {stranger, false, "to one without"},
					} {
						resumed, err := visits(visit.at, config)
						if err != nil || resumed != visit.resumes {
							t.Errorf("%s: resumed %v, want %v, %v", visit.what, resumed, visit.resumes, err)
						}
					}
				})
			}
			if name == "heddle" {
				reused := fmt.Sprintf(`envoy_listener_ssl_session_reused{listener_address="%s_%d"}`, second.Address, ticketsPort)
				if n := metric(t, second, reused); n != 2 {
					t.Errorf("%v sessions were reused by the count, want 2", n)
				}
			}
		})
	}
}

// ticketing starts a proxy whose key for tickets consists of that byte.
func ticketing(t *testing.T, name, binary string, fill byte) *subject.Proxy {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ticket.key"), bytes.Repeat([]byte{fill}, ticketKeyLength), 0o600); err != nil {
		t.Fatal(err)
	}
	configuration, err := peers.ReadFile("peers/tickets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := subject.Start(subject.Settings{
		Name: name, Binary: binary, Address: subject.Address(), Dir: dir, Configuration: string(configuration),
		Listeners: []subject.Listener{{Name: "edge", Port: ticketsPort, TLS: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	return proxy
}

// visits asks for one answer over a connection of its own, and says whether its handshake resumed a session. Tickets of TLS 1.3
// come behind the handshake, so the answer is read to its end.
func visits(proxy *subject.Proxy, config *tls.Config) (bool, error) {
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: bound}, "tcp", net.JoinHostPort(proxy.Address, strconv.Itoa(ticketsPort)), config)
	if err != nil {
		return false, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(bound)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: edge.example\r\nConnection: close\r\n\r\n"); err != nil {
		return false, err
	}
	answer, err := io.ReadAll(connection)
	if err != nil || !strings.HasSuffix(string(answer), "served") {
		return false, fmt.Errorf("answered %q, %w", answer, err)
	}
	return connection.ConnectionState().DidResume, nil
}
