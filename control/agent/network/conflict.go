package network

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/cluster"
)

// Conflict says what on this machine already uses one of the ranges, or "" when nothing does. Routes to the interface
// that the ranges belong to do not count.
func Conflict(own string, f cluster.Family, ranges ...netip.Prefix) (string, error) {
	routes, err := netlink.RouteList(nil, netlinkFamily(f))
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() || r.Type != unix.RTN_UNICAST {
			continue
		}
		address, ok := netip.AddrFromSlice(r.Dst.IP)
		if !ok {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		used := netip.PrefixFrom(address.Unmap(), ones)
		device := "?"
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			device = link.Attrs().Name
		}
		if device == own {
			continue
		}
		for _, ours := range ranges {
			if used.Overlaps(ours) {
				return fmt.Sprintf("%s is routed to interface %s, and Heddle uses %s", used, device, ours), nil
			}
		}
	}
	return "", nil
}

// benchmark is for tests of networks (RFC 2544): nobody's public address.
var benchmark = netip.MustParsePrefix("198.18.0.0/15")

// private says that an address is not reached from the internet (RFC 1918, RFC 4193, RFC 2544).
func private(a netip.Addr) bool { return a.IsPrivate() || benchmark.Contains(a) }

// PrivateAddress is the first private address of the interface of the machine's default route: where other machines of
// the same network find this one. It is invalid when there is none: without being told, nothing is offered on a public
// address.
func PrivateAddress(f cluster.Family) (netip.Addr, error) {
	routes, err := netlink.RouteList(nil, netlinkFamily(f))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		index := r.LinkIndex
		if index == 0 && len(r.MultiPath) > 0 {
			index = r.MultiPath[0].LinkIndex
		}
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			continue
		}
		addresses, err := netlink.AddrList(link, netlinkFamily(f))
		if err != nil {
			return netip.Addr{}, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
		}
		for _, a := range addresses {
			if found, ok := netip.AddrFromSlice(a.IP); ok && private(found.Unmap()) && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED) == 0 {
				return found.Unmap(), nil
			}
		}
	}
	return netip.Addr{}, nil
}

// IsLocal says whether an interface of this machine has the address.
func IsLocal(address netip.Addr) (bool, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if found, ok := netip.AddrFromSlice(n.IP); ok && found.Unmap() == address.Unmap() {
				return true, nil
			}
		}
	}
	return false, nil
}
