package federation

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/ca"
)

// A cluster that was removed has its intermediate for a while. The places for connections of the cluster that has its name
// now are not its own.
func TestARemovedMemberTakesNoPlacesOfItsNamesNextHolder(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	old := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return old.f.Status().Connected })
	p.remove(clusterKey("cluster2"))
	eventually(t, "told", func() bool { return old.f.Status().Problem != "" })
	old.stop()
	fresh := p.joinMember("cluster2")
	eventually(t, "the new one is in", func() bool { return fresh.f.Status().Connected })
	before, attempts := p.f.counters.snapshot()[countConnectionsRefused], fresh.f.counters.snapshot()[countAttempts]
	for range maxPerMember {
		api, _ := raw(t, p, certificateOf(t, old))
		if _, err := api.Hello(context.Background(), &pb.HelloRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := api.Renew(context.Background(), &pb.RenewRequest{}); reasonOf(err) != pb.Refusal_REMOVED {
			t.Errorf("a removed member's renewal: %v", err)
		}
	}
	if n := p.f.counters.snapshot()[countConnectionsRefused] - before; n != 0 {
		t.Errorf("%d connections had to go for those of a removed member", n)
	}
	// Its own places are bounded as everybody's.
	raw(t, p, certificateOf(t, old))
	eventually(t, "one of its own goes", func() bool { return p.f.counters.snapshot()[countConnectionsRefused] == before+1 })
	if n := fresh.f.counters.snapshot()[countAttempts]; n != attempts || !fresh.f.Status().Connected {
		t.Errorf("the member had to connect %d times more", n-attempts)
	}
}

// A removed member whose stream waits for its turn hears of the removal at once, and does not get the place of who has its name now when
// its turn comes.
func TestARemovedMemberThatWaitedTakesNoPlace(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	old := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return old.f.Status().Connected })
	old.stop()
	eventually(t, "gone", func() bool { p.f.mu.Lock(); defer p.f.mu.Unlock(); return p.f.streams["cluster2"] == nil })
	certificate := certificateOf(t, old)
	who, err := verify([]*x509.Certificate{mustParse(t, certificate.Certificate[0]), mustParse(t, certificate.Certificate[1])},
		p.authority.MeshPool(), p.f.config.Now(), "cluster.local", x509.ExtKeyUsageAny)
	if err != nil {
		t.Fatal(err)
	}
	waiting := func() int {
		p.f.mu.Lock()
		defer p.f.mu.Unlock()
		return len(p.f.waiting)
	}
	// Its next turn is in a minute.
	own, now := p.f.ratesOf(who), p.f.config.Now()
	for range statesBurst + 60*statesPerSecond {
		own.states.ReserveN(now, 1)
	}
	// Then, for turns come while time passes.
	then := now.Add(10 * time.Second)
	spent := own.states.TokensAt(then)
	// Who hangs up while it waits has taken no turn.
	api, conn := raw(t, p, certificate)
	hangingUp, err := api.Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := hangingUp.Send(begin(newestProtocol)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one waits", func() bool { return waiting() == 1 })
	conn.Close()
	eventually(t, "none waits", func() bool { return waiting() == 0 })
	if left := own.states.TokensAt(then); left < spent-0.1 {
		t.Errorf("%g turns were taken by one that hung up", spent-left)
	}

	api, _ = raw(t, p, certificate)
	heard := make(chan error, 1)
	go func() { heard <- saying(t, api, begin(newestProtocol), progressing()) }()
	eventually(t, "it waits", func() bool { return waiting() == 1 })
	p.remove(clusterKey("cluster2"))
	if err := <-heard; reasonOf(err) != pb.Refusal_REMOVED {
		t.Errorf("while it waited: %v", err)
	}
	fresh := p.joinMember("cluster2")
	eventually(t, "the new one is in", func() bool { return fresh.f.Status().Connected })
	before, attempts := p.f.counters.snapshot()[countStreamsReplaced], fresh.f.counters.snapshot()[countAttempts]

	// It has its turn, and was a member when it last was looked at.
	late := newStream(who)
	late.end = func(error) {}
	if err := p.f.takePlace(t.Context(), late, who); reasonOf(err) != pb.Refusal_REMOVED {
		t.Errorf("one that was removed meanwhile: %v", err)
	}
	p.f.mu.Lock()
	holder := p.f.streams["cluster2"]
	p.f.mu.Unlock()
	if got := p.f.attach(late, nil); got == nil || got != holder {
		t.Error("one of another membership took the place")
	}
	if n := p.f.counters.snapshot()[countStreamsReplaced]; n != before || fresh.f.counters.snapshot()[countAttempts] != attempts || !fresh.f.Status().Connected {
		t.Error("the name's next holder lost its stream")
	}
}

// Who has the name gets its place from a stream that a removed member still has there.
func TestTheNamesNextHolderGetsItsPlace(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	left := make(chan error, 1)
	old := newStream(peerOf{cluster: "cluster2", membership: "former"})
	old.end = func(err error) { left <- err }
	p.f.attach(old, nil)
	fresh := p.joinMember("cluster2")
	eventually(t, "the new one is in", func() bool { return fresh.f.Status().Connected })
	if err := <-left; reasonOf(err) != pb.Refusal_REPLACED {
		t.Errorf("the former one hears %v", err)
	}
}

