package federation

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
)

// fleet is the proxies of several clusters, one each: it has the certificate and the roots that its agent gave it last.
type fleet struct {
	t    *testing.T
	mu   sync.Mutex
	has  map[*node]ca.Certificate
	fail map[*node]error
	// seen counts the bundles that were given out.
	seen int
}

func newFleet(t *testing.T, nodes ...*node) *fleet {
	f := &fleet{t: t, has: map[*node]ca.Certificate{}, fail: map[*node]error{}}
	for _, n := range nodes {
		f.has[n] = f.issue(n)
	}
	for _, n := range nodes {
		n.onRotate(func() error { return f.rotate(n) })
	}
	return f
}

func (f *fleet) issue(n *node) ca.Certificate {
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	_, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	issued, err := n.authority.Sign(request, identity, 0)
	if err != nil {
		f.t.Error(err)
	}
	return issued
}

// accepts says whether a verifier with these roots accepts a certificate.
func accepts(roots []byte, shown ca.Certificate, n *node) error {
	block, rest := pem.Decode(shown.Chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: n.clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	o.Roots.AppendCertsFromPEM(roots)
	o.Intermediates.AppendCertsFromPEM(rest)
	_, err = leaf.Verify(o)
	return err
}

// rotate gives a proxy what the authority has now. Everybody must accept everybody, before and after: no request is lost.
func (f *fleet) rotate(n *node) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail[n]; err != nil {
		return err
	}
	f.has[n] = f.issue(n)
	f.seen++
	for verifier, its := range f.has {
		for shower, shown := range f.has {
			if err := accepts(its.Roots, shown, n); err != nil {
				f.t.Errorf("%s refuses what %s shows: %v", verifier.name, shower.name, err)
			}
		}
	}
	return nil
}

func (f *fleet) failing(n *node, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[n] = err
}

func (f *fleet) of(n *node) ca.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.has[n]
}

func phaseOf(n *node) string {
	if c := n.f.RootStatus().Change; c != nil {
		return c.Phase
	}
	return ""
}

func awaited(n *node) string {
	if c := n.f.RootStatus().Change; c != nil {
		return strings.Join(c.Awaited, "; ")
	}
	return ""
}

func connected(t *testing.T, n *node) {
	t.Helper()
	eventually(t, n.name+" is connected", func() bool { return n.f.Status().Connected })
}

// rotated waits until all clusters have only a root that is not the previous one.
func rotated(t *testing.T, previous []byte, primary *node, nodes ...*node) {
	t.Helper()
	eventually(t, "the root is another one", func() bool { return !bytes.Equal(primary.authority.Roots(), previous) && phaseOf(primary) == "" })
	for _, n := range nodes {
		eventually(t, n.name+" has the new root alone", func() bool { return bytes.Equal(n.authority.Roots(), primary.authority.Roots()) && phaseOf(n) == "" })
	}
}

func TestRootIsRotatedTwice(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	f := newFleet(t, p)
	for range 2 {
		before, old := p.authority.Roots(), f.of(p)
		if err := p.f.RotateRoot(t.Context()); err != nil {
			t.Fatal(err)
		}
		rotated(t, before, p)
		if err := accepts(p.authority.Roots(), old, p); err == nil {
			t.Error("a certificate of the retired root is accepted")
		}
		if err := accepts(before, f.of(p), p); err == nil {
			t.Error("the workload has no certificate of the new root")
		}
	}
	if f.seen < 6 {
		t.Errorf("%d bundles were given out for six phases", f.seen)
	}
	var actions []string
	for _, r := range p.recorded() {
		if strings.HasPrefix(string(r.Action), "root.") && r.Result == audit.Done {
			actions = append(actions, string(r.Action))
		}
	}
	if want := []string{"root.sign", "root.retire", "root.finish", "root.sign", "root.retire", "root.finish"}; !slices.Equal(actions, want) {
		t.Errorf("recorded %q", actions)
	}
}

// A step in the background that is about to end refuses nobody; what lasts does.
func TestTurnIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Federation{changing: semaphore.NewWeighted(1)}
		f.changing.TryAcquire(1)
		var got atomic.Bool
		go func() { got.Store(f.takeTurn(t.Context())) }()
		synctest.Wait()
		f.changing.Release(1)
		synctest.Wait()
		if !got.Load() {
			t.Fatal("refused for a step that had ended")
		}
		began := time.Now()
		if f.takeTurn(t.Context()) || time.Since(began) != mostTurn {
			t.Errorf("two at a time, or an answer after %v", time.Since(began))
		}
	})
}

