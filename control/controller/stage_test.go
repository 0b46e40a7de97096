package controller

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/stage"
	"heddle.io/heddle/control/store"
)

// brain is what a controller keeps of a mesh with one service, without its processes.
type brain struct {
	t       *testing.T
	file    string
	now     time.Time
	objects map[objects.Key]*objects.Object
	// revision of the store.
	revision int64
	model    *resolve.Model
	staging  *staging
	globals  *registry.Globals
	pushed   int64
}

var (
	ruleKey    = objects.Key{Group: "security.istio.io", Kind: "PeerAuthentication", Namespace: "shop", Name: "p"}
	serviceKey = objects.Key{Kind: "Service", Namespace: "shop", Name: "cart"}
)

func rule(mode string) string {
	return "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: shop}\nspec: {mtls: {mode: " + mode + "}}\n"
}

func service(target int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\nspec: {selector: {app: cart}, clusterIP: 10.96.0.7, ports: [{name: http, port: 80, targetPort: %d}]}\n", target)
}

func newBrain(t *testing.T) *brain {
	b := &brain{t: t, file: filepath.Join(t.TempDir(), "stage.db"), now: time.Unix(0, 0), objects: map[objects.Key]*objects.Object{}}
	var err error
	if b.globals, err = registry.OpenGlobals(filepath.Join(t.TempDir(), "globals.json"), model.DefaultSettings("c").Globals); err != nil {
		t.Fatal(err)
	}
	b.store(rule("STRICT"))
	b.store(service(8080))
	b.start()
	t.Cleanup(b.kill)
	return b
}

// update has the model know objects, and the addresses that hosts of them need.
func (b *brain) update(changed map[objects.Key]*objects.Object) *model.Mesh {
	b.t.Helper()
	b.model.Update(resolve.Change{Objects: changed})
	addresses, err := b.globals.Assign(b.model.GlobalHosts())
	if err != nil {
		b.t.Fatal(err)
	}
	return b.model.Update(resolve.Change{Addresses: addresses})
}

// store has the store hold an object.
func (b *brain) store(text string) *objects.Object {
	b.t.Helper()
	decoded, errs := objects.Decode(strings.NewReader(text), "test.yaml", "")
	if len(errs) > 0 {
		b.t.Fatal(errs)
	}
	b.revision++
	o := decoded[0]
	objects.Default(o)
	o.Version = objects.Version(strconv.FormatInt(b.revision, 10))
	b.objects[o.Key()] = o
	return o
}

// start is a controller that has just come, with what is stored and what the one before it kept.
func (b *brain) start() {
	b.kill()
	b.model = resolve.New(model.DefaultSettings("c"))
	b.staging = newStaging(b.file, 0, slog.New(slog.DiscardHandler))
	b.pushed = 0
	b.staging.start(time.Now(), b.update(b.objects), b.objects, (&Controller{model: b.model, globals: b.globals, log: b.staging.log}).rebuild)
	b.push()
}

