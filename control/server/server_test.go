package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/connlimit"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
	contract "heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/etcd"
)

// stub is a controller that only remembers.
type stub struct {
	store   contract.Batch
	report  client.Report
	proxies []client.ProxyStatus
	running map[objects.Key]int
	// config of the proxy n.
	config map[string][]proto.Message

	mu      sync.Mutex
	names   client.Names
	renamed chan struct{}
}

func (s *stub) Names() (client.Names, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names, s.renamed
}

func (s *stub) rename(names client.Names) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = names
	close(s.renamed)
	s.renamed = make(chan struct{})
}

func (s *stub) Admit(writes []contract.Write) ([]contract.Write, map[objects.Key]resolve.Warnings, []error) {
	m := resolve.New(model.DefaultSettings("c"))
	all := map[objects.Key]*objects.Object{}
	for _, o := range s.store.Objects() {
		all[o.Key()] = o
	}
	m.Update(resolve.Change{Objects: all})
	return m.Admit(writes)
}

// mesh is a federation that only says who is the primary.
type mesh struct {
	// Authority is of tests that need one.
	Authority
	primary string
	joining bool
}

func (m *mesh) Primary() string { return m.primary }
func (m *mesh) Joining() bool   { return m.joining }
func (m *mesh) Status() client.FederationStatus {
	return client.FederationStatus{Cluster: "c", Primary: m.primary}
}
func (m *mesh) Token(_ context.Context, r client.TokenRequest) (client.TokenResponse, error) {
	return client.TokenResponse{Token: "hdl1.x", Address: "198.18.0.2:15443", Expires: time.Unix(0, 0).Add(r.TTL)}, nil
}
func (m *mesh) Join(_ context.Context, r client.JoinRequest) (client.FederationStatus, error) {
	if r.Token == "" {
		return client.FederationStatus{}, &client.Problem{Status: http.StatusBadRequest, What: "joining needs a token"}
	}
	m.primary = "p"
	return m.Status(), nil
}
func (m *mesh) Rotate(context.Context) (client.FederationStatus, error) {
	return client.FederationStatus{}, &client.Problem{Status: http.StatusServiceUnavailable, What: "the primary is not reached"}
}

func (s *stub) Report(_ context.Context, r client.Report) error { s.report = r; return nil }
func (s *stub) ReportChange(context.Context, client.ReportChange) error {
	return nil
}
func (s *stub) Unchanged(client.Unchanged) error { return nil }
func (s *stub) Replicas() []client.Replica       { return s.report.Replicas }
func (s *stub) Status(context.Context) (client.Status, error) {
	return client.Status{Cluster: "c"}, nil
}
func (s *stub) Proxies() []client.ProxyStatus { return s.proxies }
func (s *stub) Running(of []objects.Key) map[objects.Key]int {
	out := map[objects.Key]int{}
	for _, key := range of {
		out[key] = s.running[key]
	}
	return out
}
func (s *stub) ProxyConfig(node string) (map[string][]proto.Message, bool) {
	return s.config, s.config != nil && node == "n"
}

// owner is the user who started the cluster of the tests.
const owner = 60001

// world is an API on a socket in a directory of the test.
type world struct {
	// client is root's.
	client *client.Client
	dir    string
	known  *stub
	mesh   *mesh
	audit  *audit.Log
	server *Server
	conns  *connlimit.Listener
	clock  *clock
	ctx    context.Context
	// address of the API over TLS.
	address string
}

// clock runs with the real one, ahead by what tests say.
type clock struct{ ahead atomic.Int64 }

