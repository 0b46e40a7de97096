package model

import (
	"net/netip"
	"slices"
	"testing"
)

func TestServersAcceptWhatFormerClientsDo(t *testing.T) {
	mode := func(m MTLSMode) *Mesh {
		return &Mesh{Settings: DefaultSettings("c"), PeerModes: []*PeerMode{{Namespace: "shop", Mode: m}}}
	}
	for _, c := range []struct{ wanted, former, want MTLSMode }{
		{MTLSStrict, MTLSStrict, MTLSStrict}, {MTLSDisable, MTLSDisable, MTLSDisable}, {MTLSStrict, MTLSDisable, MTLSPermissive},
		{MTLSDisable, MTLSStrict, MTLSPermissive}, {MTLSPermissive, MTLSStrict, MTLSPermissive}, {MTLSStrict, MTLSPermissive, MTLSPermissive},
	} {
		m := mode(c.wanted)
		m.Accepted = []*Mesh{mode(c.former)}
		got, by := m.Accepts("shop", nil, 80)
		if got != c.want || by != m.PeerModes[0] {
			t.Errorf("%s after %s: servers accept %s by %+v, want %s by the wanted rule", c.wanted, c.former, got, by, c.want)
		}
	}
}

// shopMesh has a service and, by itself, a replica behind it.
func shopMesh(change func(*Mesh)) *Mesh {
	r := &Replica{Namespace: "shop", Name: "cart-0", Labels: map[string]string{"app": "cart"}, Address: netip.MustParseAddr("10.244.0.1"), Ready: true}
	m := &Mesh{Settings: DefaultSettings("c"), Replicas: []*Replica{r}}
	m.Services = []*Service{
		{Host: "outside.example.com", External: &External{}},
		{Namespace: "shop", Name: "cart", Host: "cart.shop.svc.cluster.local", Selector: r.Labels, Ports: []ServicePort{{Number: 80, Protocol: HTTP, Target: 8080}}, Replicas: m.Replicas},
	}
	m.PeerModes = []*PeerMode{{Namespace: "shop", Name: "p", Mode: MTLSStrict}}
	if change != nil {
		change(m)
	}
	return m
}

func TestWhatConcernsServers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Mesh)
		want   bool
		// covers says that what was before is still taken.
		covers bool
	}{
		"the same, built anew":     {nil, false, true},
		"a replica":                {func(m *Mesh) { m.Services[1].Replicas = nil }, false, true},
		"routes":                   {func(m *Mesh) { m.Routes = []*Routes{{Namespace: "shop", Name: "r"}} }, false, true},
		"a service of others":      {func(m *Mesh) { m.Services = m.Services[1:] }, false, true},
		"the mode":                 {func(m *Mesh) { m.PeerModes[0].Mode = MTLSDisable }, true, false},
		"the mode of a port":       {func(m *Mesh) { m.PeerModes[0].Ports = map[uint16]MTLSMode{1: MTLSDisable} }, true, false},
		"who a rule is for":        {func(m *Mesh) { m.PeerModes[0].Selector = map[string]string{"a": "b"} }, true, false},
		"a rule less":              {func(m *Mesh) { m.PeerModes = nil }, true, false},
		"the port of the replicas": {func(m *Mesh) { m.Services[1].Ports[0].Target = 9090 }, true, false},
		"the protocol":             {func(m *Mesh) { m.Services[1].Ports[0].Protocol = TCP }, true, false},
		"who is selected":          {func(m *Mesh) { m.Services[1].Selector = map[string]string{"app": "new"} }, true, false},
		"a service less":           {func(m *Mesh) { m.Services = nil }, true, false},
		"a service more": {func(m *Mesh) {
			m.Services = append(m.Services, &Service{Namespace: "shop", Name: "new", Host: "new.shop.svc.cluster.local"})
		}, true, true},
		"a port more": {func(m *Mesh) {
			m.Services[1].Ports = append(m.Services[1].Ports, ServicePort{Number: 81, Protocol: HTTP, Target: 8081})
		}, true, true},
	} {
		if got := shopMesh(c.change).ConcernsServers(shopMesh(nil)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if got := shopMesh(c.change).Covers(shopMesh(nil)); got != c.covers {
			t.Errorf("%s: covers what was before: %v", name, got)
		}
	}
}

