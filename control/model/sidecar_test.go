package model

import "testing"

func TestSidecarFor(t *testing.T) {
	app := map[string]string{"app": "web"}
	mesh := &Mesh{Settings: DefaultSettings("one"), Sidecars: []*Sidecar{
		{Namespace: "istio-system", Name: "all"}, {Namespace: "istio-system", Name: "gateways", Selector: app}, {Namespace: "shop", Name: "whole"},
		{Namespace: "shop", Name: "younger"}, {Namespace: "shop", Name: "web", Selector: app}, {Namespace: "shop", Name: "web-too", Selector: app},
	}}
	for _, c := range []struct {
		namespace, label, want string
	}{{"shop", "web", "shop/web"}, {"shop", "cart", "shop/whole"}, {"bank", "web", "istio-system/all"}, {"istio-system", "web", "istio-system/gateways"}} {
		if got := mesh.SidecarFor(c.namespace, map[string]string{"app": c.label}); got.FullName() != c.want || mesh.Sidecar(c.want) != got {
			t.Errorf("for %s in %s: %s, want %s", c.label, c.namespace, got.FullName(), c.want)
		}
	}
	if got := (&Mesh{Settings: mesh.Settings}).SidecarFor("shop", app); got != nil || !got.Sees("shop", &Service{Namespace: "bank"}) {
		t.Errorf("without any, there is %v", got)
	}
}

func TestSidecarSees(t *testing.T) {
	own, other := &Service{Namespace: "shop", Host: "web.shop.svc.cluster.local"}, &Service{Namespace: "bank", Host: "ledger.bank.svc.cluster.local", Aliases: []Alias{{Host: "ledger.acme.demo"}}}
	outside := &Service{Host: "rates.acme.demo", External: &External{}}
	for _, c := range []struct {
		hosts                       []EgressHost
		seesOwn, seesOther, seesOut bool
	}{
		{nil, true, true, true},
		{[]EgressHost{{"~", "*"}}, false, false, false},
		{[]EgressHost{{".", "*"}}, true, false, true},
		{[]EgressHost{{"*", "*"}}, true, true, true},
		{[]EgressHost{{"bank", "*"}}, false, true, true},
		{[]EgressHost{{"bank", "ledger.bank.svc.cluster.local"}}, false, true, false},
		{[]EgressHost{{"*", "*.acme.demo"}}, false, true, true},
		{[]EgressHost{{"*", "other.acme.demo"}, {"shop", "*.shop.svc.cluster.local"}}, true, false, false},
	} {
		s := &Sidecar{Egress: c.hosts}
		if s.Sees("shop", own) != c.seesOwn || s.Sees("shop", other) != c.seesOther || s.Sees("shop", outside) != c.seesOut {
			t.Errorf("%v: %v %v %v", c.hosts, s.Sees("shop", own), s.Sees("shop", other), s.Sees("shop", outside))
		}
	}
	if s := (&Sidecar{Egress: []EgressHost{{".", "*.example.com"}}}); !s.SeesHost("shop", "shop", "www.example.com") || s.SeesHost("shop", "bank", "www.example.com") {
		t.Error("hosts that are no services are their routes' namespace's")
	}
}
