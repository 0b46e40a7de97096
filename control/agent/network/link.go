package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/cluster"
)

// interfaceInside is the name of a workload's own end of its veth pair.
const interfaceInside = "eth0"

// EnsureBridge makes the cluster's bridge with the pods' gateway address, or repairs it.
func EnsureBridge(c cluster.Cluster) error {
	name := c.Bridge()
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
			return fmt.Errorf("make bridge %s: %w", name, err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("interface %s exists and is a %s, not a bridge; remove it or choose another cluster name", name, link.Type())
	}
	address := cluster.GatewayAddress()
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("give bridge %s the address %s: %w", name, address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("start bridge %s: %w", name, err)
	}
	return nil
}

// Conflict says what on this machine already uses the pods' or the services' range, or "" when nothing does. The
// cluster's own bridge does not count.
func Conflict(c cluster.Cluster) (string, error) {
	pods, services := netip.MustParsePrefix(cluster.PodCIDR), netip.MustParsePrefix(cluster.ServiceCIDR)
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			continue
		}
		address, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if !ok {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		used := netip.PrefixFrom(address, ones)
		device := "?"
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			device = link.Attrs().Name
		}
		if device == c.Bridge() {
			continue
		}
		for _, ours := range []netip.Prefix{pods, services} {
			if used.Overlaps(ours) {
				return fmt.Sprintf("%s is routed to interface %s, and Heddle uses %s", used, device, ours), nil
			}
		}
	}
	return "", nil
}

// Attach gives a replica its network namespace with address, default route and loopback, joined to the cluster's
// bridge. What is there already and right is left alone, so that running processes notice nothing.
func Attach(c cluster.Cluster, namespace, replica string, address netip.Addr) error {
	name, veth := c.Netns(namespace, replica), c.Veth(namespace, replica)
	if err := create(name); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(c.Bridge())
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", c.Bridge(), err)
	}
	outer, err := netlink.LinkByName(veth)
	if err != nil {
		if outer, err = addVeth(name, veth); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetMaster(outer, bridge); err != nil {
		return fmt.Errorf("join %s to bridge %s: %w", veth, c.Bridge(), err)
	}
	if err := netlink.LinkSetAlias(outer, name); err != nil {
		return fmt.Errorf("label %s: %w", veth, err)
	}
	if err := netlink.LinkSetUp(outer); err != nil {
		return fmt.Errorf("start %s: %w", veth, err)
	}
	return In(name, func() error { return configure(name, address) })
}

func addVeth(name, veth string) (netlink.Link, error) {
	target, err := netns.GetFromPath(Path(name))
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	defer target.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = veth
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: interfaceInside, PeerNamespace: netlink.NsFd(target)}); err != nil {
		return nil, fmt.Errorf("make veth pair %s for %s: %w", veth, name, err)
	}
	link, err := netlink.LinkByName(veth)
	if err != nil {
		return nil, fmt.Errorf("find veth %s: %w", veth, err)
	}
	return link, nil
}

// configure sets up the inside, on a thread that is there.
func configure(name string, address netip.Addr) error {
	for key, value := range map[string]string{
		// Proxies and applications run without privileges and listen on well-known ports: the namespace is theirs.
		"net.ipv4.ip_unprivileged_port_start": "0",
		// IPv6 is not captured, hence not offered.
		"net.ipv6.conf." + interfaceInside + ".disable_ipv6": "1",
	} {
		err := sysctl(key, value)
		if errors.Is(err, os.ErrNotExist) && strings.Contains(key, "ipv6") {
			// A kernel without IPv6 has nothing to switch off.
			continue
		}
		if err != nil {
			return err
		}
	}
	// A new namespace starts with 1 when br_netfilter is loaded; without the module there is no such file.
	if err := sysctl("net.bridge.bridge-nf-call-iptables", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback in %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("start loopback in %s: %w", name, err)
	}
	inner, err := netlink.LinkByName(interfaceInside)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", interfaceInside, name, err)
	}
	// The hardware address follows the IP address: a replica that comes back with its address answers at once, where
	// neighbours would else go on sending to the one before it until their cache notices, for seconds.
	if hardware := hardwareAddress(address); inner.Attrs().HardwareAddr.String() != hardware.String() {
		if err := netlink.LinkSetHardwareAddr(inner, hardware); err != nil {
			return fmt.Errorf("give %s in %s the hardware address %s: %w", interfaceInside, name, hardware, err)
		}
	}
	gateway := cluster.GatewayAddress()
	want := netip.PrefixFrom(address, gateway.Bits())
	have, err := netlink.AddrList(inner, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses in %s: %w", name, err)
	}
	for _, a := range have {
		if a.IPNet.String() != want.String() {
			if err := netlink.AddrDel(inner, &a); err != nil {
				return fmt.Errorf("remove address %s in %s: %w", a.IPNet, name, err)
			}
		}
	}
	if err := netlink.AddrReplace(inner, &netlink.Addr{IPNet: ipNet(want)}); err != nil {
		return fmt.Errorf("give %s the address %s: %w", name, want, err)
	}
	if err := netlink.LinkSetUp(inner); err != nil {
		return fmt.Errorf("start %s in %s: %w", interfaceInside, name, err)
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: inner.Attrs().Index, Gw: gateway.Addr().AsSlice()}); err != nil {
		return fmt.Errorf("set default route in %s: %w", name, err)
	}
	return nil
}

// Detach removes a replica's namespace and veth pair. The kernel removes the pair with its namespace, which may happen
// meanwhile.
func Detach(c cluster.Cluster, namespace, replica string) error {
	var errs []error
	if link, err := netlink.LinkByName(c.Veth(namespace, replica)); err == nil {
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove veth %s: %w", link.Attrs().Name, err))
		}
	}
	return errors.Join(append(errs, Delete(c.Netns(namespace, replica)))...)
}

// RemoveBridge removes the cluster's bridge and every veth that still hangs on it.
func RemoveBridge(c cluster.Cluster) error {
	bridge, err := netlink.LinkByName(c.Bridge())
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("find bridge %s: %w", c.Bridge(), err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index && strings.HasPrefix(l.Attrs().Name, "hv") {
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("remove veth %s: %w", l.Attrs().Name, err))
			}
		}
	}
	if err := netlink.LinkDel(bridge); err != nil {
		errs = append(errs, fmt.Errorf("remove bridge %s: %w", c.Bridge(), err))
	}
	return errors.Join(errs...)
}

// hardwareAddress is locally administered (IEEE 802: second bit of the first octet) and ends in the IPv4 address.
func hardwareAddress(address netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x0a, 0x58}, address.AsSlice()...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