func TestClientsOfAFormerMeshSeeTheReplicasOfNow(t *testing.T) {
	former := shopMesh(nil)
	now := shopMesh(func(m *Mesh) {
		m.PeerModes[0].Mode = MTLSDisable
		m.Services[1].Ports[0].Target = 9090
		m.Services = append(m.Services, &Service{Namespace: "shop", Name: "new", Host: "new.shop.svc.cluster.local"})
		m.Routes = []*Routes{{Namespace: "shop", Name: "r"}}
		m.Access = []*AccessPolicy{{Namespace: "shop", Name: "deny"}}
	})
	seen := now.AsClientsOf(former)
	// Nothing behind the services has changed, so they stay what they were.
	if !slices.Equal(seen.Services, former.Services) || seen.PeerModes[0].Mode != MTLSStrict || len(seen.Routes) != 0 || len(seen.Access) != 1 {
		t.Errorf("clients see %+v", seen)
	}
	moved := &Replica{Namespace: "shop", Name: "cart-0", Labels: map[string]string{"app": "cart"}, Address: netip.MustParseAddr("10.244.0.2"), Ready: true}
	now.Replicas, now.Services[1].Replicas = []*Replica{moved}, []*Replica{moved}
	if s := now.AsClientsOf(former).Services[1]; !slices.Equal(s.Replicas, now.Replicas) || s.Ports[0].Target != 8080 {
		t.Errorf("clients see %+v", s)
	}
	// So they do when the service selects others now, or is gone.
	for _, change := range []func(){func() { now.Services[1].Selector, now.Services[1].Replicas = map[string]string{"app": "other"}, nil }, func() { now.Services = nil }} {
		change()
		if s := now.AsClientsOf(former).Services[1]; !slices.Equal(s.Replicas, now.Replicas) {
			t.Errorf("clients see %+v", s)
		}
	}
	if former.Services[1].Replicas[0].Address == moved.Address {
		t.Error("the former mesh was changed")
	}
}

// What policies have proxies ask is there for clients of a former mesh too, in its place.
func TestClientsOfAFormerMeshHaveWhomPoliciesAsk(t *testing.T) {
	former := shopMesh(nil)
	asks := func(service string, port uint16) *AccessPolicy {
		return &AccessPolicy{Namespace: "shop", Name: service, Action: Custom, Authorizer: &Authorizer{Name: service, Service: service, Port: port, FailOpen: true}}
	}
	now := shopMesh(func(m *Mesh) {
		m.Services[1].Ports = append(m.Services[1].Ports, ServicePort{Number: 81, Protocol: HTTP2, Target: 8081})
		m.Services[1].Ports[0].Target = 9090
		for _, name := range []string{"authz", "keys", "other"} {
			m.Services = append(m.Services, &Service{Namespace: "auth", Name: name, Host: name + ".auth.svc.cluster.local", Ports: []ServicePort{{Number: 9000, Protocol: HTTP2, Target: 9000}}})
		}
		slices.SortFunc(m.Services, CompareServices)
		m.Access = []*AccessPolicy{asks("authz.auth.svc.cluster.local", 9000), asks("cart.shop.svc.cluster.local", 81), asks("gone.shop.svc.cluster.local", 1), {Namespace: "shop", Name: "deny"}}
		m.Authentications = []*Authentication{{Issuers: []TokenIssuer{{Keys: "{}"}, {Fetch: &KeysSource{Service: "keys.auth.svc.cluster.local", Port: 9000}}, {Fetch: &KeysSource{Host: "outside.example.com", Port: 443}}}}}
	})
	seen := now.AsClientsOf(former)
	var hosts []string
	for _, s := range seen.Services {
		hosts = append(hosts, s.Host)
	}
	if want := []string{"outside.example.com", "authz.auth.svc.cluster.local", "keys.auth.svc.cluster.local", "cart.shop.svc.cluster.local"}; !slices.Equal(hosts, want) {
		t.Fatalf("clients see %q", hosts)
	}
	// What was there stays as it was.
	if cart := seen.Service("cart.shop.svc.cluster.local"); cart.Port(80).Target != 8080 || cart.Port(81) == nil || cart.Port(81).Target != 8081 {
		t.Errorf("%+v", cart.Ports)
	}
	if len(former.Services) != 2 || len(former.Services[1].Ports) != 1 {
		t.Error("the former mesh was changed")
	}
}

