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
				m.Renew(name, now)
			}
			gone = append(gone, m.Expire(now)...)
		}
		return gone
	}
	m.Report("one", []Instance{replica("cart-0", true)}, now)
	m.Report("two", []Instance{replica("cart-1", true), replica("cart-2", false)}, now)
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
	m.Renew("two", now)
	expect("heard again", nil, "cart-0", "cart-1")
	pass(6, "one")
	m.Report("two", []Instance{replica("cart-2", true)}, now)
	expect("heard again, with other replicas", nil, "cart-0", "cart-2")
	if gone := pass(int(DefaultSilence.Gone/time.Second), "one"); !slices.Equal(gone, []string{"two"}) || len(m.Snapshot()) != 1 {
		t.Errorf("after long, gone are %q, left %+v", gone, m.Snapshot())
	}
	m.Renew("two", now) // Who is forgotten reports anew.
	expect("forgotten", nil, "cart-0")

	// Nobody is heard: it is not they who are gone.
	m.Report("two", []Instance{replica("cart-1", true)}, now)
	pass(1000)
	expect("nobody is heard", nil, "cart-0", "cart-1")
	// This process did not run, and so heard nobody.
	pass(1, "one", "two")
	now = now.Add(time.Minute)
	m.Renew("one", now)
	m.Expire(now)
	pass(1, "one")
	expect("after a standstill", nil, "cart-0", "cart-1")
	pass(5, "one")
	expect("some time after a standstill", []string{"two"}, "cart-0")
}
