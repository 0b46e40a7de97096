package federation

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/storetest"
)

// memory is a store in memory that says when something changed.
type memory struct {
	*cache.Cache
	kept    *storetest.Memory
	mu      sync.Mutex
	changed func()
}

func newMemory(t *testing.T) *memory {
	t.Helper()
	m := &memory{kept: storetest.NewMemory(), changed: func() {}}
	var err error
	m.Cache, err = cache.Open(t.Context(), cache.Options{Store: m.kept, Log: slog.New(slog.DiscardHandler), Changed: func([]store.Event) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changed()
	}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *memory) onChange(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = f
}

// breakWith has every operation fail; nil ends that.
func (m *memory) breakWith(err error) {
	if err == nil {
		m.kept.Fail(nil)
		return
	}
	m.kept.Fail(func(storetest.Operation) error { return err })
}

// clock runs with the real one, ahead by what tests say.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// link is the way between clusters. Cut, it loses everything without a word, and its connections break or hang.
type link struct {
	mu    sync.Mutex
	cut   map[string]bool
	conns map[*wire]string
}

// wire is a connection over a link.
type wire struct {
	net.Conn
	link *link
	hang chan struct{}
	once sync.Once
}

func newLink() *link { return &link{cut: map[string]bool{}, conns: map[*wire]string{}} }

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	cut := l.cut[address]
	l.mu.Unlock()
	if cut {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, link: l, hang: make(chan struct{})}
	l.mu.Lock()
	l.conns[w] = address
	l.mu.Unlock()
	return w, nil
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.link.mu.Lock()
	cut := w.link.cut[w.link.conns[w]]
	w.link.mu.Unlock()
	if cut && err == nil {
		// What was under way is lost, and nothing says so.
		<-w.hang
		return 0, net.ErrClosed
	}
	return n, err
}

func (w *wire) Close() error {
	w.once.Do(func() {
		close(w.hang)
		w.link.mu.Lock()
		delete(w.link.conns, w)
		w.link.mu.Unlock()
	})
	return w.Conn.Close()
}

func (l *link) set(address string, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut[address] = cut
}

// closeAll breaks the connections to an address.
func (l *link) closeAll(address string) {
	l.mu.Lock()
	var all []*wire
	for w, a := range l.conns {
		if a == address {
			all = append(all, w)
		}
	}
	l.mu.Unlock()
	for _, w := range all {
		w.Close()
	}
}

// node is one cluster's federation, with everything around it.
type node struct {
	t         *testing.T
	name      string
	place     cluster.Cluster
	store     *memory
	authority *ca.Authority
	audit     *audit.Log
	clock     *clock
	link      *link
	// address of its gateway, which here is its federation port itself.
	address string
	// rotate is what the agent answers.
	rotateMu sync.Mutex
	rotate   func() error
	rotated  int
	// accept is what the proxies say, accepted what they were told, under the same lock.
	accept   func() error
	accepted [][]cluster.Issuer

	f    *Federation
	stop func()
}

var testPace = Pace{
	Alive: 20 * time.Millisecond, Silence: 400 * time.Millisecond, Probe: 20 * time.Millisecond, ProbeTimeout: 200 * time.Millisecond,
	FirstRetry: 5 * time.Millisecond, LastRetry: 50 * time.Millisecond, RemovedRetry: 100 * time.Millisecond, Listen: 10 * time.Millisecond, Dial: 300 * time.Millisecond,
	Keep: 5 * time.Millisecond, Sweep: 20 * time.Millisecond, Resume: 20 * time.Millisecond, Look: 10 * time.Millisecond, Overlap: 5 * time.Millisecond,
}

// place makes a cluster's directories' names below a directory of the test.
func place(t testing.TB, name string) cluster.Cluster {
	t.Helper()
	c, err := cluster.New(name)
	if err != nil {
		t.Fatal(err)
	}
	c.DataRoot, c.RunRoot = filepath.Join(t.TempDir(), "lib"), filepath.Join(t.TempDir(), "run")
	return c
}

// auditSize is small: its room is taken at once.
const auditSize = 64 << 10

