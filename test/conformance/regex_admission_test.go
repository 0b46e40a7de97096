//go:build conformance

package conformance

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"                     // in listeners
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3" // in listeners
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/test/hostile/subject"
)

// discovery tells a proxy of listeners once, and of no clusters.
type discovery struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	listeners []*discoveryv3.Resource
}

func typeOf(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// DeltaAggregatedResources implements the service.
func (d *discovery) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if request.GetResponseNonce() != "" {
			continue
		}
		response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: request.GetTypeUrl(), Nonce: "1"}
		switch request.GetTypeUrl() {
		case typeOf(&listenerv3.Listener{}):
			response.Resources = d.listeners
		case typeOf(&clusterv3.Cluster{}):
		default:
			continue
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// takenBy says which patterns a proxy takes: each comes in a listener of its own, because of an update of listeners both proxies
// refuse only those that are wrong. All come at once. They need no port.
func takenBy(t *testing.T, m matching, patterns []string) []bool {
	t.Helper()
	address := subject.Address()
	d := &discovery{}
	for i, pattern := range patterns {
		l := listener(address, "p"+strconv.Itoa(i), 1+i, []any{host("*", route(pattern))})
		l["bind_to_port"] = false
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		message := &listenerv3.Listener{}
		if err := protojson.Unmarshal(text, message); err != nil {
			t.Fatalf("%q: %v", pattern, err)
		}
		body, err := anypb.New(message)
		if err != nil {
			t.Fatal(err)
		}
		d.listeners = append(d.listeners, &discoveryv3.Resource{Name: message.GetName(), Version: "1", Resource: body})
	}
	port, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(upstreamPort)))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, d)
	go func() { _ = server.Serve(port) }()
	defer server.Stop()

	// A proxy is ready when it has answered the first listeners.
	proxy, err := startRegex(t, m, address, map[string]any{
		"node": map[string]any{"id": "random", "cluster": "patterns"},
		"dynamic_resources": map[string]any{
			"lds_config": map[string]any{"ads": map[string]any{}, "resource_api_version": "V3"},
			"cds_config": map[string]any{"ads": map[string]any{}, "resource_api_version": "V3"},
			"ads_config": map[string]any{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3",
				"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": "xds"}}},
			},
		},
		"static_resources": map[string]any{"clusters": []any{map[string]any{
			"name": "xds", "type": "STATIC", "connect_timeout": "1s",
			"typed_extension_protocol_options": map[string]any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": map[string]any{"http2_protocol_options": map[string]any{}},
			}},
			"load_assignment": map[string]any{"cluster_name": "xds", "endpoints": []any{map[string]any{
				"lb_endpoints": []any{map[string]any{"endpoint": map[string]any{"address": at(address, upstreamPort)}}},
			}}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Stop()
	text, err := proxy.Admin("/config_dump", answerBound)
	if err != nil {
		t.Fatal(err)
	}
	var dump struct {
		Configs []struct {
			Listeners []struct {
				Name    string          `json:"name"`
				Active  json.RawMessage `json:"active_state"`
				Warming json.RawMessage `json:"warming_state"`
			} `json:"dynamic_listeners"`
		} `json:"configs"`
	}
	if err := json.Unmarshal([]byte(text), &dump); err != nil {
		t.Fatal(err)
	}
	taken := make([]bool, len(patterns))
	for _, config := range dump.Configs {
		for _, l := range config.Listeners {
			// Envoy shows those that it has refused as well, without a name.
			if l.Active == nil && l.Warming == nil {
				continue
			}
			i, err := strconv.Atoi(strings.TrimPrefix(l.Name, "p"))
			if err != nil {
				t.Fatal(err)
			}
			taken[i] = true
		}
	}
	return taken
}

// refusalOf a pattern in an object, by the controller; empty for none.
func refusalOf(t *testing.T, pattern string) string {
	t.Helper()
	text, err := json.Marshal(pattern)
	if err != nil {
		t.Fatal(err)
	}
	_, errs := objects.Decode(strings.NewReader(fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
 "metadata": {"name": "random"}, "spec": {"hosts": ["h.example"], "http": [{"match": [{"headers": {"x": {"regex": %s}}}],
 "route": [{"destination": {"host": "h.example"}}]}]}}`, text)), "random.yaml", "default")
	if len(errs) == 0 {
		return ""
	}
	return errs[0].Error()
}