// kill ends the controller, if there is one.
func (b *brain) kill() {
	b.t.Helper()
	if b.staging == nil {
		return
	}
	if err := b.staging.file.close(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *brain) push() {
	b.staging.keep()
	b.pushed++
	b.staging.machine.Pushed(b.pushed)
}

// apply changes an object.
func (b *brain) apply(text string) {
	b.t.Helper()
	o := b.store(text)
	changed := map[objects.Key]*objects.Object{o.Key(): o}
	b.staging.want(time.Now(), b.update(changed), changed)
	b.push()
}

// remove deletes an object, if it is there.
func (b *brain) remove(key objects.Key) {
	delete(b.objects, key)
	changed := map[objects.Key]*objects.Object{key: nil}
	b.staging.want(time.Now(), b.update(changed), changed)
	b.push()
}

// answers has a sidecar take everything but this; zero for all.
func (b *brain) answers(owes int64) {
	for b.staging.look(b.now, []stage.Proxy{{ID: "sidecar~10.0.0.1~cart-0.shop~shop.svc.cluster.local", Owes: owes, Serves: true}}) {
		b.push()
		owes = b.pushed
	}
}

// holds checks what clients do, the mode and the port that they go by, and what servers take on ports.
func (b *brain) holds(mode model.MTLSMode, port uint16, takes model.MTLSMode, ports ...uint16) {
	b.t.Helper()
	clients, servers := b.staging.inForce()
	if got, _ := clients.InboundMode("shop", nil, 80); got != mode || clients.Services[0].Ports[0].Target != port {
		b.t.Errorf("clients go by %s on port %d, want %s on %d", got, clients.Services[0].Ports[0].Target, mode, port)
	}
	got := []uint16{servers.Services[0].Ports[0].Target}
	for _, former := range servers.Accepted {
		got = append(got, former.Services[0].Ports[0].Target)
	}
	slices.Sort(got)
	if accepted, _ := servers.Accepts("shop", nil, 80); accepted != takes || !slices.Equal(slices.Compact(got), ports) {
		b.t.Errorf("servers take %s on ports %v, want %s on %v", accepted, got, takes, ports)
	}
}

func TestAChangeTakesItsStepsAcrossRestarts(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts=%v", restarts), func(t *testing.T) {
			b := newBrain(t)
			again := func() {
				if restarts {
					b.start()
				}
			}
			b.holds(model.MTLSStrict, 8080, model.MTLSStrict, 8080)
			b.apply(rule("DISABLE"))
			b.apply(service(9090))
			for range 2 {
				b.holds(model.MTLSStrict, 8080, model.MTLSPermissive, 8080, 9090)
				if v := b.staging.view(b.now); !v.objects[ruleKey] || !v.objects[serviceKey] || !strings.Contains(v.message(), "clients go by what was before") {
					t.Errorf("%+v: %s", v, v.message())
				}
				again()
			}
			b.answers(b.pushed)
			if got := b.staging.view(b.now).message(); !strings.Contains(got, "for at most 30s, this waits for shop/cart-0") {
				t.Error(got)
			}
			b.answers(0)
			for range 2 {
				b.holds(model.MTLSDisable, 9090, model.MTLSPermissive, 8080, 9090)
				again()
			}
			if v := b.staging.view(b.now); v.Step != stage.Switching || !v.objects[ruleKey] {
				t.Errorf("%+v", v)
			}
			// A change in the middle is added to that.
			b.apply(rule("STRICT"))
			for range 2 {
				b.holds(model.MTLSDisable, 9090, model.MTLSPermissive, 8080, 9090)
				again()
			}
			// Then, clients leave what was first, and after that go by the newest.
			for _, want := range []func(){
				func() { b.holds(model.MTLSStrict, 9090, model.MTLSPermissive, 9090) },
				func() { b.holds(model.MTLSStrict, 9090, model.MTLSStrict, 9090) },
			} {
				b.answers(0)
				b.now = b.now.Add(b.staging.limits.Connect)
				b.answers(0)
				want()
				again()
				want()
			}
			if b.staging.underWay() || len(b.staging.before) > 0 || len(b.staging.view(b.now).objects) > 0 {
				t.Errorf("%+v is left", b.staging.view(b.now))
			}
		})
	}
}

