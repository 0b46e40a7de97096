package federation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/ca"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// joinAs tries to join a fresh cluster of that name, and gives its place.
func joinAs(t *testing.T, p *node, name, address, token string) (cluster.Cluster, error) {
	t.Helper()
	c := place(t, name)
	_, err := Join(context.Background(), JoinOptions{Cluster: c, Address: address, Token: token, Version: "test", Dial: p.link.dial, Now: p.clock.Now})
	return c, err
}

// nothingLeft demands that a failed join left no trace.
func nothingLeft(t *testing.T, c cluster.Cluster) {
	t.Helper()
	err := filepath.WalkDir(c.DataRoot, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			t.Errorf("%s is left", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func spoil(token string, part int, with string) string {
	parts := strings.Split(token, ".")
	parts[part] = with
	return strings.Join(parts, ".")
}

func TestJoinFailsClearly(t *testing.T) {
	l := newLink()
	p := newNode(t, "cluster1", l, &clock{})
	other := newNode(t, "cluster1", l, &clock{})
	member := p.joinMember("cluster2")
	used := p.token()
	if _, err := joinAs(t, p, "cluster3", p.address, used); err != nil {
		t.Fatal(err)
	}
	revoked := p.token()
	id, err := ParseToken(revoked)
	if err != nil {
		t.Fatal(err)
	}
	p.remove(tokenKey(id.ID))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(web) }()
	defer server.Close()
	good := p.token()
	for _, test := range []struct {
		name, cluster, address, token, want string
		status                              int
	}{
		{"nobody listens", "x", "127.0.0.1:1", good, "cannot be reached", http.StatusBadGateway},
		{"nobody says anything", "x", silent.Addr().String(), good, "nobody answers there as the primary", http.StatusBadGateway},
		{"another program", "x", web.Addr().String(), good, "nobody answers there as the primary", http.StatusBadGateway},
		{"no address", "x", "", good, "is not an address", http.StatusBadRequest},
		{"a port too many", "x", "a:1:2", good, "is not an address", http.StatusBadRequest},
		{"no token", "x", p.address, "", "needs a token", http.StatusBadRequest},
		{"half a token", "x", p.address, good[:40], "not a join token", http.StatusBadRequest},
		{"a wrong secret", "x", p.address, spoil(good, 2, strings.Repeat("a", 32)), "token is not known", http.StatusForbidden},
		{"an unknown id", "x", p.address, spoil(good, 1, "0123456789abcdef"), "token is not known", http.StatusForbidden},
		{"a revoked token", "x", p.address, revoked, "token is not known", http.StatusForbidden},
		{"a used token", "x", p.address, used, "used already", http.StatusForbidden},
		{"a used token and its name", "cluster3", p.address, used, "used already", http.StatusForbidden},
		{"a name that is taken", "cluster3", p.address, good, "has a cluster \"cluster3\" already", http.StatusConflict},
		{"the primary's name", "cluster1", p.address, good, "has a cluster \"cluster1\" already", http.StatusConflict},
		{"an impostor of the same shape", "x", other.address, good, "not the primary that the token was made by", http.StatusForbidden},
		{"a member instead of its primary", "x", member.address, good, "cluster2 is not the primary", http.StatusConflict},
	} {
		c, err := joinAs(t, p, test.cluster, test.address, test.token)
		if problem := asProblem(t, err, test.want); problem.Status != test.status {
			t.Errorf("%s: status %d, want %d", test.name, problem.Status, test.status)
		}
		if strings.Contains(err.Error(), strings.Split(good, ".")[2]) {
			t.Errorf("%s: the message holds the token's secret", test.name)
		}
		nothingLeft(t, c)
		if p.has(clusterKey("x")) {
			t.Fatalf("%s: the cluster was made", test.name)
		}
	}
	if s := p.f.Status(); s.Counters[countJoins] != 2 || s.Counters[countJoinsRefused] != 7 {
		t.Errorf("%v", s.Counters)
	}
	// After all that, the good token is still good.
	if _, err := joinAs(t, p, "x", p.address, good); err != nil {
		t.Fatal(err)
	}
}

func TestImpostorThatShowsTheRealRoot(t *testing.T) {
	l := newLink()
	p, thief := newNode(t, "cluster1", l, &clock{}), newNode(t, "cluster1", l, &clock{})
	// The root certificate is public: showing it proves nothing.
	certificate, err := thief.authority.Controller()
	if err != nil {
		t.Fatal(err)
	}
	real, err := p.authority.Controller()
	if err != nil {
		t.Fatal(err)
	}
	certificate.Certificate[2] = real.Certificate[2]
	c, err := joinAs(t, p, "x", thief.address, p.token())
	failsWith(t, err, "not the primary that the token was made by")
	nothingLeft(t, c)
	// Neither does the certificate of a member, even one that says that it is the primary.
	member := p.joinMember("cluster2")
	member.stop()
	if err := os.Remove(membershipPath(member.place)); err != nil {
		t.Fatal(err)
	}
	member.f.member = false
	member.f.config.Authority = member.authority
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go member.f.listenLoop(ctx)
	eventually(t, "it listens", func() bool {
		conn, err := net.Dial("tcp", member.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	c, err = joinAs(t, p, "x", member.address, p.token())
	failsWith(t, err, "cluster2 is not the primary")
	nothingLeft(t, c)
}

func TestExpiredToken(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	p.clock.advance(defaultTTL + time.Second)
	c, err := joinAs(t, p, "x", p.address, token)
	if problem := asProblem(t, err, "expired"); !strings.Contains(problem.Why, "could be used until") {
		t.Error(problem)
	}
	nothingLeft(t, c)
	p.clock.advance(tokenMemory)
	parsed, err := ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is swept", func() bool { return !p.has(tokenKey(parsed.ID)) && p.f.counters.snapshot()[countTokensSwept] == 1 })
}

func TestClocksApart(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	for _, ahead := range []time.Duration{-61 * time.Second, 2 * time.Minute, 3 * time.Hour, -400 * 24 * time.Hour} {
		c := place(t, "x")
		mine := &clock{ahead: ahead}
		_, err := Join(context.Background(), JoinOptions{Cluster: c, Address: p.address, Token: token, Dial: p.link.dial, Now: mine.Now})
		problem := asProblem(t, err, "clocks are apart")
		if !strings.Contains(problem.Why, mine.Now().UTC().Format("2006-01-02T15")) || !strings.Contains(problem.Why, p.clock.Now().UTC().Format("2006-01-02T15")) {
			t.Errorf("not both times are said: %s", problem)
		}
		nothingLeft(t, c)
	}
	// Within the bound it works.
	mine := &clock{ahead: 50 * time.Second}
	if _, err := Join(context.Background(), JoinOptions{Cluster: place(t, "x"), Address: p.address, Token: token, Dial: p.link.dial, Now: mine.Now}); err != nil {
		t.Fatal(err)
	}
}

func TestJoinOfAClusterThatRanAlone(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	c := place(t, "x")
	if err := os.MkdirAll(filepath.Join(c.Data(), "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Join(context.Background(), JoinOptions{Cluster: c, Address: p.address, Token: p.token(), Dial: p.link.dial, Now: p.clock.Now})
	failsWith(t, err, "has run before")
}

func TestFilesOfAMember(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	c, err := joinAs(t, p, "cluster2", p.address, p.token())
	if err != nil {
		t.Fatal(err)
	}
	m, isMember, err := ReadMembership(c)
	if err != nil || !isMember || m.Primary != "cluster1" || m.Address != p.address || m.RootHash != p.authority.RootHash() || m.Joined.IsZero() {
		t.Fatalf("%+v %v %v", m, isMember, err)
	}
	if exists(joiningPath(c)) {
		t.Error("the join looks unfinished")
	}
	for _, path := range []string{filepath.Join(AuthorityDir(c), "member.pem"), membershipPath(c)} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

func TestJoiningAgainRepairs(t *testing.T) {
	l := newLink()
	p, other := newNode(t, "cluster1", l, &clock{}), newNode(t, "cluster9", l, &clock{})
	c, err := joinAs(t, p, "cluster2", p.address, p.token())
	if err != nil {
		t.Fatal(err)
	}
	dials := 0
	again := func(address, token string) (Membership, error) {
		return Join(context.Background(), JoinOptions{Cluster: c, Address: address, Token: token, Now: p.clock.Now,
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				dials++
				return l.dial(ctx, network, address)
			}})
	}
	// The address that is known already: the primary need not even live.
	if _, err := again(p.address, ""); err != nil || dials != 0 {
		t.Fatalf("%v after %d dials", err, dials)
	}
	// Another address is taken only when the primary is there.
	_, err = again("127.0.0.1:1", "")
	failsWith(t, err, "cannot be reached")
	_, err = again(other.address, "")
	failsWith(t, err, "not the primary")
	if m, _, _ := ReadMembership(c); m.Address != p.address {
		t.Fatalf("the address became %s", m.Address)
	}
	_, port, err := net.SplitHostPort(p.address)
	if err != nil {
		t.Fatal(err)
	}
	unused := p.token()
	m, err := again("localhost:"+port, unused)
	if err != nil || m.Address != "localhost:"+port {
		t.Fatalf("%+v %v", m, err)
	}
	if kept, err := p.f.tokens.find(context.Background(), strings.Split(unused, ".")[1], strings.Split(unused, ".")[2]); err != nil || kept.usedBy != "" {
		t.Errorf("the repair used up the token: %v", err)
	}
	_, err = again(other.address, other.token())
	failsWith(t, err, "member of another mesh")
}

// silentConn loses what the primary says from the moment that it has accepted the cluster.
type silentConn struct {
	net.Conn
	lost func() bool
}

func (d *silentConn) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.lost() {
		_ = d.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func TestLostAnswerIsRepaired(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	c := place(t, "cluster2")
	lose := 0
	var mu sync.Mutex
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := p.link.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		before := p.f.counters.snapshot()
		return &silentConn{conn, func() bool {
			mu.Lock()
			defer mu.Unlock()
			now := p.f.counters.snapshot()
			if lose > 0 && now[countJoins]+now[countRepairs] > before[countJoins]+before[countRepairs] {
				lose--
				return true
			}
			return false
		}}, nil
	}
	options := JoinOptions{Cluster: c, Address: p.address, Token: token, Dial: dial, Now: p.clock.Now}
	lose = attempts
	_, err := Join(context.Background(), options)
	if problem := asProblem(t, err, "its answer was lost"); !strings.Contains(problem.Remedy, "same command") {
		t.Error(problem)
	}
	if !exists(joiningPath(c)) {
		t.Fatal("the key was not kept")
	}
	if _, isMember, _ := ReadMembership(c); isMember {
		t.Fatal("half a join")
	}
	// Somebody else cannot use the token, not even under the same name.
	other, err := joinAs(t, p, "cluster2", p.address, token)
	failsWith(t, err, "used already")
	nothingLeft(t, other)
	// The same command completes it; one answer more is lost on the way, and is asked for again by itself.
	lose = 1
	if _, err := Join(context.Background(), options); err != nil {
		t.Fatal(err)
	}
	if n := p.f.counters.snapshot(); n[countJoins] != 1 || n[countRepairs] != attempts+1 {
		t.Errorf("%v", n)
	}
	if _, err := ca.Open(ca.Options{Dir: AuthorityDir(c), Cluster: "cluster2", TrustDomain: "cluster.local", Member: true, Now: p.clock.Now}); err != nil {
		t.Error(err)
	}
}

func TestLostAnswerAfterRemoval(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	c, err := joinAs(t, p, "cluster2", p.address, token)
	if err != nil {
		t.Fatal(err)
	}
	p.remove(clusterKey("cluster2"))
	// Its token does not bring it back, whoever has it.
	if err := os.RemoveAll(c.Data()); err != nil {
		t.Fatal(err)
	}
	_, err = joinAs(t, p, "cluster2", p.address, token)
	failsWith(t, err, "used already")
}

func TestOneTokenAdmitsOneCluster(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	names := []string{"a", "b", "c", "d", "e", "f"}
	errs := make(chan error, len(names))
	for _, name := range names {
		c := place(t, name)
		go func() {
			_, err := Join(context.Background(), JoinOptions{Cluster: c, Address: p.address, Token: token, Dial: p.link.dial, Now: p.clock.Now})
			errs <- err
		}()
	}
	joined := 0
	for range names {
		if err := <-errs; err == nil {
			joined++
		} else {
			failsWith(t, err, "used already")
		}
	}
	all, _, err := p.store.List(context.Background(), objects.Cluster, "")
	if err != nil || joined != 1 || len(all) != 2 {
		t.Errorf("%d joined, %d clusters, %v", joined, len(all), err)
	}
}

func TestRunningClusterChangesItsRoot(t *testing.T) {
	l, c := newLink(), &clock{}
	p, a := newNode(t, "cluster1", l, c), newNode(t, "cluster2", l, c)
	p.put(globalNamespace("boutique", "*", "shop"))
	own := bytes.Clone(a.authority.Roots())
	mesh := p.authority.Roots()
	var seen [][]byte
	var issuers []string
	a.onRotate(func() error {
		chain, err := a.authority.Controller()
		if err != nil {
			return err
		}
		seen, issuers = append(seen, a.authority.Roots()), append(issuers, ca.MembershipOf(mustParse(t, chain.Certificate[1])))
		return nil
	})
	if err := a.f.Join(context.Background(), joinRequest(p.address, p.token())); err != nil {
		t.Fatal(err)
	}
	both := append(bytes.Clone(own), mesh...)
	swapped := append(bytes.Clone(mesh), own...)
	renewed := func() int {
		a.rotateMu.Lock()
		defer a.rotateMu.Unlock()
		return len(seen)
	}
	eventually(t, "the workloads are told that the old root is gone", func() bool { return renewed() == 3 })
	if !bytes.Equal(seen[0], both) || !bytes.Equal(seen[1], swapped) || !bytes.Equal(seen[2], mesh) || issuers[0] != "" || issuers[1] == "" {
		t.Fatalf("the workloads were renewed %d times, by issuers %q", len(seen), issuers)
	}
	// Its proxies were told of its names in the mesh while its certificates still had those of before.
	if len(a.accepted) != 1 || !slices.Equal(a.accepted[0], []cluster.Issuer{{Cluster: "cluster2"}, {Cluster: "cluster2", Membership: issuers[1]}}) {
		t.Errorf("accepted are %v", a.accepted)
	}
	eventually(t, "it is a member", func() bool {
		return a.f.Status().Connected && a.has(namespaceKey("boutique")) && p.status("cluster2").Connected
	})
	if m := p.status("cluster2").Membership; m != issuers[1] {
		t.Errorf("the primary has the membership %q, it is %q", m, issuers[1])
	}
	if a.f.Primary() != "cluster1" {
		t.Error(a.f.Primary())
	}
	o, err := a.store.Get(context.Background(), clusterKey("cluster2"))
	if err != nil || o.Resource.(*v1alpha1.Cluster).Spec.Primary || o.Origin.Cluster != "cluster1" {
		t.Errorf("%+v %v", o, err)
	}
	a.restart()
	eventually(t, "and stays one", func() bool { return a.f.Status().Connected })
	c.advance(grace + time.Minute)
	if !bytes.Equal(a.authority.Roots(), mesh) || !slices.Equal(a.authority.Issuers(), []cluster.Issuer{{Cluster: "cluster2", Membership: issuers[1]}}) {
		t.Error("the old root is still trusted, or its names are accepted")
	}
	if n := renewed(); n != 3 {
		t.Errorf("the workloads were renewed %d times", n)
	}
}

// A cluster that was thrown out, for example since it was taken over, comes back to a mesh that has changed its root since:
// nobody may be anybody here with the root before, which the mesh has retired.
func TestRemovedMemberComesBackToTheNewRootAlone(t *testing.T) {
	c := &clock{}
	p := newNode(t, "cluster1", newLink(), c)
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	p.remove(clusterKey("cluster2"))
	eventually(t, "told", func() bool { return a.f.Status().Problem != "" })
	before := a.authority.Root()
	if err := p.f.RotateRoot(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the root is changed", func() bool {
		_, changing := p.authority.Change()
		return !changing && !bytes.Contains(p.authority.Roots(), before)
	})
	// One workload of it does not answer after the join: whoever shows its certificate must be accepted so long.
	joined := errors.New("shop/cart-0: no answer")
	a.onRotate(func() error {
		if bytes.Equal(a.authority.Root(), before) {
			return nil
		}
		return joined
	})
	if err := a.f.Join(context.Background(), joinRequest(p.address, p.token())); err != nil {
		t.Fatal(err)
	}
	if roots := a.authority.Roots(); !bytes.Equal(roots, append(p.authority.Roots(), before...)) {
		t.Fatal("the root of certificates that are shown still is not trusted")
	}
	rotated := func() int {
		a.rotateMu.Lock()
		defer a.rotateMu.Unlock()
		return a.rotated
	}
	// Its controller ends; the next one asks the workloads, and again after a while.
	n := rotated()
	a.restart()
	eventually(t, "they are asked again", func() bool { return rotated() > n })
	a.onRotate(nil)
	c.advance(lastRenewal)
	eventually(t, "the root before is gone", func() bool { return bytes.Equal(a.authority.Roots(), p.authority.Roots()) })
	eventually(t, "and forgotten", func() bool { _, some := a.authority.FormerRoots(); return !some })
	eventually(t, "it is back", func() bool { return a.f.Status().Connected })
}

// What others renew is shown until it ends, so that is waited for, but not by who was told already when the controller ended.
func TestFormerRootsStayForCertificatesOfOutsiders(t *testing.T) {
	c := &clock{}
	l := newLink()
	p, a := newNode(t, "cluster1", l, c), newNode(t, "cluster2", l, c)
	own := a.authority.Root()
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	_, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	const life = 30 * time.Minute
	if _, err := a.authority.SignOutside(request, identity, life); err != nil {
		t.Fatal(err)
	}
	if err := a.f.Join(context.Background(), joinRequest(p.address, p.token())); err != nil {
		t.Fatal(err)
	}
	c.advance(life - time.Minute)
	if err := a.f.stepRoot(context.Background()); err != nil || !bytes.Contains(a.authority.Roots(), own) {
		t.Fatalf("the root of a certificate that lives is not trusted: %v", err)
	}
	// The workloads cannot be told; that is noted, and done by the next controller.
	a.onRotate(func() error { return errors.New("shop/cart-0: no answer") })
	c.advance(5 * time.Minute)
	eventually(t, "it is dropped", func() bool { return !bytes.Contains(a.authority.Roots(), own) })
	a.restart()
	if roots, some := a.authority.FormerRoots(); !some || !roots.Dropped || bytes.Contains(a.authority.Roots(), own) {
		t.Fatalf("%+v %v", roots, some)
	}
	a.onRotate(nil)
	c.advance(lastRenewal)
	eventually(t, "the workloads are told", func() bool { _, some := a.authority.FormerRoots(); return !some })
}

func TestJoinGoesOnAfterACrash(t *testing.T) {
	l, c := newLink(), &clock{}
	p, a := newNode(t, "cluster1", l, c), newNode(t, "cluster2", l, c)
	a.onRotate(func() error { return errors.New("shop/cart-0: no answer") })
	problem := asProblem(t, a.f.Join(context.Background(), joinRequest(p.address, p.token())), "not all workloads trust its root yet")
	if !strings.Contains(problem.Why, "shop/cart-0") {
		t.Error(problem)
	}
	if a.f.Primary() != "cluster2" || a.authority.RootHash() == p.authority.RootHash() {
		t.Fatal("it changed its root before the workloads trusted the new one")
	}
	// Its controller is killed; the next one goes on where it was.
	a.restart()
	if a.f.Primary() != "cluster2" {
		t.Fatal("a restart changed the root")
	}
	a.onAccept(func() error { return errors.New("shop/cart-0 has not acknowledged") })
	a.onRotate(nil)
	eventually(t, "the proxies are asked", func() bool {
		a.rotateMu.Lock()
		defer a.rotateMu.Unlock()
		return len(a.accepted) > 1
	})
	if a.f.Primary() != "cluster2" || a.authority.RootHash() == p.authority.RootHash() {
		t.Fatal("it shows certificates whose names its proxies do not know")
	}
	a.onAccept(nil)
	eventually(t, "the join is completed", func() bool { return a.f.Primary() == "cluster1" && a.f.Status().Connected })
	eventually(t, "it is not noted as unfinished any more", func() bool { return !exists(joiningPath(a.place)) })
}

func TestJoinOfARunningClusterFailsClearly(t *testing.T) {
	l, c := newLink(), &clock{}
	p, a := newNode(t, "cluster1", l, c), newNode(t, "cluster2", l, c)
	refused := func(n *node, address, token, want string) {
		t.Helper()
		failsWith(t, n.f.Join(context.Background(), joinRequest(address, token)), want)
		if exists(joiningPath(n.place)) || n.rotated != 0 {
			t.Errorf("%s: something is half done", want)
		}
	}
	refused(a, p.address, "", "needs a token")
	refused(a, p.address, "x", "not a join token")
	refused(a, "127.0.0.1:1", p.token(), "cannot be reached")
	refused(a, a.address, a.token(), "of this very cluster")
	a.put(globalNamespace("mine", "*", "shop"))
	a.setObjects()
	refused(a, p.address, p.token(), "global namespaces of its own")
	a.remove(namespaceKey("mine"))
	a.setObjects()
	p.joinMember("cluster3")
	eventually(t, "it has a member", func() bool { return len(p.f.Peers()) == 1 })
	refused(p, a.address, a.token(), "a primary with members itself")
	// A member of one mesh stays one.
	if err := a.f.Join(context.Background(), joinRequest(p.address, p.token())); err != nil {
		t.Fatal(err)
	}
	other := newNode(t, "cluster9", l, c)
	token := other.token()
	// While it looks whether all is done with the join, it says that first.
	eventually(t, "one mesh is enough", func() bool {
		return strings.Contains(fmt.Sprint(a.f.Join(context.Background(), joinRequest(other.address, token))), "member of another mesh")
	})
	if err := a.f.Join(context.Background(), joinRequest(p.address, "")); err != nil {
		t.Errorf("repair of a running member: %v", err)
	}
	_, err := a.f.Token(context.Background(), client.TokenRequest{})
	failsWith(t, err, "only the primary makes join tokens")
}

// A primary that cannot answer, or whose answer was lost, may have accepted: the key stays. Another refusal later on does not
// change that.
func TestWhatIsKeptOfAJoinThatFailed(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	c := place(t, "cluster2")
	token := p.token()
	options := JoinOptions{Cluster: c, Address: p.address, Token: token, Dial: p.link.dial, Now: p.clock.Now}
	p.store.breakWith(store.ErrUnavailable)
	_, err := Join(context.Background(), options)
	failsWith(t, err, "cannot accept a cluster now")
	first, err := os.ReadFile(joiningPath(c))
	if err != nil {
		t.Fatal(err)
	}
	p.store.breakWith(nil)
	p.clock.advance(defaultTTL + time.Minute)
	_, err = Join(context.Background(), options)
	failsWith(t, err, "token has expired")
	if again, err := os.ReadFile(joiningPath(c)); err != nil || !bytes.Equal(first, again) {
		t.Errorf("the key that may have been accepted is gone: %v", err)
	}
}

func TestJoinThatWasAcceptedIsCompletedAlone(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	c := place(t, "cluster2")
	token := p.token()
	if _, err := makeDirs(AuthorityDir(c), dir(c)); err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	s := stranger{cluster: c, trustDomain: "cluster.local", dial: p.link.dial, now: p.clock.Now}
	if _, err := s.obtain(context.Background(), p.address, parsed); err != nil {
		t.Fatal(err)
	}
	// Here it was killed. Another token does not help, the same one does, and without the primary.
	options := JoinOptions{Cluster: c, Address: p.address, Token: p.token(), Dial: p.link.dial, Now: p.clock.Now}
	p.stop()
	_, err = Join(context.Background(), options)
	failsWith(t, err, "joining the mesh of cluster1 already")
	options.Token = token
	if m, err := Join(context.Background(), options); err != nil || m.Primary != "cluster1" || exists(joiningPath(c)) {
		t.Errorf("%+v %v", m, err)
	}
}

// While a cluster goes over to another mesh it is no primary any more.
func TestJoiningClusterIsNoPrimary(t *testing.T) {
	l, c := newLink(), &clock{}
	p, a := newNode(t, "cluster1", l, c), newNode(t, "cluster2", l, c)
	early := a.token()
	token := p.token()
	a.onRotate(func() error { return errors.New("shop/cart-0: no answer") })
	failsWith(t, a.f.Join(context.Background(), joinRequest(p.address, token)), "not all workloads trust its root yet")
	for _, when := range []string{"at once", "after a restart"} {
		if !a.f.Joining() {
			t.Fatalf("%s: it does not know that it joins", when)
		}
		_, err := a.f.Token(context.Background(), client.TokenRequest{})
		failsWith(t, err, "only the primary makes join tokens")
		other, err := joinAs(t, a, "cluster3", a.address, early)
		failsWith(t, err, "joining another mesh")
		nothingLeft(t, other)
		failsWith(t, repeatJoin(a, p.address, p.token()), "with another token")
		a.restart()
	}
	// What came in between, whatever way, stops it before its root changes.
	a.put(globalNamespace("mine", "*", "shop"))
	a.onRotate(nil)
	failsWith(t, repeatJoin(a, p.address, token), "global namespaces of its own")
	if a.authority.RootHash() == p.authority.RootHash() {
		t.Fatal("the root has changed")
	}
	a.remove(namespaceKey("mine"))
	eventually(t, "the join is completed", func() bool { return a.f.Primary() == "cluster1" && !a.f.Joining() && a.f.Status().Connected })
}

// repeatJoin joins once the controller's own attempt to complete the join lets it.
func repeatJoin(n *node, address, token string) error {
	n.t.Helper()
	var err error
	eventually(n.t, "nothing else is under way", func() bool {
		err = n.f.Join(context.Background(), joinRequest(address, token))
		return err == nil || !strings.Contains(err.Error(), "under way")
	})
	return err
}

// With an intermediate that has expired, a member is nobody to its primary: a token lets it in again, running or not.
func TestMemberWhoseIntermediateExpired(t *testing.T) {
	l, c := newLink(), &clock{}
	p := newNode(t, "cluster1", l, c)
	running, off := p.joinMember("cluster2"), p.joinMember("cluster3")
	eventually(t, "connected", func() bool { return running.f.Status().Connected && off.f.Status().Connected })
	running.stop()
	off.stop()
	p.link.set(p.address, true)
	c.advance(ca.IntermediateLifetime + time.Hour)
	running.start()
	p.link.set(p.address, false)
	p.restart()
	for _, n := range []*node{running, off} {
		join := func() error {
			if n == running {
				return n.f.Join(context.Background(), joinRequest(p.address, p.token()))
			}
			_, err := Join(context.Background(), JoinOptions{Cluster: n.place, Address: p.address, Token: p.token(), Dial: l.dial, Now: c.Now})
			return err
		}
		// It has no key that the primary knows.
		failsWith(t, join(), "already")
		p.remove(clusterKey(n.name))
		if err := join(); err != nil {
			t.Fatal(err)
		}
	}
	off.start()
	eventually(t, "both are back", func() bool { return running.f.Status().Connected && off.f.Status().Connected })
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"host-a": "host-a:15443", "host-a:1": "host-a:1", "198.18.0.2": "198.18.0.2:15443", "\t10.0.0.1:15443\n": "10.0.0.1:15443",
		"2001:db8::1": "[2001:db8::1]:15443", "[2001:db8::1]": "[2001:db8::1]:15443", "[2001:db8::1]:443": "[2001:db8::1]:443",
	} {
		if got, err := JoinAddress(text); err != nil || got != want {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":15443", "host:0", "host:99999", "host:x", "a b", "a/b", "user@host", "a:b:c"} {
		if got, err := JoinAddress(text); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}
