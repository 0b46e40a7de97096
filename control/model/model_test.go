package model

import "testing"

func TestProtocolOf(t *testing.T) {
	for _, c := range []struct {
		app, name string
		want      Protocol
		known     bool
	}{
		{"", "http", HTTP, true}, {"", "http-web", HTTP, true}, {"", "grpc", HTTP2, true}, {"", "grpc-web", HTTP, true},
		{"", "grpc-web-shop", HTTP, true}, {"", "grpc-webshop", HTTP2, true}, {"", "http2-api", HTTP2, true},
		{"", "redis", TCP, true}, {"", "tcp-echo", TCP, true}, {"", "https", TCP, true}, {"", "", TCP, false},
		{"", "httpx", TCP, false}, {"kubernetes.io/h2c", "http", HTTP2, true}, {"kubernetes.io/ws", "tcp", HTTP, true}, {"TCP", "http", TCP, true},
	} {
		if p, known := ProtocolOf(c.app, c.name); p != c.want || known != c.known {
			t.Errorf("%q %q: got %s %v", c.app, c.name, p, known)
		}
	}
}

func TestInboundModePrecedence(t *testing.T) {
	m := &Mesh{Settings: DefaultSettings("c")}
	m.PeerModes = []*PeerMode{
		{Namespace: "istio-system", Mode: MTLSPermissive},
		{Namespace: "shop", Mode: MTLSDisable},
		{Namespace: "shop", Mode: MTLSStrict},
		{Namespace: "shop", Selector: map[string]string{"app": "cart"}, Ports: map[uint16]MTLSMode{7070: MTLSStrict, 1: MTLSUnset}},
		{Namespace: "bank", Mode: MTLSUnset},
	}
	for _, c := range []struct {
		ns, app string
		port    uint16
		want    MTLSMode
	}{
		{"other", "x", 80, MTLSPermissive}, {"shop", "x", 80, MTLSDisable}, {"shop", "cart", 7070, MTLSStrict},
		{"shop", "cart", 1, MTLSDisable}, {"shop", "cart", 2, MTLSDisable}, {"bank", "x", 80, MTLSPermissive},
		{"istio-system", "x", 80, MTLSPermissive},
	} {
		if got, _ := m.InboundMode(c.ns, map[string]string{"app": c.app}, c.port); got != c.want {
			t.Errorf("%s/%s:%d is %s, want %s", c.ns, c.app, c.port, got, c.want)
		}
	}
	if got, by := (&Mesh{Settings: DefaultSettings("c")}).InboundMode("shop", nil, 80); got != MTLSStrict || by != nil {
		t.Errorf("the default is %s", got)
	}
}