func TestWhatChangedWhileNoControllerLooked(t *testing.T) {
	b := newBrain(t)
	b.store(rule("DISABLE"))
	b.start()
	b.holds(model.MTLSStrict, 8080, model.MTLSPermissive, 8080)
	// So is one that is gone, or new.
	b = newBrain(t)
	delete(b.objects, ruleKey)
	b.start()
	if clients, _ := b.staging.inForce(); len(clients.PeerModes) != 1 {
		t.Errorf("clients go by %+v", clients.PeerModes)
	}
	b = newBrain(t)
	b.store(strings.Replace(rule("DISABLE"), "name: p", "name: q", 1))
	b.start()
	if clients, servers := b.staging.inForce(); len(clients.PeerModes) != 1 || len(servers.PeerModes) != 2 {
		t.Errorf("clients go by %+v, servers by %+v", clients.PeerModes, servers.PeerModes)
	}
	// So is whatever else clients go by: what they are told of mutual TLS, and ports.
	b = newBrain(t)
	b.store(rule("DISABLE"))
	b.store("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: shop}\nspec: {host: cart, trafficPolicy: {tls: {mode: DISABLE}}}\n")
	for range 2 {
		b.start()
		b.holds(model.MTLSStrict, 8080, model.MTLSPermissive, 8080)
		if clients, _ := b.staging.inForce(); len(clients.Destinations) != 0 {
			t.Errorf("clients go by %+v", clients.Destinations)
		}
	}
	b = newBrain(t)
	b.store(service(9090))
	b.start()
	b.holds(model.MTLSStrict, 8080, model.MTLSStrict, 8080, 9090)
	// Another one while clients switch, and no controller looked again.
	b.answers(0)
	b.holds(model.MTLSStrict, 9090, model.MTLSStrict, 8080, 9090)
	b.store(service(7070))
	b.start()
	b.holds(model.MTLSStrict, 9090, model.MTLSStrict, 7070, 8080, 9090)
}

// Whatever happens, the file has what clients go by, though only what changed is written.
func TestWhatIsKeptIsWhatClientsGoBy(t *testing.T) {
	for seed := range uint64(20) {
		random, b := rand.New(rand.NewPCG(1, seed)), newBrain(t)
		staged := 0
		for range 60 {
			switch random.IntN(6) {
			case 0:
				b.apply(rule([]string{"STRICT", "DISABLE", "PERMISSIVE"}[random.IntN(3)]))
			case 1:
				b.apply(service(8080 + random.IntN(3)))
			case 2:
				b.apply(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d%d, namespace: shop}\nspec: {host: cart}\n", random.IntN(3)))
			case 3:
				b.remove(objects.Key{Group: "networking.istio.io", Kind: "DestinationRule", Namespace: "shop", Name: fmt.Sprintf("d%d", random.IntN(3))})
			case 4:
				b.answers(0)
				b.now = b.now.Add(b.staging.limits.Connect)
			case 5:
				b.store(service(8080 + random.IntN(3)))
				b.start()
			}
			were, err := b.staging.file.read(b.staging.objects)
			if err != nil || len(were.newest) > 0 {
				t.Fatalf("seed %d: %+v, %v", seed, were.newest, err)
			}
			in := b.staging.machine.InForce()
			want := map[stage.Generation]left{in.Clients: were.clients}
			if i := slices.IndexFunc(in.Accepted, func(g stage.Generation) bool { return g != in.Clients }); i >= 0 {
				want[in.Accepted[i]] = were.former
				staged++
			}
			for g, got := range want {
				before := maps.Clone(b.staging.before[g])
				maps.DeleteFunc(before, func(key objects.Key, o *objects.Object) bool { return sameVersion(o, b.staging.objects[key]) })
				if !maps.EqualFunc(before, got, sameVersion) {
					t.Fatalf("seed %d: kept of generation %d %v, want %v", seed, g, got, before)
				}
			}
		}
		if staged == 0 {
			t.Errorf("seed %d: no client left anything", seed)
		}
	}
}

// What concerns no server has clients wait for nothing, whoever looked.
func TestARouteThatChangedWhileNoControllerLooked(t *testing.T) {
	b := newBrain(t)
	b.store("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: shop}\nspec: {host: cart, trafficPolicy: {loadBalancer: {simple: RANDOM}}}\n")
	b.start()
	if clients, _ := b.staging.inForce(); len(clients.Destinations) != 1 || b.staging.underWay() {
		t.Errorf("clients go by %+v", clients.Destinations)
	}
}

