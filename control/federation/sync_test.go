package federation

import (
	"context"
	"errors"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

func TestTwoMembersAreRelayed(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "cluster*", "shop"))
	p.put(globalNamespace("private", "cluster2", "secret"))
	a, b := p.joinMember("cluster2"), p.joinMember("cluster3")
	a.f.SetOwn(registry.Locality{Region: "eu", Zone: "a"}, registry.NewExports(export("secret", "vault", 1), export("shop", "cart", 2)))
	p.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "ads", 1)))
	want := []registry.Export{export("shop", "cart", 2)}
	for _, n := range []*node{p, b} {
		eventually(t, n.name+" knows what cluster2 exports to it, and no more", func() bool {
			got := n.peer("cluster2")
			return reflect.DeepEqual(got.Services.List(), want) && got.Locality.Zone == "a" && len(got.Gateways) == 1 && got.Reachable
		})
	}
	eventually(t, "members know the primary's", func() bool {
		return a.peer("cluster1").Services.Len() == 1 && b.peer("cluster1").Services.Len() == 1
	})
	// The primary's objects are everywhere, as its own.
	for _, m := range []*node{a, b} {
		for _, key := range []objects.Key{clusterKey("cluster1"), clusterKey("cluster2"), clusterKey("cluster3"), namespaceKey("boutique")} {
			eventually(t, m.name+" has "+key.String(), func() bool { return m.has(key) })
		}
		o, _ := m.store.Get(context.Background(), namespaceKey("boutique"))
		if o.Origin.Cluster != "cluster1" {
			t.Errorf("origin %v", o.Origin)
		}
	}
	// Changes arrive, and what was known stays.
	a.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "cart", 0)))
	eventually(t, "the change arrives", func() bool { s := b.peer("cluster2").Services.List(); return len(s) == 1 && s[0].Groups[0].Ready == 0 })
	p.put(globalNamespace("boutique", "cluster[", "shop")) // Of bad form: nobody may know anything by it.
	eventually(t, "nothing is shared any more", func() bool {
		return b.peer("cluster2").Services.Len() == 0 && p.peer("cluster2").Services.Len() == 0 && a.peer("cluster1").Services.Len() == 0
	})
	p.remove(namespaceKey("boutique"))
	eventually(t, "the deletion arrives", func() bool { return !a.has(namespaceKey("boutique")) && !b.has(namespaceKey("boutique")) })
	status := a.f.Status()
	if status.Primary != "cluster1" || !status.Connected || status.Problem != "" || len(status.Clusters) != 3 || status.PrimaryAddress != p.address {
		t.Errorf("%+v", status)
	}
	if s := p.f.Status(); s.Counters[countJoins] != 2 || s.Counters[countStatesReceived] < 2 || s.Issuer != "Heddle intermediate cluster1" {
		t.Errorf("%+v", s)
	}
}

func TestLargeStatesComeInParts(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	a, b := p.joinMember("cluster2"), p.joinMember("cluster3")
	var all []registry.Export
	for i := range 9000 {
		all = append(all, export("shop", "svc-"+string(rune('a'+i%26))+"-"+time.Duration(i).String(), 1))
	}
	for i := range all {
		all[i].Name = "svc" + string([]byte{byte('0' + i/1000), byte('0' + i/100%10), byte('0' + i/10%10), byte('0' + i%10)})
	}
	a.f.SetOwn(registry.Locality{}, registry.NewExports(all...))
	eventually(t, "all services arrive", func() bool {
		return b.peer("cluster2").Services.Len() == len(all) && p.peer("cluster2").Services.Len() == len(all)
	})
	if refused := p.f.counters.snapshot()[countStatesRefused]; refused != 0 {
		t.Errorf("%d states were refused", refused)
	}
}

func TestLinkLossAndHeal(t *testing.T) {
	l := newLink()
	p := newNode(t, "cluster1", l, &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "both reach each other", func() bool {
		return a.peer("cluster1").Reachable && p.peer("cluster2").Reachable && p.status("cluster2").Connected && a.f.Status().Connected
	})
	// The link dies silently: packets are lost, nobody is told.
	l.set(p.address, true)
	l.set(a.address, true)
	eventually(t, "the endpoints are out, on both sides", func() bool { return !a.peer("cluster1").Reachable && !p.peer("cluster2").Reachable })
	eventually(t, "both notice that the stream is dead", func() bool { return !a.f.Status().Connected && !p.status("cluster2").Connected })
	if s := a.f.Status(); s.Problem == "" || a.status("cluster1").Problem == "" {
		t.Errorf("%+v", s)
	}
	// What was known stays known.
	if len(a.f.Peers()) != 1 || len(p.f.Peers()) != 1 {
		t.Error("peers were forgotten")
	}
	l.set(p.address, false)
	l.set(a.address, false)
	eventually(t, "all is as before", func() bool {
		return a.peer("cluster1").Reachable && p.peer("cluster2").Reachable && p.status("cluster2").Connected && a.f.Status().Connected && a.f.Status().Problem == ""
	})
	// A connection that breaks is made again.
	before := p.f.counters.snapshot()[countStreams]
	l.closeAll(p.address)
	eventually(t, "the member is back", func() bool { return p.f.counters.snapshot()[countStreams] > before && a.f.Status().Connected })
}

