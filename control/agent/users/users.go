// Package users gives the processes of a cluster user ids of their own, which are no user's of the machine, and keeps which
// is whose.
package users

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"heddle.io/heddle/control/durable"
)

// The range of all clusters of a machine, in blocks. It is what systemd's table of user ids leaves unused, below the half
// of the 32-bit numbers that some programs take for negative: https://systemd.io/UIDS-GIDS.
const (
	first = 0x70000000
	// BlockSize is how many ids a cluster has, two for each replica.
	BlockSize = 1 << 16
	// Blocks is how many clusters fit; the last two end where systemd's range for foreign ids begins.
	Blocks = 1<<12 - 2
)

// Ours says whether an id is in the range of Heddle's.
func Ours(id int) bool { return id >= first && id < first+Blocks*BlockSize }

// Users hands out ids and keeps them: a process that is started again has the one it had. It is safe for concurrent use.
type Users struct {
	path        string
	first, next int
	mu          sync.Mutex
	owned       map[string]int
	used        map[int]bool
}

// Open reads the ids of a block that were kept in the file, if there is one. Of a torn file, known gives them again: by
// owner, those that processes run with.
func Open(path string, block int, known func() map[string]int) (*Users, error) {
	if block < 0 || block >= Blocks {
		return nil, fmt.Errorf("block %d of user ids: there are %d", block, Blocks)
	}
	u := &Users{path: path, first: first + block*BlockSize, owned: map[string]int{}, used: map[int]bool{}}
	u.next = u.first
	var kept table
	err := durable.ReadJSON(path, &kept)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, durable.ErrTorn) {
		return nil, fmt.Errorf("kept user ids cannot be read: %w", err)
	}
	if kept.Owned == nil && !errors.Is(err, os.ErrNotExist) {
		kept.Owned = known()
	}
	ours := func(id int) bool { return id >= u.first && id < u.first+BlockSize }
	for owner, id := range kept.Owned {
		if ours(id) && !u.used[id] {
			u.owned[owner], u.used[id] = id, true
			// Without a better word, those after the last one have rested longest.
			u.next = max(u.next, id+1)
		}
	}
	if ours(kept.Next) {
		u.next = kept.Next
	}
	if !ours(u.next) {
		u.next = u.first
	}
	return u, nil
}

// table is what the file holds.
type table struct {
	// Next is the id that is handed out next if nobody has it: an agent that was replaced does not begin again with those
	// that were given back last.
	Next  int            `json:"next"`
	Owned map[string]int `json:"owned"`
}

// Get returns the owner's id, allocating and keeping one when it has none. An id that was given back is handed out again
// only after all others.
func (u *Users) Get(owner string) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if id, ok := u.owned[owner]; ok {
		return id, nil
	}
	for range BlockSize {
		id := u.next
		if u.next++; u.next == u.first+BlockSize {
			u.next = u.first
		}
		if u.used[id] {
			continue
		}
		u.owned[owner], u.used[id] = id, true
		if err := u.save(); err != nil {
			delete(u.owned, owner)
			delete(u.used, id)
			return 0, err
		}
		return id, nil
	}
	return 0, fmt.Errorf("no user id left for %s: all %d are in use; remove workloads", owner, BlockSize)
}

// Keep gives back the ids of all owners but those to keep.
func (u *Users) Keep(keep func(owner string) bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := false
	for owner, id := range u.owned {
		if !keep(owner) {
			delete(u.owned, owner)
			delete(u.used, id)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return u.save()
}

// Count is how many ids are handed out.
func (u *Users) Count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.owned)
}

func (u *Users) save() error {
	if err := durable.WriteJSON(u.path, table{Next: u.next, Owned: u.owned}, 0o600); err != nil {
		return fmt.Errorf("keep user ids: %w", err)
	}
	return nil
}
