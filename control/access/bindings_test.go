package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/etcd"
	"heddle.io/heddle/control/store/storetest"
)

func binding(name string, role Role, namespaces []string, subjects ...v1alpha1.AccessSubject) *objects.Object {
	return &objects.Object{Kind: objects.AccessBinding, Resource: &v1alpha1.AccessBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: objects.AccessBinding.APIVersion(), Kind: objects.AccessBinding.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.AccessBindingSpec{Role: role.String(), Namespaces: namespaces, Subjects: subjects},
	}}
}

func named(kind, name string) v1alpha1.AccessSubject {
	return v1alpha1.AccessSubject{Kind: kind, Name: name}
}

// opened is a controller's view of a store. Its watch does not run: what others write, it has not heard of.
func opened(tb testing.TB, s store.Store) (*cache.Cache, *Bindings) {
	tb.Helper()
	b := new(Bindings)
	c, err := cache.Open(tb.Context(), cache.Options{Store: s, Log: slog.New(slog.DiscardHandler), Changed: b.Take})
	if err != nil {
		tb.Fatal(err)
	}
	return c, b
}

func write(tb testing.TB, s store.Store, w store.Write) {
	tb.Helper()
	if _, err := s.Write(tb.Context(), w); err != nil {
		tb.Fatal(err)
	}
}

func grantsIn(t *testing.T, b *Bindings, s store.Store, c *Caller) string {
	t.Helper()
	g, err := b.of(t.Context(), s, c)
	if err != nil {
		t.Fatal(err)
	}
	return g.String()
}

func TestBindingsNameCallers(t *testing.T) {
	s := storetest.NewMemory()
	user, group := v1alpha1.SubjectUser, v1alpha1.SubjectGroup
	for _, o := range []*objects.Object{
		binding("by-name", Viewer, []string{"shop"}, named(user, "alice")),
		binding("more-there", Editor, []string{"shop", "bank"}, named(user, "alice")),
		binding("by-number", Viewer, []string{"numbered"}, named(user, "1000")),
		binding("by-group", Admin, []string{"grouped"}, named(group, "staff")),
		binding("account", Viewer, []string{"run"}, v1alpha1.AccessSubject{Kind: v1alpha1.SubjectServiceAccount, Namespace: "shop", Name: "cart"}),
	} {
		write(t, s, store.Write{Key: o.Key(), Object: o})
	}
	c, b := opened(t, s)
	for _, tc := range []struct {
		caller Caller
		want   string
	}{
		{Caller{Kind: KindUser, Name: "alice", UID: -1}, `editor in namespace "bank", editor in namespace "shop"`},
		{Caller{Kind: KindUser, Name: "bob", UID: 1000}, `viewer in namespace "numbered"`},
		// A certificate may name anybody, but not an account's number.
		{Caller{Kind: KindUser, Name: "1000", UID: -1}, "no role"},
		{Caller{Kind: KindUser, Name: "carol", UID: -1, Groups: []string{"others", "staff"}}, `admin in namespace "grouped"`},
		{Caller{Kind: KindUser, Name: "staff", UID: -1}, "no role"},
		{Caller{Kind: KindServiceAccount, Name: "shop/cart", UID: -1}, `viewer in namespace "run"`},
		{Caller{Kind: KindServiceAccount, Name: "bank/cart", UID: -1}, "no role"},
		{Caller{Kind: KindToken, Name: "alice", UID: -1}, "no role"},
	} {
		if got := grantsIn(t, b, c, &tc.caller); got != tc.want {
			t.Errorf("%s has %s, want %s", &tc.caller, got, tc.want)
		}
	}
}

// What this controller wrote counts once the write has returned, also after the subjects of a binding changed.
func TestOwnBindingsCountAtOnce(t *testing.T) {
	c, b := opened(t, storetest.NewMemory())
	alice, bob := &Caller{Kind: KindUser, Name: "alice", UID: -1}, &Caller{Kind: KindUser, Name: "bob", UID: -1}
	key := binding("x", Viewer, nil).Key()
	for _, step := range []struct {
		object     *objects.Object
		alice, bob string
	}{
		{binding("x", Viewer, []string{"a"}, named(v1alpha1.SubjectUser, "alice")), `viewer in namespace "a"`, "no role"},
		{binding("x", Editor, []string{"b"}, named(v1alpha1.SubjectUser, "bob")), "no role", `editor in namespace "b"`},
		{nil, "no role", "no role"},
	} {
		write(t, c, store.Write{Key: key, Object: step.object})
		if a, o := grantsIn(t, b, c, alice), grantsIn(t, b, c, bob); a != step.alice || o != step.bob {
			t.Errorf("alice has %s and bob %s, want %s and %s", a, o, step.alice, step.bob)
		}
	}
	if len(b.bindings) != 0 || len(b.subjects) != 0 {
		t.Errorf("%d bindings and %d subjects are kept of what is gone", len(b.bindings), len(b.subjects))
	}
}

