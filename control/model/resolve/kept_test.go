package resolve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
)

// changing is a mesh that changes at random, in all that a model is made of.
type changing struct {
	t        *testing.T
	random   *mathrand.Rand
	settings model.Settings
	// secrets are the data of Secrets, certificates and others.
	secrets []string
	// authorities are certificates, PEM.
	authorities []string
	objects     map[objects.Key]*objects.Object
	instances   map[string]registry.Instance
	peers       []registry.Peer
	addresses   map[string]netip.Addr
}

func newChanging(t *testing.T, seed, more uint64) *changing {
	w := &changing{
		t: t, random: mathrand.New(mathrand.NewPCG(seed, more)), settings: model.DefaultSettings("one"), objects: map[objects.Key]*objects.Object{}, instances: map[string]registry.Instance{},
		secrets: []string{"stringData: {tls.crt: x, tls.key: z}"}, authorities: []string{"none"},
	}
	for range 2 {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		secret := certificateOf(t, key).Resource.(*corev1.Secret)
		data, err := json.Marshal(secret.Data)
		if err != nil {
			t.Fatal(err)
		}
		w.secrets, w.authorities = append(w.secrets, "data: "+string(data)), append(w.authorities, string(secret.Data["tls.crt"]))
	}
	return w
}

func (w *changing) pick(from ...string) string { return from[w.random.IntN(len(from))] }

func (w *changing) some() string { return w.pick("a", "b", "c", "d") }

func (w *changing) space() string { return w.pick("red", "green", "blue", "istio-system") }

// host is a name as people write it: short, of another namespace, full, of a global namespace, a pattern, a foreign one.
func (w *changing) host() string {
	return w.pick(w.some(), w.some()+"."+w.space(), w.some()+"."+w.space()+".svc.cluster.local", w.some()+".acme.demo", w.some()+".other.demo", "www.example.com")
}

func (w *changing) covered() string {
	return w.pick(w.host(), w.host(), "*."+w.space()+".svc.cluster.local", "*.acme.demo")
}

