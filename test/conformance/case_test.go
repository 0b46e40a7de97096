//go:build conformance

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// maxDivergences that may stay.
const maxDivergences = 10

// lines is one text or several.
type lines []string

func (l *lines) UnmarshalJSON(text []byte) error {
	var one string
	if err := yaml.Unmarshal(text, &one); err == nil && text[0] != '[' {
		*l = lines{one}
		return nil
	}
	return yaml.Unmarshal(text, (*[]string)(l))
}

// statuses is one or several.
type statuses []int

func (s *statuses) UnmarshalJSON(text []byte) error {
	var one int
	if err := yaml.Unmarshal(text, &one); err == nil {
		*s = statuses{one}
		return nil
	}
	return yaml.Unmarshal(text, (*[]int)(s))
}

// testCase is what to send and what must come of it in both proxies.
type testCase struct {
	Name     string   `json:"name"`
	Send     lines    `json:"send"`
	Fields   []string `json:"fields"`
	Body     string   `json:"body"`
	Body64   []byte   `json:"body64"`
	Chunks   []string `json:"chunks"`
	Trailers []string `json:"trailers"`
	Want     statuses `json:"want"`
	Takes    []int    `json:"takes"`
	Answer   string   `json:"answer"`
	Answer64 []byte   `json:"answer64"`
	Counters []string `json:"counters"`
	Grows    []string `json:"grows"`
	Together bool     `json:"together"`
	// Only is a protocol that the case can be asked by; empty for all.
	Only   string `json:"only"`
	Copies int    `json:"copies"`
	// Authz is what the authorization server answers by HTTP, Check by gRPC.
	Authz string         `json:"authz"`
	Check map[string]any `json:"check"`
}

// caseFile is a file of cases.
type caseFile struct {
	name          string
	Configuration struct {
		HTTPFilters  []map[string]any `json:"http_filters"`
		VirtualHosts []map[string]any `json:"virtual_hosts"`
		Table        map[string]any   `json:"table"`
		Manager      map[string]any   `json:"manager"`
	} `json:"configuration"`
	Cases []testCase `json:"cases"`
}

// divergence is a difference that stays.
type divergence struct {
	// Case is file/name.
	Case string `json:"case"`
	// Line of the comparison, without its sign, as each of the two has it; empty for a line that one does not have.
	Heddle string `json:"heddle"`
	Envoy  string `json:"envoy"`
	Reason string `json:"reason"`
	used   bool
}

func load(t *testing.T) []*caseFile {
	t.Helper()
	paths, err := filepath.Glob("cases/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	sort.Strings(paths)
	files := make([]*caseFile, 0, len(paths))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file := &caseFile{name: strings.TrimSuffix(filepath.Base(path), ".yaml")}
		if err := yaml.UnmarshalStrict(text, file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		names := map[string]bool{}
		for _, c := range file.Cases {
			if c.Only != "" && !slices.Contains(protocols, c.Only) {
				t.Fatalf("%s: %q asks by %q, which is none of %q", path, c.Name, c.Only, protocols)
			}
			if c.Name == "" || len(c.Send) == 0 || len(c.Want) != len(c.Send) || names[c.Name] {
				t.Fatalf("%s: %q needs a name of its own, send, and a status in want for each request", path, c.Name)
			}
			names[c.Name] = true
		}
		files = append(files, file)
	}
	return files
}

func loadDivergences(t *testing.T) []*divergence {
	t.Helper()
	text, err := os.ReadFile("divergences.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []*divergence
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatalf("divergences.yaml: %v", err)
	}
	if len(all) > maxDivergences {
		t.Errorf("divergences.yaml has %d entries, at most %d may stay", len(all), maxDivergences)
	}
	for _, d := range all {
		if d.Case == "" || d.Reason == "" || d.Heddle == d.Envoy {
			t.Errorf("divergences.yaml: %+v needs case, reason and two different lines", d)
		}
	}
	return all
}

// router is the last filter of every connection manager.
var router = map[string]any{
	"name":         "envoy.filters.http.router",
	"typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}

// manager is the connection manager of a file.
func (f *caseFile) manager(dir string) map[string]any {
	table := map[string]any{"name": "local", "virtual_hosts": f.Configuration.VirtualHosts}
	for key, value := range f.Configuration.Table {
		table[key] = value
	}
	filters := make([]any, 0, len(f.Configuration.HTTPFilters)+1)
	for _, filter := range f.Configuration.HTTPFilters {
		filters = append(filters, filter)
	}
	manager := map[string]any{
		"@type":                 "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix":           f.name,
		"stream_idle_timeout":   "2s",
		"delayed_close_timeout": "0.05s",
		"http_protocol_options": map[string]any{"enable_trailers": true},
		"access_log": []any{map[string]any{
			"name": "envoy.access_loggers.file",
			"typed_config": map[string]any{
				"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
				"path":  filepath.Join(dir, f.name+".access"),
				"log_format": map[string]any{"text_format_source": map[string]any{
					"inline_string": "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS% %ROUTE_NAME%\n",
				}},
			},
		}},
		"route_config": table,
		"http_filters": append(filters, router),
	}
	for key, value := range f.Configuration.Manager {
		manager[key] = value
	}
	return manager
}

// bootstrap of a proxy with a listener for each file.
func bootstrap(files []*caseFile, address, dir string, admin, first, upstream int) (string, error) {
	at := func(port int) map[string]any {
		return map[string]any{"socket_address": map[string]any{"address": address, "port_value": port}}
	}
	listeners := make([]any, 0, len(files))
	for i, file := range files {
		listeners = append(listeners, map[string]any{
			"name":    file.name,
			"address": at(first + i),
			"filter_chains": []any{map[string]any{"filters": []any{map[string]any{
				"name":         "envoy.filters.network.http_connection_manager",
				"typed_config": file.manager(dir),
			}}}},
		})
	}
	// Without this Envoy drops the trailers of HTTP/1.1.
	options := map[string]any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
		"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
		"explicit_http_config": map[string]any{"http_protocol_options": map[string]any{"enable_trailers": true}},
	}}
	cluster := func(name string, port int) map[string]any {
		return map[string]any{
			"name": name, "type": "STATIC", "connect_timeout": "1s", "typed_extension_protocol_options": options,
			"load_assignment": map[string]any{"cluster_name": name, "endpoints": []any{map[string]any{
				"lb_endpoints": []any{map[string]any{"endpoint": map[string]any{"address": at(port)}}},
			}}},
		}
	}
	grpc := cluster("authz_grpc", authzGRPCPort)
	grpc["typed_extension_protocol_options"] = map[string]any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": map[string]any{"http2_protocol_options": map[string]any{}},
		},
	}
	clusters := []any{
		cluster("up", upstream), cluster("up2", upstream), cluster("authz", authzPort), grpc,
		// Nobody listens there.
		cluster("nobody", upstream+10),
	}
	text, err := yaml.Marshal(map[string]any{
		"admin":            map[string]any{"address": at(admin)},
		"static_resources": map[string]any{"listeners": listeners, "clusters": clusters},
	})
	if err != nil {
		return "", fmt.Errorf("write the configuration: %w", err)
	}
	return string(text), nil
}
