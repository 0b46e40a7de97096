package pinned

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// RemoveKeys removes those entries of a map that are gone. Others come and go meanwhile: the kernel begins a walk anew whose place is
// removed, so it ends after as many steps as the map has places, and what it has not seen by then, the next one finds.
func RemoveKeys[K any](m *ebpf.Map, gone func(K) bool) error {
	var key K
	var found []K
	err := m.NextKey(nil, &key)
	for step := uint32(0); err == nil && step < m.MaxEntries(); step++ {
		if gone(key) {
			found = append(found, key)
		}
		err = m.NextKey(key, &key)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("look through an eBPF map: %w", err)
	}
	for _, key := range found {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from an eBPF map: %w", err)
		}
	}
	return nil
}

// Put sets an entry of the named map of what workloads have. Where it has no place for one more, the error says what to do.
func Put(maps map[string]*ebpf.Map, name string, key, value any, flags ebpf.MapUpdateFlags) error {
	m := maps[name]
	err := m.Update(key, value, flags)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("all %d places of the eBPF map %s are taken; run fewer workloads on this host, or, where fewer run, `heddle down --keep-data` and `heddle up` make room", m.MaxEntries(), name)
	}
	if err != nil {
		return fmt.Errorf("set an entry of the eBPF map %s: %w", name, err)
	}
	return nil
}

// Counters are the first n places of a map of counters that each processor has for itself, added up.
func Counters(m *ebpf.Map, n int) ([]uint64, error) {
	totals := make([]uint64, n)
	for i := range totals {
		var perCPU []uint64
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read an eBPF counter: %w", err)
		}
		for _, count := range perCPU {
			totals[i] += count
		}
	}
	return totals, nil
}