func TestDestinationPrecedence(t *testing.T) {
	s := &Service{Namespace: "bank", Name: "ledger", Host: "ledger.bank.svc.cluster.local"}
	root := &DestinationPolicy{Name: "root", Namespace: "istio-system", Host: "*"}
	wide := &DestinationPolicy{Name: "wide", Namespace: "bank", Host: "*.bank.svc.cluster.local"}
	exact := &DestinationPolicy{Name: "exact", Namespace: "bank", Host: s.Host}
	private := &DestinationPolicy{Name: "private", Namespace: "bank", Host: s.Host, ExportTo: Visibility{Limited: true, Namespaces: []string{"bank"}}}
	mine := &DestinationPolicy{Name: "mine", Namespace: "shop", Host: "*", ExportTo: Visibility{Limited: true, Namespaces: []string{"shop"}}}
	chosen := &DestinationPolicy{Name: "chosen", Namespace: "shop", Host: "*", Clients: map[string]string{"app": "web"}}
	for _, c := range []struct {
		name   string
		all    []*DestinationPolicy
		client string
		labels map[string]string
		want   *DestinationPolicy
	}{
		{"client's namespace first", []*DestinationPolicy{root, wide, exact, mine}, "shop", nil, mine},
		{"a private rule of another namespace does not bind", []*DestinationPolicy{root, mine}, "bank", nil, root},
		{"then the service's, the most specific", []*DestinationPolicy{root, wide, exact}, "shop", nil, exact},
		{"what is not exported is not seen", []*DestinationPolicy{root, private, wide}, "shop", nil, wide},
		{"then the root namespace's", []*DestinationPolicy{root}, "shop", nil, root},
		{"the root namespace as client", []*DestinationPolicy{root, wide}, "istio-system", nil, wide},
		{"the oldest of equals", []*DestinationPolicy{exact, private}, "bank", nil, exact},
		{"rules for some clients", []*DestinationPolicy{mine, chosen}, "shop", map[string]string{"app": "web"}, chosen},
		{"and not for others", []*DestinationPolicy{mine, chosen}, "shop", map[string]string{"app": "x"}, mine},
		{"none", nil, "shop", nil, nil},
	} {
		m := &Mesh{Settings: DefaultSettings("c"), Destinations: c.all}
		if got := m.Destination(c.client, c.labels, s); got != c.want {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
}

func TestPortPoliciesReplaceTheWhole(t *testing.T) {
	p := TrafficPolicy{
		PortPolicy: PortPolicy{Balance: Random, Pool: &Pool{MaxConnections: 1}},
		Ports:      map[uint16]PortPolicy{80: {Balance: RoundRobin}},
	}
	if got := p.ForPort(80, nil); got.Balance != RoundRobin || got.Pool != nil {
		t.Errorf("got %+v", got)
	}
	subset := &TrafficPolicy{PortPolicy: PortPolicy{Balance: LeastRequest}}
	if got := p.ForPort(81, subset); got.Balance != LeastRequest || got.Pool == nil {
		t.Errorf("got %+v", got)
	}
}

func TestServes(t *testing.T) {
	s := Server{Hosts: []ServerHost{{Namespace: "shop", Host: "*.example.com"}, {Host: "exact.org"}}}
	for _, c := range []struct{ ns, host, want string }{
		{"shop", "a.example.com", "a.example.com"}, {"other", "a.example.com", ""}, {"shop", "example.com", ""},
		{"shop", "*", "*.example.com"}, {"other", "*", "exact.org"}, {"other", "*.org", "exact.org"},
		{"shop", "*.b.example.com", "*.b.example.com"},
	} {
		if got := s.Serves(c.ns, c.host); got != c.want {
			t.Errorf("%s %s: got %q, want %q", c.ns, c.host, got, c.want)
		}
	}
}

func TestServicesAreFoundByHost(t *testing.T) {
	db := &Service{Name: "db", Host: "db.acme.demo", External: &External{}}
	db2 := &Service{Name: "db", Host: "db.other.demo", External: &External{}}
	cart := &Service{Namespace: "acme", Name: "cart", Host: "cart.acme.svc.cluster.local"}
	m := &Mesh{Services: []*Service{db, db2, cart}}
	for host, want := range map[string]*Service{
		"db.acme.demo": db, "DB.other.demo.": db2, "cart.acme.svc.cluster.local": cart, "cart.acme.demo": nil, "db.acme.svc.cluster.local": nil, "": nil,
	} {
		if got := m.Service(host); got != want {
			t.Errorf("%q: got %+v", host, got)
		}
	}
}

func TestRemotePortsAndSubsets(t *testing.T) {
	r := &Remote{Ports: []uint16{80}, Groups: []RemoteGroup{{Labels: map[string]string{"v": "1"}, Ready: 2}, {Labels: map[string]string{"v": "2"}, Ready: 1}}}
	for _, c := range []struct {
		port   uint16
		labels map[string]string
		want   uint64
	}{{80, nil, 3}, {80, map[string]string{"v": "1"}, 2}, {80, map[string]string{"v": "3"}, 0}, {81, nil, 0}} {
		if got := r.Ready(c.port, c.labels); got != c.want {
			t.Errorf("%d %v: got %d, want %d", c.port, c.labels, got, c.want)
		}
	}
	// A port that only other clusters have is on no replica, not even on an unnamed port of it.
	p := &ServicePort{Number: 80}
	if port, ok := p.TargetOn(&Replica{Ports: []ReplicaPort{{Number: 8080}}}); ok {
		t.Errorf("got %d", port)
	}
}