func progressing() *pb.FromMember {
	return &pb.FromMember{Message: &pb.FromMember_RootProgress{RootProgress: &pb.RootProgress{Done: true}}}
}

// While a workload has a certificate of the mesh that was left, its root is trusted for workloads, and for nobody else: the
// primary that was left is not the primary here, though it has the same name and stands where that one was.
func TestAMeshThatWasLeftIsNotThePrimary(t *testing.T) {
	l, c := newLink(), &clock{}
	left, mesh := newNode(t, "cluster1", l, c), newNode(t, "cluster1", l, c)
	a := left.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	left.remove(clusterKey("cluster2"))
	eventually(t, "told", func() bool { return a.f.Status().Problem != "" })
	root := left.authority.Root()
	a.onRotate(func() error {
		if string(a.authority.Root()) == string(root) {
			return nil
		}
		return errors.New("shop/cart-0: no answer")
	})
	if err := a.f.Join(context.Background(), joinRequest(mesh.address, mesh.token())); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is the other mesh's", func() bool { return a.f.Status().Connected })
	if !strings.Contains(string(a.authority.Roots()), string(root)) {
		t.Fatal("the root of the mesh that was left is not trusted, so that nothing is tried")
	}
	mesh.stop()
	left.stop()
	left.address = mesh.address
	left.start()
	t.Cleanup(func() { left.stop() })
	eventually(t, "the impostor is told apart", func() bool {
		s := a.f.Status()
		return !s.Connected && strings.Contains(s.Problem, "it is not the primary cluster1 that answers")
	})
}

// Each stream that comes and goes, and each state, is work for the whole mesh, so that a member has no more of them by coming
// anew.
func TestComingAnewGivesAMemberNoMore(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	began, before := time.Now(), p.f.counters.snapshot()[countStreams]
	for range 2 * statesBurst {
		api, conn := raw(t, p, certificateOf(t, a))
		call, err := api.Sync(ctx)
		if err == nil {
			err = call.Send(begin(newestProtocol))
		}
		if err == nil {
			// The first word is about the root: it has been let in.
			_, err = call.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	streams := p.f.counters.snapshot()[countStreams] - before
	if most := statesBurst + 1 + time.Since(began).Seconds()*statesPerSecond; streams < 2*statesBurst || float64(streams) > most {
		t.Errorf("%d streams in %v, at most %.0f are due", streams, time.Since(began), most)
	}
	// What is kept of a member goes with it.
	p.remove(clusterKey("cluster2"))
	eventually(t, "it is forgotten", func() bool {
		p.f.mu.Lock()
		defer p.f.mu.Unlock()
		return len(p.f.rates) == 0
	})
}

// Each intermediate that is signed is a record, and the log's room has a bound: a member must not push out what it did.
func TestAMemberDoesNotFillTheAuditLog(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	// What it announces is signed as well.
	eventually(t, "it has a next intermediate", a.authority.Prepared)
	a.stop()
	own := signedFor(p, "cluster2")
	api, _ := raw(t, p, certificateOf(t, a))
	_, request, err := ca.NewIntermediateRequest("cluster2", nil)
	if err != nil {
		t.Fatal(err)
	}
	began, granted, refused := time.Now(), 0, 0
	for range 3 * renewalsBurst {
		switch _, err := api.Renew(context.Background(), &pb.RenewRequest{Request: request}, grpc.WaitForReady(true)); {
		case err == nil:
			granted++
		case reasonOf(err) == pb.Refusal_BUSY:
			refused++
		default:
			t.Fatal(err)
		}
	}
	if most := renewalsBurst + 1 + time.Since(began).Seconds()*renewalsPerSecond; float64(granted) > most || granted < renewalsBurst-own || refused == 0 {
		t.Errorf("%d were granted and %d refused", granted, refused)
	}
	if records := signedFor(p, "cluster2") - own; records != granted {
		t.Errorf("%d records of %d intermediates", records, granted)
	}
}

// signedFor counts the records of intermediates that were signed for a member.
func signedFor(p *node, name string) int {
	n := 0
	for _, r := range p.recorded() {
		if r.Action == "sign" && r.Who == "cluster "+name {
			n++
		}
	}
	return n
}

// A connection has a few calls at a time, so that one member holds no more of the primary than that: a further one waits.
func TestAConnectionHasFewCalls(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	api, _ := raw(t, p, certificateOf(t, a))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// Once the primary has answered, its settings are known.
	if _, err := api.Hello(ctx, &pb.HelloRequest{}); err != nil {
		t.Fatal(err)
	}
	for range maxCalls {
		// They say nothing, so the primary goes on waiting for their first words.
		if _, err := api.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// Shorter than the primary's patience with who is silent.
	short, give := context.WithTimeout(ctx, testPace.Silence/4)
	defer give()
	if _, err := api.Hello(short, &pb.HelloRequest{}); err == nil {
		t.Errorf("one call more than %d is answered", maxCalls)
	}
}