// The endpoints that a ServiceEntry names belong to its ports and to how they are found: clients of a former mesh keep both.
func TestClientsOfAFormerMeshKeepAnEntrysEndpoints(t *testing.T) {
	entry := func(resolution Resolution, selector map[string]string, port uint16, address string) *Mesh {
		return &Mesh{Settings: DefaultSettings("c"), Services: []*Service{{
			Host: "db.example.com", External: &External{Entry: &Entry{Resolution: resolution, Selector: selector}},
			Ports:    []ServicePort{{Number: port}},
			Replicas: []*Replica{{Name: "e", Address: netip.MustParseAddr(address)}},
		}}}
	}
	selector := map[string]string{"app": "db"}
	for name, c := range map[string]struct {
		former, now *Mesh
		want        string
	}{
		"endpoints and ports changed": {entry(ResolveStatic, nil, 1, "192.0.2.1"), entry(ResolveStatic, nil, 2, "192.0.2.2"), "192.0.2.1"},
		"found by DNS now":            {entry(ResolveStatic, nil, 1, "192.0.2.1"), entry(ResolveDNS, nil, 1, "192.0.2.2"), "192.0.2.1"},
		"selected as before":          {entry(ResolveStatic, selector, 1, "192.0.2.1"), entry(ResolveStatic, selector, 2, "192.0.2.2"), "192.0.2.2"},
	} {
		clients := c.now.AsClientsOf(c.former)
		s := clients.Services[0]
		if len(s.Replicas) != 1 || s.Replicas[0].Address.String() != c.want || s.Ports[0].Number != c.former.Services[0].Ports[0].Number {
			t.Errorf("%s: %v on port %d, want %s", name, s.Replicas, s.Ports[0].Number, c.want)
		}
	}
}

// Clients of a former mesh know the servers of now by their accounts, whatever the service selects by now: none that came is refused,
// and none that is gone is believed.
func TestClientsOfAFormerMeshKnowTheServersOfNow(t *testing.T) {
	replica := func(name, app, account string) *Replica {
		return &Replica{Namespace: "shop", Name: name, Labels: map[string]string{"app": app}, Account: account, Ready: true}
	}
	identities := func(accounts ...string) []string {
		var out []string
		for _, a := range accounts {
			out = append(out, "spiffe://cluster.local/ns/shop/sa/"+a)
		}
		return out
	}
	former := shopMesh(func(m *Mesh) {
		m.Services[1].Identities = identities("old")
		m.Services[1].Remote = []Remote{{Cluster: "there", Reachable: true}}
	})
	for name, now := range map[string]func(*Mesh){
		"another selector":            func(m *Mesh) { m.Services[1].Selector = map[string]string{"app": "other"} },
		"the service is gone":         func(m *Mesh) { m.Services = m.Services[:1] },
		"only another cluster has it": func(m *Mesh) { m.Services[1].Imported, m.Services[1].Selector = true, nil },
	} {
		for _, c := range []struct {
			replicas []*Replica
			want     []string
		}{
			{[]*Replica{replica("cart-0", "cart", "new"), replica("cart-1", "cart", "old"), replica("x-0", "x", "x")}, identities("new", "old")},
			{[]*Replica{replica("cart-0", "cart", "new"), replica("cart-1", "cart", "")}, identities("new")},
			// Nobody at all would stand for everybody of the namespace.
			{[]*Replica{replica("x-0", "x", "x")}, identities("old")},
		} {
			mesh := shopMesh(func(m *Mesh) {
				m.Replicas, m.Services[1].Replicas = c.replicas, nil
				m.Services[1].Remote = []Remote{{Cluster: "there", Reachable: false}}
				now(m)
			})
			s := mesh.AsClientsOf(former).Service("cart.shop.svc.cluster.local")
			if !slices.Equal(s.Identities, c.want) {
				t.Errorf("%s, of %d replicas: clients believe %q, want %q", name, len(c.replicas), s.Identities, c.want)
			}
			if now := mesh.Service(s.Host); now != nil && s.Remote[0].Reachable {
				t.Errorf("%s: a cluster that cannot be reached now is used", name)
			}
		}
	}
	if !slices.Equal(former.Services[1].Identities, identities("old")) {
		t.Error("the former mesh was changed")
	}
}