func TestWhatConcernsNoServerIsInForceAtOnce(t *testing.T) {
	b := newBrain(t)
	before := maps.Clone(b.staging.meshes)
	b.apply("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: shop}\nspec: {host: cart, trafficPolicy: {loadBalancer: {simple: RANDOM}}}\n")
	if clients, servers := b.staging.inForce(); len(clients.Destinations) != 1 || len(servers.Accepted) != 0 || len(before) != 1 {
		t.Errorf("clients go by %+v", clients.Destinations)
	}
	// While another change is staged, it waits with that: clients go by one whole.
	b.apply(rule("DISABLE"))
	b.apply("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: shop}\nspec: {host: cart, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}\n")
	if clients, _ := b.staging.inForce(); clients.Destinations[0].Policy.Balance != model.Random {
		t.Errorf("clients go by %+v", clients.Destinations[0])
	}
	b.answers(0)
	if clients, _ := b.staging.inForce(); clients.Destinations[0].Policy.Balance != model.RoundRobin {
		t.Errorf("clients go by %+v", clients.Destinations[0])
	}
}

func TestWhomAChangeWentOnWithoutIsSaid(t *testing.T) {
	b := newBrain(t)
	b.apply(rule("DISABLE"))
	b.answers(1)
	b.now = b.now.Add(stage.DefaultLimit)
	b.answers(1)
	b.holds(model.MTLSDisable, 8080, model.MTLSPermissive, 8080)
	if got := b.staging.view(b.now).without(); got != "; it went on after 30s without shop/cart-0" {
		t.Error(got)
	}
}

func TestWhatWasKeptAndCannotBeRead(t *testing.T) {
	page := os.Getpagesize()
	for what, damage := range map[string]func([]byte) []byte{
		"another format": func([]byte) []byte { return bytes.Repeat([]byte("{"), 1<<16) },
		"a quarter":      func(b []byte) []byte { return b[:len(b)/4] },
		"ends in zeroes": func(b []byte) []byte { return append(b[:4*page], make([]byte, len(b)-4*page)...) },
		"ends in ones":   func(b []byte) []byte { return append(b[:4*page], bytes.Repeat([]byte{0xff}, len(b)-4*page)...) },
		"one after the other, then": func(b []byte) []byte {
			for i := 2 * page; i < len(b); i += 2 * page {
				clear(b[i:min(len(b), i+page)])
			}
			return b
		},
	} {
		for _, running := range []bool{false, true} {
			b := newBrain(t)
			for i := range 300 {
				b.store(strings.Replace(service(9000), "name: cart", fmt.Sprint("name: s", i), 1))
			}
			b.start()
			b.apply(rule("DISABLE"))
			b.answers(0)
			if !running {
				b.kill()
			}
			content, err := os.ReadFile(b.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b.file, damage(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if !running {
				b.start()
				b.holds(model.MTLSDisable, 8080, model.MTLSDisable, 8080)
			}
			// The next change is kept again.
			b.apply(rule("STRICT"))
			b.start()
			if t.Failed() {
				t.Fatalf("%s, running %v", what, running)
			}
			b.holds(model.MTLSDisable, 8080, model.MTLSPermissive, 8080)
		}
	}
}

// Whom a policy asks is there for who asks, at every step: with failOpen, requests would pass unasked otherwise.
func TestAuthorizersAreThereBeforeTheirPolicies(t *testing.T) {
	b := newBrain(t)
	asked := func(when string) {
		t.Helper()
		clients, servers := b.staging.inForce()
		policies := 0
		for _, p := range servers.Access {
			policies++
			if s := clients.Service(p.Authorizer.Service); s == nil || s.Port(p.Authorizer.Port) == nil {
				t.Errorf("%s: %s asks %s on port %d, which proxies do not have", when, p.Name, p.Authorizer.Service, p.Authorizer.Port)
			}
		}
		if policies != 1 {
			t.Errorf("%s: %d policies", when, policies)
		}
	}
	changed := map[objects.Key]*objects.Object{}
	for _, text := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: authz, namespace: auth}\nspec: {selector: {app: authz}, clusterIP: 10.96.0.9, ports: [{name: grpc, port: 9000}]}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    extensionProviders:\n    - name: ask\n      envoyExtAuthzGrpc: {service: authz.auth.svc.cluster.local, port: 9000, failOpen: true}\n",
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ask, namespace: shop}\nspec: {action: CUSTOM, provider: {name: ask}, rules: [{}]}\n",
	} {
		o := b.store(text)
		changed[o.Key()] = o
	}
	b.staging.want(time.Now(), b.update(changed), changed)
	b.push()
	if in := b.staging.machine.InForce(); in.Clients == in.Wanted {
		t.Fatal("nothing is staged")
	}
	asked("while servers are prepared")
	// Another port, in the middle of that.
	b.apply("apiVersion: v1\nkind: Service\nmetadata: {name: authz, namespace: auth}\nspec: {selector: {app: authz}, clusterIP: 10.96.0.9, ports: [{name: grpc, port: 9000}, {name: grpc-new, port: 9001}]}\n")
	b.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    extensionProviders:\n    - name: ask\n      envoyExtAuthzGrpc: {service: authz.auth.svc.cluster.local, port: 9001, failOpen: true}\n")
	asked("when it asks another port")
	b.start()
	asked("after a restart")
	b.answers(0)
	b.now = b.now.Add(b.staging.limits.Connect)
	b.answers(0)
	asked("settled")
}

