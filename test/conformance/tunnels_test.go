//go:build conformance

package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"heddle.io/heddle/test/hostile/subject"
)

// tunnelCase is an upgrade, or what looks like one, by one version of HTTP through to another.
type tunnelCase struct {
	name string
	// client is the version that asks, server the one that answers: 1 or 2.
	client, server int
	// protocol that is asked for.
	protocol string
	// answer of the server.
	status int
	fields [][2]string
	want   int
}

// theKey and theAccept of RFC 6455 section 1.3. Envoy changes neither, so all ask with a key here.
const (
	theKey    = "dGhlIHNhbXBsZSBub25jZQ=="
	theAccept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
)

func tunnelCases() []tunnelCase {
	accept := [2]string{"sec-websocket-accept", theAccept}
	var all []tunnelCase
	for _, client := range []int{1, 2} {
		for _, server := range []int{1, 2} {
			accepts, accepted := http.StatusSwitchingProtocols, http.StatusSwitchingProtocols
			if server == 2 {
				accepts = http.StatusOK
			}
			if client == 2 {
				accepted = http.StatusOK
			}
			name := fmt.Sprintf("HTTP/%d to HTTP/%d: ", client, server)
			all = append(all,
				tunnelCase{name + "accepted", client, server, "websocket", accepts, [][2]string{accept}, accepted},
				tunnelCase{name + "refused by the server", client, server, "websocket", 404, nil, 404},
				tunnelCase{name + "another protocol", client, server, "other", accepts, nil, 403},
			)
			if client == server {
				all = append(all, tunnelCase{name + "other letters", client, server, "WebSocket", accepts, [][2]string{accept}, accepted})
			}
			// Of an answer by HTTP/1.1 Envoy drops the body.
			if server == 2 {
				all = append(all, tunnelCase{name + "answered by 201", client, server, "websocket", 201, nil, 201})
			}
		}
	}
	return all
}

// tunnels is what stands before their names in divergences.yaml.
const tunnels = "tunnels/"

// TestTunnels compares upgrades over HTTP/1.1 and extended CONNECT over HTTP/2 in all four combinations.
func TestTunnels(t *testing.T) {
	divergences := loadDivergences(t)
	sides := map[string]*tunnelSide{"heddle": startTunnels(t, "heddle"), "envoy": startTunnels(t, "envoy")}
	for _, c := range tunnelCases() {
		ok := t.Run(c.name, func(t *testing.T) {
			lines := map[string][]string{}
			for _, name := range []string{"heddle", "envoy"} {
				var status int
				status, lines[name] = sides[name].run(t, c)
				if status != c.want {
					t.Errorf("%s answers %d, want %d", name, status, c.want)
				}
			}
			compare(t, tunnels+c.name, lines["heddle"], lines["envoy"], divergences)
		})
		if ok {
			passed++
		} else {
			failed++
		}
	}
	for _, d := range divergences {
		if !d.used && strings.HasPrefix(d.Case, tunnels) {
			t.Errorf("divergences.yaml: %s does not differ so any more: %q and %q", d.Case, d.Heddle, d.Envoy)
		}
	}
}

// tunnelSide is a proxy with a listener for each version of its server.
type tunnelSide struct {
	name    string
	proxy   *subject.Proxy
	address map[int]string
	// playing is the case that the servers answer.
	playing tunnelCase
	// saw is what the server saw of a request, a fact a line.
	saw chan []string
}

func startTunnels(t *testing.T, name string) *tunnelSide {
	t.Helper()
	address := subject.Address()
	s := &tunnelSide{name: name, address: map[int]string{}, saw: make(chan []string, 1)}
	var ports []any
	settings := subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: t.TempDir()}
	for version := 1; version <= 2; version++ {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(upstreamPort+version)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go s.accept(listener, version)
		ports = append(ports, version)
		settings.Listeners = append(settings.Listeners, subject.Listener{Name: fmt.Sprint("to", version), Port: firstPort + version})
		s.address[version] = net.JoinHostPort(address, strconv.Itoa(firstPort+version))
	}
	settings.Configuration = tunnelConfiguration(address, ports)
	var err error
	if s.proxy, err = subject.Start(settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.proxy.Stop)
	return s
}