func TestPrimaryRestarts(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	a, b := p.joinMember("cluster2"), p.joinMember("cluster3")
	a.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "cart", 2)))
	eventually(t, "all is known", func() bool { return b.peer("cluster2").Services.Len() == 1 && p.peer("cluster2").Services.Len() == 1 })
	p.stop()
	eventually(t, "the members notice", func() bool { return !a.f.Status().Connected && !b.f.Status().Connected })
	// They go on with what they know, also after a restart of their own.
	b.restart()
	if got := b.peer("cluster2"); got.Services.Len() != 1 || !got.Reachable {
		t.Fatalf("after a restart without the primary: %+v", got)
	}
	if !b.has(namespaceKey("boutique")) {
		t.Fatal("the global namespace is gone")
	}
	a.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "cart", 5)))
	p.start()
	if got := p.peer("cluster2"); got.Services.Len() != 1 {
		t.Fatalf("the primary forgot its members: %+v", got)
	}
	eventually(t, "both agree again, without a human", func() bool {
		s := b.peer("cluster2").Services.List()
		return len(s) == 1 && s[0].Groups[0].Ready == 5 && a.f.Status().Connected && b.f.Status().Connected
	})
}

func TestPrimaryThatMovedIsFound(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return len(a.peer("cluster1").Gateways) == 1 })
	a.stop()
	m, _, err := ReadMembership(a.place)
	if err != nil {
		t.Fatal(err)
	}
	m.Address = "127.0.0.1:1"
	if err := writeMembership(a.place, m); err != nil {
		t.Fatal(err)
	}
	a.start()
	eventually(t, "the primary is found by what it said of its gateways", func() bool { return a.f.Status().Connected })
}

func TestRemovedClusterIsOut(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	a, b := p.joinMember("cluster2"), p.joinMember("cluster3")
	a.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "cart", 1)))
	eventually(t, "all know each other", func() bool {
		return b.peer("cluster2").Services.Len() == 1 && len(a.f.Peers()) == 2 && a.has(namespaceKey("boutique"))
	})
	p.remove(clusterKey("cluster2"))
	eventually(t, "the others forget it", func() bool { return len(p.f.Peers()) == 1 && len(b.f.Peers()) == 1 && !b.has(clusterKey("cluster2")) })
	eventually(t, "it is told, and forgets the others", func() bool {
		return a.f.Status().Problem != "" && len(a.f.Peers()) == 0 && !a.has(namespaceKey("boutique")) && !a.has(clusterKey("cluster1")) && a.has(clusterKey("cluster2"))
	})
	// So it stays, also after a restart and however often it asks.
	a.restart()
	before := p.f.counters.snapshot()[countCallsRefused]
	eventually(t, "it is refused again", func() bool { return p.f.counters.snapshot()[countCallsRefused] > before })
	if len(a.f.Peers()) != 0 || a.f.Status().Connected || a.f.removed == "" {
		t.Fatalf("%+v", a.f.Status())
	}
	failsWith(t, a.f.Rotate(context.Background()), "the primary is not reached")
	// It joins again with a new token, running, and all is as before.
	failsWith(t, a.f.Join(context.Background(), joinRequest("127.0.0.1:1", p.token())), "cannot be reached")
	former := a.authority.Issuers()
	if err := a.f.Join(context.Background(), joinRequest(p.address, p.token())); err != nil {
		t.Fatal(err)
	}
	// It is another member now. Of its own workloads, those that have certificates of the one before are let in.
	if now := a.authority.Issuers(); len(former) != 1 || len(now) != 2 || !slices.Contains(now, former[0]) || p.status("cluster2").Membership == former[0].Membership {
		t.Errorf("it was %v and is %v", former, now)
	}
	a.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "cart", 1)))
	eventually(t, "it is back", func() bool {
		return b.peer("cluster2").Services.Len() == 1 && len(a.f.Peers()) == 2 && a.has(namespaceKey("boutique"))
	})
	if s := a.f.Status(); s.Problem != "" || !s.Connected {
		t.Errorf("%+v", s)
	}
}

func TestRemovedClusterJoinsAgainFromTheCommandLine(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	p.remove(clusterKey("cluster2"))
	eventually(t, "removed", func() bool { k, err := readKept(a.place); return err == nil && k.Removed != "" })
	a.stop()
	options := JoinOptions{Cluster: a.place, Address: p.address, Token: p.token(), Dial: p.link.dial, Now: p.clock.Now}
	if _, err := Join(context.Background(), options); err != nil {
		t.Fatal(err)
	}
	a.start()
	eventually(t, "it is back", func() bool { return a.f.Status().Connected && p.status("cluster2").Connected })
}

