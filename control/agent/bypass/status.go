package bypass

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Status says what the bypass does. Counters count from the first [Attach] on, over restarts of the agent.
type Status struct {
	// Wanted says that the cluster was started with it, Attached that the programs run, and Problem why they do not.
	Wanted   bool   `json:"wanted"`
	Attached bool   `json:"attached"`
	Problem  string `json:"problem,omitempty"`
	// Sockets are those that are open, of at most MaxSockets.
	Sockets    int    `json:"sockets"`
	MaxSockets uint32 `json:"maxSockets"`
	// Connections are those of which both ends were found on this host.
	Connections uint64 `json:"connections"`
	// Messages and Bytes went straight to their receiver.
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Fallbacks are messages of bypassed connections that went by TCP, by reason: tcp_unread, the receiver has to read first what
	// came that way; receiver_behind, it has not read 128 KiB or 512 messages; receiver_gone, it is closed; kernel_tls, the kernel encrypts.
	Fallbacks map[string]uint64 `json:"fallbacks"`
	// Refused are connections that use TCP alone although both ends might be here, by reason: too_many_sockets, MaxSockets are
	// open; workload_share, a workload has as many open as are free; ambiguous, two connections cannot be told apart.
	Refused map[string]uint64 `json:"refused"`
}

// The counters' places in the map, as in bpf/bypass.h.
const (
	countConnections = iota
	countMessages
	countBytes
	fallbackOrder
	fallbackFull
	fallbackGone
	fallbackTLS
	refusedFull
	refusedAmbiguous
	refusedShare
	countCount
)

// Reasons of fallbacks and refusals.
var (
	fallbacks = map[uint32]string{
		fallbackOrder: "tcp_unread",
		fallbackFull:  "receiver_behind",
		fallbackGone:  "receiver_gone",
		fallbackTLS:   "kernel_tls",
	}
	refusals = map[uint32]string{
		refusedFull:      "too_many_sockets",
		refusedAmbiguous: "ambiguous",
		refusedShare:     "workload_share",
	}
)

// Status reads the counters.
func (b *Bypass) Status() (Status, error) {
	var totals [countCount]uint64
	for i := range totals {
		var perCPU []uint64
		if err := b.objects.Maps["counts"].Lookup(uint32(i), &perCPU); err != nil {
			return Status{}, fmt.Errorf("read the bypass counters: %w", err)
		}
		for _, n := range perCPU {
			totals[i] += n
		}
	}
	s := Status{
		Attached: true, MaxSockets: b.objects.Maps["sockets"].MaxEntries(), Connections: totals[countConnections], Messages: totals[countMessages], Bytes: totals[countBytes],
		Fallbacks: map[string]uint64{}, Refused: map[string]uint64{},
	}
	for i, reason := range fallbacks {
		s.Fallbacks[reason] = totals[i]
	}
	for i, reason := range refusals {
		s.Refused[reason] = totals[i]
	}
	var err error
	s.Sockets, err = countKeys(b.objects.Maps["sockets"])
	return s, err
}

// countKeys counts a map's entries, which come and go meanwhile: at most as many as it holds.
func countKeys(m *ebpf.Map) (int, error) {
	var key, next uint64
	n := 0
	for err := m.NextKey(nil, &next); ; err = m.NextKey(key, &next) {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("count the bypass sockets: %w", err)
		}
		if n++; uint32(n) >= m.MaxEntries() {
			return n, nil
		}
		key = next
	}
}
