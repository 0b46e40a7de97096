package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/storetest"
)

// Unseen is how many own writes the watch has not brought yet.
func (c *Cache) Unseen() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unseen)
}

func openOn(t *testing.T, s store.Store, changed func([]store.Event)) *Cache {
	t.Helper()
	c, err := Open(t.Context(), Options{Store: s, Log: slog.New(slog.DiscardHandler), Changed: changed})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// labels are what there is, name=label, sorted.
func labels(t *testing.T, s store.Store) string {
	t.Helper()
	all, _, err := s.List(t.Context(), objects.ServiceAccount, "")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range all {
		out = append(out, o.GetName()+"="+o.GetLabels()["l"])
	}
	return strings.Join(out, " ")
}

func batch(t *testing.T, label string) []store.Write {
	return []store.Write{storetest.Put(storetest.Account(t, "a", label)), storetest.Put(storetest.Account(t, "b", label)),
		{Key: storetest.Account(t, "gone-"+label, "").Key()}, storetest.Put(storetest.Account(t, "c", label))}
}

// A store that fails from one operation on, at each operation in turn, before or after it did what it was asked: the next
// controller finds the batch whole or not begun; whole, when it was acknowledged.
func TestBatchesAreWholeAfterAFailureAnywhere(t *testing.T) {
	for _, after := range []bool{false, true} {
		for step := 0; ; step++ {
			m := storetest.NewMemory()
			c := openOn(t, m, nil)
			if err := c.Apply(t.Context(), append(batch(t, "1"), storetest.Put(storetest.Account(t, "gone-2", "1")))); err != nil {
				t.Fatal(err)
			}
			before := labels(t, m)
			var mu sync.Mutex
			count := 0
			m.Fail(func(o storetest.Operation) error {
				mu.Lock()
				defer mu.Unlock()
				if o.Done == after || count > step {
					count++
				}
				if count > step {
					return fmt.Errorf("%w: the store fails", store.ErrUnavailable)
				}
				return nil
			})
			applied := c.Apply(t.Context(), batch(t, "2"))
			m.Fail(nil)
			mu.Lock()
			reached := count > step
			mu.Unlock()
			next := openOn(t, m, nil)
			const whole = "a=2 b=2 c=2"
			got := labels(t, m)
			switch {
			case got != whole && got != before:
				t.Errorf("failing at operation %d (after it: %t): half a batch: %s", step, after, got)
			case got == before && applied == nil:
				t.Errorf("failing at operation %d (after it: %t): lost after %v", step, after, applied)
			}
			if next.Unfinished() != 0 || len(next.Reports()) != 0 {
				t.Errorf("operation %d: %d unfinished, reports %v", step, next.Unfinished(), next.Reports())
			}
			if !reached {
				if applied != nil || step < 5 {
					t.Errorf("a batch of four changes had %d operations: %v", step, applied)
				}
				break
			}
		}
	}
}

// What somebody else changed between a batch's interruption and its end is left alone and reported, until it is written.
func TestInterruptedBatchesLeaveOthersChangesAlone(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	if err := c.Apply(t.Context(), batch(t, "1")); err != nil {
		t.Fatal(err)
	}
	m.Fail(func(o storetest.Operation) error {
		if o.Name == "write" && o.Key.Name != "a" {
			return store.ErrUnavailable
		}
		return nil
	})
	if err := c.Apply(t.Context(), batch(t, "2")); !errors.Is(err, store.ErrInterrupted) {
		t.Fatalf("%v", err)
	}
	m.Fail(nil)
	if n := c.Unfinished(); n != 1 {
		t.Fatalf("%d unfinished", n)
	}
	// Not a half of it is shown.
	for _, o := range c.Objects() {
		if o.GetLabels()["l"] != "1" {
			t.Errorf("%s=%s is shown before its batch is whole", o.GetName(), o.GetLabels()["l"])
		}
	}
	if _, err := m.Write(t.Context(), storetest.Put(storetest.Account(t, "b", "other"))); err != nil {
		t.Fatal(err)
	}
	next := openOn(t, m, nil)
	if got := labels(t, m); got != "a=2 b=other c=2" {
		t.Errorf("%s", got)
	}
	for _, c := range []*Cache{next, openOn(t, m, nil)} {
		if r := c.Reports(); len(r) != 1 || len(r[0].Left) != 1 || r[0].Left[0].Key.Name != "b" {
			t.Errorf("reports: %+v", r)
		}
	}
	if err := next.Apply(t.Context(), []store.Write{storetest.Put(storetest.Account(t, "b", "3"))}); err != nil {
		t.Fatal(err)
	}
	if r := next.Reports(); len(r) != 0 {
		t.Errorf("reports after the object was written: %+v", r)
	}
	if r := openOn(t, m, nil).Reports(); len(r) != 0 {
		t.Errorf("kept reports: %+v", r)
	}
}

// A version that does not hold refuses the whole batch.
func TestBatchesAreLookedAtAsAWhole(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	if err := c.Apply(t.Context(), batch(t, "1")); err != nil {
		t.Fatal(err)
	}
	writes := batch(t, "2")
	writes[3].IfVersion = "another"
	if err := c.Apply(t.Context(), writes); !errors.Is(err, store.ErrConflict) {
		t.Errorf("%v", err)
	}
	if got := labels(t, m); got != "a=1 b=1 c=1" {
		t.Errorf("%s", got)
	}
}

// What the watch brings late is older than what was written through the cache, and passed over.
func TestOwnWritesAreSeenAtOnce(t *testing.T) {
	m := storetest.NewMemory()
	var told []string
	c := openOn(t, m, func(events []store.Event) {
		var names []string
		for _, e := range events {
			if e.Object == nil {
				names = append(names, e.Key.Name+" gone")
			} else {
				names = append(names, e.Key.Name+"="+e.Object.GetLabels()["l"])
			}
		}
		told = append(told, strings.Join(names, ","))
	})
	position := c.positions[objects.ServiceAccount]
	for _, label := range []string{"1", "2"} {
		if err := c.Apply(t.Context(), batch(t, label)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Apply(t.Context(), []store.Write{{Key: storetest.Account(t, "c", "").Key()}}); err != nil {
		t.Fatal(err)
	}
	if n := c.Unseen(); n != 3 {
		t.Errorf("%d own writes are not seen yet", n)
	}
	// The watch runs now, and brings the first batch first.
	events, _ := m.Watch(t.Context(), objects.ServiceAccount, position)
	for range 7 {
		c.mu.Lock()
		if e := <-events; c.bring(e) {
			t.Errorf("old news: %+v", e)
		}
		c.mu.Unlock()
	}
	if n := c.Unseen(); n != 0 {
		t.Errorf("%d own writes are not seen", n)
	}
	if got, want := strings.Join(told, "; "), "a=1,b=1,c=1; a=2,b=2,c=2; c gone"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}

// Two controllers write, watches break, positions are forgotten, writes fail: each cache ends as the store is.
func TestCachesEndAsTheStoreIs(t *testing.T) {
	m := storetest.NewMemory()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	caches := []*Cache{openOn(t, m, nil), openOn(t, m, nil)}
	for _, c := range caches {
		running.Go(func() { c.Run(ctx) })
	}
	var mu sync.Mutex
	failing := rand.New(rand.NewPCG(1, 1))
	m.Fail(func(o storetest.Operation) error {
		mu.Lock()
		defer mu.Unlock()
		if o.Name == "write" && failing.IntN(20) == 0 {
			return store.ErrUnavailable
		}
		return nil
	})
	var writers sync.WaitGroup
	for n, c := range caches {
		random := rand.New(rand.NewPCG(uint64(n), 7))
		writers.Go(func() {
			for i := range 300 {
				var writes []store.Write
				for _, name := range random.Perm(6)[:1+random.IntN(3)] {
					w := storetest.Put(storetest.Account(t, fmt.Sprintf("o%d", name), fmt.Sprintf("%d-%d", n, i)))
					if random.IntN(4) == 0 {
						w.Object = nil
					}
					writes = append(writes, w)
				}
				if err := c.Apply(t.Context(), writes); err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrConflict) {
					t.Error(err)
				}
				if random.IntN(10) == 0 {
					m.Interrupt(random.IntN(2) == 0)
				}
			}
		})
	}
	writers.Wait()
	m.Fail(nil)
	for _, c := range caches {
		if err := c.Finish(t.Context()); err != nil {
			t.Error(err)
		}
	}
	want := labels(t, m)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for n, c := range caches {
		for started := time.Now(); ; <-look.C {
			got := map[string]string{}
			var names []string
			for _, o := range c.Objects() {
				got[o.GetName()] = o.GetLabels()["l"]
			}
			for n := range 6 {
				name := fmt.Sprintf("o%d", n)
				if label, ok := got[name]; ok {
					names = append(names, name+"="+label)
				}
			}
			if strings.Join(names, " ") == want {
				break
			}
			if time.Since(started) > 50*time.Second {
				t.Fatalf("cache %d has %v, the store %s", n, names, want)
			}
		}
	}
	stop()
	running.Wait()
}
