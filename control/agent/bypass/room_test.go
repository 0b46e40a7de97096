package bypass

import "testing"

func TestRoomGrowsWithTheMachine(t *testing.T) {
	const gib = 1 << 30
	for memory, want := range map[uint64]room{
		0:          {minSockets, minUnreadBlocks},
		8 * gib:    {64 << 10, minUnreadBlocks},
		24 * gib:   {192 << 10, minUnreadBlocks},
		64 * gib:   {512 << 10, 16 << 10},
		4096 * gib: {maxSockets, maxUnreadBlocks},
	} {
		if got := roomFor(memory); got != want {
			t.Errorf("%d GiB: %+v, want %+v", memory/gib, got, want)
		}
	}
}
