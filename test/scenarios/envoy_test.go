package scenarios

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"heddle.io/heddle/control/translate"
)

// TestEnvoyAccepts has a stock Envoy validate what it would be sent in every scenario, its bootstrap included.
func TestEnvoyAccepts(t *testing.T) {
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if envoy == "" {
		t.Skip("HEDDLE_TEST_ENVOY names no Envoy to ask; `make test-go` sets it")
	}
	for _, name := range names(t) {
		s := load(t, name)
		for _, node := range s.nodes {
			node.Heddle = false
			t.Run(name+"/"+node.Name, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "bootstrap.json")
				text, err := protojson.Marshal(static(t, s, node))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				out, err := exec.CommandContext(ctx, envoy, "--mode", "validate", "-c", file, "--log-level", "warning").CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// static puts what would come over the stream into the bootstrap, since Envoy validates only what is there.
func static(t *testing.T, s *scenario, node translate.Node) *bootstrapv3.Bootstrap {
	t.Helper()
	text, err := translate.Bootstrap(translate.BootstrapParams{Node: node, Socket: "/run/agent.sock"})
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		t.Fatal(err)
	}
	r, err := translate.Proxy(s.mesh, node)
	if err != nil {
		t.Fatal(err)
	}
	b.DynamicResources = nil
	b.StaticResources.Secrets = r.Secrets
	for _, c := range r.Clusters {
		if c.GetType() == clusterv3.Cluster_EDS {
			c.ClusterDiscoveryType, c.EdsClusterConfig = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, nil
			for _, e := range r.Endpoints {
				if e.ClusterName == c.Name {
					c.LoadAssignment = e
				}
			}
		}
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	}
	for _, l := range r.Listeners {
		for _, chain := range append(l.FilterChains, l.DefaultFilterChain) {
			inline(t, chain, r)
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	return b
}

// inline replaces references to routes and to the gateway's secrets.
func inline(t *testing.T, chain *listenerv3.FilterChain, r *translate.Resources) {
	t.Helper()
	if chain == nil {
		return
	}
	for _, f := range chain.Filters {
		manager := &hcmv3.HttpConnectionManager{}
		if f.GetTypedConfig().UnmarshalTo(manager) != nil || manager.GetRds() == nil {
			continue
		}
		name := manager.GetRds().RouteConfigName
		manager.RouteSpecifier = nil
		for _, table := range r.Routes {
			if table.Name == name {
				manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: table}
			}
		}
		if manager.RouteSpecifier == nil {
			t.Errorf("chain %q wants the routes %q, which are not sent", chain.Name, name)
		}
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, manager)}
	}
	socket := &tlsv3.DownstreamTlsContext{}
	if chain.TransportSocket == nil || chain.TransportSocket.GetTypedConfig().UnmarshalTo(socket) != nil {
		return
	}
	// A secret without a source is taken from the static ones.
	common := socket.CommonTlsContext
	for _, c := range common.TlsCertificateSdsSecretConfigs {
		if c.SdsConfig.GetAds() != nil {
			c.SdsConfig = nil
		}
	}
	if v := common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig(); v.GetSdsConfig().GetAds() != nil {
		v.SdsConfig = nil
	}
	chain.TransportSocket.GetTypedConfig().Reset()
	packed := pack(t, socket)
	chain.TransportSocket.GetTypedConfig().TypeUrl, chain.TransportSocket.GetTypedConfig().Value = packed.TypeUrl, packed.Value
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}
