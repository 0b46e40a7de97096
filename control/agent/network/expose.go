package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"heddle.io/heddle/control/cluster"
)

// Exposure offers ports of gateways on an address of this machine.
type Exposure struct {
	// Ports that are offered, the same on both sides.
	Ports []uint16
	// Gateways are the addresses of the pods that take connections, in turn. Without any, nobody answers on the ports.
	Gateways []netip.Addr
}

// gatewaysTable is a table of its own: it stays while the agent is away, and changes on its own. No cluster's name has a
// dot, so that it is no other cluster's.
func gatewaysTable(c cluster.Cluster) string { return c.Table() + ".gateways" }

// Expose brings connections to an address of this machine to gateways, from outside and from the machine itself, and
// leaves their source as it is. It replaces what was exposed before in one step; connections that are under way go on.
// Exposures must not share ports.
func Expose(c cluster.Cluster, address netip.Addr, exposures []Exposure) error {
	r, err := newRules(cluster.FamilyOf(address), gatewaysTable(c), "Heddle cluster "+c.Name+": the way in")
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range exposures {
		if len(e.Ports) > 0 && len(e.Gateways) > 0 {
			lines = append(lines, fmt.Sprintf("%s daddr %s tcp dport %s dnat to %s", r.ip(), address, portSet(e.Ports), inTurn(e.Gateways)))
		}
	}
	r.chain("prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority, lines...)
	r.chain("output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority, lines...)
	return r.run()
}

// Conceal removes what was exposed.
func Conceal(c cluster.Cluster) error { return removeTable(gatewaysTable(c)) }

func portSet(ports []uint16) string {
	sorted := slices.Clone(ports)
	slices.Sort(sorted)
	texts := make([]string, 0, len(sorted))
	for _, p := range slices.Compact(sorted) {
		texts = append(texts, strconv.Itoa(int(p)))
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// inTurn gives each new connection to the next one.
func inTurn(gateways []netip.Addr) string {
	if len(gateways) == 1 {
		return gateways[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "numgen inc mod %d map {", len(gateways))
	for i, g := range gateways {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d : %s", i, g)
	}
	return b.String() + " }"
}
