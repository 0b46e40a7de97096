package journal

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/storetest"
)

// ids are of batches, unique over all journals.
var ids atomic.Int64

func openOn(t *testing.T, s store.Store) *Journal {
	t.Helper()
	j, err := Open(t.Context(), s, func() time.Time { return time.Unix(1, 0) }, func() string { return fmt.Sprint(ids.Add(1)) })
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func account(t *testing.T, name, label string) store.Write {
	return storetest.Put(storetest.Account(t, name, label))
}

func secret(t *testing.T, name string) store.Write {
	t.Helper()
	all, errs := objects.Decode(strings.NewReader("apiVersion: v1\nkind: Secret\nmetadata: {name: "+name+", namespace: shop}\nstringData: {key: value}\n"), "test.yaml", "")
	if len(errs) > 0 || len(all) != 1 {
		t.Fatalf("%v, %v", all, errs)
	}
	return storetest.Put(all[0])
}

func apply(t *testing.T, j *Journal, writes ...store.Write) error {
	t.Helper()
	return j.Apply(t.Context(), writes, func(Change) {})
}

func finish(t *testing.T, j *Journal) error {
	t.Helper()
	return j.Finish(t.Context(), func(Change) {})
}

// label is an account's, or why there is none.
func label(t *testing.T, s store.Store, w store.Write) string {
	t.Helper()
	o, err := s.Get(t.Context(), w.Key)
	if err != nil {
		return err.Error()
	}
	return o.GetLabels()["l"]
}

// interrupted leaves a batch in the store, the first write of which is made.
func interrupted(t *testing.T, m *storetest.Memory, writes ...store.Write) *Journal {
	t.Helper()
	j := openOn(t, m)
	m.Fail(func(o storetest.Operation) error {
		if o.Name == "write" && o.Key != writes[0].Key {
			return store.ErrUnavailable
		}
		return nil
	})
	if err := apply(t, j, writes...); !errors.Is(err, store.ErrInterrupted) {
		t.Fatalf("%v", err)
	}
	m.Fail(nil)
	return j
}

// without says of a store that it cannot open or seal anything.
func without(o storetest.Operation) error {
	switch {
	case o.Name == "open":
		return seal.ErrClosed
	case o.Name == "put" && o.Secret, o.Name == "write" && o.Key.Kind == "Secret":
		return seal.ErrNoKey
	}
	return nil
}

// Whoever asks how the journal stands is answered while the store is at work; who waited for it would wait here for ever.
func TestTheStateIsToldWhileTheStoreIsAtWork(t *testing.T) {
	m := storetest.NewMemory()
	j := interrupted(t, m, account(t, "a", "1"), account(t, "b", "1"))
	if _, err := m.Write(t.Context(), account(t, "b", "other")); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked, unfinished, reports := map[string]bool{}, map[int]bool{}, map[int]bool{}
	m.Fail(func(o storetest.Operation) error {
		mu.Lock()
		defer mu.Unlock()
		asked[o.Name], unfinished[j.Unfinished()], reports[len(j.Reports())] = true, true, true
		return nil
	})
	// This finishes what is interrupted, keeps a report of it, is made, and takes the report off.
	if err := apply(t, j, account(t, "b", "2"), account(t, "c", "2")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"write", "get", "put", "delete"} {
		if !asked[name] {
			t.Errorf("not asked during %s", name)
		}
	}
	for n := range 2 {
		if !unfinished[n] || !reports[n] {
			t.Errorf("unfinished: %v, reports: %v; both are to be seen at 0 and at 1", unfinished, reports)
		}
	}
	if j.Unfinished() != 0 || len(j.Reports()) != 0 {
		t.Errorf("%d unfinished, reports %+v", j.Unfinished(), j.Reports())
	}
}

// A batch that cannot be decrypted is told of, keeps nothing from working, and is made when its key is back.
func TestABatchUnderALostKeyWaits(t *testing.T) {
	m := storetest.NewMemory()
	a, s, b := account(t, "a", "1"), secret(t, "s"), account(t, "b", "1")
	interrupted(t, m, a, s, b)
	id := fmt.Sprint(ids.Load())
	m.Fail(without)
	j := openOn(t, m)
	waits := func() {
		t.Helper()
		if r := j.Reports(); j.Unfinished() != 1 || len(r) != 1 || r[0].ID != id || !strings.Contains(r[0].Waits, seal.ErrClosed.Error()) {
			t.Errorf("%d unfinished, reports %+v", j.Unfinished(), r)
		}
		if err := finish(t, j); !errors.Is(err, seal.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	waits()
	if err := apply(t, j, account(t, "c", "2"), account(t, "d", "2")); err != nil {
		t.Errorf("a batch without Secrets: %v", err)
	}
	if err := apply(t, j, account(t, "e", "2"), store.Write{Key: secret(t, "gone").Key}); err != nil {
		t.Errorf("a batch that deletes a Secret: %v", err)
	}
	if err := apply(t, j, account(t, "e", "3"), secret(t, "other")); !errors.Is(err, seal.ErrNoKey) || errors.Is(err, store.ErrInterrupted) {
		t.Errorf("a batch with a Secret: %v", err)
	}
	if err := apply(t, j, account(t, "b", "2"), account(t, "c", "3")); err != nil {
		t.Errorf("a batch with an object that the other has: %v", err)
	}
	waits()
	m.Fail(nil)
	if err := finish(t, j); err != nil {
		t.Error(err)
	}
	if got := label(t, m, a) + label(t, m, b) + label(t, m, s); got != "12" {
		t.Errorf("%s", got)
	}
	if r := j.Reports(); j.Unfinished() != 0 || len(r) != 1 || r[0].Waits != "" || len(r[0].Left) != 1 || r[0].Left[0].Key != b.Key {
		t.Errorf("%d unfinished, reports %+v", j.Unfinished(), r)
	}
	// The report needs no key.
	m.Fail(without)
	if r := openOn(t, m).Reports(); len(r) != 1 || len(r[0].Left) != 1 {
		t.Errorf("reports %+v", r)
	}
}

// A batch that was read before the keys were lost waits as well, and gives way to what is written meanwhile.
func TestABatchWhoseSecretsCannotBeWrittenWaits(t *testing.T) {
	m := storetest.NewMemory()
	a, s, b := account(t, "a", "1"), secret(t, "s"), account(t, "b", "1")
	j := interrupted(t, m, a, s, b)
	m.Fail(without)
	if err := apply(t, j, account(t, "b", "2"), account(t, "c", "2")); err != nil {
		t.Errorf("a batch without Secrets: %v", err)
	}
	if r := j.Reports(); j.Unfinished() != 1 || len(r) != 1 || !strings.Contains(r[0].Waits, seal.ErrNoKey.Error()) {
		t.Errorf("%d unfinished, reports %+v", j.Unfinished(), r)
	}
	if err := finish(t, j); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("%v", err)
	}
	m.Fail(nil)
	if err := finish(t, j); err != nil {
		t.Error(err)
	}
	if got := label(t, m, a) + label(t, m, b) + label(t, m, s); got != "12" || j.Unfinished() != 0 || len(j.Reports()) != 0 {
		t.Errorf("%s, %d unfinished, reports %+v", got, j.Unfinished(), j.Reports())
	}
	if read, closed, err := m.Records().All(t.Context()); err != nil || len(read)+len(closed) != 0 {
		t.Errorf("left: %v, %v, %v", read, closed, err)
	}
}

// A batch whose key is lost for good can be given up, whether or not it was read, and one that goes on by itself cannot.
func TestABatchIsGivenUp(t *testing.T) {
	a, s, b := account(t, "a", "1"), secret(t, "s"), account(t, "b", "1")
	for _, read := range []bool{true, false} {
		m := storetest.NewMemory()
		j := interrupted(t, m, a, s, b)
		id := fmt.Sprint(ids.Load())
		var told []objects.Key
		discard := func() ([]objects.Key, error) {
			return j.Discard(t.Context(), id, func(c Change) {
				if c.Left != nil {
					told = append(told, c.Write.Key)
				}
			})
		}
		if _, err := discard(); !errors.Is(err, store.ErrNotFound) || j.Unfinished() != 1 {
			t.Errorf("one that waits for the store: %v", err)
		}
		m.Fail(without)
		if !read {
			j = openOn(t, m)
		} else if err := finish(t, j); !errors.Is(err, seal.ErrNoKey) {
			t.Fatal(err)
		}
		left, err := discard()
		if err != nil || j.Unfinished() != 0 {
			t.Fatalf("%v, %d unfinished", err, j.Unfinished())
		}
		if reports := j.Reports(); read && (len(left) == 0 || len(told) != len(left) || len(reports) != 1 || len(reports[0].Left) != len(left)) || !read && len(left)+len(reports) != 0 {
			t.Errorf("read %v: left %v, told %v, reports %+v", read, left, told, reports)
		}
		// With the key, nothing of it is made any more.
		m.Fail(nil)
		if again := openOn(t, m); again.Unfinished() != 0 || finish(t, again) != nil {
			t.Errorf("%d unfinished", again.Unfinished())
		}
		if _, err := m.Get(t.Context(), s.Key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v", err)
		}
		if _, err := discard(); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a second time: %v", err)
		}
	}
}
