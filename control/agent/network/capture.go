package network

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/knftables"

	"heddle.io/heddle/control/cluster"
)

// captureTable is the table inside each workload's namespace.
const captureTable = "heddle"

// Capture installs the rules that bring a workload's TCP traffic to its proxy. The whole table is replaced in one
// transaction, so traffic never passes uncaptured in between.
//
//   - what the application sends goes to the proxy's outbound port, loopback and DNS excepted
//   - what the proxy sends is left alone, unless it calls its own workload's address: that comes in again by the
//     inbound port, so that identity is checked there too (the proxy's own last leg comes from 127.0.0.6)
//   - what arrives goes to the inbound port, except to the proxy's own health, metrics and gateway-less ports
//   - the capture ports cannot be dialled directly: the proxy could not tell the original destination, and with port
//     15001 a stranger could use it as an open relay
func Capture(netns string) error {
	return In(netns, func() error {
		nft, err := knftables.New(knftables.IPv4Family, captureTable)
		if err != nil {
			return fmt.Errorf("use nftables in %s: %w", netns, err)
		}
		tx := nft.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		tx.Add(&knftables.Table{Comment: knftables.PtrTo("Heddle: brings traffic to the sidecar")})
		chain := func(name string, kind knftables.BaseChainType, hook knftables.BaseChainHook, priority knftables.BaseChainPriority, rules ...string) {
			tx.Add(&knftables.Chain{Name: name, Type: knftables.PtrTo(kind), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(priority)})
			for _, r := range rules {
				tx.Add(&knftables.Rule{Chain: name, Rule: r})
			}
		}
		dns := cluster.GatewayAddress().Addr()
		chain("output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority,
			"oifname lo ip saddr 127.0.0.6 return",
			"oifname lo ip daddr 127.0.0.0/8 return",
			fmt.Sprintf("oifname lo meta skuid %d meta l4proto tcp redirect to :%d", cluster.ProxyUID, cluster.PortInbound),
			"oifname lo return",
			fmt.Sprintf("meta skuid %d return", cluster.ProxyUID),
			fmt.Sprintf("meta skgid %d return", cluster.ProxyUID),
			fmt.Sprintf("ip daddr %s tcp dport 53 return", dns),
			fmt.Sprintf("meta l4proto tcp redirect to :%d", cluster.PortOutbound),
		)
		chain("prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority,
			fmt.Sprintf("tcp dport { %d, %d, %d, %d } return", cluster.PortOutbound, cluster.PortInbound, cluster.PortHealth, cluster.PortMetrics),
			fmt.Sprintf("meta l4proto tcp redirect to :%d", cluster.PortInbound),
		)
		chain("input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority,
			fmt.Sprintf("tcp dport { %d, %d } ct original proto-dst { %d, %d } counter reject with tcp reset",
				cluster.PortOutbound, cluster.PortInbound, cluster.PortOutbound, cluster.PortInbound),
		)
		ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
		defer cancel()
		if err := nft.Run(ctx, tx); err != nil {
			return fmt.Errorf("capture traffic in %s: %w", netns, err)
		}
		return nil
	})
}

// Captured says whether the capture rules are in place, and what is missing.
func Captured(netns string) error {
	return In(netns, func() error {
		nft, err := knftables.New(knftables.IPv4Family, captureTable)
		if err != nil {
			return fmt.Errorf("use nftables in %s: %w", netns, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
		defer cancel()
		for _, chain := range []string{"output", "prerouting", "input"} {
			rules, err := nft.ListRules(ctx, chain)
			if err != nil || len(rules) == 0 {
				return fmt.Errorf("chain %s of table %s is missing in %s; `heddle restart` the workload to put it back", chain, captureTable, netns)
			}
		}
		return nil
	})
}

// Host installs the cluster's table in the host's namespace: DNS for workloads on port 53 reaches the agent's server,
// traffic that leaves the machine is masqueraded, and virtual addresses, which only proxies resolve, go nowhere.
func Host(c cluster.Cluster) error {
	nft, err := knftables.New(knftables.IPv4Family, c.Table())
	if err != nil {
		return fmt.Errorf("use nftables: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Heddle cluster " + c.Name)})
	chain := func(name string, kind knftables.BaseChainType, hook knftables.BaseChainHook, priority knftables.BaseChainPriority, rules ...string) {
		tx.Add(&knftables.Chain{Name: name, Type: knftables.PtrTo(kind), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(priority)})
		for _, r := range rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: r})
		}
	}
	bridge, gateway := c.Bridge(), cluster.GatewayAddress().Addr()
	chain("prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority,
		fmt.Sprintf("iifname %q ip daddr %s udp dport 53 redirect to :%d", bridge, gateway, cluster.PortDNS),
		fmt.Sprintf("iifname %q ip daddr %s tcp dport 53 redirect to :%d", bridge, gateway, cluster.PortDNS),
	)
	chain("postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority,
		fmt.Sprintf("ip saddr %s ip daddr != %s oifname != %q masquerade", cluster.PodCIDR, cluster.PodCIDR, bridge),
	)
	chain("forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority,
		fmt.Sprintf("iifname %q ip daddr %s counter reject", bridge, cluster.ServiceCIDR),
	)
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("install nftables table %s: %w", c.Table(), err)
	}
	return nil
}

// RemoveHost removes what [Host] installed.
func RemoveHost(c cluster.Cluster) error {
	nft, err := knftables.New(knftables.IPv4Family, c.Table())
	if err != nil {
		return fmt.Errorf("use nftables: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	if err := nft.Run(ctx, tx); err != nil && !strings.Contains(err.Error(), "No such file") {
		return fmt.Errorf("remove nftables table %s: %w", c.Table(), err)
	}
	return nil
}
