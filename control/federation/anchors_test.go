package federation

import (
	"context"
	"slices"
	"testing"
	"time"

	"heddle.io/heddle/control/ca"
)

// TestAnchorsAreTold: each cluster knows by which intermediates the others' servers are known, hears of the next one before
// it signs, and forgets those of a cluster that was removed, also when another one comes under its name.
func TestAnchorsAreTold(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a, b := p.joinMember("cluster2"), p.joinMember("cluster3")
	told := func(step string) {
		t.Helper()
		for _, from := range []*node{p, a, b} {
			for _, at := range []*node{p, a, b} {
				if from == at {
					continue
				}
				eventually(t, step+": "+at.name+" knows the intermediates of "+from.name, func() bool {
					want := from.authority.Announced()
					return from.authority.Prepared() && len(want) > 1 && slices.Equal(at.peer(from.name).Anchors, want)
				})
			}
		}
	}
	told("joined")
	for _, n := range []*node{a, p} {
		before := n.authority.Announced()
		if err := n.f.Rotate(context.Background()); err != nil {
			t.Fatal(err)
		}
		told(n.name + " has rotated")
		// The key that signs now was announced before; the one before stays as long as its certificates.
		now := n.authority.Announced()
		if now[0] == before[0] || !slices.Contains(now, before[0]) {
			t.Errorf("%s announced %d intermediates before and %d now", n.name, len(before), len(now))
		}
		n.clock.advance(2 * time.Hour)
		eventually(t, "those before have expired", func() bool { return len(n.authority.Announced()) == 2 })
	}
	// What is known of others outlives the controller and the link.
	want := b.authority.Announced()
	a.stop()
	p.link.set(p.address, true)
	a.start()
	if got := a.peer("cluster3").Anchors; !slices.Equal(got, want) {
		t.Errorf("after a restart without the primary it knows %d of %d", len(got), len(want))
	}
	p.link.set(p.address, false)
	told("connected again")
	before := b.authority.Announced()
	p.remove(clusterKey("cluster3"))
	for _, n := range []*node{p, a} {
		eventually(t, n.name+" forgets it", func() bool { return len(n.f.anchorsOf("cluster3", before)) == 0 })
	}
	b.stop()
	again := p.joinMember("cluster3")
	eventually(t, "another one has its name", func() bool {
		return slices.Equal(p.peer("cluster3").Anchors, again.authority.Announced())
	})
	for _, n := range []*node{p, a} {
		eventually(t, n.name+" knows the other", func() bool { return len(n.f.anchorsOf("cluster3", again.authority.Announced())) > 0 })
		if got := n.f.anchorsOf("cluster3", before); len(got) != 0 {
			t.Errorf("%s takes %d intermediates of the one that was removed", n.name, len(got))
		}
	}
}

// TestAnchorsOfOthersAreRefused: what a cluster announces counts if it is its own intermediate, and is counted if it is not.
func TestAnchorsOfOthersAreRefused(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return len(p.peer("cluster2").Anchors) > 1 })
	stranger, err := ca.Open(ca.Options{Dir: t.TempDir(), Cluster: "cluster2", TrustDomain: "cluster.local", Now: p.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	own := a.authority.Announced()
	for what, anchors := range map[string][]string{
		"the root": {string(p.authority.Root())}, "the primary's": p.authority.Announced(), "of another mesh": stranger.Announced(), "nonsense": {"x"},
	} {
		before := p.f.counters.snapshot()[countAnchorsRefused]
		for range 2 {
			if got := p.f.anchorsOf("cluster2", append(slices.Clone(anchors), own...)); !slices.Equal(got, own) {
				t.Errorf("%s: %d anchors", what, len(got))
			}
		}
		// Each is looked at once.
		if n := p.f.counters.snapshot()[countAnchorsRefused] - before; n != uint64(len(anchors)) {
			t.Errorf("%s: %d counted", what, n)
		}
	}
	if got := p.f.anchorsOf("cluster9", own); len(got) != 0 {
		t.Error("a cluster that is not of the mesh has anchors")
	}
}
