package translate

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"heddle.io/heddle/control/model"
)

func node() Node {
	return Node{
		Type: Sidecar, Address: netip.MustParseAddr("10.244.0.10"), Name: "web-0", Namespace: "shop", Domain: "cluster.local",
		Workload: "web", Account: "web", Labels: map[string]string{"app": "web"}, Cluster: "cluster1",
		TrustDomain: "cluster.local", Locality: model.Locality{Region: "r", Zone: "z"}, Heddle: true,
	}
}

func TestNodeSurvivesTheWire(t *testing.T) {
	n := node()
	got, err := ParseNode(n.Proto())
	if err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("got %+v, want %+v: %v", got, n, err)
	}
}

func TestParseNodeErrors(t *testing.T) {
	for id, want := range map[string]string{
		"":                                  "not of the form",
		"sidecar~a~b.c~c.svc.cluster.local": "unable to parse IP",
		"ztunnel~10.0.0.1~b.c~c.svc.x":      "neither sidecar nor router",
		"sidecar~10.0.0.1~b~c.svc.x":        "not of the form name.namespace",
		"sidecar~10.0.0.1~b.~c.svc.x":       "not of the form name.namespace",
		"sidecar~10.0.0.1~b.c~d.svc.x":      "not of the form c.svc",
		"sidecar~10.0.0.1~b.c~c.svc.":       "not of the form c.svc",
		"sidecar~10.0.0.1~b.c~c.svc.x~more": "not of the form type",
	} {
		if _, err := ParseNode(&corev3.Node{Id: id}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", id, err, want)
		}
	}
	if _, err := ParseNode(nil); err == nil {
		t.Error("no node was accepted")
	}
}

func TestBootstrapSaysWhoAndWhere(t *testing.T) {
	text, err := Bootstrap(BootstrapParams{Node: node(), Socket: "/run/a.sock", AdminAddress: netip.MustParseAddrPort("127.0.0.1:15999")})
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(asJSON, &b); err != nil {
		t.Fatal(err)
	}
	if b.Node.Id != "sidecar~10.244.0.10~web-0.shop~shop.svc.cluster.local" || b.Admin.Address.GetSocketAddress().GetPortValue() != 15999 {
		t.Errorf("got %v %v", b.Node, b.Admin)
	}
	pipes := 0
	for _, c := range b.StaticResources.Clusters {
		if c.LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetPipe().GetPath() == "/run/a.sock" {
			pipes++
		}
	}
	if pipes != 2 {
		t.Errorf("%d clusters lead to the agent, want 2", pipes)
	}
	if b.DefaultRegexEngine != nil {
		t.Errorf("got the engine %v", b.DefaultRegexEngine)
	}
	for _, heddle := range []bool{true, false} {
		n := node()
		n.Heddle = heddle
		text, err := Bootstrap(BootstrapParams{Node: n, Socket: "/run/a.sock", Hyperscan: true})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "extensions.regex_engines.hyperscan.v3alpha.Hyperscan") != heddle {
			t.Errorf("heddle-proxy %t: %s", heddle, text)
		}
	}
	if _, err := Bootstrap(BootstrapParams{Node: node()}); err == nil {
		t.Error("a bootstrap without the agent's socket was written")
	}
}

func TestMeshSwitches(t *testing.T) {
	settings := model.DefaultSettings("c")
	settings.RetryAttempts, settings.BlockUnknown, settings.AccessLog = 0, true, false
	web := &model.Service{
		Namespace: "shop", Name: "web", Host: "web.shop.svc.cluster.local", Address: netip.MustParseAddr("10.96.1.1"),
		Ports: []model.ServicePort{{Number: 80, Protocol: model.HTTP, Target: 8080}}, Selector: map[string]string{"app": "web"},
	}
	r, err := Proxy(&model.Mesh{Settings: settings, Services: []*model.Service{web}}, node())
	if err != nil {
		t.Fatal(err)
	}
	table := r.Routes[0]
	if table.VirtualHosts[0].Routes[0].GetRoute().RetryPolicy != nil {
		t.Error("there are retries")
	}
	if last := table.VirtualHosts[1]; last.Name != "block_all" || last.Routes[0].GetDirectResponse().GetStatus() != 502 {
		t.Errorf("unknown hosts go to %v", last)
	}
	for _, l := range r.Listeners {
		if strings.Contains(l.String(), "access_loggers") {
			t.Errorf("%s logs", l.Name)
		}
		if l.Name == listenerOutbound && !strings.Contains(l.DefaultFilterChain.String(), "BlackHoleCluster") {
			t.Error("unknown destinations are passed through")
		}
	}
	if _, err := Proxy(&model.Mesh{}, Node{Type: "waypoint"}); err == nil {
		t.Error("an unknown type of node was served")
	}
}
