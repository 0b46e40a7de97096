package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"heddle.io/heddle/control/cluster"
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

// joined is the membership of cluster2.
const joined = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func meshOf(services ...*model.Service) *model.Mesh {
	settings := model.DefaultSettings("cluster1")
	settings.Clusters = []string{"cluster1", "cluster2"}
	settings.Issuers = []cluster.Issuer{{Cluster: "cluster1"}, {Cluster: "cluster2", Membership: joined}}
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
	g := &generator{mesh: meshOf(s), node: node(), out: &Resources{sources: map[objects.Key]bool{}}}
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
	g := &generator{mesh: meshOf(s), node: node(), out: &Resources{sources: map[objects.Key]bool{}}}
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

// provenNames are the names that a principal of a cluster compares, and nil when it is of another form than one of
// verified DNS names, exactly.
func provenNames(t *testing.T, p *rbacv3.Principal) []string {
	t.Helper()
	if set := p.GetOrIds(); set != nil {
		var out []string
		for _, id := range set.Ids {
			out = append(out, provenNames(t, id)...)
		}
		return out
	}
	config := &mtlsv3.Config{}
	if err := p.GetCustom().GetTypedConfig().UnmarshalTo(config); err != nil {
		t.Fatalf("%v: %v", p, err)
	}
	if m := config.GetSanMatcher(); m.GetSanType() != tlsv3.SubjectAltNameMatcher_DNS || m.GetMatcher().GetExact() == "" || config.AnyValidatedClientCertificate {
		t.Errorf("%v does not compare a DNS name exactly", config)
	}
	return []string{config.SanMatcher.Matcher.GetExact()}
}

// issuersOf are authorities of clusters without memberships.
func issuersOf(clusters ...string) []cluster.Issuer {
	var out []cluster.Issuer
	for _, c := range clusters {
		out = append(out, cluster.Issuer{Cluster: c})
	}
	return out
}

func TestCallersAreToldByTheirCluster(t *testing.T) {
	mesh := meshOf()
	all := issuersOf("cluster1", "cluster2", "us-east", "us-west", "us-west2")
	all = append(all, cluster.Issuer{Cluster: "us-west2", Membership: joined})
	mesh.Settings.Issuers = all
	g := &generator{mesh: mesh, node: node(), out: &Resources{sources: map[objects.Key]bool{}}}
	for value, want := range map[string][]cluster.Issuer{"cluster2": all[1:2], "*": all, "us-*": all[2:], "*west": all[3:4], "us-west*": all[3:], "us-west2": all[4:]} {
		var names []string
		for _, i := range want {
			names = append(names, i.Name("cluster.local"))
		}
		if got := provenNames(t, g.byCluster(value)); !slices.Equal(got, names) {
			t.Errorf("%s: got %v, want %v", value, got, names)
		}
	}
	// What is no cluster of the mesh is nobody, also where a pattern's two ends would overlap.
	for _, value := range []string{"cluster3", "eu-*", "cluster", "CLUSTER2", "cluster2.clusters.cluster.local", joined[:32]} {
		if p := g.byCluster(value); !p.GetNotId().GetAny() {
			t.Errorf("%s is %v", value, p)
		}
	}
}

// matched are the names that a TLS context accepts. All are DNS names, which alone tell who issued a certificate.
func matched(t *testing.T, common *tlsv3.CommonTlsContext) []string {
	t.Helper()
	var out []string
	for _, m := range common.GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames() {
		if m.SanType != tlsv3.SubjectAltNameMatcher_DNS || m.Matcher.IgnoreCase {
			t.Errorf("%v is no DNS name", m)
		}
		out = append(out, m.Matcher.GetExact()+m.Matcher.GetSuffix())
	}
	if len(out) == 0 {
		t.Error("any certificate is accepted")
	}
	return out
}

func TestCertificatesOfKnownClustersAreAccepted(t *testing.T) {
	for _, issuers := range [][]cluster.Issuer{
		issuersOf("cluster1"), issuersOf("cluster1", "cluster2"), {{Cluster: "cluster1"}, {Cluster: "cluster1", Membership: joined}, {Cluster: "cluster2", Membership: joined}},
	} {
		mesh := meshOf()
		mesh.Settings.Issuers = issuers
		g := &generator{mesh: mesh, node: node(), out: &Resources{sources: map[objects.Key]bool{}}}
		socket := &tlsv3.DownstreamTlsContext{}
		if err := g.inboundTLS(nil).GetTypedConfig().UnmarshalTo(socket); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, i := range issuers {
			want = append(want, i.Name("cluster.local"))
		}
		if got := matched(t, socket.CommonTlsContext); !slices.Equal(got, want) {
			t.Errorf("of %v, certificates of %v are accepted", issuers, got)
		}
	}
}

// TestServersAreOfAClusterThatHasTheService: an identity counts only with the authority of a cluster that says so.
func TestServersAreOfAClusterThatHasTheService(t *testing.T) {
	here, there := []string{"spiffe://cluster.local/ns/shop/sa/here"}, []string{"spiffe://cluster.local/ns/shop/sa/there"}
	far := func(r model.Remote) model.Remote {
		r.Identities = there
		return r
	}
	member := joined[:32] + ".cluster2.clusters.cluster.local"
	local := func(s *model.Service) { s.Identities = here }
	remotely := func(s *model.Service) { s.Remote = []model.Remote{far(remote("cluster2", 1, 1))} }
	for _, c := range []struct {
		name     string
		changes  []func(*model.Service)
		subjects []string
		want     []string
	}{
		{"here only", []func(*model.Service){local}, nil, []string{"here.shop.cluster1.clusters.cluster.local"}},
		{"in both", []func(*model.Service){local, remotely}, nil, []string{"here.shop.cluster1.clusters.cluster.local", "there.shop." + member}},
		{"there only", []func(*model.Service){remotely, func(s *model.Service) { s.Imported = true }}, nil, []string{"there.shop." + member}},
		{"there, out of reach", []func(*model.Service){remotely, func(s *model.Service) { s.Imported, s.Remote[0].Reachable = true, false }}, nil, []string{"there.shop." + member}},
		{"without workloads", nil, nil, []string{".shop.cluster1.clusters.cluster.local"}},
		{"in a cluster that is gone", []func(*model.Service){func(s *model.Service) {
			s.Imported, s.Remote = true, []model.Remote{far(remote("cluster3", 1, 1))}
		}}, nil, []string{nobody}},
		{"nowhere any more", []func(*model.Service){func(s *model.Service) { s.Imported = true }}, nil, []string{nobody}},
		{"a policy's identity", []func(*model.Service){local, remotely}, []string{"spiffe://cluster.local/ns/a/sa/b"}, []string{"b.a.cluster1.clusters.cluster.local", "b.a." + member}},
		{"a policy's other name", []func(*model.Service){local, remotely}, []string{"web.example.com"}, []string{nobody}},
	} {
		g := &generator{mesh: meshOf(), node: node(), out: &Resources{sources: map[objects.Key]bool{}}}
		socket := &tlsv3.UpstreamTlsContext{}
		if err := g.outboundTLS(web(c.changes...), "sni", false, &model.ClientTLS{Mode: model.TLSMesh, SubjectNames: c.subjects}).GetTypedConfig().UnmarshalTo(socket); err != nil {
			t.Fatal(err)
		}
		if got := matched(t, socket.CommonTlsContext); !slices.Equal(got, c.want) {
			t.Errorf("%s: accepted are %q, want %q", c.name, got, c.want)
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
	up, down := all[0], all[1]
	for kind, pair := range map[string][2]any{
		"listeners": {up.Listeners, down.Listeners}, "clusters": {up.Clusters, down.Clusters}, "routes": {up.Routes, down.Routes},
		"endpoints": {up.Endpoints, down.Endpoints}, "secrets": {up.Secrets, down.Secrets},
	} {
		if same := fmt.Sprint(pair[0]) == fmt.Sprint(pair[1]); same != (kind != "endpoints") {
			t.Errorf("%s: is the same: %v", kind, same)
		}
	}
}
