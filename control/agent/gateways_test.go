package agent

import (
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingapi "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
)

func TestGatewaysOfACluster(t *testing.T) {
	specs := gateways(cluster.Options{EastWestGateways: 2, GatewayProxy: "/usr/bin/envoy"}, nil)
	var names []string
	for _, key := range []string{ingressKey, eastWestKey} {
		for _, s := range specs[key] {
			names = append(names, s.key())
			if !s.Gateway || s.ProxyPath != "/usr/bin/envoy" || s.Labels["app"] != s.Workload || s.ServiceAccount != s.Workload+"-service-account" {
				t.Errorf("%+v", s)
			}
		}
	}
	want := "istio-system/istio-ingressgateway-0 istio-system/istio-eastwestgateway-0 istio-system/istio-eastwestgateway-1"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if alone := gateways(cluster.Options{}, nil); len(alone[eastWestKey]) != 0 || len(alone[ingressKey]) != 1 {
		t.Errorf("a cluster that nobody reaches: %v", alone)
	}
}

func known(all ...*objects.Object) map[objects.Key]*objects.Object {
	out := map[objects.Key]*objects.Object{}
	for i, o := range all {
		o.SetName(string(rune('a' + i)))
		out[o.Key()] = o
	}
	return out
}

func gateway(selector map[string]string, ports ...uint32) *objects.Object {
	g := &networkingv1.Gateway{}
	g.Spec.Selector = selector
	for _, p := range ports {
		g.Spec.Servers = append(g.Spec.Servers, &networkingapi.Server{Port: &networkingapi.Port{Number: p}})
	}
	return &objects.Object{Kind: objects.Gateway, Resource: g}
}

func TestPortsOfTheIngress(t *testing.T) {
	got := gatewayPorts(known(
		gateway(map[string]string{"istio": "ingressgateway"}, 80, 8443),
		gateway(map[string]string{"istio": "ingressgateway", "app": "istio-ingressgateway"}, 443, 80),
		gateway(nil, 9000),
		gateway(map[string]string{"istio": "eastwestgateway"}, 7000),
		gateway(map[string]string{"istio": "ingressgateway", "tier": "other"}, 7001),
		gateway(map[string]string{"istio": "ingressgateway"}, 0, 70000),
	))
	if !slices.Equal(got, []uint16{80, 443, 8443, 9000}) {
		t.Error(got)
	}
	public := func(services ...v1alpha1.PublicService) *objects.Object {
		return &objects.Object{Kind: objects.GlobalNamespace, Resource: &v1alpha1.GlobalNamespace{Spec: v1alpha1.GlobalNamespaceSpec{
			Mappings: []v1alpha1.NamespaceMapping{{Cluster: "west*", Namespace: "shop"}}, PublicServices: services,
		}}}
	}
	plain, secure := v1alpha1.PublicService{Host: "a"}, v1alpha1.PublicService{Host: "b", CredentialName: "c"}
	if got := publicPorts(known(public(plain, secure), public(secure), public()), "west1"); !slices.Equal(got, []uint16{80, 443}) {
		t.Error(got)
	}
	if got := publicPorts(known(public()), "west1"); len(got) != 0 {
		t.Error(got)
	}
	if got := publicPorts(known(public(plain)), "east"); len(got) != 0 {
		t.Errorf("open for a global namespace of other clusters: %v", got)
	}
}

func TestPortsOfTheMachineAreNotTaken(t *testing.T) {
	in := []netip.Addr{netip.MustParseAddr("10.244.0.2")}
	kept, left := sharing([]network.Exposure{{Ports: []uint16{15443}, Gateways: in}, {Ports: []uint16{22, 80, 443, 15000, 15012}, Gateways: in}}, map[uint16]bool{443: true, 15443: true})
	if !slices.Equal(kept[0].Ports, []uint16{15443}) || !slices.Equal(kept[1].Ports, []uint16{80}) || !slices.Equal(left, []uint16{22, 443, 15000, 15012}) {
		t.Errorf("%+v, left out %v", kept, left)
	}
	if !slices.Equal(kept[0].Gateways, in) || !slices.Equal(kept[1].Gateways, in) {
		t.Errorf("%+v", kept)
	}
}

// exposing is an agent with gateways in the given states.
func exposing(o cluster.Options, ready map[string]bool) *Agent {
	a := &Agent{options: o, rekick: make(chan struct{}, 1), kick: make(chan struct{}, 1), deployments: map[string]*deployment{}, placed: make(chan struct{}), log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	address := netip.MustParseAddr("10.244.0.2")
	for _, key := range []string{ingressKey, eastWestKey} {
		d := &deployment{placed: true, running: map[string]*replica{}}
		for _, spec := range gateways(o, nil)[key] {
			d.running[spec.Name] = &replica{agent: a, spec: spec, proxyReady: ready[spec.Name], address: address, changed: make(chan struct{})}
			address = address.Next()
		}
		a.deployments[key] = d
	}
	return a
}

func TestOnlyReadyGatewaysAreOffered(t *testing.T) {
	o := cluster.Options{EastWestGateways: 2, Advertise: netip.MustParseAddr("198.18.0.2"), ExposeIngress: true}
	a := exposing(o, map[string]bool{"istio-ingressgateway-0": true, "istio-eastwestgateway-1": true})
	if _, known := a.exposures(); known {
		t.Fatal("offered before the ports are known: what is open would be closed")
	}
	a.ways = waysIn{gateways: []uint16{80, 15443}, public: []uint16{80, 443}, kubernetes: []uint16{443, 8443}, knowsGateways: true, knowsKubernetes: true, knowsPublic: true}
	check := func(eastWest, ingress string, ports ...uint16) {
		t.Helper()
		got, known := a.exposures()
		if !known {
			t.Fatal("not known")
		}
		text := func(e network.Exposure) string {
			var all []string
			for _, g := range e.Gateways {
				all = append(all, g.String())
			}
			return strings.Join(all, " ")
		}
		if text(got[0]) != eastWest || !slices.Equal(got[0].Ports, []uint16{15443}) {
			t.Errorf("between clusters: %+v", got[0])
		}
		if len(got) == 2 && (text(got[1]) != ingress || !slices.Equal(got[1].Ports, ports)) || len(got) == 1 && ingress != "" {
			t.Errorf("from outside: %+v", got)
		}
	}
	check("10.244.0.4", "10.244.0.2", 80, 443, 8443)
	// One that drains gets nothing new, though its proxy is still ready.
	a.deployments[ingressKey].running["istio-ingressgateway-0"].draining = true
	a.deployments[eastWestKey].running["istio-eastwestgateway-0"].proxyReady = true
	check("10.244.0.3 10.244.0.4", "", 80, 443, 8443)
	// A user who did not name the address has not asked for an open ingress.
	a.options.ExposeIngress = false
	check("10.244.0.3 10.244.0.4", "")
	a.deployments[eastWestKey].placed = false
	if _, known := a.exposures(); known {
		t.Error("offered before it is known which gateways run")
	}
}
