package bypass

import "fmt"

// share is what one workload or all have; as in bpf/bypass.h.
type share struct {
	Sockets, Together int64
}

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
	// came that way; receiver_behind, it has not read 128 KiB or 512 messages; unread_share, the
	// workload has as many unread messages as are free; receiver_gone, it is closed; kernel_tls, the kernel
	// encrypts; switched_off, the bypass is to end and the receiver has read all.
	Fallbacks map[string]uint64 `json:"fallbacks"`
	// Refused are connections that use TCP alone although both ends might be here, by reason: too_many_sockets, the
	// kernel has no room for another record; workload_share, a workload has as many of MaxSockets open as are free; ambiguous, two connections cannot be told apart.
	Refused map[string]uint64 `json:"refused"`
}

// Reasons of fallbacks and refusals, by the counter's place.
var (
	fallbacks = map[programCount]string{
		programCountCOUNT_FALLBACK_TCP_UNREAD:      "tcp_unread",
		programCountCOUNT_FALLBACK_RECEIVER_BEHIND: "receiver_behind",
		programCountCOUNT_FALLBACK_UNREAD_SHARE:    "unread_share",
		programCountCOUNT_FALLBACK_RECEIVER_GONE:   "receiver_gone",
		programCountCOUNT_FALLBACK_KERNEL_TLS:      "kernel_tls",
		programCountCOUNT_FALLBACK_SWITCHED_OFF:    "switched_off",
	}
	refusals = map[programCount]string{
		programCountCOUNT_REFUSED_TOO_MANY_SOCKETS: "too_many_sockets",
		programCountCOUNT_REFUSED_AMBIGUOUS:        "ambiguous",
		programCountCOUNT_REFUSED_WORKLOAD_SHARE:   "workload_share",
	}
)

// Status reads the counters.
func (b *Bypass) Status() (Status, error) {
	var totals [programCountCOUNT_COUNT]uint64
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
	var recorded share
	if err := b.objects.Maps["recorded"].Lookup(uint32(0), &recorded); err != nil {
		return s, fmt.Errorf("read how many sockets the bypass has recorded: %w", err)
	}
	s.Sockets = int(recorded.Sockets)
	return s, nil
}
