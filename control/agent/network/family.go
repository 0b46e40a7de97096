package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"

	"heddle.io/heddle/control/cluster"
)

// netlinkFamily is the family in netlink's words.
func netlinkFamily(f cluster.Family) int {
	if f == cluster.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// rules is one nftables transaction on a table of one family. Rules are written with the words of IPv4; those that name
// addresses are put into the family's.
type rules struct {
	family cluster.Family
	table  string
	nft    knftables.Interface
	tx     *knftables.Transaction
}

// newRules begins a transaction that replaces the whole table, so that traffic never meets half of it.
func newRules(f cluster.Family, table, comment string) (*rules, error) {
	r, err := openTable(f, table)
	if err != nil {
		return nil, err
	}
	r.tx = r.nft.NewTransaction()
	r.tx.Add(&knftables.Table{})
	r.tx.Delete(&knftables.Table{})
	r.tx.Add(&knftables.Table{Comment: knftables.PtrTo(comment)})
	return r, nil
}

// opened are the machine's tables: looking at the nft program each time would make a change of gateways several times as
// slow. Those of workloads have one name, and would wait for each other.
var opened sync.Map

func openTable(f cluster.Family, table string) (*rules, error) {
	family := knftables.IPv4Family
	if f == cluster.IPv6 {
		family = knftables.IPv6Family
	}
	if nft, ok := opened.Load(string(family) + "/" + table); ok && table != captureTable {
		if nft, ok := nft.(knftables.Interface); ok {
			return &rules{family: f, table: table, nft: nft}, nil
		}
	}
	nft, err := knftables.New(family, table)
	if err != nil {
		return nil, fmt.Errorf("use nftables: %w", err)
	}
	opened.Store(string(family)+"/"+table, nft)
	return &rules{family: f, table: table, nft: nft}, nil
}

// ip is the word before daddr and saddr.
func (r *rules) ip() string {
	if r.family == cluster.IPv6 {
		return "ip6"
	}
	return "ip"
}

// chain adds a base chain with its rules.
func (r *rules) chain(name string, kind knftables.BaseChainType, hook knftables.BaseChainHook, priority knftables.BaseChainPriority, lines ...string) {
	r.tx.Add(&knftables.Chain{Name: name, Type: knftables.PtrTo(kind), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(priority)})
	for _, line := range lines {
		r.tx.Add(&knftables.Rule{Chain: name, Rule: line})
	}
}

func (r *rules) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	if err := r.nft.Run(ctx, r.tx); err != nil {
		return fmt.Errorf("install nftables table %s: %w", r.table, err)
	}
	return nil
}

// removeTable removes a table of both families, where there is one.
func removeTable(table string) error {
	for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		r, err := openTable(f, table)
		if err != nil {
			return err
		}
		r.tx = r.nft.NewTransaction()
		r.tx.Add(&knftables.Table{})
		r.tx.Delete(&knftables.Table{})
		err = r.run()
		// A kernel without the family has no table of it.
		if err == nil || strings.Contains(err.Error(), "No such file") || strings.Contains(err.Error(), "not supported") {
			continue
		}
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// hardwareAddress is locally administered (IEEE 802: second bit of the first octet) and ends in the last four octets of
// the address, which tell the addresses of one network of ours apart.
//
// With it, whoever comes back with an address answers at once, where neighbours would else go on sending to the one
// before it until their cache notices, for seconds.
func hardwareAddress(address netip.Addr) net.HardwareAddr {
	octets := address.AsSlice()
	return append(net.HardwareAddr{0x0a, 0x58}, octets[len(octets)-4:]...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
