package model

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"heddle.io/heddle/control/objects"
)

func simple(authorities string) ClientTLS {
	return ClientTLS{Mode: TLSSimple, ServerName: "web.example.com", Authorities: []byte(authorities)}
}

// An authority that a BackendTLSPolicy does not name any more is trusted by nobody, whatever change is staged.
func TestClientsOfAFormerMeshTrustNoWithdrawnAuthority(t *testing.T) {
	const web = "web.shop.svc.cluster.local"
	policy := func(name string, tls ClientTLS, ports ...uint16) *BackendTLS {
		out := &BackendTLS{Namespace: "shop", Name: name, TLS: tls}
		for _, p := range ports {
			out.Targets = append(out.Targets, BackendTarget{Host: web, Port: p})
		}
		return out
	}
	untrusted := simple("")
	untrusted.Untrusted = true
	for name, c := range map[string]struct {
		former, now []*BackendTLS
		// want are the authorities for port 80 and for another, "none" for no TLS.
		want, other string
	}{
		"the same":                      {[]*BackendTLS{policy("p", simple("old"), 0)}, []*BackendTLS{policy("p", simple("old"), 0)}, "old", "old"},
		"another authority":             {[]*BackendTLS{policy("p", simple("old"), 0)}, []*BackendTLS{policy("p", simple("new"), 0)}, "new", "new"},
		"no authority":                  {[]*BackendTLS{policy("p", simple("old"), 0)}, []*BackendTLS{policy("p", untrusted, 0)}, "untrusted", "untrusted"},
		"another policy":                {[]*BackendTLS{policy("p", simple("old"), 0)}, []*BackendTLS{policy("q", simple("new"), 0)}, "new", "new"},
		"an older policy":               {[]*BackendTLS{policy("p", simple("old"), 0)}, []*BackendTLS{policy("q", simple("new"), 0), policy("p", simple("old"), 0)}, "new", "new"},
		"for a port now":                {[]*BackendTLS{policy("p", simple("old"), 0)}, []*BackendTLS{policy("q", simple("new"), 80), policy("p", simple("old"), 0)}, "new", "old"},
		"was for a port":                {[]*BackendTLS{policy("p", simple("old"), 80)}, []*BackendTLS{policy("p", simple("new"), 0)}, "new", "none"},
		"was for a port and for all":    {[]*BackendTLS{policy("p", simple("old"), 80), policy("q", simple("all"), 0)}, []*BackendTLS{policy("p", simple("new"), 80), policy("q", simple("all"), 0)}, "new", "all"},
		"one that is new":               {nil, []*BackendTLS{policy("p", simple("new"), 0)}, "none", "none"},
		"one that is gone says no more": {[]*BackendTLS{policy("p", simple("old"), 0)}, nil, "old", "old"},
	} {
		now, former := &Mesh{BackendTLS: c.now}, &Mesh{BackendTLS: c.former}
		by := now.AsClientsOf(former).BackendTLSByTarget()
		for port, want := range map[uint16]string{80: c.want, 81: c.other} {
			got, b := "none", by[BackendTarget{Host: web, Port: port}]
			if b == nil {
				b = by[BackendTarget{Host: web}]
			}
			if b != nil {
				if got = string(b.TLS.Authorities); b.TLS.Untrusted {
					got = "untrusted"
				}
			}
			if got != want {
				t.Errorf("%s: on port %d clients trust %s, want %s", name, port, got, want)
			}
		}
	}
}

