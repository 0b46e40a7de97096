package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"heddle.io/heddle/control/cluster"
)

// AttachWAN gives an isolated cluster its network namespace, joined by a veth pair to the bridge that joins all of them
// and this machine, with the address and the machine as default route. What is there and right is left alone.
func AttachWAN(c cluster.Cluster, address netip.Addr) error {
	f := cluster.FamilyOf(address)
	ranges := f.Ranges()
	// First, as the trace by which a try that failed is found and removed, with what clusters share when it is the only one.
	name := c.IsolatedNetns()
	if err := create(name); err != nil {
		return err
	}
	bridge, err := ensureBridge(cluster.WANBridge, ranges.Host(), "remove it")
	if err != nil {
		return err
	}
	if err := wanRules(f); err != nil {
		return err
	}
	if err := (cable{outer: c.WANVeth(), inner: cluster.WANInside, netns: name, bridge: bridge}).plug(); err != nil {
		return err
	}
	return In(name, func() error {
		return configure(name, cluster.WANInside, netip.PrefixFrom(address, ranges.WAN.Bits()), ranges.Host().Addr())
	})
}

// KeepWAN repairs the address and the default route of an isolated cluster, at once and whenever its cable comes back: the
// kernel forgets them with a link that is taken down. It works in the calling process's namespace, and returns when ctx
// ends, a repair fails or the kernel tells nothing any more.
func KeepWAN(ctx context.Context, address netip.Addr) error {
	ranges := cluster.FamilyOf(address).Ranges()
	// Own, so that the watch ends with this call and not with the caller's context.
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan netlink.LinkUpdate, 64)
	// What there is already comes first: after a failure, no event would tell of it again.
	if err := netlink.LinkSubscribeWithOptions(updates, watch.Done(), netlink.LinkSubscribeOptions{ListExisting: true}); err != nil {
		return fmt.Errorf("watch %s: %w", cluster.WANInside, err)
	}
	// The watch ends only once nobody waits for it to take something.
	defer func() {
		go func() {
			for range updates {
				continue
			}
		}()
	}()
	for u := range updates {
		if u.Attrs().Name != cluster.WANInside || u.Flags&unix.IFF_UP == 0 {
			continue
		}
		// What was told may be over: a link that was taken down since is not to be started.
		if now, err := netlink.LinkByIndex(u.Attrs().Index); err == nil && now.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		if err := configure("this cluster", cluster.WANInside, netip.PrefixFrom(address, ranges.WAN.Bits()), ranges.Host().Addr()); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("watch %s: ended", cluster.WANInside)
	}
	return nil
}

// wanRules bring traffic of isolated clusters to the world. What goes to the gateways of a cluster that runs directly on
// the machine keeps its source.
func wanRules(f cluster.Family) error {
	r, err := newRules(f, cluster.WANBridge, "Heddle: isolated clusters reach the world")
	if err != nil {
		return err
	}
	ranges, ip := f.Ranges(), r.ip()
	r.chain("postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority,
		fmt.Sprintf("%s saddr %s %s daddr != { %s, %s } oifname != %q masquerade", ip, ranges.WAN, ip, ranges.WAN, ranges.Pods, cluster.WANBridge),
	)
	return r.run()
}

// DetachWAN removes an isolated cluster's network namespace and its veth pair, and with the last cluster the bridge and
// its rules.
func DetachWAN(c cluster.Cluster) error {
	errs := []error{unplug(c.WANVeth()), Delete(c.IsolatedNetns())}
	bridge, err := netlink.LinkByName(cluster.WANBridge)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		errs = append(errs, removeTable(cluster.WANBridge))
	case err != nil:
		errs = append(errs, fmt.Errorf("find bridge %s: %w", cluster.WANBridge, err))
	case bridge.Type() != "bridge":
		// Somebody else's, which is why there never was one of ours.
		errs = append(errs, removeTable(cluster.WANBridge))
	default:
		others, err := ports(bridge, "")
		if err == nil && len(others) == 0 {
			err = errors.Join(removeBridge(cluster.WANBridge, "hw"), removeTable(cluster.WANBridge))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// HasWAN says whether the cluster still has a veth pair to the bridge of isolated clusters.
func HasWAN(c cluster.Cluster) bool {
	_, err := netlink.LinkByName(c.WANVeth())
	return err == nil
}
