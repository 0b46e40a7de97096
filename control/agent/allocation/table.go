// Package allocation hands out ids, as addresses and user ids, and keeps which is whose: a replica that is started again, after
// a reboot too, has those it had.
package allocation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"heddle.io/heddle/control/durable/objectfile"
)

// Config of a [Table]. Those without a file need no First, Has, Compare and Known.
type Config[ID comparable] struct {
	// Name of one id, and Range of all, as errors say them.
	Name, Range string
	// First is the id that is handed out first, Next the one after another; after the last comes the first.
	First ID
	Next  func(ID) ID
	// Has says which ids may be handed out.
	Has func(ID) bool
	// Compare orders them, as [cmp.Compare].
	Compare func(x, y ID) int
	// Size is how many ids there are, or more.
	Size int
	// Known gives the ids that are in use, by owner, where nothing was kept, or nothing that can be read.
	Known func() (map[string]ID, error)
}

// Write makes a change durable: what owners have now, owners that have nothing any more, and how many entries there are then; all gives
// these. See [objectfile.Set.Update].
type Write[ID comparable] func(values map[string]ID, gone []string, size int, all func() map[string]ID) error

// Table hands out ids and keeps them. It is safe for concurrent use.
type Table[ID comparable] struct {
	config Config[ID]
	write  Write[ID]
	// close gives the file back, if there is one.
	close func() error

	// writing is held while the disk is waited for; before mu. written, which it guards the change of, is the version that
	// is on the disk.
	writing sync.Mutex
	written atomic.Uint64

	mu sync.Mutex
	// owned are the ids by workload and owner.
	owned map[string]map[string]held[ID]
	used  map[ID]bool
	next  ID
	// unwritten are the owners of whom something else is on the disk.
	unwritten map[string]struct{}
	// version counts the changes; released is that of the last that gave something back.
	version, released uint64
}

// held is an owner's id and the version that it is in first.
type held[ID comparable] struct {
	id    ID
	since uint64
}

// nextEntry is where a table keeps which id is looked at first: an agent that was replaced does not begin again with those that were
// given back last. No owner is called so.
const nextEntry = ""

// Open reads the ids that were kept in a file, if there is one. Of an id that two have, one keeps it. The file is the table's until
// [Table.Close]; where it cannot be written, what was written before stays.
func Open[ID comparable](path string, config Config[ID]) (*Table[ID], error) {
	file, kept, err := objectfile.OpenSet[string, ID](path)
	if errors.Is(err, objectfile.ErrDamaged) || err == nil && kept == nil {
		kept, err = config.Known()
	}
	if err != nil {
		return nil, fmt.Errorf("which %s is whose cannot be read: %w", config.Name, err)
	}
	// Nobody gets what is another's because a disk is full.
	file.KeepLast()
	next, known := kept[nextEntry]
	maps.DeleteFunc(kept, func(owner string, id ID) bool { return owner == nextEntry || !config.Has(id) })
	if !known || !config.Has(next) {
		next = config.First
		if len(kept) > 0 {
			// Those behind the last one have most likely rested longest.
			next = config.Next(slices.MaxFunc(slices.Collect(maps.Values(kept)), config.Compare))
		}
	}
	t := New(config, next, kept, file.Update)
	t.close = file.Close
	return t, nil
}

// New makes a table that writes elsewhere, of what was kept there.
func New[ID comparable](config Config[ID], next ID, owned map[string]ID, write Write[ID]) *Table[ID] {
	t := &Table[ID]{config: config, write: write, owned: map[string]map[string]held[ID]{}, used: map[ID]bool{}, next: next, unwritten: map[string]struct{}{}}
	for owner, id := range owned {
		if !t.used[id] {
			t.put(owner, id)
		}
	}
	return t
}

// Close gives the file back. Who still asks for ids has them written, in a file that is opened anew.
func (t *Table[ID]) Close() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.close == nil {
		return nil
	}
	return t.close()
}

// put needs the lock.
func (t *Table[ID]) put(owner string, id ID) {
	workload := WorkloadOf(owner)
	if t.owned[workload] == nil {
		t.owned[workload] = map[string]held[ID]{}
	}
	t.owned[workload][owner] = held[ID]{id: id, since: t.version}
	t.used[id] = true
	t.unwritten[owner] = struct{}{}
}