// tunnelConfiguration has a listener and a cluster for each version of the server.
func tunnelConfiguration(address string, versions []any) string {
	var listeners, clusters strings.Builder
	for _, v := range versions {
		version, _ := v.(int)
		fmt.Fprintf(&listeners, `
  - name: to%[1]d
    address: { socket_address: { address: %[2]s, port_value: %[3]d } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: to%[1]d
          stream_idle_timeout: 3s
          delayed_close_timeout: 0.05s
          http2_protocol_options: { allow_connect: true }
          upgrade_configs: [{ upgrade_type: websocket }]
          route_config:
            virtual_hosts: [{ name: all, domains: ["*"], routes: [{ match: { prefix: "/" }, route: { cluster: to%[1]d, timeout: 3s } }] }]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }`, version, address, firstPort+version)
		protocol := "http_protocol_options: {}"
		if version == 2 {
			protocol = "http2_protocol_options: { allow_connect: true }"
		}
		fmt.Fprintf(&clusters, `
  - name: to%[1]d
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { %[4]s }
    load_assignment:
      cluster_name: to%[1]d
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: %[2]s, port_value: %[3]d } } } }] }]`, version, address, upstreamPort+version, protocol)
	}
	return fmt.Sprintf("admin: { address: { socket_address: { address: %s, port_value: %d } } }\nstatic_resources:\n  listeners:%s\n  clusters:%s\n",
		address, subject.AdminPort, listeners.String(), clusters.String())
}

// accept serves connections of a version.
func (s *tunnelSide) accept(listener net.Listener, version int) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			if version == 1 {
				s.serve1(conn)
			} else {
				s.serve2(conn)
			}
		}()
	}
}

// serve1 answers one request; where it accepts, it says hello and what it hears.
func (s *tunnelSide) serve1(conn net.Conn) {
	reader := bufio.NewReader(conn)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	lines := []string{"server sees " + request.Method + " " + request.RequestURI}
	for name, values := range request.Header {
		for _, v := range values {
			lines = append(lines, settled("server sees field "+strings.ToLower(name)+": "+v))
		}
	}
	s.saw <- lines
	c := s.playing
	var head strings.Builder
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\n", c.status, http.StatusText(c.status))
	for _, f := range c.fields {
		head.WriteString(f[0] + ": " + f[1] + "\r\n")
	}
	if c.status != http.StatusSwitchingProtocols {
		_, _ = io.WriteString(conn, head.String()+"content-length: 2\r\nconnection: close\r\n\r\nno")
		return
	}
	if _, err := io.WriteString(conn, head.String()+"upgrade: "+c.protocol+"\r\nconnection: upgrade\r\n\r\nhello"); err == nil {
		_, _ = io.Copy(conn, reader)
	}
}

// serve2 does the same over HTTP/2, for as many streams as come.
func (s *tunnelSide) serve2(conn net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	// SETTINGS_ENABLE_CONNECT_PROTOCOL.
	if framer.WriteSettings(http2.Setting{ID: 8, Val: 1}) != nil {
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			err = s.answer2(framer, f)
		case *http2.DataFrame:
			err = framer.WriteData(f.StreamID, f.StreamEnded(), f.Data())
		}
		if err != nil {
			return
		}
	}
}

func (s *tunnelSide) answer2(framer *http2.Framer, f *http2.MetaHeadersFrame) error {
	lines := []string{}
	for _, field := range f.Fields {
		lines = append(lines, settled("server sees field "+field.Name+": "+field.Value))
	}
	s.saw <- lines
	c := s.playing
	block := encoded(append([][2]string{{":status", strconv.Itoa(c.status)}}, c.fields...))
	refused := c.status != http.StatusOK
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: block, EndHeaders: true})
	if err != nil {
		return err
	}
	if refused {
		return framer.WriteData(f.StreamID, true, []byte("no"))
	}
	return framer.WriteData(f.StreamID, false, []byte("hello"))
}

// encoded is a header block.
func encoded(fields [][2]string) []byte {
	var c http2Client
	c.hpack = hpack.NewEncoder(&c.block)
	return slices.Clone(c.headers(fields))
}

