//go:build conformance

package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
)

// connectionCase is a filter chain before a TCP proxy, and what its authorization server says.
type connectionCase struct {
	name string
	// filters before the TCP proxy, in YAML.
	filters string
	check   map[string]any
	passes  bool
}

// asks is the filter that asks the authorization server about connections.
func asks(more string) string {
	return `
      - name: authz
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.ext_authz.v3.ExtAuthz
          stat_prefix: CASE
          transport_api_version: V3
          grpc_service: { envoy_grpc: { cluster_name: authz_grpc }, timeout: 3s }
` + more
}

// polices is the filter that enforces policies on connections, its rules in YAML.
func polices(rules string) string {
	return `
      - name: rbac
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC
          stat_prefix: CASE
` + rules
}

// onlyMatched has the authorization server asked about what shadow rules before have matched.
const onlyMatched = `
          filter_enabled_metadata:
            filter: envoy.filters.network.rbac
            path: [{ key: first_shadow_effective_policy_id }]
            value: { string_match: { prefix: ask } }
`

// says denies connections of whom the authorization server has said this.
func says(value string) string {
	return polices(fmt.Sprintf(`
          rules:
            action: DENY
            policies:
              said:
                permissions: [{ any: true }]
                principals: [{ metadata: { filter: envoy.filters.network.ext_authz, path: [{ key: who }, { key: name }], value: { string_match: { exact: %s } } } }]
`, value))
}

// shadow rules with this permission.
func shadow(permission string) string {
	return polices(fmt.Sprintf(`
          shadow_rules_stat_prefix: first_
          shadow_rules:
            action: DENY
            policies:
              ask-about-it: { permissions: [%s], principals: [{ any: true }] }
`, permission))
}

func connectionCases() []connectionCase {
	ok := map[string]any{"status": map[string]any{"code": 0}}
	denied := map[string]any{"status": map[string]any{"code": 7}}
	failed := map[string]any{"status": map[string]any{"code": 7}, "error_response": map[string]any{}}
	mary := map[string]any{"status": map[string]any{"code": 0}, "dynamic_metadata": map[string]any{"who": map[string]any{"name": "mary"}, "n": 1}}
	nobody := strings.ReplaceAll(asks(""), "authz_grpc", "nobody")
	return []connectionCase{
		{"allowed", asks(""), ok, true},
		{"denied", asks(""), denied, false},
		{"denied by an empty HTTP answer", asks(""), map[string]any{"status": map[string]any{"code": 16}, "denied_response": map[string]any{"body": "no"}}, false},
		{"the server has a fault", asks(""), failed, false},
		{"the server has a fault, and may", asks("          failure_mode_allow: true\n"), failed, true},
		{"nobody answers", nobody, ok, false},
		{"nobody answers, and may", nobody + "          failure_mode_allow: true\n", ok, true},
		{"labels of the node", asks("          bootstrap_metadata_labels_key: LABELS\n"), ok, true},
		{"TLS is asked for", asks("          include_tls_session: true\n          include_peer_certificate: true\n"), ok, true},
		{"what shadow rules match", shadow("{ any: true }") + asks(onlyMatched), denied, false},
		{"what shadow rules do not match", shadow("{ destination_port: 1 }") + asks(onlyMatched), denied, true},
		{"said and shown to the next", asks("") + asks("          metadata_context_namespaces: [envoy.filters.network.ext_authz, other]\n"), mary, true},
		{"policies read what was said", asks("") + says("mary"), mary, false},
		{"policies read what was said of another", asks("") + says("eve"), mary, true},
		{"policies before it cannot", says("mary") + asks(""), mary, true},
		{"marked for logs", polices(`
          rules:
            action: LOG
            policies:
              all: { permissions: [{ any: true }], principals: [{ any: true }] }
`), ok, true},
	}
}

// connections is what stands before their names in divergences.yaml.
const connections = "connections/"

// TestConnections compares filters that wait, or learn something of a connection, before a TCP proxy.
func TestConnections(t *testing.T) {
	divergences, cases := loadDivergences(t), connectionCases()
	sides := []*connectionSide{startConnections(t, "heddle", cases), startConnections(t, "envoy", cases)}
	for i, c := range cases {
		ok := t.Run(c.name, func(t *testing.T) {
			ours, theirs := sides[0].run(t, i, c), sides[1].run(t, i, c)
			compare(t, connections+c.name, ours, theirs, divergences)
		})
		if ok {
			passed++
		} else {
			failed++
		}
	}
	for _, d := range divergences {
		if !d.used && strings.HasPrefix(d.Case, connections) {
			t.Errorf("divergences.yaml: %s does not differ so any more: %q and %q", d.Case, d.Heddle, d.Envoy)
		}
	}
}