// manifest of one object, of any kind.
func (w *changing) manifest() string {
	ns, name := w.space(), w.some()
	selector := w.pick("", "selector: {matchLabels: {app: "+w.some()+"}},", "selector: {matchLabels: {app: "+w.some()+", version: v1}},", "selector: {matchLabels: {istio: ingressgateway}},")
	head := func(api, kind string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s}\n", api, kind, name, ns)
	}
	switch w.random.IntN(28) {
	case 27:
		return head("v1", "ConfigMap") + fmt.Sprintf("data: {ca.crt: %q}\n", w.pick(w.authorities...))
	case 16:
		return head("networking.istio.io/v1", "ServiceEntry") + fmt.Sprintf("spec: {hosts: [%q, %q], exportTo: [%q], location: %s, %s ports: [{name: http, number: 80, protocol: HTTP}, {name: tls, number: %s, protocol: %s}], %s}\n",
			w.pick("www.example.com", w.some()+".acme.demo", w.some()+"."+w.space()+".svc.cluster.local"), w.pick("*.example.com", w.some()+".example.com"), w.pick("*", ".", "red"), w.pick("MESH_INTERNAL", "MESH_EXTERNAL"),
			w.pick("", "addresses: [192.0.2.1],", "addresses: [192.0.2.1, 192.0.2.2],", "addresses: [198.51.100.0/24],", "addresses: [10.96.0.7],"), w.pick("443", "8443"), w.pick("TLS", "HTTPS", "TCP"),
			w.pick("resolution: NONE", "resolution: DNS", "resolution: DNS, endpoints: [{address: a.example.net, labels: {version: v1}}]", "resolution: DNS_ROUND_ROBIN, endpoints: [{address: b.example.net}]",
				"resolution: STATIC, endpoints: [{address: 203.0.113.1, ports: {http: 8080}}, {address: 'fd00::1'}]", "resolution: STATIC, workloadSelector: {labels: {app: "+w.some()+"}}"))
	case 17:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: %s, annotations: {%s}}\nspec: {address: %q, labels: {app: %s, version: %s}, serviceAccount: %q, weight: %s}\n",
			name, ns, w.pick("", "istio.io/autoRegistrationGroup: "+w.some()), w.pick("203.0.113.2", "203.0.113.3", "fd00::2"), w.some(), w.pick("v1", "v2"), w.pick("", "x"), w.pick("1", "2"))
	case 18:
		return head("networking.istio.io/v1", "WorkloadGroup") + fmt.Sprintf("spec: {metadata: {labels: {app: %s, %s: x}}, template: {serviceAccount: %s, ports: {http: %s}}}\n", w.some(), w.some(), w.some(), w.pick("8080", "8081"))
	case 19:
		return head("networking.istio.io/v1", "Sidecar") + fmt.Sprintf("spec: {%s egress: [{hosts: [%q, %q]}], outboundTrafficPolicy: {mode: %s}}\n",
			w.pick("", "", "workloadSelector: {labels: {app: "+w.some()+"}},", "workloadSelector: {labels: {app: "+w.some()+"}}, ingress: [{port: {number: 8080, protocol: HTTP, name: http}, defaultEndpoint: '127.0.0.1:9090'}],"),
			w.pick("./*", "*/*", "~/*", "red/a.red.svc.cluster.local"), w.pick("istio-system/*", "*/*.example.com", "*/www.example.com"), w.pick("ALLOW_ANY", "REGISTRY_ONLY"))
	case 0:
		return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + ns + ", labels: {team: " + w.some() + "}}\n"
	case 1:
		return head("v1", "ServiceAccount")
	case 2:
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: istio-system}\n%s\n", name, w.pick(w.secrets...))
	case 3, 4:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s, annotations: {networking.istio.io/exportTo: %q}}\nspec: {clusterIP: 10.96.%d.%d, selector: {app: %s}, ports: [{name: %s, port: %s, targetPort: %s}%s]}\n",
			name, ns, w.pick("*", ".", "red", "*"), len(ns), name[0], w.some(), w.pick("http", "tcp", "x"), w.pick("80", "90"), w.pick("8080", "web"), w.pick("", ", {name: grpc, port: 7000}"))
	case 5, 6:
		return fmt.Sprintf("apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: {name: %s, namespace: %s, labels: {app: %s, version: %s}}\nspec: {serviceAccount: %s, command: [x], ports: [{name: %s, port: 8080}]}\n",
			name, ns, w.some(), w.pick("v1", "v2"), w.pick("default", name), w.pick("web", "http"))
	case 7, 8:
		return head("networking.istio.io/v1", "VirtualService") + fmt.Sprintf("spec: {hosts: [%q, %q], gateways: [%s], exportTo: [%q], http: [{%s route: [{destination: {host: %s, subset: %q, %s}}]}]}\n",
			w.covered(), "x."+w.host(), w.pick("mesh", "istio-system/a", "mesh, b", "istio-system/globalnamespace-g"), w.pick("*", ".", "red"), w.pick("", "mirror: {host: "+w.host()+"},"),
			w.host(), w.pick("", "v1", "v2"), w.pick("", "port: {number: 80}"))
	case 9, 10:
		return head("networking.istio.io/v1", "DestinationRule") + fmt.Sprintf("spec: {host: %q, exportTo: [%q], %s trafficPolicy: {%s}, subsets: [{name: %s, labels: {version: v1}}]}\n",
			w.covered(), w.pick("*", "."), w.pick("", "workloadSelector: {matchLabels: {app: "+w.some()+"}},"), w.pick("", "tls: {mode: DISABLE}", "tls: {mode: ISTIO_MUTUAL}", "portLevelSettings: [{port: {number: 80}}]"), w.pick("v1", "v2"))
	case 11:
		return head("security.istio.io/v1", "PeerAuthentication") + fmt.Sprintf("spec: {%s mtls: {mode: %s}}\n", selector, w.pick("STRICT", "PERMISSIVE", "DISABLE"))
	case 12:
		return head("security.istio.io/v1", "AuthorizationPolicy") + fmt.Sprintf("spec: {%s action: %s, rules: [{when: [{key: source.cluster, values: [%s]}]}]}\n", selector, w.pick("ALLOW", "DENY"), w.pick("one", "two", "three"))
	case 13:
		return head("security.istio.io/v1", "RequestAuthentication") + fmt.Sprintf("spec: {%s jwtRules: [{issuer: i, jwksUri: %q}]}\n", selector, w.pick("http://", "https://")+w.host()+w.pick("", ":80")+"/keys")
	case 15:
		return head("networking.istio.io/v1alpha3", "EnvoyFilter") + fmt.Sprintf("spec: {%s priority: %s, configPatches: [{applyTo: CLUSTER, match: {context: %s, cluster: {service: %s.%s.svc.cluster.local}}, patch: {operation: %s, value: {name: x, connect_timeout: %ss}}}]}\n",
			w.pick("", "workloadSelector: {labels: {app: "+w.some()+"}},", "workloadSelector: {labels: {istio: ingressgateway}},"), w.pick("-1", "0", "5"), w.pick("ANY", "GATEWAY", "SIDECAR_OUTBOUND"), w.some(), w.space(), w.pick("MERGE", "ADD"), w.pick("1", "2"))
	case 20, 21, 22, 23, 24:
		return w.gatewayAPI(head)
	case 14:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: %s, namespace: istio-system}\nspec: {selector: {%s}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [%q]}, {port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: %s}, hosts: ['*.example.com']}]}\n",
			name, w.pick("istio: ingressgateway", "app: "+w.some(), "app: nobody"), w.pick("*.example.com", "red/*", "*.example.com"), w.some())
	}
	if w.random.IntN(4) == 0 {
		return "apiVersion: heddle.io/v1alpha1\nkind: Cluster\nmetadata: {name: " + w.pick("two", "three") + "}\nspec: {key: " + strings.Repeat(w.pick("a", "b"), 64) + "}\n"
	}
	return fmt.Sprintf("apiVersion: heddle.io/v1alpha1\nkind: GlobalNamespace\nmetadata: {name: %s}\nspec: {domain: %s, %s mappings: [{cluster: %q, namespace: %s}, {cluster: one, namespace: %s}], publicServices: [{service: %s, host: %s.example.com, credentialName: %s}], externalServices: [{name: %s, hosts: [mail.example.com], ports: [{name: http, port: 80, targetPort: 80}]}]}\n",
		w.pick("g", "h"), w.pick("acme.demo", "other.demo"), w.pick("", "defaultDeny: true,"), w.pick("*", "one", "two"), w.pick("red", "green", "b*", "nobodys"), w.space(), w.some(), w.some(), w.some(), w.pick("mail", "a"))
}