// Admissions put objects into the model at any time. Of each mesh it is said which of them are new in it.
func TestAMeshSaysWhatIsNewInIt(t *testing.T) {
	c := &Controller{objects: map[objects.Key]*objects.Object{}, pending: map[objects.Key]bool{}, revised: map[objects.Key]objects.Version{}, taken: map[objects.Key]*objects.Object{},
		changed: make(chan struct{}, 1), model: resolve.New(model.DefaultSettings("c"))}
	const services = 500
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range services {
			decoded, errs := objects.Decode(strings.NewReader(strings.ReplaceAll(service(8080), "name: cart", fmt.Sprintf("name: s%d", n))), "test.yaml", "")
			if len(errs) > 0 {
				t.Error(errs)
				return
			}
			o := decoded[0]
			objects.Default(o)
			o.Version = objects.Version(strconv.Itoa(n + 1))
			c.take([]store.Event{{Key: o.Key(), Object: o}})
			c.Admit(nil)
		}
	}()
	known := map[string]bool{}
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		mesh, fresh := c.takeMesh(resolve.Change{})
		for key := range fresh.taken {
			known[key.Name] = true
		}
		for _, s := range mesh.Services {
			if !known[s.Name] {
				t.Fatalf("%s is in force, and nobody was told", s.Name)
			}
		}
	}
	if len(known) != services {
		t.Errorf("%d of %d services", len(known), services)
	}
}

