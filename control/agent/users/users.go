// Package users gives the processes of a cluster user ids of their own, which are no user's of the machine.
package users

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"heddle.io/heddle/control/agent/allocation"
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

// Open reads the ids of a block that were kept in the file, if there is one. Of a torn file, known gives them again: by
// owner, those that processes run with. An id that was given back is handed out again only after all others.
func Open(path string, block int, known func() map[string]int) (*allocation.Table[int], error) {
	if block < 0 || block >= Blocks {
		return nil, fmt.Errorf("block %d of user ids: there are %d", block, Blocks)
	}
	var kept table
	err := durable.ReadJSON(path, &kept)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, durable.ErrTorn) {
		return nil, fmt.Errorf("kept user ids cannot be read: %w", err)
	}
	if kept.Owned == nil && !errors.Is(err, os.ErrNotExist) {
		kept.Owned = known()
	}
	begin := first + block*BlockSize
	ours := func(id int) bool { return id >= begin && id < begin+BlockSize }
	maps.DeleteFunc(kept.Owned, func(_ string, id int) bool { return !ours(id) })
	after := func(id int) int {
		if id++; ours(id) {
			return id
		}
		return begin
	}
	next := kept.Next
	if !ours(next) {
		next = begin
		for _, id := range kept.Owned {
			// Without a better word, those after the last one have rested longest.
			next = max(next, id)
		}
		if len(kept.Owned) > 0 {
			next = after(next)
		}
	}
	return allocation.New(allocation.Config[int]{
		Name: "user id", Range: fmt.Sprintf("%d-%d", begin, begin+BlockSize-1), Next: after, Size: BlockSize,
		Write: func(next int, owned map[string]int) error {
			return durable.WriteJSON(path, table{Next: next, Owned: owned}, 0o600)
		},
	}, next, kept.Owned), nil
}

// table is what the file holds.
type table struct {
	// Next is the id that is handed out next if nobody has it: an agent that was replaced does not begin again with those
	// that were given back last.
	Next  int            `json:"next"`
	Owned map[string]int `json:"owned"`
}