// run does a case and returns the status and what came of it, a fact a line.
func (s *tunnelSide) run(t *testing.T, c tunnelCase) (int, []string) {
	t.Helper()
	s.playing = c
	var status int
	var lines []string
	var err error
	if c.client == 1 {
		status, lines, err = tunnel1(s.address[c.server], c)
	} else {
		status, lines, err = tunnel2(s.address[c.server], c)
	}
	if err != nil {
		t.Fatalf("%s: %v, after %v", s.name, err, lines)
	}
	select {
	case saw := <-s.saw:
		lines = append(lines, saw...)
	default:
		lines = append(lines, "server sees nothing")
	}
	return status, lines
}

// tunnel1 asks by HTTP/1.1. Where that is accepted it says ping and no more, and hears everything to its end.
func tunnel1(address string, c tunnelCase) (int, []string, error) {
	conn, err := net.DialTimeout("tcp", address, answerBound)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerBound))
	_, err = fmt.Fprintf(conn, "GET /ws?a=b HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: %s\r\nsec-websocket-key: %s\r\nsec-websocket-version: 13\r\n\r\n", c.protocol, theKey)
	if err != nil {
		return 0, nil, err
	}
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, &http.Request{Method: http.MethodGet})
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	lines := []string{fmt.Sprintf("status %d", answer.StatusCode)}
	for name, values := range answer.Header {
		for _, v := range values {
			lines = append(lines, settled("field "+strings.ToLower(name)+": "+v))
		}
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		content, err := io.ReadAll(answer.Body)
		return answer.StatusCode, append(lines, "body "+string(content)), err
	}
	if _, err := io.WriteString(conn, "ping"); err != nil {
		return answer.StatusCode, lines, err
	}
	heard := make([]byte, len("helloping"))
	_, err = io.ReadFull(reader, heard)
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		err = tcp.CloseWrite()
	}
	if err != nil {
		return answer.StatusCode, append(lines, fmt.Sprintf("hears %q", heard)), err
	}
	rest, err := io.ReadAll(reader)
	if err != nil {
		rest = append(rest, " and an error"...)
	}
	return answer.StatusCode, append(lines, fmt.Sprintf("hears %q, then %q", heard, rest)), nil
}

// tunnel2 does that by an extended CONNECT.
func tunnel2(address string, c tunnelCase) (int, []string, error) {
	client, err := newHTTP2Client(address)
	if err != nil {
		return 0, nil, err
	}
	defer client.close()
	s := &http2Stream{id: 1, window: client.initial}
	head := client.headers([][2]string{
		{":method", "CONNECT"}, {":protocol", c.protocol}, {":scheme", "http"}, {":authority", "h"}, {":path", "/ws?a=b"},
		{"sec-websocket-key", theKey}, {"sec-websocket-version", "13"},
	})
	// Only what offers it may be asked.
	if err := client.offered(); err != nil {
		return 0, nil, err
	}
	if err := client.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true}); err != nil {
		return 0, nil, err
	}
	pinged := false
	for !s.ended {
		if s.status == http.StatusOK && !pinged {
			pinged = true
			if err := client.framer.WriteData(1, false, []byte("ping")); err != nil {
				return s.status, s.lines, err
			}
		}
		if pinged && string(s.content) == "helloping" {
			s.content = append(s.content, '.')
			if err := client.framer.WriteData(1, true, nil); err != nil {
				return s.status, s.lines, err
			}
		}
		if err := client.read(s); err != nil {
			return s.status, s.lines, err
		}
	}
	s.lines = append(s.lines, fmt.Sprintf("status %d", s.status), fmt.Sprintf("hears %q", s.content))
	if s.status == http.StatusOK {
		s.lines = append(s.lines, client.kept())
	}
	return s.status, s.lines, nil
}

// errNotOffered is that SETTINGS have come without SETTINGS_ENABLE_CONNECT_PROTOCOL.
var errNotOffered = errors.New("extended CONNECT is not offered")

// offered reads the first SETTINGS and says whether they offer extended CONNECT.
func (c *http2Client) offered() error {
	for {
		frame, err := c.next()
		if err != nil {
			return err
		}
		settings, ok := frame.(*http2.SettingsFrame)
		if !ok || settings.IsAck() {
			continue
		}
		if err := c.framer.WriteSettingsAck(); err != nil {
			return err
		}
		if value, ok := settings.Value(8); !ok || value != 1 {
			return errNotOffered
		}
		return nil
	}
}
