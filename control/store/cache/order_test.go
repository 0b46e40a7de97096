package cache

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/journal"
	"heddle.io/heddle/control/store/storetest"
)

// shown is what a cache has, name=label, sorted.
func shown(c *Cache) string {
	var out []string
	for _, o := range c.Objects() {
		out = append(out, o.GetName()+"="+o.GetLabels()["l"])
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// watcher brings a cache what the watch has, when the test says so.
func watcher(t *testing.T, m *storetest.Memory, c *Cache) func(n int) {
	events, _ := m.Watch(t.Context(), objects.ServiceAccount, c.positions[objects.ServiceAccount])
	return func(n int) {
		for range n {
			e := <-events
			c.mu.Lock()
			c.bring(e)
			c.mu.Unlock()
		}
	}
}

// without makes a store that fails to write these objects.
func without(m *storetest.Memory, because error, names ...string) {
	m.Fail(func(o storetest.Operation) error {
		if o.Name == "write" && slices.Contains(names, o.Key.Name) {
			return because
		}
		return nil
	})
}

func pair(t *testing.T, label string) []store.Write {
	return []store.Write{storetest.Put(storetest.Account(t, "a", label)), storetest.Put(storetest.Account(t, "b", label))}
}

func apply(t *testing.T, c *Cache, writes ...store.Write) {
	t.Helper()
	if err := c.Apply(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
}

func other(t *testing.T, m *storetest.Memory, label string) {
	t.Helper()
	if _, err := m.Write(t.Context(), storetest.Put(storetest.Account(t, "a", label))); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c *Cache, when, want string) {
	t.Helper()
	if got := shown(c); got != want {
		t.Errorf("%s: %s, want %s", when, got, want)
	}
}

// An interrupted batch that is applied again, in vain, is still not shown before it is whole, and others are heard at once
// after that.
func TestInterruptedBatchesAppliedAgainAreShownWhole(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	bring := watcher(t, m, c)
	apply(t, c, pair(t, "1")...)
	bring(2)
	without(m, store.ErrUnavailable, "b")
	if err := c.Apply(t.Context(), pair(t, "2")); !errors.Is(err, store.ErrInterrupted) {
		t.Fatal(err)
	}
	bring(1)
	for range 2 {
		if err := c.Apply(t.Context(), pair(t, "2")); err == nil || errors.Is(err, store.ErrInterrupted) {
			t.Fatal(err)
		}
		expect(t, c, "applied again", "a=1 b=1")
	}
	m.Fail(nil)
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "finished", "a=2 b=2")
	other(t, m, "other")
	bring(2)
	expect(t, c, "changed by another", "a=other b=2")
	if n := c.Unseen(); n != 0 {
		t.Errorf("%d own writes are not seen", n)
	}
}

// A write that fails does not make the cache go back to what is older than the own write before it.
func TestFailedWritesForgetNoEarlierOnes(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	bring := watcher(t, m, c)
	apply(t, c, storetest.Put(storetest.Account(t, "a", "1")))
	apply(t, c, storetest.Put(storetest.Account(t, "a", "2")))
	stale := storetest.Put(storetest.Account(t, "a", "3"))
	stale.IfVersion = "another"
	if err := c.Apply(t.Context(), []store.Write{stale}); !errors.Is(err, store.ErrConflict) {
		t.Fatal(err)
	}
	bring(1)
	expect(t, c, "after the first was brought", "a=2")
	other(t, m, "other")
	bring(2)
	expect(t, c, "changed by another", "a=other")
}

// What the watch brings while a write is under way that then fails is shown, if it is newer than the own write before.
func TestFailedWritesShowWhatCameMeanwhile(t *testing.T) {
	for _, test := range []struct {
		brought int
		want    string
	}{{0, "a=2"}, {1, "a=2"}, {2, "a=2"}, {3, "a=other"}} {
		m := storetest.NewMemory()
		c := openOn(t, m, nil)
		bring := watcher(t, m, c)
		apply(t, c, storetest.Put(storetest.Account(t, "a", "1")))
		apply(t, c, storetest.Put(storetest.Account(t, "a", "2")))
		other(t, m, "other")
		fails := errors.New("refused")
		err := func() error {
			writes := []store.Write{storetest.Put(storetest.Account(t, "a", "3"))}
			c.mu.Lock()
			c.begin(writes[0].Key)
			c.mu.Unlock()
			return c.written(writes, func(journal.Written) error { bring(test.brought); return fails })
		}()
		if !errors.Is(err, fails) {
			t.Error(err)
		}
		expect(t, c, "failed", test.want)
		bring(3 - test.brought)
		expect(t, c, "all is brought", "a=other")
		if n := c.Unseen(); n != 0 {
			t.Errorf("%d own writes are not seen", n)
		}
	}
}

// The journal may be done with two batches before the cache hears of the first: the second stays what is shown.
func TestLaterWritesStayShown(t *testing.T) {
	for _, brought := range []int{0, 1, 2, 3} {
		m := storetest.NewMemory()
		c := openOn(t, m, nil)
		bring := watcher(t, m, c)
		without(m, store.ErrUnavailable, "b")
		if err := c.Apply(t.Context(), pair(t, "1")); !errors.Is(err, store.ErrInterrupted) {
			t.Fatal(err)
		}
		m.Fail(nil)
		err := c.written(nil, func(w journal.Written) error {
			if err := c.journal.Finish(t.Context(), w); err != nil {
				return err
			}
			apply(t, c, storetest.Put(storetest.Account(t, "a", "2")))
			bring(brought)
			if got := shown(c); got != "a=2" {
				t.Errorf("applied: %s", got)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, c, "both are made", "a=2 b=1")
		bring(3 - brought)
		expect(t, c, "all is brought", "a=2 b=1")
		other(t, m, "other")
		bring(1)
		expect(t, c, "changed by another", "a=other b=1")
		if n := c.Unseen(); n != 0 {
			t.Errorf("%d own writes are not seen after %d were brought early", n, brought)
		}
	}
}

// What is made of one batch leaves another's hold on the object, and is shown before that other is whole.
func TestBatchesHoldObjectsEachForItself(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	bring := watcher(t, m, c)
	first := pair(t, "1")
	c.mu.Lock()
	c.begin(first[0].Key)
	c.begin(first[1].Key)
	c.mu.Unlock()
	err := c.written(first, func(w journal.Written) error {
		if err := c.journal.Apply(t.Context(), first, w); err != nil {
			return err
		}
		without(m, store.ErrUnavailable, "b")
		if err := c.Apply(t.Context(), pair(t, "2")); !errors.Is(err, store.ErrInterrupted) {
			t.Error(err)
		}
		bring(3)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, c, "the first is made, half of the second brought", "a=1 b=1")
	m.Fail(nil)
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "finished", "a=2 b=2")
	bring(1)
	if n := c.Unseen(); n != 0 {
		t.Errorf("%d own writes are not seen", n)
	}
}

// An object that is taken out of an interrupted batch, because it was deleted to make room, is not held for it any more.
func TestSupersededWritesAreNotAwaited(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	bring := watcher(t, m, c)
	without(m, store.ErrFull, "b")
	if err := c.Apply(t.Context(), pair(t, "1")); !errors.Is(err, store.ErrInterrupted) {
		t.Fatal(err)
	}
	apply(t, c, store.Write{Key: storetest.Account(t, "a", "").Key()})
	other(t, m, "other")
	bring(3)
	expect(t, c, "changed by another", "a=other")
	m.Fail(nil)
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	bring(1)
	expect(t, c, "finished", "a=other b=1")
	if n := c.Unseen(); n != 0 {
		t.Errorf("%d own writes are not seen", n)
	}
}

// What an earlier controller left unfinished is held from where this one found it, until it is whole.
func TestBatchesLeftBehindAreHeld(t *testing.T) {
	m := storetest.NewMemory()
	before := openOn(t, m, nil)
	apply(t, before, pair(t, "1")...)
	without(m, store.ErrUnavailable, "b")
	if err := before.Apply(t.Context(), pair(t, "2")); !errors.Is(err, store.ErrInterrupted) {
		t.Fatal(err)
	}
	c := openOn(t, m, nil)
	bring := watcher(t, m, c)
	expect(t, c, "opened", "a=2 b=1")
	other(t, m, "other")
	bring(1)
	expect(t, c, "changed by another", "a=2 b=1")
	m.Fail(nil)
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	bring(1)
	expect(t, c, "finished", "a=other b=2")
	if n := c.Unseen(); n != 0 {
		t.Errorf("%d own writes are not seen", n)
	}
}

// What is kept of an object whose batch is interrupted does not grow with what others do to it; the own write that is
// forgotten by that is found by a list.
func TestWhatOthersWriteMeanwhileIsBounded(t *testing.T) {
	m := storetest.NewMemory()
	c := openOn(t, m, nil)
	bring := watcher(t, m, c)
	without(m, store.ErrUnavailable, "b")
	if err := c.Apply(t.Context(), pair(t, "1")); !errors.Is(err, store.ErrInterrupted) {
		t.Fatal(err)
	}
	m.Fail(nil)
	const changes = 3 * maxBrought
	for n := range changes {
		other(t, m, "other"+strconv.Itoa(n))
	}
	bring(1 + changes)
	for key, u := range c.unseen {
		if len(u.brought) > maxBrought {
			t.Errorf("%d versions of %s are kept", len(u.brought), key)
		}
	}
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.again[objects.ServiceAccount]:
	default:
		t.Error("the kind is not read anew")
	}
	if err := c.list(t.Context(), objects.ServiceAccount); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "read anew", "a=other"+strconv.Itoa(changes-1)+" b=1")
	bring(1)
	if n := c.Unseen(); n != 0 {
		t.Errorf("%d own writes are not seen", n)
	}
}

// A batch that waits is told of once, and then when something else is wrong, or every minute.
func TestWhatIsSaidOfABatchThatWaits(t *testing.T) {
	var s saying
	now := time.Unix(1, 0)
	lines := 0
	for range 120 {
		if s.news("no key", now) {
			lines++
		}
		now = now.Add(finishPause)
	}
	if lines != 2 || !s.news("another", now) || s.news("another", now) {
		t.Errorf("%d lines in two minutes", lines)
	}
}