// Get returns the owners' ids in their order, allocating those of owners that have none. They are on the disk when it
// returns, by one write for all and for whoever else waits at the same time. After an error nobody may use an id that Get
// did not return; it stays its owner's, who may ask again.
func (t *Table[ID]) Get(owners ...string) ([]ID, error) {
	ids, version, err := t.allocate(owners)
	if err != nil {
		return nil, err
	}
	if err := t.sync(version); err != nil {
		return nil, err
	}
	return ids, nil
}

// allocate also says which version has all the ids.
func (t *Table[ID]) allocate(owners []string) (ids []ID, version uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Ids of one call are one change.
	change := t.version + 1
	for _, owner := range owners {
		h, ok := t.owned[WorkloadOf(owner)][owner]
		if !ok {
			id, free := t.free()
			if !free {
				return nil, 0, fmt.Errorf("no %s left for %s: %d of %s are in use; remove workloads", t.config.Name, owner, len(t.used), t.config.Range)
			}
			t.version = change
			t.put(owner, id)
			h = held[ID]{id: id, since: change}
			t.next = t.config.Next(id)
		}
		ids, version = append(ids, h.id), max(version, h.since)
	}
	return ids, version, nil
}

// free needs the lock.
func (t *Table[ID]) free() (ID, bool) {
	id := t.next
	for range t.config.Size {
		if !t.used[id] {
			return id, true
		}
		id = t.config.Next(id)
	}
	return id, false
}

// Owners are those of a workload that have ids.
func (t *Table[ID]) Owners(workload string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.owned[workload]))
}

// Release gives back the ids of a workload's replicas.
func (t *Table[ID]) Release(workload string) error {
	t.mu.Lock()
	t.drop(workload)
	version := t.released
	t.mu.Unlock()
	return t.sync(version)
}

// Keep gives back the ids of all workloads but those to keep.
func (t *Table[ID]) Keep(keep func(workload string) bool) error {
	t.mu.Lock()
	for workload := range t.owned {
		if !keep(workload) {
			t.drop(workload)
		}
	}
	version := t.released
	t.mu.Unlock()
	return t.sync(version)
}

// drop needs the lock.
func (t *Table[ID]) drop(workload string) {
	owned := t.owned[workload]
	if owned == nil {
		return
	}
	for owner, h := range owned {
		delete(t.used, h.id)
		t.unwritten[owner] = struct{}{}
	}
	delete(t.owned, workload)
	t.version++
	t.released = t.version
}

// Count is how many ids are handed out.
func (t *Table[ID]) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.used)
}

// sync returns once a version is on the disk. Those who wait at the same time are served by one write. After a write that
// failed, the next one who needs the version tries again.
func (t *Table[ID]) sync(version uint64) error {
	if t.written.Load() >= version {
		return nil
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.written.Load() >= version {
		return nil
	}
	t.mu.Lock()
	upto, unwritten, size := t.version, t.unwritten, len(t.used)+1
	t.unwritten = map[string]struct{}{}
	values, gone := map[string]ID{nextEntry: t.next}, []string(nil)
	for owner := range unwritten {
		if h, has := t.owned[WorkloadOf(owner)][owner]; has {
			values[owner] = h.id
		} else {
			gone = append(gone, owner)
		}
	}
	t.mu.Unlock()
	if err := t.write(values, gone, size, func() map[string]ID { return t.all(values[nextEntry]) }); err != nil {
		t.mu.Lock()
		maps.Copy(t.unwritten, unwritten)
		t.mu.Unlock()
		return fmt.Errorf("keep the %s of each replica: %w", t.config.Name, err)
	}
	t.written.Store(upto)
	return nil
}

// all is what the file is to hold. What changes meanwhile is written again.
func (t *Table[ID]) all(next ID) map[string]ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]ID, len(t.used)+1)
	for _, of := range t.owned {
		for owner, h := range of {
			out[owner] = h.id
		}
	}
	out[nextEntry] = next
	return out
}

// ProxyOf is the owner of what the proxy of a replica, namespace/name-N, has.
func ProxyOf(replica string) string { return replica + proxySuffix }

const proxySuffix = "/proxy"

// WorkloadOf is the workload, namespace/name, of an owner: a replica, namespace/name-N, or its proxy.
func WorkloadOf(owner string) string {
	owner = strings.TrimSuffix(owner, proxySuffix)
	if i := strings.LastIndexByte(owner, '-'); i > 0 {
		return owner[:i]
	}
	return owner
}