func TestRootIsRotatedOverTwoClusters(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	m := p.joinMember("cluster2")
	connected(t, m)
	newFleet(t, p, m)
	for range 2 {
		before := p.authority.Roots()
		if err := p.f.RotateRoot(t.Context()); err != nil {
			t.Fatal(err)
		}
		rotated(t, before, p, m)
	}
	if got, isMember, err := ReadMembership(m.place); err != nil || !isMember || got.RootHash != p.authority.RootHash() {
		t.Errorf("the membership is of another root: %+v %v", got, err)
	}
	// It is a member as before, also after a restart of both.
	p.restart()
	m.restart()
	connected(t, m)
	if err := m.f.Rotate(t.Context()); err != nil {
		t.Error(err)
	}
}

// A crash at any moment costs nothing: each phase is entered with one cluster stuck, both controllers are started anew, and
// the change goes on.
func TestRotationGoesOnAfterCrashes(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	m := p.joinMember("cluster2")
	connected(t, m)
	f := newFleet(t, p, m)
	stuck := errors.New("shop/cart-0: its proxy does not answer")
	before := p.authority.Roots()
	f.failing(m, stuck)
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []string{"trust", "sign", "retire"} {
		eventually(t, "the phase "+phase+" waits for cluster2", func() bool {
			return phaseOf(p) == phase && phaseOf(m) == phase && strings.Contains(awaited(p), "cluster2: shop/cart-0")
		})
		p.restart()
		m.restart()
		eventually(t, "the phase "+phase+" waits after a restart", func() bool {
			return phaseOf(p) == phase && strings.Contains(awaited(p), "cluster2: shop/cart-0")
		})
		// The next phase gets stuck too, once this one has ended.
		once := sync.OnceFunc(func() {
			if phase != "retire" {
				f.failing(m, stuck)
			}
		})
		m.onRotate(func() error {
			err := f.rotate(m)
			if err == nil {
				once()
			}
			return err
		})
		f.failing(m, nil)
	}
	rotated(t, before, p, m)
}

func TestRotationIsTakenBack(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	m := p.joinMember("cluster2")
	connected(t, m)
	f := newFleet(t, p, m)
	before := p.authority.Roots()
	f.failing(m, errors.New("it does not answer"))
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	failsWith(t, p.f.RotateRoot(t.Context()), "not changed")
	// While it does its own part of the change, it says that first.
	eventually(t, "only the primary may", func() bool { return strings.Contains(fmt.Sprint(m.f.RotateRoot(t.Context())), "only the primary") })
	eventually(t, "the member is awaited", func() bool {
		return strings.Contains(awaited(p), "cluster2: it does not answer") && phaseOf(m) == "trust"
	})
	if bytes.Equal(m.authority.Roots(), before) {
		t.Error("the member does not trust the next root")
	}
	if err := p.f.AbortRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.failing(m, nil)
	eventually(t, "both have the previous root alone", func() bool {
		return bytes.Equal(p.authority.Roots(), before) && bytes.Equal(m.authority.Roots(), before) && bytes.Equal(f.of(m).Roots, before) && bytes.Equal(f.of(p).Roots, before)
	})
	failsWith(t, p.f.AbortRoot(t.Context()), "nothing to take back")
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	rotated(t, before, p, m)
}

// A member that is out of reach holds the change up, by name; taken out of the mesh, it does not, and is locked out.
func TestRotationWaitsForWhoIsOutOfReach(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	m := p.joinMember("cluster2")
	connected(t, m)
	f := newFleet(t, p, m)
	before, leaf := p.authority.Roots(), f.of(m)
	m.stop()
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says who is awaited", func() bool { return strings.Contains(awaited(p), "cluster2: it is not connected") })
	if _, err := joinAs(t, p, "cluster3", p.address, p.token()); err == nil {
		t.Error("a cluster joined while the root is being changed")
	} else {
		failsWith(t, err, "changing its root")
	}
	// Nobody asks it any more.
	f.mu.Lock()
	delete(f.has, m)
	f.mu.Unlock()
	p.remove(clusterKey("cluster2"))
	rotated(t, before, p)
	if err := accepts(p.authority.Roots(), leaf, p); err == nil {
		t.Error("the removed member's certificate is accepted")
	}
	token := p.token()
	if _, err := joinAs(t, p, "cluster3", p.address, token); err != nil {
		t.Errorf("nobody can join after the change: %v", err)
	}
}