func (c *clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// start runs the API on a socket in a directory of the test.
func start(t *testing.T) (*client.Client, string) {
	t.Helper()
	w := startAll(t)
	return w.client, w.dir
}

// startAll is start with everything around it, and with a server that is changed before it serves.
func startAll(t *testing.T, change ...func(*Server)) *world {
	t.Helper()
	dir := t.TempDir()
	// Other users pass through to the socket.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	keys, err := seal.Open(ctx, seal.Options{File: filepath.Join(dir, "store", "secrets.key")})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := etcd.OpenEmbedded(ctx, filepath.Join(dir, "store"), keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	bindings := new(access.Bindings)
	store, err := cache.Open(ctx, cache.Options{Store: kept, Log: slog.New(slog.DiscardHandler), Changed: bindings.Take})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ca.Open(ca.Options{Dir: filepath.Join(dir, "ca"), Cluster: "c", TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(dir, "logs")
	if err := os.MkdirAll(filepath.Join(logs, "shop", "cart-0"), 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "api.sock")
	listener, err := ListenAPI(socket)
	if err != nil {
		t.Fatal(err)
	}
	conns, ok := listener.(*connlimit.Listener)
	if !ok {
		t.Fatal("the API's connections have no bound")
	}
	w := &world{conns: conns, client: client.New(socket), dir: dir, known: &stub{store: store, renamed: make(chan struct{})}, mesh: &mesh{primary: "c"}, clock: &clock{}, ctx: ctx}
	if w.audit, err = audit.Open(audit.Options{Dir: filepath.Join(dir, "audit"), Size: 1 << 20, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.server = New(Config{Cluster: "c", Settings: model.DefaultSettings("c"), Store: store, Bindings: bindings, Authority: authority, Controller: w.known, Federation: w.mesh,
		Owner: owner, Audit: w.audit, AgentSocket: filepath.Join(dir, "agent.sock"), Logs: logs, Log: slog.New(slog.DiscardHandler), Now: w.clock.Now})
	for _, f := range change {
		f(w.server)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := errors.Join(store.Close(), w.audit.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

const shop = `apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: v1
kind: Service
metadata: { name: cart, namespace: shop }
spec: { selector: { app: cart }, ports: [{ name: http, port: 80 }] }
`

func apply(t *testing.T, c *client.Client, content string, dryRun bool) (client.ApplyResponse, error) {
	t.Helper()
	return c.Apply(context.Background(), client.ApplyRequest{Manifests: []client.Manifest{{File: "shop.yaml", Content: content}}, DryRun: dryRun, User: "me"})
}

func actions(r client.ApplyResponse) string {
	var out []string
	for _, x := range r.Results {
		out = append(out, x.Name()+" "+x.Action)
	}
	return strings.Join(out, "\n")
}

func TestApplyCreatesConfiguresAndLeaves(t *testing.T) {
	c, _ := start(t)
	for _, step := range []struct {
		content string
		dryRun  bool
		want    string
	}{
		{shop, true, "namespace/shop created\nservice/cart created"},
		{shop, false, "namespace/shop created\nservice/cart created"},
		{shop, false, "namespace/shop unchanged\nservice/cart unchanged"},
		{strings.Replace(shop, "port: 80", "port: 81", 1), false, "namespace/shop unchanged\nservice/cart configured"},
	} {
		r, err := apply(t, c, step.content, step.dryRun)
		if err != nil {
			t.Fatal(err)
		}
		if got := actions(r); got != step.want {
			t.Fatalf("got\n%s\nwant\n%s", got, step.want)
		}
	}
	o, err := c.Get(context.Background(), objects.Service, "shop", "cart")
	if err != nil {
		t.Fatal(err)
	}
	if o.Origin.File != "shop.yaml" || o.Origin.Line != 5 || o.Origin.User != "me" || o.GetGeneration() != 2 {
		t.Fatalf("%+v generation %d", o.Origin, o.GetGeneration())
	}
}

func TestApplyIsAllOrNothing(t *testing.T) {
	c, _ := start(t)
	_, err := apply(t, c, shop+"---\napiVersion: v1\nkind: Service\nmetadata: { name: bad, namespace: shop }\nspec: { prots: [] }\n", false)
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusUnprocessableEntity || len(problem.Errors) == 0 {
		t.Fatalf("%v", err)
	}
	if e := problem.Errors[0]; e.File != "shop.yaml" || e.Line == 0 || e.Problem == "" {
		t.Fatalf("%+v", e)
	}
	list, err := c.List(context.Background(), objects.Service, "")
	if err != nil || len(list.Items) != 0 {
		t.Fatalf("%v %v", list.Items, err)
	}
}

func TestTwiceInABatch(t *testing.T) {
	c, _ := start(t)
	if _, err := c.Apply(context.Background(), client.ApplyRequest{Manifests: []client.Manifest{{File: "a.yaml", Content: shop}, {File: "b.yaml", Content: shop}}}); err == nil || !strings.Contains(err.Error(), "defined twice, first at a.yaml:1") {
		t.Fatal(err)
	}
}

func TestDelete(t *testing.T) {
	c, _ := start(t)
	ctx := context.Background()
	if _, err := apply(t, c, shop, false); err != nil {
		t.Fatal(err)
	}
	request := client.ApplyRequest{Manifests: []client.Manifest{{File: "shop.yaml", Content: shop}}, Delete: true}
	r, err := c.Apply(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	if got := actions(r); got != "service/cart deleted\nnamespace/shop deleted" {
		t.Fatalf("%s", got)
	}
	var problem *client.Problem
	if _, err := c.Apply(ctx, request); !errors.As(err, &problem) || problem.Status != http.StatusNotFound {
		t.Fatal(err)
	}
	request.IgnoreNotFound = true
	if _, err := c.Apply(ctx, request); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, objects.Namespace, "", "istio-system"); err == nil {
		t.Fatal("a namespace of the cluster was deleted or passed over")
	}
}

func TestWatchSeesChangesInOrder(t *testing.T) {
	c, _ := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := c.List(ctx, objects.Service, "")
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan client.Change, 8)
	go func() { _ = c.Watch(ctx, objects.Service, list.Position, func(x client.Change) { changes <- x }) }()
	if _, err := apply(t, c, shop, false); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, objects.Service, "shop", "cart"); err != nil {
		t.Fatal(err)
	}
	if x := <-changes; x.Type != "ADDED" || x.Object == nil || x.Key.Name != "cart" {
		t.Fatalf("%+v", x)
	}
	if x := <-changes; x.Type != "DELETED" || x.Object != nil {
		t.Fatalf("%+v", x)
	}
}

func TestPutRefusesOldRevisions(t *testing.T) {
	c, _ := start(t)
	ctx := context.Background()
	if _, err := apply(t, c, shop, false); err != nil {
		t.Fatal(err)
	}
	o, err := c.Get(ctx, objects.Service, "shop", "cart")
	if err != nil {
		t.Fatal(err)
	}
	o.SetAnnotations(map[string]string{"a": "1"})
	if _, err := c.Put(ctx, o); err != nil {
		t.Fatal(err)
	}
	o.SetAnnotations(map[string]string{"a": "2"})
	var problem *client.Problem
	if _, err := c.Put(ctx, o); !errors.As(err, &problem) || problem.Status != http.StatusConflict || problem.Remedy == "" {
		t.Fatal(err)
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	c, dir := start(t)
	if _, err := apply(t, c, "apiVersion: v1\nkind: Secret\nmetadata: { name: key }\nstringData: { password: marker-4711 }\n", false); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "api.sock"))
	}, DisableKeepAlives: true}
	for _, accept := range []string{"", client.WireType} {
		for _, path := range []string{"/api/v1/secrets", "/api/v1/namespaces/default/secrets/key"} {
			request, err := http.NewRequest(http.MethodGet, "http://x"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Accept", accept)
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("%s %v %s", path, err, body)
			}
			if strings.Contains(string(body), "marker-4711") || strings.Contains(string(body), "bWFya2VyLTQ3MTE") {
				t.Errorf("%s (%s) shows the secret", path, accept)
			}
		}
	}
}

func TestCertificates(t *testing.T) {
	c, _ := start(t)
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	_, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := c.Sign(context.Background(), identity, request)
	if err != nil || len(issued.Chain) == 0 || issued.Serial == "" {
		t.Fatalf("%v", err)
	}
	other := identity
	other.ServiceAccount = "payments"
	var problem *client.Problem
	if _, err := c.Sign(context.Background(), other, request); !errors.As(err, &problem) || problem.Status != http.StatusForbidden {
		t.Fatal(err)
	}
}

func TestLogs(t *testing.T) {
	c, dir := start(t)
	path := filepath.Join(dir, "logs", "shop", "cart-0", "app.log")
	if err := os.WriteFile(path, []byte("one\ntwo\nthree\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	body, err := c.Open(ctx, http.MethodGet, "/heddle/v1/logs/shop/cart-0/app?tail=2&follow=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	read := func(want string) {
		t.Helper()
		buffer := make([]byte, len(want))
		if _, err := io.ReadFull(body, buffer); err != nil || string(buffer) != want {
			t.Fatalf("%q %v, want %q", buffer, err, want)
		}
	}
	read("two\nthree\n")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("four\n"); err != nil {
		t.Fatal(err)
	}
	read("four\n")
	for _, bad := range []string{"/heddle/v1/logs/shop/..%2f..%2fetc/app", "/heddle/v1/logs/shop/cart-0/passwd", "/heddle/v1/logs/shop/nobody-0/app", "/heddle/v1/logs/shop/cart-0/app?tail=x"} {
		if _, err := c.Open(ctx, http.MethodGet, bad, nil); err == nil {
			t.Errorf("%s was answered", bad)
		}
	}
}

func TestErrorsAreStructured(t *testing.T) {
	c, _ := start(t)
	for path, want := range map[string]int{"/nowhere": 404, "/api/v1/pods": 404, "/apis/x/v1/services": 404, "/api/v1/services/x": 404,
		"/api/v1/namespaces/shop/services/none": 404, "/api/v1/services?watch=1": 400, "/heddle/v1/agent/status": 502, "/heddle/v1/proxies/x/config": 404} {
		var problem *client.Problem
		err := c.Do(context.Background(), http.MethodGet, path, nil, nil)
		if !errors.As(err, &problem) || problem.Status != want || problem.What == "" {
			t.Errorf("%s: %v (%+v)", path, err, problem)
		}
	}
	var problem *client.Problem
	err := c.Do(context.Background(), http.MethodPost, "/heddle/v1/apply", map[string]any{"manifest": 1}, nil)
	if !errors.As(err, &problem) || problem.Status != http.StatusBadRequest {
		t.Error(err)
	}
	big := strings.Repeat("x", maxBody)
	err = c.Do(context.Background(), http.MethodPost, "/heddle/v1/apply", client.ApplyRequest{Manifests: []client.Manifest{{Content: big}}}, nil)
	if !errors.As(err, &problem) || problem.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("%v", err)
	}
}

// TestProxiesAreCountedAsObjectsAreRead: no status that is stored says how many run an object, and who reads it is told.
func TestProxiesAreCountedAsObjectsAreRead(t *testing.T) {
	w := startAll(t)
	c := w.client
	if _, err := apply(t, c, shop, false); err != nil {
		t.Fatal(err)
	}
	key := objects.Key{Kind: objects.Service.Kind, Namespace: "shop", Name: "cart"}
	w.known.running = map[objects.Key]int{key: 3, {Kind: objects.Namespace.Kind, Name: "shop"}: 4}
	o, err := c.Get(t.Context(), objects.Service, "shop", "cart")
	if err != nil || o.Status.Proxies != 3 {
		t.Errorf("%v, %d proxies run it", err, o.Status.Proxies)
	}
	list, err := c.List(t.Context(), objects.Service, "")
	if err != nil || len(list.Items) != 1 || list.Items[0].Status.Proxies != 3 {
		t.Errorf("%v, listed are %+v", err, list.Items)
	}
	if space, err := c.Get(t.Context(), objects.Namespace, "", "shop"); err != nil || space.Status.Proxies != 0 {
		t.Errorf("%v, a namespace is run by %d proxies", err, space.Status.Proxies)
	}
	if stored, err := w.known.store.Get(t.Context(), key); err != nil || stored.Status.Proxies != 0 {
		t.Errorf("%v, stored are %d proxies", err, stored.Status.Proxies)
	}
}
