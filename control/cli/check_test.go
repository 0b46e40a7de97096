package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	securityapi "istio.io/api/security/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
)

// twoClusters are two healthy clusters: cart runs in both, ads in cluster2 only, pay in cluster1 only.
func twoClusters() (first, second *meshAPI) {
	first, second = healthyMesh(), healthyMesh()
	identity := func(name string) []string { return []string{"spiffe://cluster.local/ns/shop/sa/" + name} }
	export := func(name string) registry.Export {
		return registry.Export{Namespace: "shop", Name: name, Identities: identity(name), Ports: []registry.ExportPort{{Number: 80}}, Groups: []registry.ExportGroup{{Ready: 1}}}
	}
	second.mesh.Cluster, second.mesh.PrimaryAddress, second.mesh.Clock = "cluster2", "198.18.0.2:15443", -3*time.Millisecond
	second.mesh.Issuer = "Heddle intermediate cluster2"
	second.mesh.Clusters = slices.Clone(second.mesh.Clusters)
	second.mesh.Clusters[0].Self, second.mesh.Clusters[1].Self = false, true
	first.mesh.Clusters[1].Exports = []registry.Export{export("ads"), export("cart")}
	second.mesh.Clusters[0].Exports = []registry.Export{export("cart"), export("pay")}
	first.services = append(first.services, service("pay"))
	first.replicas = append(first.replicas, ready("pay"))
	second.services = append(second.services, service("ads"))
	second.replicas = append(second.replicas, ready("ads"))
	proved := func(in string) func(client.HandshakeRequest) (client.HandshakeResult, *client.Problem) {
		return func(r client.HandshakeRequest) (client.HandshakeResult, *client.Problem) {
			if !slices.Equal(r.Anchors, []string{"anchor of " + in}) {
				return client.HandshakeResult{}, &client.Problem{Status: http.StatusBadGateway, What: fmt.Sprintf("anchors %q", r.Anchors)}
			}
			name, ok := strings.CutSuffix(r.ServerName, ".shop.svc.cluster.local")
			name, begins := strings.CutPrefix(name, "outbound_.80_._.")
			if !ok || !begins {
				return client.HandshakeResult{}, &client.Problem{Status: http.StatusBadGateway, What: "no such SNI " + r.ServerName}
			}
			return client.HandshakeResult{Identities: identity(name), Names: []string{in + ".clusters.cluster.local", name + ".shop." + in + ".clusters.cluster.local"}, Took: 3 * time.Millisecond}, nil
		}
	}
	first.meet, second.meet = proved("cluster2"), proved("cluster1")
	first.resolves, second.resolves = first.names.Hosts, second.names.Hosts
	return first, second
}

