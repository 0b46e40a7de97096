// Package interceptiontest has the cases that both ways of capture are held against (control/agent/network, control/agent/capture).
package interceptiontest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"heddle.io/heddle/control/interception"
)

// Connection of a workload, or with it.
type Connection struct {
	Port uint16
	// Group is that of the program that dials; zero stands for [OtherGroup].
	Group int
	// Captured says whether it comes to the workload's proxy.
	Captured bool
}

// OtherGroup is one that no case names.
const OtherGroup = 4000

// Case is what a workload says, and what must become of its connections.
type Case struct {
	Name string
	// Annotations and Variables are as in [interception.Parse]. $peer stands for the peer as a range of one address, $net for a range in which the
	// peer is, $others for all addresses of the other family.
	Annotations, Variables map[string]string
	// Outbound are dialled by the application, at a peer; Own by its proxy, at the workload's own address, where being captured is to come in by
	// the inbound port. Inbound are dialled by the peer.
	Outbound, Own, Inbound []Connection
}

// Ports that the cases dial.
var Ports = []uint16{80, 81, 82}

// Rules are those of a case where the peer has an address.
func (c Case) Rules(t *testing.T, peer netip.Addr) interception.Rules {
	t.Helper()
	bits, others := 24, "::/0"
	if peer.Is6() {
		bits, others = 64, "0.0.0.0/0"
	}
	in := strings.NewReplacer("$peer", netip.PrefixFrom(peer, peer.BitLen()).String(), "$net", netip.PrefixFrom(peer, bits).String(), "$others", others)
	annotations := map[string]string{}
	for name, text := range c.Annotations {
		annotations[name] = in.Replace(text)
	}
	rules, problems := interception.Parse(annotations, c.Variables)
	for _, p := range problems {
		t.Error(p)
	}
	return rules
}

type texts = map[string]string

// captured and left are connections to ports of which that becomes.
func captured(ports ...uint16) []Connection { return all(true, 0, ports...) }
func left(ports ...uint16) []Connection     { return all(false, 0, ports...) }

func all(captured bool, group int, ports ...uint16) []Connection {
	var out []Connection
	for _, p := range ports {
		out = append(out, Connection{Port: p, Group: group, Captured: captured})
	}
	return out
}

func both(a, b []Connection) []Connection { return append(a, b...) }

// many are ports, as many as there is room for but one.
func many() string {
	var b strings.Builder
	for i := range interception.Most - 1 {
		fmt.Fprintf(&b, "%d,", 1000+i)
	}
	return b.String()
}

// Cases are the table.
var Cases = []Case{
	{Name: "nothing", Outbound: captured(80, 81), Own: captured(80), Inbound: captured(80, 81)},
	{Name: "everything by words", Annotations: texts{interception.IncludeOutboundIPRanges: "*", interception.IncludeInboundPorts: "*", interception.ExcludeOutboundPorts: ""},
		Outbound: captured(80), Own: captured(80), Inbound: captured(80)},
	{Name: "excluded outbound port", Annotations: texts{interception.ExcludeOutboundPorts: "80,443"},
		Outbound: both(left(80), captured(81)), Own: both(left(80), captured(81)), Inbound: captured(80)},
	{Name: "many excluded outbound ports", Annotations: texts{interception.ExcludeOutboundPorts: many() + "81"},
		Outbound: both(captured(80), left(81))},
	{Name: "excluded range", Annotations: texts{interception.ExcludeOutboundIPRanges: "192.0.2.0/24,2001:db8:1::/48,$peer"},
		Outbound: left(80, 81), Own: captured(80), Inbound: captured(80)},
	{Name: "excluded range around it", Annotations: texts{interception.ExcludeOutboundIPRanges: "$net,$peer"}, Outbound: left(80)},
	{Name: "all excluded", Annotations: texts{interception.ExcludeOutboundIPRanges: "0.0.0.0/0,::/0"}, Outbound: left(80), Own: captured(80), Inbound: captured(80)},
	{Name: "another range excluded", Annotations: texts{interception.ExcludeOutboundIPRanges: "192.0.2.0/24,2001:db8:1::/48,$others"}, Outbound: captured(80)},
	{Name: "included range", Annotations: texts{interception.IncludeOutboundIPRanges: "192.0.2.0/24,2001:db8:1::/48,$net"}, Outbound: captured(80), Own: captured(80), Inbound: captured(80)},
	{Name: "another range included", Annotations: texts{interception.IncludeOutboundIPRanges: "192.0.2.0/24,2001:db8:1::/48,$others"},
		Outbound: left(80), Own: captured(80), Inbound: captured(80)},
	{Name: "no range included", Annotations: texts{interception.IncludeOutboundIPRanges: ""}, Outbound: left(80), Own: captured(80), Inbound: captured(80)},
	{Name: "included port besides no range", Annotations: texts{interception.IncludeOutboundIPRanges: "", interception.IncludeOutboundPorts: "81"},
		Outbound: both(left(80), captured(81))},
	{Name: "what is excluded precedes what is included", Annotations: texts{interception.IncludeOutboundIPRanges: "$net", interception.IncludeOutboundPorts: "81",
		interception.ExcludeOutboundIPRanges: "$peer"}, Outbound: left(80, 81)},
	{Name: "an excluded port precedes an included one", Annotations: texts{interception.IncludeOutboundIPRanges: "", interception.IncludeOutboundPorts: "80,81",
		interception.ExcludeOutboundPorts: "81"}, Outbound: both(captured(80), left(81))},
	{Name: "excluded inbound port", Annotations: texts{interception.ExcludeInboundPorts: "80,15020"},
		Outbound: captured(80), Own: captured(80), Inbound: both(left(80), captured(81))},
	{Name: "included inbound port", Annotations: texts{interception.IncludeInboundPorts: "80"}, Outbound: captured(81), Own: captured(81), Inbound: both(captured(80), left(81))},
	{Name: "no inbound port", Annotations: texts{interception.IncludeInboundPorts: ""}, Outbound: captured(80), Own: captured(80), Inbound: left(80, 81)},
	{Name: "both ways", Annotations: texts{interception.ExcludeInboundPorts: "80", interception.ExcludeOutboundPorts: "81"},
		Outbound: both(captured(80), left(81)), Inbound: both(left(80), captured(81))},
	{Name: "excluded groups", Variables: texts{interception.ExcludeGroups: "4711,4712"},
		Outbound: both(captured(80), both(all(false, 4711, 80), all(false, 4712, 80))), Own: captured(80), Inbound: captured(80)},
	{Name: "included groups", Variables: texts{interception.IncludeGroups: "4711,4712"},
		Outbound: both(left(80), both(all(true, 4711, 80), all(true, 4712, 80))), Own: captured(80), Inbound: captured(80)},
	{Name: "no groups", Variables: texts{interception.IncludeGroups: ""}, Outbound: both(left(80), all(false, 4711, 80)), Own: captured(80)},
	{Name: "a group, and a range", Annotations: texts{interception.ExcludeOutboundPorts: "80"}, Variables: texts{interception.ExcludeGroups: "4711"},
		Outbound: both(both(left(80), captured(81)), all(false, 4711, 81))},
}
