package network

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/knftables"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
)

// captureTable is the table inside each workload's namespace.
const captureTable = "heddle"

// Capture installs the rules that bring a workload's TCP traffic to its proxy. The whole table is replaced in one
// transaction, so traffic never passes uncaptured in between.
//
//   - what the application sends goes to the proxy's outbound port, loopback and DNS excepted
//   - what the proxy sends, which is the only one to run as user, is left alone, unless it calls its own workload's address: that comes in again by the
//     inbound port, so that identity is checked there too (the proxy's own last leg comes from 127.0.0.6 or ::6)
//   - what arrives goes to the inbound port, except to the proxy's own health, metrics and gateway-less ports
//   - the capture ports cannot be dialled directly: the proxy could not tell the original destination, and with port
//     15001 a stranger could use it as an open relay
//
// The workload's rules leave some of it alone, in the order that Istio's have: excluded ports, which count for the proxy too; the
// proxy's own traffic; groups; excluded ranges; included ports; included ranges.
func Capture(netns string, f cluster.Family, user int, left interception.Rules) error {
	groups, err := left.GroupIDs()
	if err != nil {
		return fmt.Errorf("capture traffic in %s: %w", netns, err)
	}
	return In(netns, func() error {
		r, err := newRules(f, captureTable, "Heddle: brings traffic to the sidecar")
		if err != nil {
			return fmt.Errorf("capture traffic in %s: %w", netns, err)
		}
		ip, dns := r.ip(), f.Ranges().Gateway().Addr()
		passthrough, loopback := netip.MustParsePrefix("127.0.0.6/32"), netip.MustParsePrefix("127.0.0.0/8")
		if f == cluster.IPv6 {
			passthrough, loopback = passthroughIPv6, netip.MustParsePrefix("::1/128")
		}
		output := leave("tcp dport", left.ExcludedOutboundPorts)
		output = append(output,
			fmt.Sprintf("oifname lo %s saddr %s return", ip, passthrough.Addr()),
			fmt.Sprintf("oifname lo %s daddr %s return", ip, loopback),
			fmt.Sprintf("oifname lo meta skuid %d meta l4proto tcp redirect to :%d", user, cluster.PortInbound),
			"oifname lo return",
			fmt.Sprintf("meta skuid %d return", user),
			fmt.Sprintf("%s daddr %s tcp dport 53 return", ip, dns),
		)
		switch {
		case !left.OnlyGroups:
			output = append(output, leave("meta skgid", groups)...)
		case len(groups) == 0:
			output = append(output, "return")
		default:
			output = append(output, leave("meta skgid !=", groups)...)
		}
		output = append(output, leave(ip+" daddr", interception.OfFamily(left.ExcludedRanges, f == cluster.IPv6))...)
		if left.OnlyRanges {
			output = append(output, redirect("tcp dport", left.IncludedOutboundPorts, cluster.PortOutbound)...)
			output = append(output, redirect(ip+" daddr", interception.OfFamily(left.IncludedRanges, f == cluster.IPv6), cluster.PortOutbound)...)
		} else {
			output = append(output, fmt.Sprintf("meta l4proto tcp redirect to :%d", cluster.PortOutbound))
		}
		r.chain("output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority, output...)
		prerouting := []string{fmt.Sprintf("tcp dport { %d, %d, %d, %d } return", cluster.PortOutbound, cluster.PortInbound, cluster.PortHealth, cluster.PortMetrics)}
		if left.OnlyInboundPorts {
			prerouting = append(prerouting, redirect("tcp dport", left.IncludedInboundPorts, cluster.PortInbound)...)
		} else {
			prerouting = append(prerouting, leave("tcp dport", left.ExcludedInboundPorts)...)
			prerouting = append(prerouting, fmt.Sprintf("meta l4proto tcp redirect to :%d", cluster.PortInbound))
		}
		r.chain("prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority, prerouting...)
		r.chain("input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority,
			fmt.Sprintf("tcp dport { %d, %d } ct original proto-dst { %d, %d } counter reject with tcp reset",
				cluster.PortOutbound, cluster.PortInbound, cluster.PortOutbound, cluster.PortInbound),
		)
		if err := r.run(); err != nil {
			return fmt.Errorf("capture traffic in %s: %w", netns, err)
		}
		return nil
	})
}

// leave is the rule, if one is needed, that leaves alone what has one of some values.
func leave[T any](what string, values []T) []string {
	if len(values) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s %s return", what, set(values))}
}

// redirect is the rule, if one is needed, that brings to a port what has one of some values.
func redirect[T any](what string, values []T, port int) []string {
	if len(values) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s %s meta l4proto tcp redirect to :%d", what, set(values), port)}
}

// set is nft's notation for one.
func set[T any](values []T) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprint(v)
	}
	return "{ " + strings.Join(words, ", ") + " }"
}

// Release removes what [Capture] installed; nothing is no error.
func Release(netns string) error {
	return In(netns, func() error { return removeTable(captureTable) })
}

// Captured says whether the capture rules are in place, and what is missing.
func Captured(netns string, f cluster.Family) error {
	return In(netns, func() error {
		r, err := openTable(f, captureTable)
		if err != nil {
			return fmt.Errorf("look at capture in %s: %w", netns, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
		defer cancel()
		for _, chain := range []string{"output", "prerouting", "input"} {
			found, err := r.nft.ListRules(ctx, chain)
			if err != nil || len(found) == 0 {
				return fmt.Errorf("chain %s of table %s is missing in %s; `heddle restart` the workload to put it back", chain, captureTable, netns)
			}
		}
		return nil
	})
}

// Host installs the cluster's table in the host's namespace: DNS for workloads on port 53 reaches the agent's server,
// traffic that leaves the machine is masqueraded, and virtual addresses, which only proxies resolve, go nowhere.
func Host(c cluster.Cluster, f cluster.Family) error {
	r, err := newRules(f, c.Table(), "Heddle cluster "+c.Name)
	if err != nil {
		return err
	}
	ip, bridge, ranges := r.ip(), c.Bridge(), f.Ranges()
	gateway := ranges.Gateway().Addr()
	r.chain("prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority,
		fmt.Sprintf("iifname %q %s daddr %s udp dport 53 redirect to :%d", bridge, ip, gateway, cluster.PortDNS),
		fmt.Sprintf("iifname %q %s daddr %s tcp dport 53 redirect to :%d", bridge, ip, gateway, cluster.PortDNS),
	)
	r.chain("postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority,
		fmt.Sprintf("%s saddr %s %s daddr != %s oifname != %q masquerade", ip, ranges.Pods, ip, ranges.Pods, bridge),
		// A workload that calls this machine's address and comes out at a gateway on the same bridge: the answer must come
		// back this way, or the caller would not know it.
		fmt.Sprintf("%s saddr %s %s daddr %s ct status dnat masquerade", ip, ranges.Pods, ip, ranges.Pods),
	)
	r.chain("forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority,
		fmt.Sprintf("iifname %q %s daddr { %s, %s } counter reject", bridge, ip, ranges.Services, ranges.Globals),
	)
	return r.run()
}

// RemoveHost removes what [Host] and [Expose] installed.
func RemoveHost(c cluster.Cluster) error {
	if err := removeTable(c.Table()); err != nil {
		return err
	}
	return Conceal(c)
}