// connectionSide is a proxy with a listener for each case, before a server that says what it hears.
type connectionSide struct {
	*side
	accepted chan struct{}
}

func startConnections(t *testing.T, name string, cases []connectionCase) *connectionSide {
	t.Helper()
	address := subject.Address()
	s := &connectionSide{side: &side{name: name, dir: t.TempDir(), read: map[string]int{}}, accepted: make(chan struct{}, 1)}
	var err error
	if s.authz, err = newAuthz(address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.authz.close)
	echo, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(upstreamPort)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	settings := subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: s.dir}
	settings.Configuration = connectionConfiguration(address, s.dir, cases)
	if s.proxy, err = subject.Start(settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.proxy.Stop)
	return s
}

var inName = regexp.MustCompile(`envoy_ext_authz_(case\d+)_(\w+)\{\}`)

func caseName(number int) string { return fmt.Sprint("case", number) }

func connectionConfiguration(address, dir string, cases []connectionCase) string {
	var listeners strings.Builder
	for i, c := range cases {
		fmt.Fprintf(&listeners, `
  - name: %[1]s
    address: { socket_address: { address: %[2]s, port_value: %[3]d } }
    filter_chains:
    - filters:%[4]s
      - name: proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: %[1]s
          cluster: echo
          access_log:
          - name: file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: %[5]s
              log_format: { text_format_source: { inline_string: "%%DYNAMIC_METADATA(envoy.filters.network.ext_authz:who)%% %%DYNAMIC_METADATA(envoy.common)%% %%DYNAMIC_METADATA(envoy.filters.network.rbac)%%\n" } }
`, caseName(i), address, firstPort+i, strings.ReplaceAll(c.filters, "CASE", caseName(i)), filepath.Join(dir, caseName(i)+".access"))
	}
	cluster := func(name string, port int, options string) string {
		return fmt.Sprintf(`
  - name: %[1]s
    type: STATIC
    connect_timeout: 1s%[4]s
    load_assignment:
      cluster_name: %[1]s
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: %[2]s, port_value: %[3]d } } } }] }]`, name, address, port, options)
	}
	const http2 = `
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }`
	return fmt.Sprintf(`node: { id: conformance, cluster: conformance, metadata: { LABELS: { app: shop, tier: front, depth: 3 } } }
admin: { address: { socket_address: { address: %s, port_value: %d } } }
static_resources:
  listeners:%s
  clusters:%s
`, address, subject.AdminPort, listeners.String(), cluster("echo", upstreamPort, "")+cluster("authz_grpc", authzGRPCPort, http2)+cluster("nobody", authzGRPCPort+1, http2))
}

// run does a case and returns what came of it, a fact a line.
func (s *connectionSide) run(t *testing.T, number int, c connectionCase) []string {
	t.Helper()
	s.authz.play(t, testCase{Check: c.check})
	conn, err := net.DialTimeout("tcp", s.proxy.At(subject.Listener{Port: firstPort + number}), answerBound)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerBound))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	heard := make([]byte, len("hello"))
	n, err := io.ReadFull(conn, heard)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("%s: %v", s.name, err)
	}
	if passes := n == len(heard); passes != c.passes {
		t.Errorf("%s lets it pass: %v, want %v", s.name, passes, c.passes)
	}
	lines := []string{"client hears " + string(heard[:n])}
	if c.passes {
		// The connection's end is when it is logged. Who is turned away is not logged there by Heddle.
		_ = conn.Close()
		lines = append(lines, s.logged(t, caseName(number), 1)...)
	}
	for _, l := range s.authz.seen() {
		if !strings.Contains(l, "socketAddress.portValue") {
			lines = append(lines, l)
		}
	}
	lines = append(lines, s.counters(t, caseName(number))...)
	sort.Strings(lines)
	return lines
}

// counters of the filters of a case, those that are not zero.
func (s *connectionSide) counters(t *testing.T, name string) []string {
	t.Helper()
	text, err := s.proxy.Admin("/stats/prometheus", answerBound)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasSuffix(line, " 0") || !strings.Contains(line, name) {
			continue
		}
		// Envoy has the case in the name of a metric, or in a label of another name. It counts a connection that it does not
		// ask about at each of its reads.
		line = strings.ReplaceAll(line, "{envoy_rbac_prefix=", "{rbac_prefix=")
		line = inName.ReplaceAllString(line, `envoy_ext_authz_$2{ext_authz_prefix="$1"}`)
		if strings.HasPrefix(line, "envoy_ext_authz_disabled") {
			line, _, _ = strings.Cut(line, " ")
		}
		if (strings.Contains(line, "ext_authz") || strings.Contains(line, "rbac")) && !strings.Contains(line, "shadow") {
			out = append(out, line)
		}
	}
	return out
}