func TestCheckOverClusters(t *testing.T) {
	for name, c := range map[string]struct {
		change func(first, second *meshAPI)
		args   string
		code   int
	}{
		"check-two-clusters": {},
		"check-one-chosen":   {args: "--cluster cluster2"},
		"check-warnings": {change: func(first, second *meshAPI) {
			first.mesh.IssuerExpires = noon.Add(10 * 24 * time.Hour)
			first.mesh.Clusters[1].Gateways = nil
			second.mesh.Clusters[0].Version = "v0"
			first.replicas = first.replicas[:1]
			second.mesh.Clusters[0].Exports[1].Groups = nil
		}},
		"check-link-down": {code: exitError, change: func(first, second *meshAPI) {
			first.mesh.Clusters[1].Connected, first.mesh.Clusters[1].Reachable, first.mesh.Clusters[1].LastSeen = false, false, noon.Add(-time.Minute)
			second.mesh.Connected, second.mesh.Problem = false, "dial tcp 198.18.0.2:15443: i/o timeout"
			second.mesh.Clusters[0].Reachable, second.mesh.Clusters[0].Problem = false, "198.18.0.2:15443: i/o timeout"
			second.mesh.IssuerExpires = noon.Add(-time.Hour)
		}},
		"check-impostors": {code: exitError, change: func(first, second *meshAPI) {
			first.meet = func(client.HandshakeRequest) (client.HandshakeResult, *client.Problem) {
				return client.HandshakeResult{Identities: []string{"spiffe://cluster.local/ns/shop/sa/thief"}, Names: []string{"cluster2.clusters.cluster.local"}}, nil
			}
			second.meet = func(r client.HandshakeRequest) (client.HandshakeResult, *client.Problem) {
				if strings.Contains(r.ServerName, "pay") {
					return client.HandshakeResult{}, &client.Problem{Status: http.StatusBadGateway, What: "no handshake", Why: "connection reset"}
				}
				return client.HandshakeResult{Identities: []string{"spiffe://cluster.local/ns/shop/sa/cart"}, Names: []string{"cluster2.clusters.cluster.local"}, Issuer: "i"}, nil
			}
			second.mesh.Clock = 2 * time.Minute
		}},
		"check-not-heard-yet": {code: exitError, change: func(first, second *meshAPI) {
			first.mesh.Clusters[1].Exports = first.mesh.Clusters[1].Exports[:1]
			second.mesh.Clusters[0].Exports[1].Groups = nil
			first.resolves = first.names.Hosts[:1]
			second.resolves = []client.NamedHost{{Name: "ads.acme.demo", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
		}},
		"check-no-global-namespace": {change: func(first, second *meshAPI) { first.gns, second.gns = nil, nil }},
		"check-json": {args: "-o json --cluster cluster1", code: exitError, change: func(first, _ *meshAPI) {
			first.mesh.Clusters = first.mesh.Clusters[:1]
			first.replicas = nil
			first.mesh.IssuerExpires = noon
			first.mesh.Primary, first.mesh.PrimaryAddress = "cluster0", "198.18.0.9:15443"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := twoClusters()
			if c.change != nil {
				c.change(first, second)
			}
			got, code := runMany(t, map[string]http.Handler{"cluster1": first, "cluster2": second}, "cluster1", append([]string{"check", "--wait", "0"}, strings.Fields(c.args)...)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			golden(t, name, got)
		})
	}
}

// A cluster whose peers run on another machine goes by what it has heard of them.
func TestCheckOfOneSide(t *testing.T) {
	first, _ := twoClusters()
	got, code := runMany(t, map[string]http.Handler{"cluster1": first}, "", "check")
	if code != 0 || !strings.Contains(got, "the way back is checked on its own machine") || !strings.Contains(got, "✓ tried shop/ads@cluster2 identity") {
		t.Errorf("%d:\n%s", code, got)
	}
}

// A service that its owner keeps from other clusters is no failure of theirs.
func TestCheckOfWhatIsKept(t *testing.T) {
	first, second := twoClusters()
	first.mesh.Clusters[1].Exports, second.mesh.Clusters[0].Exports[1].Groups = first.mesh.Clusters[1].Exports[1:], nil
	for _, s := range []*meshAPI{first, second} {
		for _, o := range s.services {
			if o.GetName() != "cart" {
				o.SetAnnotations(map[string]string{"networking.istio.io/exportTo": "."})
			}
		}
	}
	got, code := runMany(t, map[string]http.Handler{"cluster1": first, "cluster2": second}, "cluster1", "check")
	if code != 0 || strings.Count(got, "! read  shop/ads@cluster2 identity") != 1 || strings.Count(got, "! read  shop/pay@cluster1 identity") != 1 || !strings.Contains(got, `exportTo: "."`) {
		t.Errorf("%d:\n%s", code, got)
	}
}

func TestWhatKeepsAService(t *testing.T) {
	authentication := func(namespace string, mode, port securityapi.PeerAuthentication_MutualTLS_Mode) []*objects.Object {
		p := &securityv1.PeerAuthentication{}
		p.Namespace, p.Name = namespace, "p"
		p.Spec.Mtls = &securityapi.PeerAuthentication_MutualTLS{Mode: mode}
		p.Spec.PortLevelMtls = map[uint32]*securityapi.PeerAuthentication_MutualTLS{80: {Mode: port}}
		return []*objects.Object{{Kind: objects.PeerAuthentication, Resource: p}}
	}
	const on, off = securityapi.PeerAuthentication_MutualTLS_STRICT, securityapi.PeerAuthentication_MutualTLS_DISABLE
	for name, c := range map[string]struct {
		exportTo        string
		authentications []*objects.Object
		want            string
	}{
		"nothing":            {"", authentication("shop", on, on), ""},
		"all":                {"a, *", nil, ""},
		"some":               {"a,b", nil, "exportTo"},
		"off":                {"", authentication("shop", off, on), "shop/p"},
		"off at a port":      {"", authentication("shop", on, off), "shop/p"},
		"off everywhere":     {"", authentication(cluster.GatewayNamespace, off, on), "istio-system/p"},
		"off somewhere else": {"", authentication("other", off, off), ""},
	} {
		svc := &corev1.Service{}
		svc.Namespace = "shop"
		if c.exportTo != "" {
			svc.Annotations = map[string]string{"networking.istio.io/exportTo": c.exportTo}
		}
		if got := keptBy(svc, c.authentications); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Unless told not to, check goes on until what was missing is there.
func TestCheckWaits(t *testing.T) {
	first, second := twoClusters()
	asked := 0
	meet := first.meet
	first.meet = func(r client.HandshakeRequest) (client.HandshakeResult, *client.Problem) {
		if asked++; asked < 4 {
			return client.HandshakeResult{}, &client.Problem{Status: http.StatusBadGateway, What: "not yet"}
		}
		return meet(r)
	}
	first.mesh.Clusters[1].Exports = first.mesh.Clusters[1].Exports[:1]
	second.services, second.replicas = second.services[1:], second.replicas[1:]
	second.mesh.Clusters[0].Exports = nil
	first.services, first.replicas = nil, first.replicas[:1]
	got, code := runMany(t, map[string]http.Handler{"cluster1": first, "cluster2": second}, "", "check")
	if code != 0 || asked < 4 {
		t.Errorf("%d after %d tries:\n%s", code, asked, got)
	}
}

// While it waits for one service, the others are not called again.
func TestCheckRepeatsWhatFailed(t *testing.T) {
	first, second := twoClusters()
	calls := map[string]int{}
	answer := first.calls
	first.calls = func(r client.CallRequest) (client.CallResult, *client.Problem) {
		if calls[r.Host]++; strings.HasPrefix(r.Host, "pay.") && calls[r.Host] < 4 {
			return client.CallResult{}, &client.Problem{Status: http.StatusBadGateway, What: "not yet"}
		}
		if answer != nil {
			return answer(r)
		}
		return answered(r)
	}
	got, code := runMany(t, map[string]http.Handler{"cluster1": first, "cluster2": second}, "", "check")
	if code != 0 {
		t.Errorf("%d:\n%s", code, got)
	}
	want := map[string]int{"ads.shop.svc.cluster.local": 1, "cart.shop.svc.cluster.local": 1, "pay.shop.svc.cluster.local": 4}
	if diff := cmp.Diff(want, calls); diff != "" || strings.Count(got, "shop/pay:80 request") != 1 {
		t.Errorf("%s\n%s", diff, got)
	}
}

// Of more ports than it calls, each has its turn: others are chosen with each seed, and the same ones while a check waits.
func TestCheckChoosesCallsAtRandom(t *testing.T) {
	var calls []call
	for i := range 3 * maxCalls {
		calls = append(calls, call{subject: fmt.Sprintf("shop/s%d:80", i)})
	}
	subjects := func(seed uint64) (out []string) {
		chosen, left := settledCalls{seed: seed}.choose(calls)
		if len(chosen) != maxCalls || left != 2*maxCalls {
			t.Fatalf("%d are called, %d are not", len(chosen), left)
		}
		for _, c := range chosen {
			out = append(out, c.subject)
		}
		return out
	}
	if !slices.Equal(subjects(1), subjects(1)) {
		t.Error("a check that waits calls others")
	}
	seen := map[string]bool{}
	for seed := range uint64(40) {
		for _, subject := range subjects(seed) {
			seen[subject] = true
		}
	}
	// One that 40 times is not among a third is one in ten million.
	if len(seen) != len(calls) {
		t.Errorf("in 40 checks, %d of %d were called", len(seen), len(calls))
	}
	if chosen, left := (settledCalls{}).choose(calls[:maxCalls]); len(chosen) != maxCalls || left != 0 {
		t.Errorf("%d, %d", len(chosen), left)
	}
}

// What waiting does not heal ends it at once: an impostor does not become the service.
func TestCheckDoesNotWaitForWhatStays(t *testing.T) {
	first, second := twoClusters()
	tries := 0
	first.calls = func(r client.CallRequest) (client.CallResult, *client.Problem) {
		tries++
		result, _ := answered(r)
		result.Identity = "spiffe://cluster.local/ns/shop/sa/thief"
		return result, nil
	}
	got, code := runMany(t, map[string]http.Handler{"cluster1": first, "cluster2": second}, "", "check", "--wait", "1h")
	if code != exitError || tries != 3 || strings.Count(got, "sa/thief answered instead of") != 3 || strings.Contains(got, "waiting") {
		t.Errorf("%d after %d calls:\n%s", code, tries, got)
	}
	if got, code := runMany(t, map[string]http.Handler{"cluster1": first}, "", "check", "--wait", "-1s"); code != exitUsage || !strings.Contains(got, "negative") {
		t.Errorf("%d: %s", code, got)
	}
}

func TestJudgeCalls(t *testing.T) {
	const server = "spiffe://cluster.local/ns/shop/sa/cart"
	for name, c := range map[string]struct {
		result client.CallResult
		err    error
		tcp    bool
		plain  model.MTLSMode
		ok     bool
		other  string
		want   string
	}{
		"proved":             {client.CallResult{Counted: true, Flags: "-", Identity: server, Answer: "404 Not Found"}, nil, false, "", true, "", "404 Not Found in 0s, " + server + " by mutual TLS"},
		"no connection":      {client.CallResult{}, &client.Problem{What: "the call failed", Why: "EOF"}, false, "", false, "", "from shop/pay-0: the call failed"},
		"by the proxy":       {client.CallResult{Counted: true, Flags: "UF,URX", Answer: "503"}, nil, false, "", false, "", "by the proxy itself (UF,URX)"},
		"not counted":        {client.CallResult{Answer: "200 OK"}, nil, false, "", false, "unknown", "did not count it"},
		"plaintext":          {client.CallResult{Counted: true, Flags: "-"}, nil, false, "", false, "", "in plaintext although"},
		"plaintext, allowed": {client.CallResult{Counted: true, Flags: "-"}, nil, false, model.MTLSPermissive, true, "", "as mode PERMISSIVE allows"},
		"impostor":           {client.CallResult{Counted: true, Flags: "-", Identity: server + "x"}, nil, false, "", false, "final", "instead of " + server},
		"foreign":            {client.CallResult{Foreign: true, Answer: "200 OK"}, nil, false, "", true, "", "does not tell whom it met"},
		"uncaptured":         {client.CallResult{Uncaptured: true, Answer: "200 OK"}, nil, false, "", false, "warning", "not through its proxy"},
		"foreign, TCP":       {client.CallResult{Foreign: true, Answer: "opened"}, nil, true, "", false, "warning", "how far it came"},
	} {
		one := call{subject: "shop/cart:80", caller: ready("pay"), identities: []string{server}, plain: c.plain, request: client.CallRequest{Protocol: "HTTP"}}
		if c.tcp {
			one.request.Protocol = "TCP"
		}
		f := one.judge(c.result, c.err)
		other := ""
		switch {
		case f.Unknown:
			other = "unknown"
		case f.Warning:
			other = "warning"
		case f.final:
			other = "final"
		}
		if f.OK != c.ok || other != c.other || !strings.Contains(f.Detail, c.want) || f.How != agent.Tried || (f.Remedy == "") != c.ok {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestCallPlan(t *testing.T) {
	port := func(svc *objects.Object, ports ...corev1.ServicePort) *objects.Object {
		s, ok := svc.Resource.(*corev1.Service)
		if !ok {
			t.Fatal("no service")
		}
		s.Spec.Ports = ports
		return svc
	}
	cart, redis := ready("cart"), ready("redis")
	cart.Ports = map[string]int32{"web": 8080}
	asleep, gateway := ready("asleep"), ready("gateway")
	asleep.Ready, gateway.Gateway = false, true
	workload := &v1alpha1.Workload{}
	workload.Namespace, workload.Name = "shop", "cart"
	workload.Spec.Readiness = &v1alpha1.Readiness{HTTP: &v1alpha1.HTTPProbe{Port: 8080, Path: "/healthz"}}
	p := newCallPlan([]*objects.Object{
		port(service("cart"), corev1.ServicePort{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}, corev1.ServicePort{Name: "grpc-admin", Port: 9000}, corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}),
		port(service("redis"), corev1.ServicePort{Name: "tcp", Port: 6379}), service("asleep"), service("gateway"),
	}, []*objects.Object{{Kind: objects.Workload, Resource: workload}}, nil, []client.Replica{cart, redis, asleep, gateway})
	p.local()
	ready := []registry.ExportGroup{{Ready: 1}}
	p.remote("far", registry.Export{Namespace: "shop", Name: "cart", Ports: []registry.ExportPort{{Number: 80}}, Groups: ready})
	p.remote("far", registry.Export{Namespace: "shop", Name: "asleep", Ports: []registry.ExportPort{{Number: 80, Protocol: "HTTP"}}, Groups: ready, Identities: []string{"spiffe://far"}})
	p.remote("far", registry.Export{Namespace: "shop", Name: "none", Ports: []registry.ExportPort{{Number: 80}}})
	p.remote("far", registry.Export{Namespace: "elsewhere", Name: "x", Ports: []registry.ExportPort{{Number: 80}}, Groups: ready})
	var got []string
	for _, c := range p.calls {
		got = append(got, fmt.Sprintf("%s %s->%s:%d %s %q %v", c.subject, c.caller.State.Name, c.request.Host, c.request.Port, c.request.Protocol, c.request.Path, c.identities))
	}
	want := []string{
		`shop/cart:80 redis-0->cart.shop.svc.cluster.local:80 HTTP "/healthz" [spiffe://cluster.local/ns/shop/sa/cart]`,
		`shop/cart:9000 redis-0->cart.shop.svc.cluster.local:9000 HTTP2 "" [spiffe://cluster.local/ns/shop/sa/cart]`,
		`shop/redis:6379 cart-0->redis.shop.svc.cluster.local:6379 TCP "" [spiffe://cluster.local/ns/shop/sa/redis]`,
		`shop/asleep@far:80 redis-0->asleep.shop.svc.cluster.local:80 HTTP "" [spiffe://far]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheckWithoutClusters(t *testing.T) {
	got, code := runMany(t, nil, "", "check")
	if code != exitError || !strings.Contains(got, "no cluster runs here") {
		t.Errorf("%d:\n%s", code, got)
	}
	got, code = runMany(t, map[string]http.Handler{"gone": http.NotFoundHandler()}, "", "check", "--wait", "0", "-o", "json")
	var found []finding
	if err := json.Unmarshal([]byte(strings.Split(got, "--- stderr")[0]), &found); err != nil || code != exitError || len(found) != 1 || found[0].Cluster != "gone" || found[0].OK {
		t.Errorf("%d, %v:\n%s", code, err, got)
	}
}

func TestAllKindsAreWalked(t *testing.T) {
	// checkObjects lists every kind: the fake must answer each, or the goldens prove nothing.
	first, second := twoClusters()
	got, _ := runMany(t, map[string]http.Handler{"cluster1": first, "cluster2": second}, "", "check", "--cluster", "cluster1")
	if strings.Contains(got, "objects list") || len(objects.Kinds) < 10 {
		t.Errorf("%s", got)
	}
}

// A lost key of Secrets fails the check, and nothing that fails is without a remedy.
func TestCheckOfSecrets(t *testing.T) {
	for name, c := range map[string]struct {
		status     seal.Status
		ok         bool
		want, then string
	}{
		"sealed":   {seal.Status{Secrets: 3}, true, "3, all encrypted", ""},
		"lost":     {seal.Status{Secrets: 3, Unreadable: []seal.Unreadable{{Secret: "Secret/shop/tls", Why: "its key is gone"}}}, false, "1 Secret cannot be decrypted; Secret/shop/tls: its key is gone", "heddle secrets status"},
		"unsealed": {seal.Status{Secrets: 3, Unsealed: 2}, false, "2 Secrets are not encrypted", "heddle secrets rotate"},
	} {
		mesh, _ := twoClusters()
		mesh.secrets = c.status
		got, code := run(t, mesh, "", "check", "--wait", "0", "-o", "json")
		var found []finding
		if err := json.Unmarshal([]byte(got), &found); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, got)
		}
		i := slices.IndexFunc(found, func(f finding) bool { return f.Subject == "secrets" })
		if i < 0 || found[i].OK != c.ok || found[i].How != agent.Tried || !strings.Contains(found[i].Detail, c.want) || !strings.Contains(found[i].Remedy, c.then) || !c.ok && code == 0 {
			t.Errorf("%s: %d %s", name, code, got)
		}
	}
}

// Whatever the API answers, no finding that fails is without a remedy.
func TestEveryFailureHasARemedy(t *testing.T) {
	for _, broken := range []string{"", "/heddle/v1/status", "/heddle/v1/agent/status", "/heddle/v1/agent/checks", "/heddle/v1/proxies", "/heddle/v1/secrets", "/heddle/v1/federation",
		"/heddle/v1/names", "/api/v1/services", "/apis/heddle.io/v1alpha1/workloads", "/apis/networking.istio.io/v1/gateways", "/call", "/resolve"} {
		mesh, _ := twoClusters()
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if broken != "" && strings.HasSuffix(r.URL.Path, broken) {
				http.Error(w, "broken", http.StatusInternalServerError)
				return
			}
			mesh.ServeHTTP(w, r)
		})
		got, _ := run(t, handler, "", "check", "--wait", "0", "-o", "json")
		var found []finding
		if err := json.Unmarshal([]byte(got), &found); err != nil {
			t.Fatalf("%s: %v\n%s", broken, err, got)
		}
		failed := 0
		for _, f := range found {
			if f.How != agent.Tried && f.How != agent.Read {
				t.Errorf("%s: %+v does not say what was done", broken, f)
			}
			if !f.OK {
				failed++
				if f.Remedy == "" {
					t.Errorf("%s: %+v has no remedy", broken, f)
				}
			}
		}
		if broken != "" && failed == 0 {
			t.Errorf("%q: nothing failed", broken)
		}
	}
}
