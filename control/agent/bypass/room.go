package bypass

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Places for sockets that are recorded or wait for it: one for so many bytes of the machine's memory, of which one takes some 1.5 KiB.
const (
	memoryPerSocket = 128 << 10
	minSockets      = 64 << 10
	maxSockets      = 1 << 20
)

// Blocks of 32 unread messages, of which the kernel keeps a kilobyte for each: all together a part of the machine's memory.
const (
	memoryPerUnread = 128
	unreadBlock     = 32 << 10
	minUnreadBlocks = 8 << 10
	maxUnreadBlocks = 128 << 10
)

// room is what all workloads of a cluster have together.
type room struct{ sockets, unreadBlocks uint32 }

// roomFor a machine of so many bytes of memory.
func roomFor(memory uint64) room {
	return room{
		sockets:      uint32(min(max(memory/memoryPerSocket, minSockets), maxSockets)),
		unreadBlocks: uint32(min(max(memory/memoryPerUnread/unreadBlock, minUnreadBlocks), maxUnreadBlocks)),
	}
}

func machineMemory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("ask for the machine's memory: %w", err)
	}
	return info.Totalram * uint64(info.Unit), nil
}

// set has programs that are to be loaded keep to it.
func (r room) set(spec *ebpf.CollectionSpec) error {
	for _, name := range []string{"sockets", "places", "orphaned"} {
		spec.Maps[name].MaxEntries = r.sockets
	}
	if err := errors.Join(spec.Variables["max_sockets"].Set(r.sockets), spec.Variables["max_unread_blocks"].Set(r.unreadBlocks)); err != nil {
		return fmt.Errorf("set the bounds of the bypass programs: %w", err)
	}
	return nil
}

// total is what all workloads have.
func (b *Bypass) total() (share, error) {
	var total share
	if err := b.objects.Maps["total_share"].Lookup(uint32(0), &total); err != nil {
		return total, fmt.Errorf("read what has a place in the bypass: %w", err)
	}
	return total, nil
}
