package users

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"heddle.io/heddle/control/agent/allocation"
)

func open(t *testing.T, path string, known map[string]int) *allocation.Table[int] {
	t.Helper()
	u, err := Open(path, 3, func() (map[string]int, error) { return maps.Clone(known), nil })
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// next is the table of the agent that comes after.
func next(t *testing.T, before *allocation.Table[int], path string) *allocation.Table[int] {
	t.Helper()
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, path, nil)
}

func get(t *testing.T, u *allocation.Table[int], owner string) int {
	t.Helper()
	ids, err := u.Get(owner)
	if err != nil {
		t.Fatal(err)
	}
	if !Ours(ids[0]) {
		t.Errorf("%d is not in the range", ids[0])
	}
	return ids[0]
}

func TestIdsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	u := open(t, path, nil)
	a, b := get(t, u, "shop/cart-0"), get(t, u, "shop/web-0/proxy")
	if a == b || get(t, u, "shop/cart-0") != a || a < first+3*BlockSize || a >= first+4*BlockSize {
		t.Errorf("%d, %d", a, b)
	}
	again := next(t, u, path)
	if get(t, again, "shop/web-0/proxy") != b || again.Count() != 2 {
		t.Error("an id changed when the agent was replaced")
	}
	if err := again.Keep(func(workload string) bool { return workload == "shop/cart" }); err != nil || again.Count() != 1 {
		t.Error(err)
	}
	if kept := next(t, again, path); kept.Count() != 1 || get(t, kept, "shop/cart-0") != a {
		t.Error("what was given back is still kept, or the rest is not")
	}
}

// What is given back is not the next one's: a file or a process of the one before may still be there for a moment.
func TestIdsAreUsedAgainLast(t *testing.T) {
	u := open(t, filepath.Join(t.TempDir(), "users.db"), nil)
	a := get(t, u, "a")
	if err := u.Keep(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if get(t, u, "b") == a {
		t.Error("used again at once")
	}
}

// Nor is it when the agent was replaced in between.
func TestIdsAreUsedAgainLastByTheNextAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	u := open(t, path, nil)
	a, b := get(t, u, "a"), get(t, u, "b")
	if err := u.Keep(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	u = next(t, u, path)
	if c := get(t, u, "c"); c == a || c == b {
		t.Error("used again at once")
	}
	// After the last of a block comes the first.
	begin := first + 3*BlockSize
	var owners []string
	for i := range BlockSize - 4 {
		owners = append(owners, fmt.Sprint("shop/cart-", i))
	}
	if _, err := u.Get(owners...); err != nil {
		t.Fatal(err)
	}
	last := get(t, u, "last")
	if d := get(t, next(t, u, path), "d"); d != begin || last != begin+BlockSize-1 {
		t.Errorf("%d after %d", d, last)
	}
}

func TestTornFileIsRepaired(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	u := open(t, path, nil)
	a, b := get(t, u, "a"), get(t, u, "b")
	for name, spoil := range map[string]func() error{
		"torn":    func() error { return os.Truncate(path, 5000) },
		"missing": func() error { return os.Remove(path) },
	} {
		if err := errors.Join(u.Close(), spoil()); err != nil {
			t.Fatal(err)
		}
		u = open(t, path, map[string]int{"a": a, "b": b, "of another block": 7, "twice": a})
		if u.Count() != 2 || get(t, u, "b") != b {
			t.Errorf("%s: %d known", name, u.Count())
		}
		if id := get(t, u, "c"); id == a || id == b {
			t.Errorf("%s: an id of what runs was handed out", name)
		}
	}
}

// Where the file cannot be written, those who have ids keep them; nobody comes to have another one's.
func TestFullDiskLeavesWhatWasKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	u := open(t, path, nil)
	a := get(t, u, "shop/cart-0")
	u = next(t, u, path)
	// Nothing can be written beside the file.
	if err := os.MkdirAll(filepath.Join(path+".new", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if ids, err := u.Get("shop/web-0"); err == nil {
		t.Errorf("%v, which is not on the disk", ids)
	}
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	u = next(t, u, path)
	if b := get(t, u, "shop/web-0"); b == a || get(t, u, "shop/cart-0") != a {
		t.Errorf("%d was another's, who has %d now", a, get(t, u, "shop/cart-0"))
	}
}

// What was given back last is not known any more: those behind what runs have rested longest.
func TestIdsAreUsedAgainLastAfterATornFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	u := open(t, path, nil)
	a, b := get(t, u, "shop/cart-0"), get(t, u, "shop/web-0")
	if err := errors.Join(u.Release("shop/cart"), u.Close(), os.Truncate(path, 5000)); err != nil {
		t.Fatal(err)
	}
	if c := get(t, open(t, path, map[string]int{"shop/web-0": b}), "shop/api-0"); c == a || c == b {
		t.Errorf("%d was used again at once", c)
	}
}

func TestIdsEnd(t *testing.T) {
	u := open(t, filepath.Join(t.TempDir(), "users.db"), nil)
	var owners []string
	for i := range BlockSize {
		owners = append(owners, fmt.Sprint("shop/cart-", i))
	}
	if _, err := u.Get(owners...); err != nil || u.Count() != BlockSize {
		t.Fatalf("%d of %d: %v", u.Count(), BlockSize, err)
	}
	if _, err := u.Get("one more"); err == nil || !strings.Contains(err.Error(), "no user id left for one more") {
		t.Errorf("an id was handed out twice: %v", err)
	}
	if _, err := Open("", Blocks, nil); err == nil {
		t.Error("a block beyond the range")
	}
}