// gatewayAPI is a manifest of one of Gateway API's kinds.
func (w *changing) gatewayAPI(head func(api, kind string) string) string {
	const api = "gateway.networking.k8s.io/v1"
	backends := func() string {
		return fmt.Sprintf("backendRefs: [{name: %s, port: %s, weight: %s}, {name: %s, %s port: 80}]", w.some(), w.pick("80", "90", "7000"), w.pick("0", "1", "3"), w.some(), w.pick("", "namespace: "+w.space()+","))
	}
	parents := func() string {
		return fmt.Sprintf("parentRefs: [{name: %s, %s namespace: %s}, {name: b, namespace: red}%s]", w.some(), w.pick("", "sectionName: web,", "port: 443,"), w.space(),
			w.pick("", "", ", {group: '', kind: Service, name: a, namespace: "+w.space()+"}", ", {group: '', kind: Service, name: b, namespace: red, "+w.pick("port: 80", "port: 7000", "sectionName: grpc")+"}"))
	}
	switch w.random.IntN(9) {
	case 0:
		return fmt.Sprintf("apiVersion: %s\nkind: GatewayClass\nmetadata: {name: %s}\nspec: {controllerName: %s}\n", api, w.pick("heddle", "other"), w.pick("heddle.io/gateway-controller", "example.com/other"))
	case 1, 2:
		top := head(api, "Gateway")
		if w.random.IntN(2) == 0 {
			// The one that all routes have among their parents.
			top = "apiVersion: " + api + "\nkind: Gateway\nmetadata: {name: b, namespace: red}\n"
		}
		return top + fmt.Sprintf("spec: {gatewayClassName: %s, %s listeners: [{name: web, port: %s, protocol: HTTP, hostname: %q, allowedRoutes: {namespaces: {from: %s, selector: {matchLabels: {%s}}}}}, {name: tls, port: %s, hostname: '*.example.com', %s}]}\n",
			w.pick("heddle", "heddle", "other"), w.pick("", "", "addresses: [{type: Hostname, value: "+w.host()+"}],"), w.pick("80", "81"), w.pick("", "*.example.com", "www.example.com"), w.pick("All", "Same", "Selector", "None"), w.pick("kubernetes.io/metadata.name: "+w.space(), "team: "+w.some()), w.pick("443", "443", "81"),
			w.pick("protocol: HTTPS, tls: {certificateRefs: [{name: "+w.some()+", namespace: istio-system}]}", "protocol: TLS, tls: {mode: Passthrough}", "protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}"))
	case 3, 4:
		return head(api, "HTTPRoute") + fmt.Sprintf("spec: {%s, hostnames: [%q], rules: [{matches: [{path: {value: /%s}}], filters: [{type: RequestMirror, requestMirror: {backendRef: {name: %s, port: 80}}}], %s}]}\n",
			parents(), w.pick("*.example.com", "www.example.com", "www.example.org"), w.some(), w.some(), backends())
	case 5:
		return head(api, "GRPCRoute") + fmt.Sprintf("spec: {%s, hostnames: [%s], rules: [{%s}]}\n", parents(), w.pick("", "'*.example.com'", "www.example.com", "www.example.org, a.example.com"), backends())
	case 6:
		kind, hosts := w.pick("TLSRoute", "TLSRoute", "TCPRoute"), ""
		if kind == "TLSRoute" {
			hosts = "hostnames: [" + w.some() + ".example.com], "
		}
		return head(api, kind) + fmt.Sprintf("spec: {%s, %srules: [{%s}]}\n", parents(), hosts, backends())
	case 7:
		return head(api, "ReferenceGrant") + fmt.Sprintf("spec: {from: [{group: gateway.networking.k8s.io, kind: %s, namespace: %s}], to: [{group: '', kind: %s}]}\n", w.pick("HTTPRoute", "Gateway"), w.space(), w.pick("Service", "Secret"))
	}
	return head(api, "BackendTLSPolicy") + fmt.Sprintf("spec: {targetRefs: [{group: '', kind: Service, name: %s%s}], validation: {hostname: a.example.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: %s}]}}\n", w.some(), w.pick("", ", sectionName: http"), w.some())
}

