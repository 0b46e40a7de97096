package registry

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

func service(name, address string) *objects.Object {
	s := &corev1.Service{}
	s.Namespace, s.Name, s.Spec.ClusterIP = "shop", name, address
	return &objects.Object{Kind: objects.Service, Resource: s}
}

// addresses are those of services.
func addresses(all ...*objects.Object) *Addresses {
	var x Addresses
	for _, o := range all {
		x.Set(o.Key(), o)
	}
	return &x
}

func write(o *objects.Object) store.Write { return store.Write{Key: o.Key(), Object: o} }

func ip(w store.Write) string { return w.Object.Resource.(*corev1.Service).Spec.ClusterIP }

var services = netip.MustParsePrefix("10.96.0.0/16")

func TestAddressesAreKept(t *testing.T) {
	first, err := addresses().Assign(services, []store.Write{write(service("cart", "")), write(service("mail", ""))})
	if err != nil {
		t.Fatal(err)
	}
	if a := netip.MustParseAddr(ip(first[0])); !services.Contains(a) || a.Less(netip.MustParseAddr("10.96.1.0")) {
		t.Errorf("cart has %s", a)
	}
	if ip(first[0]) == ip(first[1]) {
		t.Error("two services have one address")
	}
	// An update that does not name the address keeps it, and so does a service that is deleted and made again.
	again, err := addresses(first[0].Object, first[1].Object).Assign(services, []store.Write{write(service("cart", ""))})
	if err != nil || ip(again[0]) != ip(first[0]) {
		t.Errorf("cart had %s, has %s: %v", ip(first[0]), ip(again[0]), err)
	}
	remade, err := addresses(first[1].Object).Assign(services, []store.Write{write(service("cart", ""))})
	if err != nil || ip(remade[0]) != ip(first[0]) {
		t.Errorf("cart had %s, has %s: %v", ip(first[0]), ip(remade[0]), err)
	}
}