// What a ServiceEntry selects are the replicas of now, whatever it selects by now, or whether it is gone.
func TestClientsOfAFormerMeshSeeWhatAnEntrySelectsNow(t *testing.T) {
	mesh := func(e *Entry, address, account string) *Mesh {
		m := &Mesh{Settings: DefaultSettings("c")}
		m.Replicas = []*Replica{
			{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"}, Account: account, Address: netip.MustParseAddr(address)},
			{Namespace: "shop", Name: "x", Labels: map[string]string{"app": "x"}, Address: netip.MustParseAddr("192.0.2.9")},
		}
		if e == nil {
			return m
		}
		s := &Service{Namespace: "shop", Host: "db.example.com", External: &External{Entry: e}, Ports: []ServicePort{{Number: 1}}}
		for _, r := range m.Replicas {
			if e.Selector != nil && Selects(e.Selector, r.Labels) {
				s.Replicas = append(s.Replicas, r)
			}
		}
		m.Services = []*Service{s}
		return m
	}
	names := []string{"spiffe://cluster.local/ns/shop/sa/named", "db.example.com"}
	selects := func(app string, in bool) *Entry {
		return &Entry{Resolution: ResolveStatic, Mesh: in, Selector: map[string]string{"app": app}, SubjectNames: names}
	}
	for name, now := range map[string]*Entry{
		"the same": selects("db", true), "another selector": selects("x", true), "outside of the mesh": selects("db", false),
		"found by DNS": {Resolution: ResolveDNS, SubjectNames: names}, "endpoints of its own": {Resolution: ResolveStatic, SubjectNames: names}, "gone": nil,
	} {
		for _, in := range []bool{true, false} {
			var want []string
			former := mesh(selects("db", in), "192.0.2.1", "old")
			if in {
				former.Services[0].Identities = []string{"spiffe://cluster.local/ns/shop/sa/old"}
				want = []string{"spiffe://cluster.local/ns/shop/sa/named", "spiffe://cluster.local/ns/shop/sa/new"}
			}
			m := mesh(now, "192.0.2.2", "new")
			if now != nil && now.Mesh {
				m.Services[0].Identities = []string{"spiffe://cluster.local/ns/shop/sa/named", "spiffe://cluster.local/ns/shop/sa/new"}
			}
			s := m.AsClientsOf(former).Services[0]
			if len(s.Replicas) != 1 || s.Replicas[0] != m.Replicas[0] {
				t.Errorf("%s: clients see %v", name, s.Replicas)
			}
			if !slices.Equal(s.Identities, want) {
				t.Errorf("%s: clients believe %q, want %q", name, s.Identities, want)
			}
		}
	}
}

func TestAnAddressMoreIsAnotherName(t *testing.T) {
	with := func(addresses ...string) *Mesh {
		e := &Entry{}
		for _, a := range addresses {
			e.Addresses = append(e.Addresses, netip.MustParseAddr(a))
		}
		return &Mesh{Services: []*Service{{Host: "a.example.com", Address: e.Addresses[0], External: &External{Entry: e}}}}
	}
	if SameNames(with("9.0.0.1", "9.0.0.2"), with("9.0.0.1", "9.0.0.3")) || SameNames(with("9.0.0.1"), with("9.0.0.1", "9.0.0.2")) || !SameNames(with("9.0.0.1"), with("9.0.0.1")) {
		t.Error("what DNS answers is not compared")
	}
}