// object decodes a manifest that the form check lets through.
func (w *changing) object() *objects.Object {
	decoded, errs := objects.Decode(strings.NewReader(w.manifest()), "world.yaml", "")
	for tries := 0; len(errs) > 0; tries++ {
		if tries > 100 {
			w.t.Fatal(errs)
		}
		decoded, errs = objects.Decode(strings.NewReader(w.manifest()), "world.yaml", "")
	}
	o := decoded[0]
	if w.random.IntN(3) > 0 {
		o.SetCreationTimestamp(metav1.Unix(int64(1+w.random.IntN(5)), 0))
	}
	o.SetGeneration(int64(w.random.IntN(100)))
	return o
}

func (w *changing) change() Change {
	c := Change{Objects: map[objects.Key]*objects.Object{}, Instances: map[string]*registry.Instance{}}
	for range 1 + w.random.IntN(3) {
		switch w.random.IntN(12) {
		case 0, 1:
			if keys := slices.SortedFunc(maps.Keys(w.objects), compareKeys); len(keys) > 0 {
				key := keys[w.random.IntN(len(keys))]
				delete(w.objects, key)
				c.Objects[key] = nil
			}
		case 2, 3:
			name, ns := fmt.Sprintf("%s-%d", w.some(), w.random.IntN(2)), w.space()
			i := registry.Instance{
				Workload: objects.Key{Group: "heddle.io", Kind: "Workload", Namespace: ns, Name: name[:1]}, Name: name, Address: netip.AddrFrom4([4]byte{10, 244, byte(len(ns)), name[0]}),
				Ready: w.random.IntN(2) == 0, HasProxy: true, Labels: map[string]string{"app": w.some(), "version": w.pick("v1", "v2")}, ServiceAccount: w.pick("", "x"),
			}
			if w.random.IntN(3) == 0 {
				delete(w.instances, i.ID())
				c.Instances[i.ID()] = nil
				break
			}
			w.instances[i.ID()], c.Instances[i.ID()] = i, &i
		case 4:
			before := w.peers
			w.peers = nil
			for i, name := range []string{"three", "two"} {
				p := registry.Peer{Cluster: name, Reachable: w.random.IntN(2) == 0, Locality: registry.Locality{Zone: w.pick("a", "b")}}
				var services []registry.Export
				// Mostly, no more changes than who is behind the services that there are.
				same := len(before) > i && w.random.IntN(3) > 0
				if same {
					services = before[i].Services.List()
				} else {
					for range w.random.IntN(3) {
						services = append(services, registry.Export{Namespace: w.pick("red", "green", "blue"), Name: w.some(), Ports: []registry.ExportPort{{Number: 80, Protocol: w.pick("HTTP", "TCP")}}})
					}
				}
				for i := range services {
					if w.random.IntN(2) == 0 {
						e := &services[i]
						e.Identities = []string{w.settings.Identity(e.Namespace, w.pick("x", "y"))}
						e.Groups = []registry.ExportGroup{{Labels: map[string]string{"version": w.pick("v1", "v2")}, Ready: uint32(w.random.IntN(3))}}
					}
				}
				p.Services = registry.NewExports(services...)
				w.peers = append(w.peers, p)
			}
			c.Peers = &w.peers
		default:
			o := w.object()
			w.objects[o.Key()], c.Objects[o.Key()] = o, o
		}
	}
	if w.random.IntN(40) == 0 {
		w.settings.Issuers = []cluster.Issuer{{Cluster: "one", Membership: w.pick("m", "n")}}
		c.Issuers = &w.settings.Issuers
	}
	return c
}