func TestAddressErrors(t *testing.T) {
	existing := []*objects.Object{service("cart", "10.96.0.5"), service("mail", "10.96.0.6")}
	for _, c := range []struct {
		name  string
		write *objects.Object
		want  string
	}{
		{"taken", service("new", "10.96.0.5"), "10.96.0.5 belongs to Service/shop/cart"},
		{"outside", service("new", "192.0.2.1"), "is outside the range of services"},
		{"changed", service("cart", "10.96.0.7"), "cannot be changed: it is 10.96.0.5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := addresses(existing...).Assign(services, []store.Write{write(c.write)})
			var e *objects.Error
			if !errors.As(err, &e) || e.Path != "spec.clusterIP" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	// What the batch deletes is free.
	_, err := addresses(existing...).Assign(services, []store.Write{
		{Key: existing[0].Key()}, write(service("new", "10.96.0.5")),
	})
	if err != nil {
		t.Error(err)
	}
}

// What is known of addresses after changes at random is what the services that are there say.
func TestAddressesFollowTheirServices(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	var x Addresses
	all := map[objects.Key]*objects.Object{}
	for round := range 500 {
		o := service(fmt.Sprint("s-", random.IntN(6)), fmt.Sprintf("10.96.0.%d", random.IntN(5)))
		switch key := o.Key(); random.IntN(4) {
		case 0:
			delete(all, key)
			x.Set(key, nil)
		case 1:
			// An address is taken, or it is not.
			a := netip.MustParseAddr(ip(write(o)))
			want := false
			for k, other := range all {
				want = want || k != key && ip(write(other)) == a.String()
			}
			if had := all[key]; had != nil && ip(write(had)) != a.String() {
				want = true
			}
			if _, err := x.Assign(services, []store.Write{write(o)}); (err != nil) != want {
				t.Fatalf("round %d: %s for %s: %v", round, a, key, err)
			}
		default:
			all[key] = o
			x.Set(key, o)
		}
		if len(x.of) != len(all) {
			t.Fatalf("round %d: %d of %d services have addresses", round, len(x.of), len(all))
		}
	}
}

// BenchmarkAssign is one service that is new among so many.
func BenchmarkAssign(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var x Addresses
			for i := range n {
				o := service(fmt.Sprint("s-", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250))
				x.Set(o.Key(), o)
			}
			writes := []store.Write{write(service("new", ""))}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.Assign(services, writes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAddressesRunOut(t *testing.T) {
	small := netip.MustParsePrefix("10.96.0.0/29")
	var writes []store.Write
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		writes = append(writes, write(service(n, "")))
	}
	got, err := addresses().Assign(small, writes)
	if err != nil {
		t.Fatal(err)
	}
	var existing []*objects.Object
	for _, w := range got {
		existing = append(existing, w.Object)
	}
	if _, err := addresses(existing...).Assign(small, []store.Write{write(service("g", ""))}); !errors.Is(err, ErrAddressesExhausted) {
		t.Errorf("got %v", err)
	}
}

func TestAddressesOfIPv6(t *testing.T) {
	within := netip.MustParsePrefix("fd00:10:96::/112")
	got, err := addresses().Assign(within, []store.Write{
		write(service("cart", "")), write(service("mail", "")), write(service("fixed", "fd00:10:96::5")),
	})
	if err != nil {
		t.Fatal(err)
	}
	if ip(got[2]) != "fd00:10:96::5" {
		t.Errorf("fixed has %s", ip(got[2]))
	}
	seen := map[netip.Addr]bool{}
	for _, w := range got {
		a := netip.MustParseAddr(ip(w))
		if !within.Contains(a) || seen[a] {
			t.Errorf("%s has %s", w.Key, a)
		}
		seen[a] = true
	}
	if _, err := addresses().Assign(within, []store.Write{write(service("new", "10.96.0.5"))}); err == nil {
		t.Error("an address of the other family was accepted")
	}
	// A range that is larger than any cluster needs, and one that holds nothing.
	if _, err := addresses().Assign(netip.MustParsePrefix("fd00::/48"), []store.Write{write(service("cart", ""))}); err != nil {
		t.Error(err)
	}
	if _, err := addresses().Assign(netip.MustParsePrefix("fd00::/127"), []store.Write{write(service("cart", ""))}); !errors.Is(err, ErrAddressesExhausted) {
		t.Errorf("got %v", err)
	}
}

// Snapshot gives all replicas, sorted by namespace and name.
func (m *Instances) Snapshot() []Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Instance, 0, len(m.instances))
	for _, id := range slices.Sorted(maps.Keys(m.instances)) {
		out = append(out, *m.instances[id])
	}
	return out
}

func TestInstances(t *testing.T) {
	now := time.Unix(1000, 0)
	m := NewInstances(DefaultSilence)
	changed := func(want ...string) {
		t.Helper()
		select {
		case <-m.Changed():
		default:
		}
		var got []string
		for _, c := range m.Changes() {
			text := fmt.Sprint(c.Before != nil, c.After != nil)
			if c.Before != nil && c.After != nil {
				text = fmt.Sprint("same shape ", c.Before.SameShape(*c.After))
			}
			got = append(got, text)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	i := Instance{Workload: objects.Key{Kind: "Workload", Namespace: "shop", Name: "cart"}, Name: "cart-0", Ready: true}
	m.Report(Agent("one"), []Instance{i}, now)
	changed("false true")
	m.Report(Agent("one"), []Instance{i}, now)
	select {
	case <-m.Changed():
		t.Error("the same again is no change")
	default:
	}
	changed()
	i.Ready = false
	m.Report(Agent("one"), []Instance{i}, now)
	i.Address = netip.MustParseAddr("10.0.0.1")
	m.Report(Agent("one"), []Instance{i}, now)
	changed("same shape true")
	i.Labels = map[string]string{"app": "cart"}
	m.Report(Agent("one"), []Instance{i}, now)
	changed("same shape false")
	// Another reporter's are its own, and one may take over.
	m.Report(Agent("two"), []Instance{{Workload: i.Workload, Name: "cart-1"}}, now)
	m.Report(Agent("two"), []Instance{{Workload: i.Workload, Name: "cart-1"}, i}, now)
	changed("false true")
	m.Report(Agent("one"), nil, now)
	changed()
	if got := m.Snapshot(); len(got) != 2 || got[0].ID() != "shop/cart-0" || got[1].ID() != "shop/cart-1" {
		t.Errorf("got %+v", got)
	}
	m.Report(Agent("two"), nil, now)
	changed("true false", "true false")
	if got := m.Snapshot(); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}
