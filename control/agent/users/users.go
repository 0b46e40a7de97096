// Package users gives the processes of a cluster user ids of their own, which are no user's of the machine.
package users

import (
	"cmp"
	"fmt"

	"heddle.io/heddle/control/agent/allocation"
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

// Open reads the ids of a block that were kept in the file. Where there is none, or a damaged one, known gives them: by owner, those that
// processes run with. An id that was given back is handed out again only after all others.
func Open(path string, block int, known func() (map[string]int, error)) (*allocation.Table[int], error) {
	if block < 0 || block >= Blocks {
		return nil, fmt.Errorf("block %d of user ids: there are %d", block, Blocks)
	}
	begin := first + block*BlockSize
	has := func(id int) bool { return id >= begin && id < begin+BlockSize }
	return allocation.Open(path, allocation.Config[int]{
		Name: "user id", Range: fmt.Sprintf("%d-%d", begin, begin+BlockSize-1), First: begin, Has: has, Compare: cmp.Compare[int], Size: BlockSize, Known: known,
		Next: func(id int) int {
			if id++; has(id) {
				return id
			}
			return begin
		},
	})
}
