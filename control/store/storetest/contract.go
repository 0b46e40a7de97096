package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// patience is how long a watch may take to say something that must come.
const patience = 20 * time.Second

// Subject is a kind of store under test.
type Subject struct {
	// Open gives an empty store. Who asks closes it.
	Open func(t *testing.T) store.Store
	// Forget makes positions from before unusable.
	Forget func(t *testing.T)
}

// Account is a ServiceAccount in the namespace "shop", with a label.
func Account(t testing.TB, name, label string) *objects.Object {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: shop, labels: {l: %q}}\n", name, label)
	all, errs := objects.Decode(strings.NewReader(text), "test.yaml", "default")
	if len(errs) > 0 || len(all) != 1 {
		t.Fatalf("%v, %v", all, errs)
	}
	return all[0]
}

// Namespace is one.
func Namespace(t testing.TB, name string) *objects.Object {
	t.Helper()
	all, errs := objects.Decode(strings.NewReader("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n"), "test.yaml", "")
	if len(errs) > 0 || len(all) != 1 {
		t.Fatalf("%v, %v", all, errs)
	}
	return all[0]
}

// Put writes an object, whatever was there.
func Put(o *objects.Object) store.Write { return store.Write{Key: o.Key(), Object: o} }

// Run has a store show that it keeps the contract.
func Run(t *testing.T, subject Subject) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s store.Store, subject Subject)
	}{
		{"writes are read back", readBack},
		{"versions are demanded", conditions},
		{"a status is apart", statuses},
		{"one of many writers at a time wins", oneWins},
		{"a watch brings every change", watched},
		{"a watch is of one kind", ofOneKind},
		{"a watch goes on from where it was", resumed},
		{"a watch says that its position is gone", expired},
		{"a slow reader is told so", slow},
		{"objects that are too large are refused", tooLarge},
		{"records", recordsKept},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := subject.Open(t)
			test.run(t, s, subject)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func write(t *testing.T, s store.Store, w store.Write) objects.Version {
	t.Helper()
	version, err := s.Write(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

func list(t *testing.T, s store.Store, namespace string) ([]*objects.Object, store.Position) {
	t.Helper()
	all, position, err := s.List(t.Context(), objects.ServiceAccount, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return all, position
}

func readBack(t *testing.T, s store.Store, _ Subject) {
	a, b := Account(t, "a", "1"), Account(t, "b", "1")
	if _, err := s.Get(t.Context(), a.Key()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("reading what is not there: %v", err)
	}
	version := write(t, s, Put(b))
	write(t, s, Put(a))
	write(t, s, Put(Namespace(t, "shop")))
	got, err := s.Get(t.Context(), b.Key())
	if err != nil || got.Version != version || got.Origin.File != "test.yaml" || got.GetLabels()["l"] != "1" {
		t.Errorf("%+v, %v", got, err)
	}
	all, _ := list(t, s, "")
	if len(all) != 2 || all[0].GetName() != "a" || all[1].Version != version {
		t.Errorf("%v", all)
	}
	if all, _ := list(t, s, "shop"); len(all) != 2 {
		t.Errorf("of a namespace: %v", all)
	}
	if all, _ := list(t, s, "sho"); len(all) != 0 {
		t.Errorf("of a namespace whose name is a beginning: %v", all)
	}
	again := write(t, s, Put(Account(t, "b", "2")))
	if again == version {
		t.Error("a write left the version as it was")
	}
	// More than a request may hold.
	keys := []objects.Key{b.Key()}
	for i := range 300 {
		keys = append(keys, Account(t, fmt.Sprint("none", i), "1").Key())
	}
	keys = append(keys, a.Key(), Namespace(t, "shop").Key())
	versions, err := s.Versions(t.Context(), keys)
	if err != nil || len(versions) != len(keys) || versions[0] != again || versions[1] != store.Absent || versions[300] != store.Absent ||
		versions[301] != all[0].Version || versions[302] == store.Absent {
		t.Errorf("%v, %v", versions, err)
	}
	write(t, s, store.Write{Key: a.Key()})
	write(t, s, store.Write{Key: a.Key()})
	if all, _ := list(t, s, ""); len(all) != 1 {
		t.Errorf("after a deletion: %v", all)
	}
}

func conditions(t *testing.T, s store.Store, _ Subject) {
	a := Account(t, "a", "1")
	conflict := func(what string, w store.Write) {
		t.Helper()
		if _, err := s.Write(t.Context(), w); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	create := store.Write{Key: a.Key(), Object: a, IfVersion: store.Absent}
	first := write(t, s, create)
	conflict("creating what is there", create)
	conflict("deleting what must not be there", store.Write{Key: a.Key(), IfVersion: store.Absent})
	second := write(t, s, store.Write{Key: a.Key(), Object: Account(t, "a", "2"), IfVersion: first})
	conflict("writing over another version", store.Write{Key: a.Key(), Object: a, IfVersion: first})
	conflict("deleting another version", store.Write{Key: a.Key(), IfVersion: first})
	conflict("a version of no store", store.Write{Key: a.Key(), Object: a, IfVersion: "never given"})
	if got, err := s.Get(t.Context(), a.Key()); err != nil || got.Version != second || got.GetLabels()["l"] != "2" {
		t.Errorf("a conflict changed it: %+v, %v", got, err)
	}
	write(t, s, store.Write{Key: a.Key(), IfVersion: second})
	conflict("writing over what is gone", store.Write{Key: a.Key(), Object: a, IfVersion: second})
	conflict("deleting what is gone", store.Write{Key: a.Key(), IfVersion: second})
	if again := write(t, s, create); again == first {
		t.Error("a new object has the version of one that is gone")
	}
}

func statuses(t *testing.T, s store.Store, _ Subject) {
	a := Account(t, "a", "1")
	if _, err := s.SetStatus(t.Context(), a.Key(), objects.Status{Proxies: 1}, ""); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("status of nothing: %v", err)
	}
	version := write(t, s, Put(a))
	before, err := s.Get(t.Context(), a.Key())
	if err != nil || before.StatusVersion == "" {
		t.Fatalf("%+v, %v", before, err)
	}
	status, err := s.SetStatus(t.Context(), a.Key(), objects.Status{Proxies: 2}, before.StatusVersion)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetStatus(t.Context(), a.Key(), objects.Status{Proxies: 3}, before.StatusVersion); !errors.Is(err, store.ErrConflict) {
		t.Errorf("over another status: %v", err)
	}
	if got, err := s.Get(t.Context(), a.Key()); err != nil || got.Version != version || got.StatusVersion != status || got.Status.Proxies != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	// The content is written without the status.
	write(t, s, store.Write{Key: a.Key(), Object: Account(t, "a", "2"), IfVersion: version})
	if got, err := s.Get(t.Context(), a.Key()); err != nil || got.Status.Proxies != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	// It goes with the object.
	write(t, s, store.Write{Key: a.Key()})
	write(t, s, Put(a))
	if got, err := s.Get(t.Context(), a.Key()); err != nil || got.Status.Proxies != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func oneWins(t *testing.T, s store.Store, _ Subject) {
	version := write(t, s, Put(Account(t, "a", "start")))
	var mu sync.Mutex
	won := 0
	var writers sync.WaitGroup
	for n := range 8 {
		o := Account(t, "a", fmt.Sprint(n))
		writers.Go(func() {
			_, err := s.Write(t.Context(), store.Write{Key: o.Key(), Object: o, IfVersion: version})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, store.ErrConflict) {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if won != 1 {
		t.Errorf("%d writers won", won)
	}
}

// next is the next event, within [patience].
func next(t *testing.T, events <-chan store.Event, ended func() error) store.Event {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatalf("the watch ended: %v", ended())
		}
		return e
	case <-limit.C:
		t.Fatal("the watch is silent")
		return store.Event{}
	}
}

func watched(t *testing.T, s store.Store, _ Subject) {
	write(t, s, Put(Account(t, "before", "1")))
	_, position := list(t, s, "")
	ctx, stop := context.WithCancel(t.Context())
	events, ended := s.Watch(ctx, objects.ServiceAccount, position)
	first := write(t, s, Put(Account(t, "a", "1")))
	second := write(t, s, Put(Account(t, "a", "2")))
	key := Account(t, "a", "").Key()
	if _, err := s.SetStatus(t.Context(), key, objects.Status{Proxies: 1}, ""); err != nil {
		t.Fatal(err)
	}
	third := write(t, s, Put(Account(t, "a", "3")))
	write(t, s, store.Write{Key: key})
	for n, want := range []struct {
		version objects.Version
		label   string
		status  bool
		proxies int
	}{{first, "1", false, 0}, {second, "2", false, 0}, {second, "2", true, 1}, {third, "3", false, 1}} {
		e := next(t, events, ended)
		if e.Key != key || e.Object == nil || e.Object.Version != want.version || e.Object.GetLabels()["l"] != want.label || e.StatusOnly != want.status || e.Object.Status.Proxies != want.proxies {
			t.Errorf("event %d: %+v, want %+v", n, e, want)
		}
	}
	if e := next(t, events, ended); e.Key != key || e.Object != nil || e.StatusOnly {
		t.Errorf("deletion: %+v", e)
	}
	stop()
	for e := range events {
		t.Errorf("after the end: %+v", e)
	}
	if err := ended(); err != nil {
		t.Errorf("ended by its reader: %v", err)
	}
}

func ofOneKind(t *testing.T, s store.Store, _ Subject) {
	_, position := list(t, s, "")
	events, ended := s.Watch(t.Context(), objects.ServiceAccount, position)
	write(t, s, Put(Namespace(t, "shop")))
	write(t, s, Put(Account(t, "a", "1")))
	if e := next(t, events, ended); e.Key.Kind != "ServiceAccount" {
		t.Errorf("%+v", e)
	}
}

func resumed(t *testing.T, s store.Store, _ Subject) {
	_, position := list(t, s, "")
	for n := range 5 {
		write(t, s, Put(Account(t, fmt.Sprintf("a%d", n), "1")))
	}
	for n := range 5 {
		ctx, stop := context.WithCancel(t.Context())
		events, ended := s.Watch(ctx, objects.ServiceAccount, position)
		e := next(t, events, ended)
		if e.Key.Name != fmt.Sprintf("a%d", n) {
			t.Errorf("watch %d goes on with %s", n, e.Key)
		}
		position = e.Position
		stop()
		for range events { // Those that had been on their way come again.
		}
	}
}

func expired(t *testing.T, s store.Store, subject Subject) {
	_, position := list(t, s, "")
	for n := range 3 {
		write(t, s, Put(Account(t, "a", fmt.Sprint(n))))
	}
	subject.Forget(t)
	for _, from := range []store.Position{position, "no position"} {
		events, ended := s.Watch(t.Context(), objects.ServiceAccount, from)
		for e := range events {
			t.Errorf("%+v", e)
		}
		if err := ended(); !errors.Is(err, store.ErrExpired) {
			t.Errorf("from %q: %v", from, err)
		}
	}
	// Listing anew helps.
	_, position = list(t, s, "")
	events, ended := s.Watch(t.Context(), objects.ServiceAccount, position)
	write(t, s, Put(Account(t, "b", "1")))
	if e := next(t, events, ended); e.Key.Name != "b" {
		t.Errorf("%+v", e)
	}
}

// slowAttempts is how often a reader falls behind at the most before it must have been told so: the event that finds no room may
// be on its way for so long that the reader has made room again, and is told nothing, rightly.
const slowAttempts = 3

// slow reads nothing while more events than are kept for it arrive. However long that takes, something arrives all the while.
func slow(t *testing.T, s store.Store, _ Subject) {
	if testing.Short() {
		t.Skip("it writes as often as events are kept")
	}
	for range slowAttempts {
		if fallsBehind(t, s) {
			return
		}
	}
	t.Errorf("a reader that was %d events behind, %d times, was not told so", store.QueueLength, slowAttempts)
}

// fallsBehind says whether a reader who lets more events wait than are kept was told so. If not, it gets all of them.
func fallsBehind(t *testing.T, s store.Store) bool {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, position := list(t, s, "")
	events, ended := s.Watch(ctx, objects.ServiceAccount, position)
	write(t, s, Put(Account(t, "first", "1")))
	next(t, events, ended)
	const writers, each = 32, store.QueueLength/32 + 8
	var all sync.WaitGroup
	for w := range writers {
		o := Account(t, fmt.Sprintf("a%d", w), "1")
		all.Go(func() {
			for range each {
				if _, err := s.Write(t.Context(), Put(o)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	waiting, since := len(events), time.Now()
	for ; len(events) < cap(events); <-look.C {
		if now := len(events); now != waiting {
			waiting, since = now, time.Now()
		}
		if time.Since(since) > patience {
			t.Fatalf("%d events wait for their reader, %d can, and none arrives any more", waiting, cap(events))
		}
	}
	// The one that finds no room may still be on its way.
	for range 500 {
		<-look.C
	}
	for brought := 0; brought < writers*each; brought++ {
		limit := time.NewTimer(patience)
		select {
		case _, more := <-events:
			limit.Stop()
			if more {
				continue
			}
			if err := ended(); !errors.Is(err, store.ErrExpired) || brought < store.QueueLength {
				t.Errorf("after %d events: %v", brought, err)
			}
			return true
		case <-limit.C:
			t.Fatalf("%d of %d events arrived, and none does any more", brought, writers*each)
		}
	}
	return false
}

func tooLarge(t *testing.T, s store.Store, _ Subject) {
	o := Account(t, "a", "1")
	o.SetAnnotations(map[string]string{"large": strings.Repeat("x", 2<<20)})
	if _, err := s.Write(t.Context(), Put(o)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if _, err := s.Get(t.Context(), o.Key()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func recordsKept(t *testing.T, s store.Store, _ Subject) {
	r := s.Records()
	large := bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	for name, content := range map[string][]byte{"one": []byte("1"), "large": large, "empty": {}} {
		if err := r.Put(t.Context(), name, content, name == "large"); err != nil {
			t.Fatal(err)
		}
	}
	all, closed, err := r.All(t.Context())
	if err != nil || len(all) != 3 || len(closed) != 0 || string(all["one"]) != "1" || !bytes.Equal(all["large"], large) || len(all["empty"]) != 0 {
		t.Errorf("%d records, %v", len(all), err)
	}
	if one, err := r.Get(t.Context(), "large"); err != nil || !bytes.Equal(one, large) {
		t.Errorf("%d bytes, %v", len(one), err)
	}
	for range 2 {
		if err := r.Delete(t.Context(), "large"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Get(t.Context(), "large"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a record that is gone: %v", err)
	}
	if all, _, err := r.All(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%d records, %v", len(all), err)
	}
	if objects, _ := list(t, s, ""); len(objects) != 0 {
		t.Errorf("records are listed as objects: %v", objects)
	}
}