// newNode starts a cluster: a primary, or the member that its directory says it is.
func newNode(t *testing.T, name string, l *link, c *clock) *node {
	t.Helper()
	n := &node{t: t, name: name, place: place(t, name), link: l, clock: c, store: newMemory(t)}
	n.reserve()
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// reserve gives the node an address of its own.
func (n *node) reserve() {
	n.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.address = l.Addr().String()
	l.Close()
}

func (n *node) start() {
	n.t.Helper()
	_, isMember, err := ReadMembership(n.place)
	if err != nil {
		n.t.Fatal(err)
	}
	if n.authority, err = ca.Open(ca.Options{Dir: AuthorityDir(n.place), Cluster: n.name, TrustDomain: "cluster.local", Now: n.clock.Now, Member: isMember}); err != nil {
		n.t.Fatal(err)
	}
	if !isMember {
		n.put(clusterObject(n.name, v1alpha1.ClusterSpec{Primary: true}))
	}
	if n.audit, err = audit.Open(audit.Options{Dir: n.place.Audit(), Size: auditSize, Now: n.clock.Now, Log: slog.New(slog.DiscardHandler)}); err != nil {
		n.t.Fatal(err)
	}
	gateway := netip.MustParseAddrPort(n.address)
	follow := make(chan struct{}, 1)
	n.f, err = Open(Config{
		Cluster: n.place, Settings: model.DefaultSettings(n.name), Version: "test", Store: n.store, Authority: n.authority, Audit: n.audit,
		Gateways: func() []netip.AddrPort { return []netip.AddrPort{gateway} },
		Listen:   func() (net.Listener, error) { return net.Listen("tcp", n.address) },
		Dial:     n.link.dial, Rotate: n.agentRotates, Accept: n.proxiesAccept, Changed: func() {}, Log: slog.New(slog.DiscardHandler), Now: n.clock.Now, Pace: testPace,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.store.onChange(func() { signal(follow) })
	n.setObjects()
	n.f.SetOwn(registry.Locality{}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { n.f.Run(ctx) })
	parts.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-follow:
				n.setObjects()
			}
		}
	})
	log := n.audit
	n.stop = sync.OnceFunc(func() { cancel(); parts.Wait(); log.Close() })
	eventually(n.t, n.name+" listens", func() bool {
		conn, err := net.Dial("tcp", n.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// restart ends the controller as a crash would, and starts the next one on what it left.
func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.start()
	n.t.Cleanup(n.stop)
}

func (n *node) agentRotates(context.Context) error {
	n.rotateMu.Lock()
	defer n.rotateMu.Unlock()
	n.rotated++
	if n.rotate == nil {
		return nil
	}
	return n.rotate()
}

// proxiesAccept is what the controller does, of whose proxies there are none here.
func (n *node) proxiesAccept(context.Context) error {
	n.rotateMu.Lock()
	defer n.rotateMu.Unlock()
	n.accepted = append(n.accepted, n.authority.Issuers())
	if n.accept == nil {
		return nil
	}
	return n.accept()
}

func (n *node) onAccept(f func() error) {
	n.rotateMu.Lock()
	defer n.rotateMu.Unlock()
	n.accept = f
}

func (n *node) onRotate(f func() error) {
	n.rotateMu.Lock()
	defer n.rotateMu.Unlock()
	n.rotate = f
}

func (n *node) setObjects() {
	n.f.SetObjects(n.store.Objects())
}

func (n *node) put(o *objects.Object) {
	n.t.Helper()
	if o.Origin.Cluster == "" {
		o.Origin.Cluster = n.name
	}
	if err := n.store.Apply(context.Background(), []store.Write{{Key: o.Key(), Object: o}}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(key objects.Key) {
	n.t.Helper()
	if err := n.store.Apply(context.Background(), []store.Write{{Key: key}}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) has(key objects.Key) bool {
	_, err := n.store.Get(context.Background(), key)
	return err == nil
}

func (n *node) token() string {
	n.t.Helper()
	response, err := n.f.Token(context.Background(), client.TokenRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return response.Token
}

// joinMember makes and starts a member of a primary.
func (n *node) joinMember(name string) *node {
	n.t.Helper()
	m := &node{t: n.t, name: name, place: place(n.t, name), link: n.link, clock: n.clock, store: newMemory(n.t)}
	m.reserve()
	if _, err := Join(context.Background(), JoinOptions{Cluster: m.place, Address: n.address, Token: n.token(), Version: "test", Dial: n.link.dial, Now: n.clock.Now}); err != nil {
		n.t.Fatal(err)
	}
	m.start()
	n.t.Cleanup(func() { m.stop() })
	return m
}

func (n *node) peer(name string) registry.Peer {
	for _, p := range n.f.Peers() {
		if p.Cluster == name {
			return p
		}
	}
	return registry.Peer{}
}

func (n *node) status(name string) client.ClusterStatus {
	for _, c := range n.f.Status().Clusters {
		if c.Name == name {
			return c
		}
	}
	return client.ClusterStatus{}
}

func clusterKey(name string) objects.Key {
	return objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: name}
}

func clusterObject(name string, spec v1alpha1.ClusterSpec) *objects.Object {
	return &objects.Object{Kind: objects.Cluster, Resource: &v1alpha1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "heddle.io/v1alpha1", Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}}
}

func namespaceKey(name string) objects.Key {
	return objects.Key{Group: objects.GlobalNamespace.Group, Kind: objects.GlobalNamespace.Kind, Name: name}
}

// globalNamespace maps a namespace in all clusters that match a pattern.
func globalNamespace(name, clusters, namespace string) *objects.Object {
	return &objects.Object{Kind: objects.GlobalNamespace, Resource: &v1alpha1.GlobalNamespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "heddle.io/v1alpha1", Kind: "GlobalNamespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1, 0).UTC())},
		Spec:       v1alpha1.GlobalNamespaceSpec{Domain: name + ".demo", Mappings: []v1alpha1.NamespaceMapping{{Cluster: clusters, Namespace: namespace}}},
	}}
}

func export(namespace, name string, ready uint32) registry.Export {
	return registry.Export{Namespace: namespace, Name: name, Ports: []registry.ExportPort{{Name: "http", Number: 80, Protocol: "HTTP"}},
		Identities: []string{"spiffe://cluster.local/ns/" + namespace + "/sa/" + name},
		Groups:     []registry.ExportGroup{{Labels: map[string]string{"app": name}, Ready: ready}}}
}

// eventually waits until something holds, with a bound.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

// failsWith demands that an error is a problem that says what went wrong.
func failsWith(t *testing.T, err error, what string) {
	t.Helper()
	_ = asProblem(t, err, what)
}

// asProblem demands that an error is a problem with all its parts.
func asProblem(t *testing.T, err error, what string) *client.Problem {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) {
		t.Fatalf("%T %v is no problem", err, err)
	}
	if !strings.Contains(p.What, what) {
		t.Fatalf("got %q, want %q", p.Error(), what)
	}
	if p.Status < 400 || p.Remedy == "" {
		t.Errorf("%q has status %d and remedy %q", p.Error(), p.Status, p.Remedy)
	}
	return p
}

func mustParse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func clusterSpec() v1alpha1.ClusterSpec { return v1alpha1.ClusterSpec{Key: someHash} }
