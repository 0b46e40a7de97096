package translate

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func remote(cluster string, ready uint32, gateways int) model.Remote {
	r := model.Remote{Cluster: cluster, Reachable: true, Ports: []uint16{80}, Groups: []model.RemoteGroup{{Ready: ready}}}
	for i := range gateways {
		r.Gateways = append(r.Gateways, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(i)}), PortEastWest))
	}
	return r
}

func meshOf(services ...*model.Service) *model.Mesh {
	settings := model.DefaultSettings("cluster1")
	settings.Clusters = []string{"cluster1", "cluster2"}
	return &model.Mesh{Settings: settings, Services: services}
}

func web(change ...func(*model.Service)) *model.Service {
	s := &model.Service{
		Namespace: "shop", Name: "web", Host: "web.shop.svc.cluster.local", Address: netip.MustParseAddr("10.96.1.1"), Global: "boutique",
		Ports: []model.ServicePort{{Number: 80, Protocol: model.HTTP, Target: 8080}}, Selector: map[string]string{"app": "web"},
		Replicas: []*model.Replica{{Namespace: "shop", Name: "web-0", Address: netip.MustParseAddr("10.244.0.10"), Ready: true, HasProxy: true}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func TestShareOfGateways(t *testing.T) {
	for _, c := range []struct {
		gateways []int
		shares   uint32
	}{{nil, 1}, {[]int{1}, 1}, {[]int{2}, 2}, {[]int{2, 3}, 6}, {[]int{4, 6}, 12}, {[]int{7, 11, 13}, maxShares}, {[]int{1000}, maxShares}} {
		var remotes []model.Remote
		for _, n := range c.gateways {
			remotes = append(remotes, remote("c", 1, n))
		}
		if got := gatewayShares(remotes); got != c.shares {
			t.Errorf("%v: got %d, want %d", c.gateways, got, c.shares)
		}
	}
}

// TestWeights: without preference for the own cluster, each endpoint gets the same share wherever it is, and whatever
// number another cluster tells, the weights fit into 32 bits.
func TestWeights(t *testing.T) {
	s := web(func(s *model.Service) {
		s.Spread = true
		s.Remote = []model.Remote{remote("cluster2", 4, 2), remote("cluster3", 1<<32-1, 3)}
	})
	g := &generator{mesh: meshOf(s), node: node(), out: &Resources{}}
	e := g.endpoints("c", s, s.Ports[0], nil, model.PortPolicy{})
	var total uint64
	for _, group := range e.Endpoints {
		if group.Priority != 0 {
			t.Errorf("%v has another priority", group.Locality)
		}
		total += uint64(group.LoadBalancingWeight.Value)
	}
	if local, there := e.Endpoints[0].LoadBalancingWeight.Value, e.Endpoints[1].LoadBalancingWeight.Value; local*4 != there {
		t.Errorf("one endpoint here weighs %d, four there %d", local, there)
	}
	if total >= 1<<32 {
		t.Errorf("the weights are %d together", total)
	}
}

func TestOtherClustersGetMutualTLSOnly(t *testing.T) {
	s := web(func(s *model.Service) { s.Remote = []model.Remote{remote("cluster2", 1, 1)} })
	g := &generator{mesh: meshOf(s), node: node(), out: &Resources{}}
	for mode, groups := range map[model.TLSMode]int{model.TLSMesh: 2, model.TLSDisable: 1, model.TLSSimple: 1, model.TLSMutual: 1} {
		if e := g.endpoints("c", s, s.Ports[0], nil, model.PortPolicy{TLS: &model.ClientTLS{Mode: mode}}); len(e.Endpoints) != groups {
			t.Errorf("%s: %d groups of endpoints, want %d", mode, len(e.Endpoints), groups)
		}
	}
	// The gateways go by the server name, so none of a policy's may take its place.
	socket := &tlsv3.UpstreamTlsContext{}
	if err := g.outboundTLS(s, "outbound_.80_._.web", false, &model.ClientTLS{Mode: model.TLSMesh, ServerName: "mine"}).GetTypedConfig().UnmarshalTo(socket); err != nil || socket.Sni != "outbound_.80_._.web" {
		t.Errorf("the server name is %q: %v", socket.Sni, err)
	}
}

func TestNothingButExportedServicesPassesTheGateway(t *testing.T) {
	hidden := func(name string, change func(*model.Service)) *model.Service {
		return web(func(s *model.Service) {
			s.Name, s.Host = name, name+".shop.svc.cluster.local"
			change(s)
		})
	}
	mesh := meshOf(
		hidden("a-external", func(s *model.Service) { s.External = &model.External{} }),
		hidden("b-imported", func(s *model.Service) { s.Imported, s.Remote = true, []model.Remote{remote("cluster2", 1, 1)} }),
		hidden("c-unmapped", func(s *model.Service) { s.Global = "" }),
		hidden("d-private", func(s *model.Service) { s.ExportTo.Limited = true }),
		web(func(s *model.Service) {
			s.Remote = []model.Remote{remote("cluster2", 1, 1)}
			s.Ports = append(s.Ports, model.ServicePort{Number: 81, Protocol: model.TCP})
		}),
	)
	mesh.Settings.Federation = netip.MustParseAddrPort("10.244.0.1:15012")
	r, err := Proxy(mesh, Node{Type: Router, Address: netip.MustParseAddr("10.244.0.2"), Name: "g", Namespace: "istio-system", Labels: eastWestLabels})
	if err != nil {
		t.Fatal(err)
	}
	var clusters []string
	for _, c := range r.Clusters {
		clusters = append(clusters, c.Name)
	}
	if want := []string{"BlackHoleCluster", "federation", "outbound_.80_._.web.shop.svc.cluster.local"}; !slices.Equal(clusters, want) {
		t.Errorf("clusters are %q, want %q", clusters, want)
	}
	// Endpoints of this cluster only: two gateways must not send each other what neither has.
	if text := fmt.Sprint(r.Endpoints); strings.Contains(text, "198.18.") || len(r.Endpoints[0].Endpoints) != 1 {
		t.Errorf("endpoints are %s", text)
	}
	if len(r.Listeners) != 1 || r.Listeners[0].DefaultFilterChain != nil {
		t.Fatalf("listeners are %v", r.Listeners)
	}
	for _, chain := range r.Listeners[0].FilterChains {
		if m := chain.FilterChainMatch; len(m.GetServerNames()) != 1 || m.GetTransportProtocol() != "tls" {
			t.Errorf("chain %s takes %v", chain.Name, m)
		}
	}
}

func TestCallersAreToldByTheirCluster(t *testing.T) {
	g := &generator{mesh: meshOf(), node: node(), out: &Resources{}}
	if m := g.byCluster("cluster2").GetAuthenticated().GetPrincipalName(); m.GetExact() != "cluster2.clusters.cluster.local" {
		t.Errorf("got %v", m)
	}
	for pattern, names := range map[string]map[string]bool{
		"*":     {"a.clusters.cluster.local": true, "a.clusters.cluster.localx": false, "spiffe://cluster.local/ns/x/sa/a.clusters.cluster.local": false},
		"edge*": {"edge-7.clusters.cluster.local": true, "ledge.clusters.cluster.local": false, "edge.x.clusters.cluster.local": false},
		"*west": {"us-west.clusters.cluster.local": true, "us-west2.clusters.cluster.local": false, "us-westxclusters.cluster.local": false},
	} {
		m := g.byCluster(pattern).GetAuthenticated().GetPrincipalName()
		// Envoy demands that the whole value matches.
		expression := regexp.MustCompile("^(?:" + m.GetSafeRegex().GetRegex() + ")$")
		for name, want := range names {
			if got := expression.MatchString(name); got != want {
				t.Errorf("%s on %s: %v", pattern, name, got)
			}
		}
	}
}

func TestCertificatesOfKnownClustersAreAccepted(t *testing.T) {
	for _, c := range []struct {
		known []string
		want  []string
	}{{nil, []string{"cluster1"}}, {[]string{"cluster1", "cluster2"}, []string{"cluster1", "cluster2"}}, {[]string{"cluster2"}, []string{"cluster1", "cluster2"}}} {
		mesh := meshOf()
		mesh.Settings.Clusters = c.known
		g := &generator{mesh: mesh, node: node(), out: &Resources{sources: map[objects.Key]bool{}}}
		socket := &tlsv3.DownstreamTlsContext{}
		if err := g.inboundTLS(nil).GetTypedConfig().UnmarshalTo(socket); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range socket.CommonTlsContext.GetCombinedValidationContext().DefaultValidationContext.MatchTypedSubjectAltNames {
			if m.SanType != tlsv3.SubjectAltNameMatcher_DNS {
				t.Errorf("%v is no DNS name", m)
			}
			got = append(got, strings.TrimSuffix(m.Matcher.GetExact(), ".clusters.cluster.local"))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("with %v, certificates of %v are accepted", c.known, got)
		}
	}
}

func TestAddressesFollowTheFamily(t *testing.T) {
	n := node()
	n.Address = netip.MustParseAddr("fd00:10:244::a")
	text, err := Bootstrap(BootstrapParams{Node: n, Socket: "/run/a.sock"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `address: '::'`) || !strings.Contains(string(text), "address: 127.0.0.1\n      port_value: 15000") || strings.Contains(string(text), "0.0.0.0") {
		t.Errorf("the bootstrap is\n%s", text)
	}
	r, err := Proxy(meshOf(web()), n)
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprint(r.Listeners, r.Clusters)
	if strings.Contains(all, `"0.0.0.0`) || strings.Contains(all, `"127.0.0`) || !strings.Contains(all, `"::6"`) || !strings.Contains(all, `"::1"`) {
		t.Errorf("addresses of the other family are in %s", all)
	}
}

// TestAClusterOutOfReachChangesEndpointsOnly: a link that comes and goes must not have clusters warm, nor connections to
// this cluster's own replicas drain.
func TestAClusterOutOfReachChangesEndpointsOnly(t *testing.T) {
	var all []*Resources
	for _, reachable := range []bool{true, false} {
		r, err := Proxy(meshOf(web(func(s *model.Service) {
			s.Remote = []model.Remote{remote("cluster2", 1, 1)}
			s.Remote[0].Reachable = reachable
			s.Remote[0].Identities = []string{"spiffe://cluster.local/ns/shop/sa/there"}
		})), node())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	up, down := all[0].ByType(), all[1].ByType()
	for kind := range up {
		if same := fmt.Sprint(up[kind]) == fmt.Sprint(down[kind]); same != (kind != resource.EndpointType) {
			t.Errorf("%s: is the same: %v", kind, same)
		}
	}
}