func TestRemovedClusterStaysOutWhenItsNameIsUsedAgain(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	old := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return old.f.Status().Connected })
	p.remove(clusterKey("cluster2"))
	eventually(t, "told", func() bool { return old.f.Status().Problem != "" })
	fresh := p.joinMember("cluster2")
	eventually(t, "the new one is in", func() bool { return fresh.f.Status().Connected })
	old.restart()
	before := p.f.counters.snapshot()[countCallsRefused]
	eventually(t, "the old one is refused", func() bool { return p.f.counters.snapshot()[countCallsRefused] > before })
	if old.f.Status().Connected || !fresh.f.Status().Connected {
		t.Error("the old one is in, or the new one is not")
	}
	// To proxies, they are two issuers, of which the mesh has one.
	if m := p.status("cluster2").Membership; m != fresh.authority.Issuers()[0].Membership || m == old.authority.Issuers()[0].Membership {
		t.Errorf("the mesh has %q; old %v, new %v", m, old.authority.Issuers(), fresh.authority.Issuers())
	}
}

func TestRotation(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	for _, n := range []*node{p, a} {
		chain, err := n.authority.Controller()
		if err != nil {
			t.Fatal(err)
		}
		before := n.rotated
		if err := n.f.Rotate(context.Background()); err != nil {
			t.Fatal(err)
		}
		next, err := n.authority.Controller()
		if err != nil || reflect.DeepEqual(chain.Certificate[1], next.Certificate[1]) {
			t.Errorf("%s: same intermediate, %v", n.name, err)
		}
		if n.rotated != before+1 {
			t.Errorf("%s: the workloads were renewed %d times", n.name, n.rotated-before)
		}
	}
	// The new certificates are good for the next connection, on both sides.
	a.restart()
	eventually(t, "connected again", func() bool { return a.f.Status().Connected })
	a.onRotate(func() error { return errors.New("shop/cart-0: away") })
	failsWith(t, a.f.Rotate(context.Background()), "not all workloads")
	p.stop()
	eventually(t, "the primary is away", func() bool { return !a.f.Status().Connected })
	if got := asProblem(t, a.f.Rotate(context.Background()), "the primary is not reached"); got.Status != http.StatusServiceUnavailable {
		t.Errorf("%+v", got)
	}
}

func TestIntermediateIsRenewedInTime(t *testing.T) {
	c := &clock{}
	p := newNode(t, "cluster1", newLink(), c)
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	_, before := a.authority.Issuer()
	c.advance(59 * 24 * time.Hour)
	eventually(t, "alive", func() bool { return a.f.Status().Connected })
	if _, now := a.authority.Issuer(); !now.Equal(before) {
		t.Fatal("renewed before two thirds of its life")
	}
	c.advance(2 * 24 * time.Hour)
	eventually(t, "renewed over the stream", func() bool { _, now := a.authority.Issuer(); return now.After(before.Add(50 * 24 * time.Hour)) })
	// A new connection works with it although everything from before has expired.
	p.link.closeAll(p.address)
	count := p.f.counters.snapshot()[countStreams]
	eventually(t, "connected again", func() bool { return p.f.counters.snapshot()[countStreams] > count && a.f.Status().Connected })
}

func TestStoreOfTheMemberFails(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	a.store.breakWith(store.ErrUnavailable)
	p.put(globalNamespace("boutique", "*", "shop"))
	eventually(t, "the failure is counted and said", func() bool { s := a.f.Status(); return s.Counters[countReplicaFailures] > 0 && s.Problem != "" })
	a.store.breakWith(nil)
	eventually(t, "what was missed is made up for", func() bool { return a.has(namespaceKey("boutique")) && a.f.Status().Problem == "" })
	// And at the primary: nobody is thrown out because the store does not answer.
	p.store.breakWith(store.ErrUnavailable)
	before := p.f.counters.snapshot()[countStreams]
	p.f.SetOwn(registry.Locality{Zone: "x"}, nil)
	eventually(t, "updates go on", func() bool { return a.peer("cluster1").Locality.Zone == "x" })
	if p.f.counters.snapshot()[countStreams] != before {
		t.Error("the stream ended")
	}
}

func TestRemovedMemberForgetsWhenItsStoreIsBack(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected && a.has(namespaceKey("boutique")) })
	a.store.breakWith(store.ErrUnavailable)
	p.remove(clusterKey("cluster2"))
	eventually(t, "it is told", func() bool { return strings.Contains(a.f.Status().Problem, "not a member") })
	a.store.breakWith(nil)
	eventually(t, "it forgets the mesh's objects", func() bool { return !a.has(namespaceKey("boutique")) && a.has(clusterKey("cluster2")) })
}

func TestCacheThatIsSpoiledIsNoObstacle(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return len(a.f.Peers()) == 1 })
	a.stop()
	for _, path := range []string{keptPath(a.place), keptClusterPath(a.place, "cluster1")} {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.start()
	eventually(t, "the peers are known again", func() bool { return len(a.f.Peers()) == 1 })
}

func TestClockThatDriftsIsSaid(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	p.clock = &clock{}
	a.f.noteClock(time.Now().Add(-2 * time.Minute))
	if a.f.Status().Problem == "" {
		t.Error("nothing is said")
	}
	eventually(t, "it passes", func() bool { return a.f.Status().Problem == "" })
}

func joinRequest(address, token string) client.JoinRequest {
	return client.JoinRequest{Address: address, Token: token}
}