// So it is with what DestinationRules say, wherever they say it.
func TestClientsOfAFormerMeshTrustByTheDestinationPoliciesOfNow(t *testing.T) {
	tls := func(mode TLSMode, file string) *ClientTLS { return &ClientTLS{Mode: mode, AuthorityFile: file} }
	of := func(t *ClientTLS) TrafficPolicy {
		return TrafficPolicy{PortPolicy: PortPolicy{Balance: Random, TLS: t}}
	}
	on := func(p TrafficPolicy, port uint16, t *ClientTLS) TrafficPolicy {
		p.Ports = map[uint16]PortPolicy{port: {TLS: t}}
		return p
	}
	rule := func(p TrafficPolicy, subsets ...Subset) *DestinationPolicy {
		return &DestinationPolicy{Namespace: "shop", Name: "d", Host: "web", Policy: p, Subsets: subsets}
	}
	v1 := func(p TrafficPolicy) Subset { return Subset{Name: "v1", Policy: p} }
	old, skip := tls(TLSSimple, "old"), &ClientTLS{Mode: TLSSimple, SkipVerify: true}
	for name, c := range map[string]struct {
		former, now *DestinationPolicy
		// want are the files for any port and for port 80, then the same for subset v1.
		want [4]string
	}{
		"the same":             {rule(of(old)), rule(of(old)), [4]string{"old", "old", "old", "old"}},
		"another authority":    {rule(of(old), v1(TrafficPolicy{})), rule(of(tls(TLSSimple, "new")), v1(TrafficPolicy{})), [4]string{"new", "new", "new", "new"}},
		"with a certificate":   {rule(of(skip)), rule(of(tls(TLSMutual, "new"))), [4]string{"new", "new", "new", "new"}},
		"the mesh's now":       {rule(of(old)), rule(of(tls(TLSMesh, ""))), [4]string{"old", "old", "old", "old"}},
		"names in the mesh":    {rule(of(tls(TLSMesh, ""))), rule(of(tls(TLSMesh, "names"))), [4]string{"names", "names", "names", "names"}},
		"none now":             {rule(of(old)), rule(of(nil)), [4]string{"old", "old", "old", "old"}},
		"new":                  {rule(of(nil)), rule(of(old)), [4]string{}},
		"a port has its own":   {rule(of(old)), rule(on(of(old), 80, tls(TLSSimple, "new"))), [4]string{"old", "new", "old", "new"}},
		"a port had its own":   {rule(on(of(old), 80, skip)), rule(of(old)), [4]string{"old", "old", "old", "old"}},
		"a subset has its own": {rule(of(old), v1(TrafficPolicy{})), rule(of(old), v1(of(tls(TLSSimple, "new")))), [4]string{"old", "old", "new", "new"}},
		"a subset had its own": {rule(of(old), v1(of(skip))), rule(of(old)), [4]string{"old", "old", "old", "old"}},
		"a port of a subset":   {rule(of(old), v1(TrafficPolicy{})), rule(of(old), v1(on(TrafficPolicy{}, 80, tls(TLSSimple, "new")))), [4]string{"old", "old", "old", "new"}},
		"for another host":     {rule(of(old)), func() *DestinationPolicy { d := rule(of(tls(TLSSimple, "new"))); d.Host = "api"; return d }(), [4]string{"old", "old", "old", "old"}},
	} {
		before := fmt.Sprintf("%+v", c.former)
		d := (&Mesh{Destinations: []*DestinationPolicy{c.now}}).AsClientsOf(&Mesh{Destinations: []*DestinationPolicy{c.former}}).Destinations[0]
		var got [4]string
		for i := range got {
			if t := d.tlsOn([]uint16{0, 80}[i%2], []string{"", "v1"}[i/2]); t != nil {
				if got[i] = t.AuthorityFile; t.SkipVerify {
					got[i] = "any"
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: clients trust %q, want %q", name, got, c.want)
		}
		if d.Policy.Balance != c.former.Policy.Balance || d.Policy.ForPort(81, nil).Balance != c.former.Policy.ForPort(81, nil).Balance {
			t.Errorf("%s: more than trust changed", name)
		}
		if fmt.Sprintf("%+v", c.former) != before {
			t.Errorf("%s: the former policy was changed", name)
		}
		if reflect.DeepEqual(d, c.former) && d != c.former {
			t.Errorf("%s: what says the same is another", name)
		}
	}
}

// What gateways show and ask for is as it is now; a certificate that only a server of before shows stays, and lets nobody in.
func TestGatewaysOfAFormerMeshAskWhatIsAskedNow(t *testing.T) {
	credential := func(name, chain, authorities string) *Credential {
		return &Credential{Namespace: "istio-system", Name: name, Chain: []byte(chain), Authorities: []byte(authorities)}
	}
	server := func(port uint16, host, name string, mutual bool) Server {
		s := Server{Port: port, PortName: "https", Protocol: ServerHTTPS, Hosts: []ServerHost{{Host: host}}}
		if name != "" {
			s.TLS = &ServerTLS{ClientCertificate: mutual, Certificates: []Certificate{{Namespace: "istio-system", Name: name}}}
		}
		return s
	}
	gateway := func(name string, servers ...Server) *Gateway { return &Gateway{Name: name, Servers: servers} }
	former := &Mesh{
		Gateways: []*Gateway{
			gateway("g", server(443, "a", "both", false), server(443, "b", "renamed", false), server(8443, "c", "lost", false), server(9443, "d", "closed", true)),
			gateway("gone", server(443, "e", "once", true)),
		},
		Credentials: []*Credential{credential("both", "1", ""), credential("closed", "1", "ca"), credential("lost", "1", ""), credential("once", "1", "ca"), credential("renamed", "1", "")},
	}
	now := &Mesh{
		Gateways:    []*Gateway{gateway("g", server(443, "a", "both", true), server(443, "b2", "new", false), server(8443, "c", "lost", false), server(9443, "d", "", false))},
		Credentials: []*Credential{credential("both", "2", "ca2"), credential("new", "2", "")},
	}
	seen := now.AsClientsOf(former)
	var got []string
	for _, g := range seen.Gateways {
		for _, s := range g.Servers {
			got = append(got, fmt.Sprintf("%s %s %v", s.Hosts[0].Host, s.TLS.Certificates[0].Name, s.TLS.ClientCertificate))
		}
	}
	if want := []string{"a both true", "b new false", "c lost false", "d closed true", "e once true"}; !slices.Equal(got, want) {
		t.Errorf("gateways show %q, want %q", got, want)
	}
	got = nil
	for _, c := range seen.Credentials {
		got = append(got, c.Name+" "+string(c.Chain)+string(c.Authorities))
	}
	if want := []string{"both 2ca2", "closed 1", "new 2", "once 1"}; !slices.Equal(got, want) {
		t.Errorf("gateways have %q, want %q", got, want)
	}
	if former.Gateways[0].Servers[0].TLS.ClientCertificate || len(now.Credentials) != 2 || len(former.Credentials[1].Authorities) == 0 {
		t.Error("a mesh was changed")
	}
	if same := now.AsClientsOf(&Mesh{}); &same.Credentials[0] != &now.Credentials[0] {
		t.Error("what is the same in both is not shared")
	}
}

// A grant that was taken back is none for routes of before.
func TestRoutesOfAFormerMeshUseNothingThatIsNotGranted(t *testing.T) {
	const data, own = "db.data.svc.cluster.local", "web.shop.svc.cluster.local"
	route := func(name, gateway string, granted bool) *Routes {
		d := Destination{Host: data, Port: 80, Missing: !granted, NotGranted: !granted}
		return &Routes{
			Namespace: "shop", Name: name, Gateways: []string{gateway}, Source: Source{Key: objects.Key{Kind: "HTTPRoute", Namespace: "shop", Name: name}},
			HTTP: []HTTPRoute{{Forward: []Destination{{Host: own, Port: 80}, d}, Mirrors: []Mirror{{To: d}}}},
			TCP:  []TCPRoute{{Forward: []Destination{d}}},
		}
	}
	former := &Mesh{Routes: []*Routes{route("r", "edge", true), route("r", GatewayMesh, true), route("s", "edge", true)}}
	now := &Mesh{Routes: []*Routes{route("r", "edge", false), route("r", GatewayMesh, true), route("s", "edge", true)}}
	seen := now.AsClientsOf(former).Routes
	if !slices.Equal(seen[1:], former.Routes[1:]) {
		t.Error("routes that may use what they did are others")
	}
	r := seen[0]
	for what, d := range map[string]Destination{"a route": r.HTTP[0].Forward[1], "a mirror": r.HTTP[0].Mirrors[0].To, "a connection": r.TCP[0].Forward[0]} {
		if !d.Missing || !d.NotGranted {
			t.Errorf("%s leads to %s, which is not granted any more", what, d.Host)
		}
	}
	if r.HTTP[0].Forward[0].Missing || former.Routes[0].HTTP[0].Forward[1].Missing {
		t.Error("more was taken than that")
	}
}

// A name that a ServiceEntry does not have any more is no server's.
func TestClientsOfAFormerMeshBelieveTheNamesOfNow(t *testing.T) {
	mesh := func(port uint16, names ...string) *Mesh {
		s := &Service{
			Namespace: "shop", Host: "db.example.com", Ports: []ServicePort{{Number: port}},
			External: &External{Entry: &Entry{Resolution: ResolveStatic, Mesh: true, SubjectNames: names}},
			Replicas: []*Replica{{Namespace: "shop", Name: "e", Account: "db"}},
		}
		m := &Mesh{Settings: DefaultSettings("c"), Services: []*Service{s}}
		s.Identities = s.answering(m.Settings)
		return m
	}
	former, now := mesh(1, "db.example.com", "spiffe://cluster.local/ns/shop/sa/old"), mesh(2, "spiffe://cluster.local/ns/shop/sa/new")
	s := now.AsClientsOf(former).Services[0]
	if want := []string{"spiffe://cluster.local/ns/shop/sa/new"}; !slices.Equal(s.External.Entry.SubjectNames, want) {
		t.Errorf("clients believe %q, want %q", s.External.Entry.SubjectNames, want)
	}
	if want := []string{"spiffe://cluster.local/ns/shop/sa/db", "spiffe://cluster.local/ns/shop/sa/new"}; !slices.Equal(s.Identities, want) || s.Ports[0].Number != 1 {
		t.Errorf("clients believe %q, want %q", s.Identities, want)
	}
	if len(former.Services[0].External.Entry.SubjectNames) != 2 {
		t.Error("the former mesh was changed")
	}
}