// What a member says counts for its own part only, and never adds a root.
func TestMembersWordsOnTheRoot(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	m := p.joinMember("cluster2")
	connected(t, m)
	f := newFleet(t, p, m)
	f.failing(m, errors.New("not yet"))
	before := p.authority.Roots()
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is awaited", func() bool { return strings.Contains(awaited(p), "cluster2: not yet") })
	c, _ := p.authority.Change()
	p.f.mu.Lock()
	s := p.f.streams["cluster2"]
	p.f.mu.Unlock()
	for _, said := range []*pb.RootProgress{
		{Change: strings.Repeat("a", 64), Phase: pb.RootPhase_ROOT_PHASE_TRUST, Done: true},
		{Change: c.ID, Phase: pb.RootPhase_ROOT_PHASE_RETIRE, Done: true},
		{Phase: pb.RootPhase_ROOT_PHASE_TRUST, Done: true},
		{Change: c.ID, Phase: pb.RootPhase_ROOT_PHASE_TRUST, Awaited: slices.Repeat([]string{strings.Repeat("x", 1<<16)}, 1000)},
	} {
		p.f.receiveProgress(s, said)
	}
	p.f.receiveProgress(&stream{cluster: "cluster2"}, &pb.RootProgress{Change: c.ID, Phase: pb.RootPhase_ROOT_PHASE_TRUST, Done: true})
	for range 10 * progressBurst {
		p.f.receiveProgress(s, &pb.RootProgress{Change: c.ID, Phase: pb.RootPhase_ROOT_PHASE_TRUST, Awaited: []string{"not yet"}})
	}
	if p.f.counters.snapshot()[countProgressDelayed] == 0 {
		t.Error("a member has the primary look as often as it likes")
	}
	if phaseOf(p) != "trust" || len(awaited(p)) > 16*2048 {
		t.Errorf("phase %s, %d bytes of who is awaited", phaseOf(p), len(awaited(p)))
	}
	if n := bytes.Count(p.authority.Roots(), []byte("BEGIN")); n != 2 {
		t.Errorf("%d roots are trusted", n)
	}
	f.failing(m, nil)
	rotated(t, before, p, m)
}

// Clocks are never quite the same: a member that is behind by more than joining allows follows all the same.
func TestRotationWithClocksApart(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	m := p.joinMember("cluster2")
	m.stop()
	m.clock = &clock{}
	m.clock.advance(-90 * time.Second)
	m.start()
	t.Cleanup(func() { m.stop() })
	connected(t, m)
	newFleet(t, p, m)
	before := p.authority.Roots()
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	rotated(t, before, p, m)
}

// A member takes a root from its primary only as the mesh's rules have it.
func TestMembersRefuseRootsThatCannotBe(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	other := newNode(t, "other", newLink(), &clock{})
	m := p.joinMember("cluster2")
	connected(t, m)
	before := m.authority.Roots()
	leaf := newFleet(t, p).of(p).Chain
	block, _ := pem.Decode(leaf)
	for name, r := range map[string]*pb.RootChange{
		"no certificate":      {Phase: pb.RootPhase_ROOT_PHASE_TRUST, Next: []byte("x"), Previous: before},
		"a leaf":              {Phase: pb.RootPhase_ROOT_PHASE_TRUST, Next: pem.EncodeToMemory(block), Previous: before},
		"another previous":    {Phase: pb.RootPhase_ROOT_PHASE_TRUST, Next: p.authority.Roots(), Previous: other.authority.Roots()},
		"two roots in one":    {Phase: pb.RootPhase_ROOT_PHASE_TRUST, Next: append(bytes.Clone(before), other.authority.Roots()...), Previous: before},
		"an end without sign": {Phase: pb.RootPhase_ROOT_PHASE_RETIRE, Next: []byte("x"), Previous: before},
	} {
		if err := m.f.followRoot(&pb.Root{Current: before, Change: r}); err != nil {
			t.Fatal(err)
		}
		_ = m.f.stepMember(context.Background())
		if !bytes.Equal(m.authority.Roots(), before) {
			t.Errorf("%s: the member trusts another root", name)
		}
	}
	if err := m.f.followRoot(&pb.Root{Current: make([]byte, maxRootBytes+1)}); err == nil {
		t.Error("a root without bound is taken")
	}
}
