package registry

import (
	"slices"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
)

func TestSilentReporters(t *testing.T) {
	m, now := NewInstances(DefaultSilence), time.Unix(1000, 0)
	replica := func(name string, ready bool) Instance {
		return Instance{Workload: objects.Key{Kind: "Workload", Namespace: "shop", Name: "cart"}, Name: name, Ready: ready}
	}
	ready := func() []string {
		var out []string
		for _, i := range m.Snapshot() {
			if i.Ready {
				out = append(out, i.Name)
			}
		}
		return out
	}
	expect := func(when string, silent []string, want ...string) {
		t.Helper()
		if got := ready(); !slices.Equal(got, want) || !slices.Equal(m.Silent(), silent) {
			t.Errorf("%s: ready are %q, silent %q, want %q and %q", when, got, m.Silent(), want, silent)
		}
	}
	// pass lets seconds pass in which these reporters are heard.
	pass := func(seconds int, heard ...string) (gone []string) {
		for range seconds {
			now = now.Add(time.Second)
			for _, name := range heard {
				m.Renew(Agent(name), now)
			}
			gone = append(gone, m.Expire(now)...)
		}
		return gone
	}
	m.Report(Agent("one"), []Instance{replica("cart-0", true)}, now)
	m.Report(Agent("two"), []Instance{replica("cart-1", true), replica("cart-2", false)}, now)
	pass(10, "one", "two")
	expect("both are heard", nil, "cart-0", "cart-1")
	pass(4, "one")
	expect("not long", nil, "cart-0", "cart-1")
	m.Changes()
	pass(1, "one")
	expect("five seconds", []string{"two"}, "cart-0")
	if changes := m.Changes(); len(changes) != 1 || !changes[0].Before.SameShape(*changes[0].After) {
		t.Errorf("one replica is out of rotation, and nothing else changes: %+v", changes)
	}
	m.Renew(Agent("two"), now)
	expect("heard again", nil, "cart-0", "cart-1")
	pass(6, "one")
	m.Report(Agent("two"), []Instance{replica("cart-2", true)}, now)
	expect("heard again, with other replicas", nil, "cart-0", "cart-2")
	if gone := pass(int(DefaultSilence.Gone/time.Second), "one"); !slices.Equal(gone, []string{"two"}) || len(m.Snapshot()) != 1 {
		t.Errorf("after long, gone are %q, left %+v", gone, m.Snapshot())
	}
	m.Renew(Agent("two"), now) // Who is forgotten reports anew.
	expect("forgotten", nil, "cart-0")

	// Nobody is heard: it is not they who are gone.
	m.Report(Agent("two"), []Instance{replica("cart-1", true)}, now)
	pass(1000)
	expect("nobody is heard", nil, "cart-0", "cart-1")
	// This process did not run, and so heard nobody.
	pass(1, "one", "two")
	now = now.Add(time.Minute)
	m.Renew(Agent("one"), now)
	m.Expire(now)
	pass(1, "one")
	expect("after a standstill", nil, "cart-0", "cart-1")
	pass(5, "one")
	expect("some time after a standstill", []string{"two"}, "cart-0")
}

// A source within this process says nothing of whether agents are heard, is not taken to be gone itself, and no agent can take
// its name.
func TestASourceWithinIsNoSignOfAgents(t *testing.T) {
	m, now := NewInstances(DefaultSilence), time.Unix(1000, 0)
	replica := func(name string) Instance {
		return Instance{Workload: objects.Key{Kind: "Workload", Namespace: "shop", Name: "cart"}, Name: name, Ready: true}
	}
	expect := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, i := range m.Snapshot() {
			if i.Ready {
				got = append(got, i.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: ready are %q, want %q", when, got, want)
		}
	}
	pass := func(seconds int, heard ...Reporter) {
		for range seconds {
			now = now.Add(time.Second)
			for _, by := range heard {
				m.Renew(by, now)
			}
			if gone := m.Expire(now); len(gone) > 0 && !slices.Equal(gone, []string{"one"}) {
				t.Errorf("gone are %q", gone)
			}
		}
	}
	m.Report(Agent("one"), []Instance{replica("cart-0")}, now)
	m.Report(Within("one"), []Instance{replica("cart-1")}, now)
	expect("of one name", "cart-0", "cart-1")
	pass(100, Within("one"))
	expect("no agent is heard", "cart-0", "cart-1")
	m.Report(Agent("two"), nil, now)
	pass(10, Agent("two"))
	expect("one agent of two is heard", "cart-1")
	if silent := m.Silent(); !slices.Equal(silent, []string{"one"}) {
		t.Errorf("silent are %q", silent)
	}
	pass(1000, Agent("two"))
	expect("the other one is forgotten", "cart-1")
	m.Report(Within("one"), nil, now)
	expect("it has none any more")
}
