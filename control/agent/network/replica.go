package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/cluster"
)

// passthroughIPv6 is the source address that proxies give to the last leg of what arrived, as 127.0.0.6 in IPv4 (Istio's
// InboundPassthroughBindIpv6). Unlike that, it is not on the loopback interface by itself.
var passthroughIPv6 = netip.MustParsePrefix("::6/128")

// Attach gives a replica its network namespace with address, default route and loopback, joined to the cluster's
// bridge. What is there already and right is left alone, so that running processes notice nothing.
func Attach(c cluster.Cluster, namespace, replica string, address netip.Addr) error {
	name := c.Netns(namespace, replica)
	if err := create(name); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(c.Bridge())
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", c.Bridge(), err)
	}
	if err := (cable{outer: c.Veth(namespace, replica), inner: interfaceInside, netns: name, bridge: bridge}).plug(); err != nil {
		return err
	}
	gateway := cluster.FamilyOf(address).Ranges().Gateway()
	return In(name, func() error {
		// Proxies and applications run without privileges and listen on well-known ports: the namespace is theirs. The
		// setting is for both families.
		if err := sysctl("net/ipv4/ip_unprivileged_port_start", "0"); err != nil {
			return err
		}
		if err := configure(name, interfaceInside, netip.PrefixFrom(address, gateway.Bits()), gateway.Addr()); err != nil {
			return err
		}
		if address.Is4() {
			return nil
		}
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback in %s: %w", name, err)
		}
		return giveAddress(loopback, "loopback in "+name, passthroughIPv6)
	})
}

// AddressesOfReplicas are the addresses that the replicas on this machine have, by namespace/replica: what their network
// namespaces say.
func AddressesOfReplicas(c cluster.Cluster) (map[string]netip.Addr, error) {
	names, err := Names(c.NetnsPrefix())
	if err != nil {
		return nil, err
	}
	known := map[string]netip.Addr{}
	for _, name := range names {
		// Namespaces of objects have no dot, so the first one ends it.
		namespace, replica, _ := strings.Cut(strings.TrimPrefix(name, c.NetnsPrefix()), ".")
		if err := In(name, func() error {
			link, err := netlink.LinkByName(interfaceInside)
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				return nil // It was just being made.
			}
			if err != nil {
				return fmt.Errorf("find the interface of %s: %w", name, err)
			}
			given, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				return fmt.Errorf("read the addresses of %s: %w", name, err)
			}
			for _, g := range given {
				if address, ok := netip.AddrFromSlice(g.IP); ok && !address.Unmap().IsLinkLocalUnicast() {
					known[namespace+"/"+replica] = address.Unmap()
				}
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return known, nil
}

// Detach removes a replica's namespace and veth pair.
func Detach(c cluster.Cluster, namespace, replica string) error {
	return errors.Join(unplug(c.Veth(namespace, replica)), Delete(c.Netns(namespace, replica)))
}

// RemoveBridge removes the cluster's bridge and every veth that still hangs on it.
func RemoveBridge(c cluster.Cluster) error { return removeBridge(c.Bridge(), "hv") }

// Forget has the machine forget the connections that were sent on to an address: packets of theirs that still come are
// answered with a reset by whoever gets them next, instead of vanishing with a gateway that has gone.
func Forget(address netip.Addr) error {
	filter := &netlink.ConntrackFilter{}
	if err := filter.AddIP(netlink.ConntrackReplySrcIP, address.AsSlice()); err != nil {
		return fmt.Errorf("forget connections to %s: %w", address, err)
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(netlinkFamily(cluster.FamilyOf(address))), filter)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget connections to %s: %w", address, err)
	}
	return nil
}