// assign gives the hosts addresses that need some, but for some that wait.
func (w *changing) assign(hosts []string) map[string]netip.Addr {
	w.addresses = map[string]netip.Addr{}
	for _, h := range hosts {
		if h[0] != 'd' || w.random.IntN(2) == 0 {
			w.addresses[h] = netip.AddrFrom4([4]byte{240, 240, h[0], byte(len(h))})
		}
	}
	return w.addresses
}

// TestAKeptModelIsAFreshOne makes changes of every kind at random. After each, the kept model must be what a fresh one is,
// all that is said about objects included; a batch that was only tried must leave no trace, not even another pointer.
func TestAKeptModelIsAFreshOne(t *testing.T) {
	rounds := 1500
	if testing.Short() {
		rounds = 300
	}
	w := newChanging(t, 7, 8)
	m := New(w.settings)
	said := map[string]bool{}
	stated := map[objects.Key]objects.Status{}
	for round := range rounds {
		m.Update(w.change())
		if w.random.IntN(3) > 0 {
			m.Update(Change{Addresses: w.assign(m.GlobalHosts())})
		}
		runtime := Runtime{Peers: w.peers, Addresses: w.addresses}
		for _, i := range w.instances {
			runtime.Instances = append(runtime.Instances, i)
		}
		mesh, report := Mesh(w.settings, slices.Collect(maps.Values(w.objects)), runtime)
		equal(t, round, m, mesh, report, said)
		restated(t, round, m, stated)
		before := m.Mesh()
		var trial []store.Write
		for range 1 + w.random.IntN(4) {
			o := w.object()
			if s, ok := o.Resource.(*corev1.Service); ok && w.random.IntN(2) == 0 {
				s.Spec.ClusterIP = ""
			}
			if !slices.ContainsFunc(trial, func(w store.Write) bool { return w.Key == o.Key() }) {
				trial = append(trial, store.Write{Key: o.Key(), Object: o})
			}
		}
		for key := range w.objects {
			if !slices.ContainsFunc(trial, func(w store.Write) bool { return w.Key == key }) {
				trial = append(trial, store.Write{Key: key})
				break
			}
		}
		m.Admit(trial)
		equal(t, round, m, mesh, report, nil)
		after := m.Mesh()
		samePointers(t, round, before, after)
	}
	if testing.Short() {
		return // Too few rounds for the rare ones below.
	}
	// What the changes are for: everything that can be said about references was.
	for _, reason := range []string{"Conflict", "NoService", "NoPort", "NoSubset", "NoWorkload", "NoGateway", "HostNotServed", "EmptySubset", "NoCluster", "NoNamespace", "AlreadyMapped", "Waiting", "NoGatewayClass", "AddressNotUsable", "RefNotPermitted", "BackendNotFound", "NoMatchingParent", "NotAllowedByListeners", "NoMatchingListenerHostname", "HostnameConflict", "ProtocolConflict", "TargetNotFound", "Conflicted", "InvalidCACertificateRef",
		"Collision", "NoAddress", "NoSecret", "BadSecret", "NoServiceAccount", "NoGatewayProxy", "NoGroup", "OtherFamily", "AddressTaken"} {
		if !said[reason] {
			t.Errorf("%s was never said", reason)
		}
	}
}

