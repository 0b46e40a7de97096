package network

import (
	"errors"
	"fmt"
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
func EnsureBridge(c cluster.Cluster, f cluster.Family) error {
	_, err := ensureBridge(c.Bridge(), f.Ranges().Gateway(), "remove it or choose another cluster name")
	return err
}

// ensureBridge makes a bridge that has the address, or repairs it.
func ensureBridge(name string, address netip.Prefix, remedy string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		// There is nobody to ask for the members of a group: neighbour discovery, which is multicast, must reach all.
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: new(bool)}); err != nil {
			return nil, fmt.Errorf("make bridge %s: %w", name, err)
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("interface %s exists and is a %s, not a bridge; %s", name, link.Type(), remedy)
	}
	// A bridge without an own hardware address takes the least of its ports', which changes as they come and go.
	if err := setHardwareAddress(link, name, address.Addr()); err != nil {
		return nil, err
	}
	return link, giveAddress(link, "bridge "+name, address)
}

// setHardwareAddress of an interface by the rule of [hardwareAddress]. Where it has one by the rule already, of its
// address of the other family, it stays.
func setHardwareAddress(link netlink.Link, name string, address netip.Addr) error {
	want := hardwareAddress(address)
	if have := link.Attrs().HardwareAddr; have.String() == want.String() || link.Type() == "bridge" && strings.HasPrefix(have.String(), want[:2].String()) {
		return nil
	}
	if err := netlink.LinkSetHardwareAddr(link, want); err != nil {
		return fmt.Errorf("give %s the hardware address %s: %w", name, want, err)
	}
	return nil
}

// giveAddress starts an interface with an address. IPv6 is made ready for it: switched on, without the wait for others
// that might have the address (RFC 4862 §5.4), which are told apart by construction, and without listening to routers.
func giveAddress(link netlink.Link, name string, address netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(address)}
	if address.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
		if err := readyForIPv6(link.Attrs().Name); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := netlink.AddrReplace(link, a); err != nil {
		return fmt.Errorf("give %s the address %s: %w", name, address, err)
	}
	return nil
}

func readyForIPv6(device string) error {
	prefix := "net/ipv6/conf/" + device + "/"
	for _, setting := range []struct{ key, value string }{
		{prefix + "accept_dad", "0"}, {prefix + "accept_ra", "0"}, {prefix + "autoconf", "0"}, {prefix + "disable_ipv6", "0"},
	} {
		if err := sysctl(setting.key, setting.value); err != nil {
			return fmt.Errorf("%w; a cluster with IPv6 needs a kernel with it: boot without ipv6.disable=1", err)
		}
	}
	return nil
}

// cable is a veth pair from this network namespace to one that it serves.
type cable struct {
	// outer and inner are the names of the two ends, netns is where the inner one is.
	outer, inner, netns string
	bridge              netlink.Link
}

// plug makes the cable and joins its outer end to the bridge, or repairs it.
func (p cable) plug() error {
	outer, err := netlink.LinkByName(p.outer)
	there := err == nil
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("find veth %s: %w", p.outer, err)
	}
	if there {
		if there, err = p.complete(); err != nil {
			return err
		}
		if !there {
			// The other end is in a namespace that had the name before.
			if err := netlink.LinkDel(outer); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("remove veth %s: %w", p.outer, err)
			}
		}
	}
	if !there {
		if outer, err = p.add(); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetMaster(outer, p.bridge); err != nil {
		return fmt.Errorf("join %s to bridge %s: %w", p.outer, p.bridge.Attrs().Name, err)
	}
	if err := netlink.LinkSetAlias(outer, p.netns); err != nil {
		return fmt.Errorf("label %s: %w", p.outer, err)
	}
	if err := netlink.LinkSetUp(outer); err != nil {
		return fmt.Errorf("start %s: %w", p.outer, err)
	}
	return nil
}

// complete says whether the inner end is where it belongs. A cable of which that cannot be told is not cut.
func (p cable) complete() (bool, error) {
	err := In(p.netns, func() error {
		_, err := netlink.LinkByName(p.inner)
		return err
	})
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find %s in %s: %w", p.inner, p.netns, err)
	}
	return true, nil
}

func (p cable) add() (netlink.Link, error) {
	target, err := netns.GetFromPath(Path(p.netns))
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", p.netns, err)
	}
	defer target.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = p.outer
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: p.inner, PeerNamespace: netlink.NsFd(target)}); err != nil {
		return nil, fmt.Errorf("make veth pair %s for %s: %w", p.outer, p.netns, err)
	}
	link, err := netlink.LinkByName(p.outer)
	if err != nil {
		return nil, fmt.Errorf("find veth %s: %w", p.outer, err)
	}
	return link, nil
}

// unplug removes the cable. The kernel removes it with its namespace, which may happen meanwhile.
func unplug(outer string) error {
	link, err := netlink.LinkByName(outer)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("find veth %s: %w", outer, err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove veth %s: %w", outer, err)
	}
	return nil
}

// configure sets up the inside of a namespace, on a thread that is there: loopback, the interface with its address alone,
// and the default route.
func configure(name, device string, address netip.Prefix, gateway netip.Addr) error {
	// A new namespace starts with 1 when br_netfilter is loaded; without the module there is no such file.
	for _, key := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if err := sysctl(key, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback in %s: %w", name, err)
	}
	inner, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", device, name, err)
	}
	what := device + " in " + name
	if address.Addr().Is4() {
		// IPv6 is not captured, hence not offered. A kernel without it has nothing to switch off.
		if err := sysctl("net/ipv6/conf/"+device+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("start loopback in %s: %w", name, err)
	}
	if err := setHardwareAddress(inner, what, address.Addr()); err != nil {
		return err
	}
	have, err := netlink.AddrList(inner, netlinkFamily(cluster.FamilyOf(address.Addr())))
	if err != nil {
		return fmt.Errorf("list addresses in %s: %w", name, err)
	}
	for _, a := range have {
		if a.IPNet.String() != address.String() && !a.IP.IsLinkLocalUnicast() {
			if err := netlink.AddrDel(inner, &a); err != nil {
				return fmt.Errorf("remove address %s in %s: %w", a.IPNet, name, err)
			}
		}
	}
	if err := giveAddress(inner, what, address); err != nil {
		return err
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: inner.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("set default route in %s: %w", name, err)
	}
	return nil
}

// removeBridge removes a bridge and every cable of ours that still hangs on it.
func removeBridge(name, cables string) error {
	bridge, err := netlink.LinkByName(name)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	ports, err := ports(bridge, cables)
	if err != nil {
		return err
	}
	var errs []error
	for _, port := range ports {
		errs = append(errs, unplug(port))
	}
	if err := netlink.LinkDel(bridge); err != nil {
		errs = append(errs, fmt.Errorf("remove bridge %s: %w", name, err))
	}
	return errors.Join(errs...)
}

// ports of a bridge whose names start with the prefix.
func ports(bridge netlink.Link, prefix string) ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index && strings.HasPrefix(l.Attrs().Name, prefix) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}