// Another controller of the same store takes a role away, and this one has not heard of it.
func TestRevokedElsewhereCountsAtOnce(t *testing.T) {
	alice := &Caller{Kind: KindUser, Name: "alice", UID: -1}
	before := binding("x", Admin, []string{"a", "b"}, named(v1alpha1.SubjectUser, "alice"))
	for name, tc := range map[string]struct {
		after *objects.Object
		want  string
	}{
		"deleted":       {nil, "no role"},
		"other subject": {binding("x", Admin, []string{"a", "b"}, named(v1alpha1.SubjectUser, "bob")), "no role"},
		"less":          {binding("x", Viewer, []string{"b"}, named(v1alpha1.SubjectUser, "alice")), `viewer in namespace "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.NewMemory()
			write(t, s, store.Write{Key: before.Key(), Object: before})
			c, b := opened(t, s)
			if got := grantsIn(t, b, c, alice); got != `admin in namespace "a", admin in namespace "b"` {
				t.Fatalf("alice has %s", got)
			}
			write(t, s, store.Write{Key: before.Key(), Object: tc.after})
			if got := grantsIn(t, b, c, alice); got != tc.want {
				t.Errorf("alice has %s, want %s", got, tc.want)
			}
		})
	}
}

// unreachable is a store that cannot be reached.
type unreachable struct{ store.Store }

func (unreachable) Versions(context.Context, []objects.Key) ([]objects.Version, error) {
	return nil, store.ErrUnavailable
}

func TestNoRoleThatTheStoreDoesNotConfirm(t *testing.T) {
	s := storetest.NewMemory()
	o := binding("x", Admin, []string{Everywhere}, named(v1alpha1.SubjectUser, "alice"))
	write(t, s, store.Write{Key: o.Key(), Object: o})
	_, b := opened(t, s)
	if g, err := b.of(t.Context(), unreachable{s}, &Caller{Kind: KindUser, Name: "alice", UID: -1}); !errors.Is(err, store.ErrUnavailable) || len(g) != 0 {
		t.Errorf("got %s, %v", g, err)
	}
}

// A request costs what its caller has: no list, and no version of others' bindings.
func TestCallersDoNotPayForOthers(t *testing.T) {
	s := storetest.NewMemory()
	for i := range 100 {
		o := binding(fmt.Sprintf("b%d", i), Viewer, []string{"shop"}, named(v1alpha1.SubjectUser, fmt.Sprintf("u%d", i)))
		write(t, s, store.Write{Key: o.Key(), Object: o})
	}
	_, b := opened(t, s)
	counted := &counting{Store: s}
	grantsIn(t, b, counted, &Caller{Kind: KindUser, Name: "u7", UID: -1})
	grantsIn(t, b, counted, &Caller{Kind: KindUser, Name: "stranger", UID: -1})
	if want := []string{"b7"}; !slices.Equal(counted.read, want) {
		t.Errorf("read %v, want %v", counted.read, want)
	}
}

// counting notes what is read of a store.
type counting struct {
	store.Store
	read []string
}

func (c *counting) Versions(ctx context.Context, keys []objects.Key) ([]objects.Version, error) {
	for _, key := range keys {
		c.read = append(c.read, key.Name)
	}
	return c.Store.Versions(ctx, keys)
}

func (c *counting) List(ctx context.Context, kind *objects.Kind, namespace string) ([]*objects.Object, store.Position, error) {
	c.read = append(c.read, "all")
	return c.Store.List(ctx, kind, namespace)
}

func TestGrants(t *testing.T) {
	g := grantsOf([]Grant{{Editor, "shop"}, {Viewer, Everywhere}, {Admin, "bank"}, {Viewer, "shop"}})
	for namespace, want := range map[string]Role{"shop": Editor, "bank": Admin, "other": Viewer, Everywhere: Viewer} {
		if got := g.In(namespace); got != want {
			t.Errorf("%s in %q, want %s", got, namespace, want)
		}
	}
	if got := (Grants{{Editor, "shop"}}).In(Everywhere); got != None {
		t.Errorf("%s everywhere", got)
	}
}

func TestRefusalsListTenGrants(t *testing.T) {
	var all []Grant
	for i := range 1000 {
		all = append(all, Grant{Viewer, fmt.Sprintf("n%03d", i)})
	}
	c := &Caller{Kind: KindUser, Name: "alice", Grants: grantsOf(all)}
	p := c.May(Need{Role: Editor, Namespace: "shop", To: "delete services"})
	if p == nil || strings.Count(p.Why, "viewer in namespace") != 10 || !strings.HasSuffix(p.Why, `"n009" and in 990 more namespaces`) {
		t.Errorf("refused with %v", p)
	}
}

// What it costs to know the roles of a caller with one binding, and of one with none, among those of others, in etcd.
func BenchmarkGrants(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("bindings=%d", n), func(b *testing.B) {
			keys, err := seal.Open(b.Context(), seal.Options{File: filepath.Join(b.TempDir(), "key")})
			if err != nil {
				b.Fatal(err)
			}
			s, err := etcd.OpenEmbedded(b.Context(), b.TempDir(), keys, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			c, bindings := opened(b, s)
			var writes []store.Write
			for i := range n {
				o := binding(fmt.Sprintf("b%d", i), Viewer, []string{"shop"}, named(v1alpha1.SubjectUser, fmt.Sprintf("u%d", i)))
				writes = append(writes, store.Write{Key: o.Key(), Object: o})
			}
			for part := range slices.Chunk(writes, 5000) {
				if err := c.Apply(b.Context(), part); err != nil {
					b.Fatal(err)
				}
			}
			for name, want := range map[string]int{"u7": 1, "stranger": 0} {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if g, err := bindings.of(b.Context(), c, &Caller{Kind: KindUser, Name: name, UID: -1}); err != nil || len(g) != want {
							b.Fatal(g, err)
						}
					}
				})
			}
		})
	}
}