// What keeping a change costs, with so many services beside.
func BenchmarkKeepAChange(b *testing.B) {
	for _, services := range []int{50, 5000} {
		b.Run(strconv.Itoa(services), func(b *testing.B) {
			file := stageFile{path: filepath.Join(b.TempDir(), "stage.db")}
			all := make(map[objects.Key]*objects.Object, services)
			for n := range services {
				decoded, errs := objects.Decode(strings.NewReader(strings.ReplaceAll(service(8080), "name: cart", fmt.Sprintf("name: s%d", n))), "test.yaml", "")
				if len(errs) > 0 {
					b.Fatal(errs)
				}
				decoded[0].Version = "1"
				all[decoded[0].Key()] = decoded[0]
			}
			if err := file.write(stageChange{newest: all, whole: true, moved: true}); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := file.close(); err != nil {
					b.Error(err)
				}
			})
			key := objects.Key{Kind: "Service", Namespace: "shop", Name: "s0"}
			one := map[objects.Key]*objects.Object{key: all[key]}
			for b.Loop() {
				if err := file.write(stageChange{newest: one}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What clients go by is kept with all that it is made of, of whatever kind: here the label by which a Gateway takes routes.
func TestWhatObjectsThatClientsGoByLookUpIsKept(t *testing.T) {
	b := newBrain(t)
	b.store("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n")
	b.store("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: istio-system}\nspec: {gatewayClassName: heddle, listeners: [{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}}]}\n")
	b.store("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: g, namespace: istio-system}], rules: [{backendRefs: [{name: cart, port: 80}]}]}\n")
	b.start()
	b.apply(rule("DISABLE"))
	b.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: b}}\n")
	for range 2 {
		clients, servers := b.staging.inForce()
		if len(clients.Routes) != 1 || len(servers.Routes) != 0 {
			t.Fatalf("clients have routes %+v, wanted are %+v", clients.Routes, servers.Routes)
		}
		b.start()
	}
}

// No key is kept where it is not sealed.
func TestSecretsAreNotKept(t *testing.T) {
	b := newBrain(t)
	b.store("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\nstringData: {tls.key: sesame-0123456789}\n")
	b.start()
	b.apply(rule("DISABLE"))
	b.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\nstringData: {tls.key: sesame-9876543210}\n")
	b.kill()
	content, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte("PeerAuthentication")) || bytes.Contains(content, []byte("c2VzYW1l")) || bytes.Contains(content, []byte("sesame")) {
		t.Error("a Secret is kept, or nothing")
	}
}

// An authority that is taken back is trusted by no gateway, at whatever step another change is, and whoever looks.
func TestAnAuthorityThatIsTakenBackWhileAChangeIsUnderWay(t *testing.T) {
	authorities := func(name string) string {
		key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true}
		certificate, err := x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
	}
	config := func(authorities string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, namespace: shop}\ndata: {ca.crt: %q}\n", authorities)
	}
	b, old, now := newBrain(t), authorities("old"), authorities("new")
	trusts := func(when, want string, untrusted bool) {
		t.Helper()
		clients, _ := b.staging.inForce()
		if len(clients.BackendTLS) != 1 || string(clients.BackendTLS[0].TLS.Authorities) != want || clients.BackendTLS[0].TLS.Untrusted != untrusted {
			t.Errorf("%s, clients trust %+v", when, clients.BackendTLS)
		}
	}
	b.store(config(old))
	b.store("apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: t, namespace: shop}\nspec: {targetRefs: [{group: '', kind: Service, name: cart}], validation: {hostname: cart.example.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}\n")
	b.start()
	trusts("before", old, false)
	b.apply(rule("DISABLE"))
	b.apply(config(now))
	trusts("while servers are prepared", now, false)
	b.start()
	trusts("after a restart", now, false)
	b.remove(objects.Key{Kind: "ConfigMap", Namespace: "shop", Name: "ca"})
	trusts("without any authority", "", true)
	b.start()
	trusts("after a restart, without any authority", "", true)
}

// A host that only the mesh of before has is called by the address that it had.
func TestAHostThatIsGoneKeepsItsAddress(t *testing.T) {
	b := newBrain(t)
	b.store("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop}\nspec: {hosts: [db.example.com], ports: [{name: tcp, number: 5432, protocol: TCP}], resolution: DNS}\n")
	b.start()
	clients, _ := b.staging.inForce()
	was := clients.Service("db.example.com").Address
	if !was.IsValid() {
		t.Fatal("it has none to begin with")
	}
	b.apply(rule("DISABLE"))
	b.remove(objects.Key{Group: "networking.istio.io", Kind: "ServiceEntry", Namespace: "shop", Name: "e"})
	for range 2 {
		clients, servers := b.staging.inForce()
		if s := clients.Service("db.example.com"); s == nil || s.Address != was {
			t.Errorf("clients have %+v", s)
		}
		if s := servers.Service("db.example.com"); s != nil || b.model.Mesh().Service("db.example.com") != nil {
			t.Errorf("servers have %+v", s)
		}
		b.start()
	}
}
