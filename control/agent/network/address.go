package network

import (
	"net/netip"

	"heddle.io/heddle/control/agent/allocation"
)

// OpenAddresses reads the pod addresses kept in the file. Where there is none, or a damaged one, known gives them: by owner, those that
// replicas have.
// The pool's network, gateway (first) and broadcast addresses are never handed out.
func OpenAddresses(path string, pool netip.Prefix, known func() (map[string]netip.Addr, error)) (*allocation.Table[netip.Addr], error) {
	pool = pool.Masked()
	first := pool.Addr().Next().Next()
	has := func(address netip.Addr) bool {
		return pool.Contains(address) && !address.Less(first) && pool.Contains(address.Next())
	}
	return allocation.Open(path, allocation.Config[netip.Addr]{
		Name: "address", Range: pool.String(), First: first, Has: has, Compare: netip.Addr.Compare, Known: known,
		Next: func(address netip.Addr) netip.Addr {
			if address = address.Next(); has(address) {
				return address
			}
			return first
		},
		// The bound is more than this machine can run; the range of IPv6 has more than can be counted.
		Size: 1 << min(pool.Addr().BitLen()-pool.Bits(), 20),
	})
}