// samePointers checks every list of two meshes.
func samePointers(t *testing.T, round int, before, after *model.Mesh) {
	t.Helper()
	x, y := reflect.ValueOf(*before), reflect.ValueOf(*after)
	for i := range x.NumField() {
		a, b := x.Field(i), y.Field(i)
		if a.Kind() != reflect.Slice {
			continue
		}
		if a.Len() != b.Len() {
			t.Fatalf("round %d: a trial left %d %s of %d", round, b.Len(), x.Type().Field(i).Name, a.Len())
		}
		for j := range a.Len() {
			if a.Index(j).Pointer() != b.Index(j).Pointer() {
				t.Fatalf("round %d: a trial left another pointer in %s", round, x.Type().Field(i).Name)
			}
		}
	}
}

func equal(t *testing.T, round int, m *Model, mesh *model.Mesh, report *Report, said map[string]bool) {
	t.Helper()
	kept, of := m.Mesh(), m.Report()
	if !reflect.DeepEqual(kept, mesh) {
		a, b := reflect.ValueOf(*kept), reflect.ValueOf(*mesh)
		for i := range a.NumField() {
			if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
				t.Errorf("%s: kept %s, fresh %s", a.Type().Field(i).Name, text(a.Field(i).Interface()), text(b.Field(i).Interface()))
			}
		}
		t.Fatalf("round %d: the kept model is another", round)
	}
	if !slices.Equal(of.Keys(), report.Keys()) {
		t.Fatalf("round %d: the kept model has objects %v, a fresh one %v", round, of.Keys(), report.Keys())
	}
	for _, key := range report.Keys() {
		if got, want := of.Status(key), report.Status(key); !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: of %s is said\n%+v\nwant\n%+v", round, key, got, want)
		}
		for _, f := range slices.Concat(report.Refused(key), report.Unresolved(key)) {
			if said != nil {
				said[f.Reason] = true
			}
		}
	}
}

// restated brings statuses up to date by what the model says to be different, which must make all of them right.
func restated(t *testing.T, round int, m *Model, stated map[objects.Key]objects.Status) {
	t.Helper()
	report := m.Report()
	for _, key := range m.Restated() {
		stated[key] = report.Status(key)
	}
	for _, key := range report.Keys() {
		if got, want := stated[key], report.Status(key); !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: of %s is not said to be said anything else than\n%+v\nbut\n%+v", round, key, got, want)
		}
	}
}

// text shows parts of a mesh.
func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Of what is tried, the age counts as well: a part is another one in another place, and where it was again afterwards.
func TestATrialHasPartsInTheirPlaces(t *testing.T) {
	const manifests = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: a, namespace: istio-system, creationTimestamp: "2026-01-02T00:00:00Z" }
spec: { selector: { istio: ingressgateway }, servers: [{ port: { number: 80, name: http, protocol: HTTP }, hosts: [a.example.com] }] }
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: b, namespace: istio-system, creationTimestamp: "2026-01-03T00:00:00Z" }
spec: { selector: { istio: ingressgateway }, servers: [{ port: { number: 80, name: http, protocol: HTTP }, hosts: [b.example.com] }] }
---
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: g, creationTimestamp: "2026-01-04T00:00:00Z" }
spec: { domain: acme.demo, mappings: [{ cluster: one, namespace: shop }], publicServices: [{ service: web, host: www.example.com }] }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: shop }
spec: { clusterIP: 10.96.0.9, selector: { app: web }, ports: [{ name: http, port: 80 }] }
`
	m := New(model.DefaultSettings("one"))
	was := m.Update(Change{Objects: byKey(decode(t, manifests))})
	if len(was.Gateways) != 3 {
		t.Fatalf("%d gateways", len(was.Gateways))
	}
	for at := 1; at < 3; at++ {
		name := was.Gateways[at].Name
		older := decode(t, strings.NewReplacer("2026-01-03", map[int]string{1: "2026-01-01", 2: "2026-01-03"}[at], "2026-01-04", map[int]string{1: "2026-01-04", 2: "2026-01-01"}[at]).Replace(manifests))
		with := m.With(byKey(older), nil)
		if with.Gateways[0].Name != name {
			t.Errorf("the oldest gateway is %s, not %s", with.Gateways[0].Name, name)
		}
		if slices.Contains(was.Gateways, with.Gateways[0]) {
			t.Errorf("nobody is told of the place of %s", name)
		}
		if len(model.Differ(was, with).Gateways) == 0 {
			t.Errorf("the place of %s makes no difference", name)
		}
		samePointers(t, at, was, m.Mesh())
	}
}
