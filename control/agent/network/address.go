package network

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"

	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/durable"
)

// OpenAddresses reads the pod addresses kept in the file, if there is one. Of a torn file, known gives them again: by owner, those
// that replicas have. The pool's network, gateway (first) and broadcast addresses are never handed out.
func OpenAddresses(path string, pool netip.Prefix, known func() (map[string]netip.Addr, error)) (*allocation.Table[netip.Addr], error) {
	pool = pool.Masked()
	owned := map[string]netip.Addr{}
	err := durable.ReadJSON(path, &owned)
	if errors.Is(err, durable.ErrTorn) {
		owned, err = known()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("kept addresses cannot be read: %w", err)
	}
	maps.DeleteFunc(owned, func(_ string, address netip.Addr) bool { return !pool.Contains(address) })
	first := pool.Addr().Next().Next()
	return allocation.New(allocation.Config[netip.Addr]{
		Name: "address", Range: pool.String(),
		Next: func(address netip.Addr) netip.Addr {
			if address = address.Next(); pool.Contains(address) && pool.Contains(address.Next()) {
				return address
			}
			return first
		},
		// The bound is more than this machine can run; the range of IPv6 has more than can be counted.
		Size:  1 << min(pool.Addr().BitLen()-pool.Bits(), 20),
		Write: func(_ netip.Addr, owned map[string]netip.Addr) error { return durable.WriteJSON(path, owned, 0o600) },
	}, first, owned), nil
}
