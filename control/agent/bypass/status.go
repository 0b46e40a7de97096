package bypass

import (
	"fmt"
	"maps"
	"slices"

	"heddle.io/heddle/control/agent/pinned"
)

// share is what one workload or all have; as in bpf/bypass.h.
type share struct {
	Sockets, UnreadBlocks int64
}

// Program is one that is loaded.
type Program struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"`
}

// Map is one that is loaded. Memory is what the kernel has of it now, in bytes, 0 where it does not tell.
type Map struct {
	Name       string `json:"name"`
	ID         uint32 `json:"id"`
	MaxEntries uint32 `json:"maxEntries"`
	Memory     uint64 `json:"memory"`
}

// Status says what the bypass does. Counters count from the first [Attach] on, over restarts of the agent.
type Status struct {
	// Wanted says that the cluster was started with it, Attached that the programs run, and Problem what is not as it was asked for.
	Wanted   bool   `json:"wanted"`
	Attached bool   `json:"attached"`
	Problem  string `json:"problem,omitempty"`
	// Sockets are those that have a place now, of at most MaxSockets: they are recorded, or wait for their other end to be ready.
	Sockets    int    `json:"sockets"`
	MaxSockets uint32 `json:"maxSockets"`
	// Connections are those of which both ends were found on this host, so far.
	Connections uint64 `json:"connections"`
	// Messages and Bytes went straight to their receiver.
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Fallbacks are messages of bypassed connections that went by TCP, by reason: tcp_unread, the receiver has to read first what
	// came that way; receiver_behind, it has not read 128 KiB or 512 messages; unread_share, the workload has as many unread messages
	// as are free; receiver_gone, it is closed; upper_layer, the sender or the receiver has an upper layer protocol, such as kernel TLS;
	// switched_off, the bypass is to end and the receiver has read all.
	Fallbacks map[string]uint64 `json:"fallbacks"`
	// Refused are ends of connections that were not ready once, though both are here, by reason: workload_share, a workload has as many of
	// MaxSockets as are free; not_recorded, the kernel does not record a socket, for want of memory or because something else has it;
	// ambiguous, two connections cannot be told apart; blocking, a program's socket is not O_NONBLOCK; zerocopy, it has
	// SO_ZEROCOPY.
	Refused map[string]uint64 `json:"refused"`
	// Programs and Maps that are loaded, by name.
	Programs []Program `json:"programs,omitempty"`
	Maps     []Map     `json:"maps,omitempty"`
}

// Reasons of fallbacks and refusals, by the counter's place.
var (
	fallbacks = map[programCount]string{
		programCountCOUNT_FALLBACK_TCP_UNREAD:      "tcp_unread",
		programCountCOUNT_FALLBACK_RECEIVER_BEHIND: "receiver_behind",
		programCountCOUNT_FALLBACK_UNREAD_SHARE:    "unread_share",
		programCountCOUNT_FALLBACK_RECEIVER_GONE:   "receiver_gone",
		programCountCOUNT_FALLBACK_UPPER_LAYER:     "upper_layer",
		programCountCOUNT_FALLBACK_SWITCHED_OFF:    "switched_off",
	}
	refusals = map[programCount]string{
		programCountCOUNT_REFUSED_NOT_RECORDED:   "not_recorded",
		programCountCOUNT_REFUSED_AMBIGUOUS:      "ambiguous",
		programCountCOUNT_REFUSED_WORKLOAD_SHARE: "workload_share",
		programCountCOUNT_REFUSED_BLOCKING:       "blocking",
		programCountCOUNT_REFUSED_ZEROCOPY:       "zerocopy",
	}
)

// Status reads the counters. Where they cannot be read, the programs run all the same.
func (b *Bypass) Status() (Status, error) {
	totals, err := pinned.Counters(b.objects.Maps["counts"], int(programCountCOUNT_COUNT))
	if err != nil {
		return Status{Attached: true}, fmt.Errorf("the bypass: %w", err)
	}
	s := Status{
		Attached: true, MaxSockets: b.objects.Maps["sockets"].MaxEntries(), Connections: totals[programCountCOUNT_CONNECTIONS],
		Messages: totals[programCountCOUNT_MESSAGES], Bytes: totals[programCountCOUNT_BYTES],
		Fallbacks: map[string]uint64{}, Refused: map[string]uint64{},
	}
	for i, reason := range fallbacks {
		s.Fallbacks[reason] = totals[i]
	}
	for i, reason := range refusals {
		s.Refused[reason] = totals[i]
	}
	total, err := b.total()
	if err != nil {
		return Status{Attached: true}, err
	}
	s.Sockets = int(total.Sockets)
	err = b.loaded(&s)
	return s, err
}

// connections of which both ends were found so far.
func (b *Bypass) connections() (uint64, error) {
	var perCPU []uint64
	if err := b.objects.Maps["counts"].Lookup(programCountCOUNT_CONNECTIONS, &perCPU); err != nil {
		return 0, fmt.Errorf("read how many connections the bypass has found: %w", err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// loaded fills in programs and maps.
func (b *Bypass) loaded(s *Status) error {
	for _, name := range slices.Sorted(maps.Keys(b.objects.Programs)) {
		info, err := b.objects.Programs[name].Info()
		if err != nil {
			return fmt.Errorf("look at program %s of the bypass: %w", name, err)
		}
		id, ok := info.ID()
		if !ok {
			return fmt.Errorf("the kernel does not number program %s of the bypass", name)
		}
		s.Programs = append(s.Programs, Program{Name: name, ID: uint32(id)})
	}
	for _, name := range slices.Sorted(maps.Keys(b.objects.Maps)) {
		info, err := b.objects.Maps[name].Info()
		if err != nil {
			return fmt.Errorf("look at map %s of the bypass: %w", name, err)
		}
		id, ok := info.ID()
		if !ok {
			return fmt.Errorf("the kernel does not number map %s of the bypass", name)
		}
		memory, _ := info.Memlock() // Kernels before 6.2 do not tell of each map.
		s.Maps = append(s.Maps, Map{Name: name, ID: uint32(id), MaxEntries: info.MaxEntries, Memory: memory})
	}
	return nil
}
