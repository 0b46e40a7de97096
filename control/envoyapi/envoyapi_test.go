package envoyapi

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestAllTypesAreKnown compares the list of imports with the packages of the version that is pinned.
func TestAllTypesAreKnown(t *testing.T) {
	const module = "github.com/envoyproxy/go-control-plane/envoy"
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	current := regexp.MustCompile(`/v[34]`)
	old := regexp.MustCompile(`/v2$|v2alpha`)
	var want []string
	for _, top := range []string{"extensions", "config", "type"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".pb.go") {
				return err
			}
			folder, err := filepath.Rel(root, filepath.Dir(path))
			if err == nil && current.MatchString(folder) && !old.MatchString(folder) && !slices.Contains(want, folder) {
				want = append(want, folder)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("types.go")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if _, rest, ok := strings.Cut(s.Text(), `"`+module+"/"); ok {
			got = append(got, strings.TrimSuffix(rest, `"`))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("types.go imports %d packages, the pinned version has %d; write it anew\n%s", len(got), len(want), strings.Join(want, "\n"))
	}
}

func decode[M proto.Message](t *testing.T, text string, into M) M {
	t.Helper()
	if err := Decode([]byte(text), into); err != nil {
		t.Fatal(err)
	}
	return into
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": 5}`:   "it is no Cluster",
		`{"nmae": "x"}`: `unknown field "nmae"`,
		`{"typed": 1`:   "it is no Cluster",
		`{"transport_socket": {"name": "x", "typed_config": {"@type": "type.googleapis.com/a.B"}}}`: `there is no type "a.B"`,
	} {
		if err := Decode([]byte(text), &clusterv3.Cluster{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	typed := decode(t, `{"name": "l", "typed_config": {"@type": "type.googleapis.com/xds.type.v3.TypedStruct",
		"type_url": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit", "value": {"stat_prefix": "x"}}}`, &hcmv3.HttpFilter{})
	if got := typed.GetTypedConfig().GetTypeUrl(); !strings.HasSuffix(got, "LocalRateLimit") {
		t.Errorf("a TypedStruct stays %s", got)
	}
	foreign := decode(t, `{"name": "l", "typed_config": {"@type": "type.googleapis.com/xds.type.v3.TypedStruct",
		"type_url": "type.googleapis.com/stats.PluginConfig", "value": {"any": "thing"}}}`, &hcmv3.HttpFilter{})
	if got := foreign.GetTypedConfig().GetTypeUrl(); !strings.HasSuffix(got, "TypedStruct") {
		t.Errorf("a TypedStruct of a type that nobody knows becomes %s", got)
	}
}

// TestDecodeContributed has an extension outside of Envoy's own API that heddle-proxy implements.
func TestDecodeContributed(t *testing.T) {
	listener := decode(t, `{"connection_balance_config": {"extend_balance": {"name": "envoy.network.connection_balance.dlb",
  "typed_config": {"@type": "type.googleapis.com/envoy.extensions.network.connection_balance.dlb.v3alpha.Dlb"}}}}`, &listenerv3.Listener{})
	extension := listener.GetConnectionBalanceConfig().GetExtendBalance()
	if got := extension.GetTypedConfig().GetTypeUrl(); !strings.HasSuffix(got, ".dlb.v3alpha.Dlb") {
		t.Errorf("typed_config is %q", got)
	}
}

func TestCheck(t *testing.T) {
	chain := func(filters string) *listenerv3.FilterChain {
		return decode(t, `{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"stat_prefix": "x", "route_config": {}, "http_filters": [`+filters+`]}}]}`, &listenerv3.FilterChain{})
	}
	const router = `{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}`
	const cors = `{"name": "cors", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors"}}`
	for filters, want := range map[string]string{
		cors + "," + router: "",
		router + "," + cors: "filters[0].typed_config: router must be the last HTTP filter, and cors stands behind it",
		cors:                "the last must be the router",
		"":                  "there is no HTTP filter",
		`{"name": "", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}`: "value length must be at least 1",
	} {
		err := Check(chain(filters))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", filters, err, want)
		}
	}
	if err := Check(&clusterv3.Cluster{Name: "x", ConnectTimeout: durationpb.New(-1)}); err == nil {
		t.Error("a negative timeout is good")
	}
}

func TestMerge(t *testing.T) {
	for _, c := range []struct {
		into, from, want string
		replace          bool
	}{
		{into: `{"name": "a", "connect_timeout": "1.5s"}`, from: `{"connect_timeout": "2s"}`, want: `{"name": "a", "connect_timeout": "2s"}`},
		{
			into: `{"name": "a", "health_checks": [{"alt_port": 1}]}`, from: `{"health_checks": [{"alt_port": 2}]}`,
			want: `{"name": "a", "health_checks": [{"alt_port": 1}, {"alt_port": 2}]}`,
		},
		{
			into: `{"name": "a", "health_checks": [{"alt_port": 1}]}`, from: `{"health_checks": [{"alt_port": 2}]}`, replace: true,
			want: `{"name": "a", "health_checks": [{"alt_port": 2}]}`,
		},
		{
			into: `{"circuit_breakers": {"thresholds": [{"max_retries": 1}]}, "outlier_detection": {"interval": "1s"}}`,
			from: `{"outlier_detection": {"consecutive_5xx": 3}}`,
			want: `{"circuit_breakers": {"thresholds": [{"max_retries": 1}]}, "outlier_detection": {"interval": "1s", "consecutive_5xx": 3}}`,
		},
		{
			into: `{"transport_socket": {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "a"}}}`,
			from: `{"transport_socket": {"typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "allow_renegotiation": true}}}`,
			want: `{"transport_socket": {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "a", "allow_renegotiation": true}}}`,
		},
		{
			into: `{"transport_socket": {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "a"}}}`,
			from: `{"transport_socket": {"name": "raw", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"}}}`,
			want: `{"transport_socket": {"name": "raw", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"}}}`,
		},
	} {
		into, from, want := decode(t, c.into, &clusterv3.Cluster{}), decode(t, c.from, &clusterv3.Cluster{}), decode(t, c.want, &clusterv3.Cluster{})
		before := proto.Clone(from)
		if err := Merge(into, from, c.replace); err != nil || !proto.Equal(into, want) {
			t.Errorf("%s into %s: %v, %v", c.from, c.into, into, err)
		}
		if into.HealthChecks = nil; !proto.Equal(before, from) {
			t.Errorf("%s: the patch is another", c.from)
		}
	}
	if err := Merge(&clusterv3.Cluster{}, &listenerv3.Listener{}, false); err == nil {
		t.Error("a listener was merged into a cluster")
	}
}
