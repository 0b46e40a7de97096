package allocation

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// disk is what a table writes to. A write waits at the gate, if there is one.
type disk struct {
	gate    chan struct{}
	failing error

	mu     sync.Mutex
	writes int
	owned  map[string]int
	// spoiled says that a write failed: the next one has to write everything.
	spoiled bool
}

func (d *disk) write(values map[string]int, gone []string, size int, all func() map[string]int) error {
	if d.gate != nil {
		<-d.gate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writes++; d.failing != nil {
		d.spoiled = true
		return d.failing
	}
	if d.owned == nil || d.spoiled {
		d.owned, d.spoiled = all(), false
	} else {
		maps.Copy(d.owned, values)
		for _, owner := range gone {
			delete(d.owned, owner)
		}
		if len(d.owned) != size {
			return fmt.Errorf("there are %d entries, not %d", len(d.owned), size)
		}
	}
	return nil
}

func (d *disk) table(size int) *Table[int] {
	owned := maps.Clone(d.owned)
	next := owned[nextEntry]
	delete(owned, nextEntry)
	return New(Config[int]{Name: "number", Range: "the numbers", Next: func(id int) int { return (id + 1) % size }, Size: size}, next, owned, d.write)
}

// has says whether an id is on the disk as its owner's.
func (d *disk) has(owner string, id int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept, ok := d.owned[owner]
	return ok && kept == id
}

func replicas(n int) (owners []string) {
	for i := range n {
		owners = append(owners, fmt.Sprint("shop/cart-", i))
	}
	return owners
}

func TestIDsOfAllAreWrittenOnce(t *testing.T) {
	var d disk
	table := d.table(1000)
	owners := replicas(100)
	ids, err := table.Get(owners...)
	if err != nil || d.writes != 1 {
		t.Fatalf("%d writes for one call: %v", d.writes, err)
	}
	for i, owner := range owners {
		if !d.has(owner, ids[i]) {
			t.Errorf("%s has %d, which is not on the disk", owner, ids[i])
		}
	}
	if again, err := table.Get(owners...); err != nil || !slices.Equal(again, ids) || d.writes != 1 {
		t.Errorf("%v, %v, %d writes for ids that are there", again, err, d.writes)
	}
	if kept, err := d.table(1000).Get(owners...); err != nil || !slices.Equal(kept, ids) {
		t.Errorf("the next agent gives %v, %v", kept, err)
	}
}

// Those who come while the disk is busy are served by its next write, all of them; and nobody before it.
func TestThoseWhoWaitShareAWrite(t *testing.T) {
	d := disk{gate: make(chan struct{})}
	table := d.table(1000)
	owners := replicas(100)
	var all sync.WaitGroup
	for _, owner := range owners {
		all.Go(func() {
			if ids, err := table.Get(owner); err != nil || !d.has(owner, ids[0]) {
				t.Errorf("%s: %v, which is not on the disk: %v", owner, ids, err)
			}
			// A second one for the same owner is not told an id earlier than the first.
			if ids, err := table.Get(owner); err != nil || !d.has(owner, ids[0]) {
				t.Errorf("%s: %v, which is not on the disk: %v", owner, ids, err)
			}
		})
	}
	// All are allocated before the first write ends: allocating does not wait for the disk.
	for deadline := time.Now().Add(10 * time.Second); table.Count() < len(owners); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("%d of %d have an id while the disk is busy", table.Count(), len(owners))
			break
		}
	}
	close(d.gate)
	all.Wait()
	if d.writes > 2 {
		t.Errorf("%d writes for %d who waited at the same time", d.writes, len(owners))
	}
}

// An id whose owner could not be kept is told to nobody, before it is kept by a later write.
func TestFailedWriteGivesNothing(t *testing.T) {
	d := disk{failing: errors.New("no space left on device")}
	table := d.table(10)
	for range 2 {
		if ids, err := table.Get("shop/cart-0"); !errors.Is(err, d.failing) || ids != nil {
			t.Errorf("%v, %v", ids, err)
		}
	}
	d.failing = nil
	ids, err := table.Get("shop/cart-0")
	if err != nil || !d.has("shop/cart-0", ids[0]) {
		t.Errorf("%v, %v", ids, err)
	}
	d.failing = errors.New("no space left on device")
	if err := table.Release("shop/cart"); !errors.Is(err, d.failing) {
		t.Error(err)
	}
	d.failing = nil
	// What was not given back on the disk is given back with the next occasion.
	if err := table.Keep(func(string) bool { return true }); err != nil || len(d.owned) != 1 {
		t.Errorf("%v, %v", d.owned, err)
	}
}

func TestReleaseOfOneWorkload(t *testing.T) {
	var d disk
	table := d.table(10)
	owners := []string{"shop/cart-0", ProxyOf("shop/cart-0"), "shop/cart-api-0", "shop/cart-api-1"}
	ids, err := table.Get(owners...)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Release("shop/cart"); err != nil || table.Count() != 2 || !d.has("shop/cart-api-0", ids[2]) || len(d.owned) != 3 {
		t.Errorf("%v are left: %v", d.owned, err)
	}
	writes := d.writes
	if err := errors.Join(table.Release("shop/cart"), table.Keep(func(workload string) bool { return workload == "shop/cart-api" })); err != nil || d.writes != writes {
		t.Errorf("%d writes where nothing changed: %v", d.writes-writes, err)
	}
	// What was given back is handed out after all others.
	for i := range 8 {
		got, err := table.Get(fmt.Sprintf("shop/new-%d", i))
		if err != nil || slices.Contains(ids[:2], got[0]) != (i >= 6) || slices.Contains(ids[2:], got[0]) {
			t.Errorf("%d: %v, %v", i, got, err)
		}
	}
	if _, err := table.Get("shop/new-8"); err == nil || err.Error() != "no number left for shop/new-8: 10 of the numbers are in use; remove workloads" {
		t.Error(err)
	}
}

// Of an id that two owners were kept with, one has it.
func TestIDsAreOneOwners(t *testing.T) {
	d := disk{owned: map[string]int{"shop/cart-0": 3, "shop/web-0": 3}}
	table := d.table(10)
	ids, err := table.Get("shop/cart-0", "shop/web-0")
	if err != nil || ids[0] == ids[1] {
		t.Errorf("%v, %v", ids, err)
	}
}
