package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"heddle.io/heddle/control/durable"
)

// Addresses hands out pod addresses and keeps them: a replica that comes back, after a reboot too, gets the one it had.
// It is safe for concurrent use.
type Addresses struct {
	path  string
	pool  netip.Prefix
	mu    sync.Mutex
	owned map[string]netip.Addr
	used  map[netip.Addr]bool
	next  netip.Addr
}

// OpenAddresses reads the addresses kept in the file, if there is one. Of a torn file, known gives them again: by owner, those
// that replicas have. The pool's network, gateway (first) and broadcast addresses are never handed out.
func OpenAddresses(path string, pool netip.Prefix, known func() (map[string]netip.Addr, error)) (*Addresses, error) {
	a := &Addresses{path: path, pool: pool.Masked(), owned: map[string]netip.Addr{}, used: map[netip.Addr]bool{}}
	a.next = a.first()
	err := durable.ReadJSON(path, &a.owned)
	if errors.Is(err, durable.ErrTorn) {
		a.owned, err = known()
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return a, nil
	case err != nil:
		return nil, fmt.Errorf("kept addresses cannot be read: %w", err)
	}
	for owner, address := range a.owned {
		if !pool.Contains(address) || a.used[address] {
			delete(a.owned, owner)
			continue
		}
		a.used[address] = true
	}
	return a, nil
}

func (a *Addresses) first() netip.Addr { return a.pool.Addr().Next().Next() }

// Get returns the owner's address, allocating and keeping one when it has none.
func (a *Addresses) Get(owner string) (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if address, ok := a.owned[owner]; ok {
		return address, nil
	}
	address := a.next
	// The bound is more than this machine can run; the range of IPv6 has more than can be counted.
	for range 1 << min(a.pool.Addr().BitLen()-a.pool.Bits(), 20) {
		if !a.pool.Contains(address) || !a.pool.Contains(address.Next()) {
			address = a.first()
		}
		if !a.used[address] {
			a.owned[owner], a.used[address] = address, true
			if err := a.save(); err != nil {
				delete(a.owned, owner)
				delete(a.used, address)
				return netip.Addr{}, err
			}
			a.next = address.Next()
			return address, nil
		}
		address = address.Next()
	}
	return netip.Addr{}, fmt.Errorf("no address left for %s in %s: %d are in use; remove workloads", owner, a.pool, len(a.used))
}

// ReleaseOf gives back the addresses of a workload's replicas: namespace/name-0, -1, ….
func (a *Addresses) ReleaseOf(workload string) error {
	return a.Keep(func(owner string) bool { return WorkloadOf(owner) != workload })
}

// Keep gives back the addresses of all owners but those to keep.
func (a *Addresses) Keep(keep func(owner string) bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := false
	for owner, address := range a.owned {
		if !keep(owner) {
			delete(a.owned, owner)
			delete(a.used, address)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return a.save()
}

// WorkloadOf is the workload, namespace/name, of a replica that owns an address, namespace/name-N.
func WorkloadOf(owner string) string {
	if i := strings.LastIndexByte(owner, '-'); i > 0 {
		return owner[:i]
	}
	return owner
}

func (a *Addresses) save() error {
	if err := durable.WriteJSON(a.path, a.owned, 0o600); err != nil {
		return fmt.Errorf("keep addresses: %w", err)
	}
	return nil
}
