package interception

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"heddle.io/heddle/control/cluster"
)

// Prefix starts the names of Istio's annotations for what is captured.
const Prefix = "traffic.sidecar.istio.io/"

// Istio's annotations, with what they mean when they are not there. Ports are lists of numbers, ranges of CIDR blocks of either family,
// separated by commas; "*" stands for all, the empty text for none.
const (
	IncludeOutboundIPRanges = Prefix + "includeOutboundIPRanges" // "*"
	ExcludeOutboundIPRanges = Prefix + "excludeOutboundIPRanges" // none; precedes what includes
	IncludeOutboundPorts    = Prefix + "includeOutboundPorts"    // none besides the ranges; whatever the address
	ExcludeOutboundPorts    = Prefix + "excludeOutboundPorts"    // none; precedes everything else
	IncludeInboundPorts     = Prefix + "includeInboundPorts"     // "*"
	ExcludeInboundPorts     = Prefix + "excludeInboundPorts"     // none; for when all are included
	ExcludeInterfaces       = Prefix + "excludeInterfaces"       // none, which is all that a workload here can say
)

// Variables of Istio's istio-iptables, which a workload sets by proxyMetadata in its annotation proxy.istio.io/config: lists of the
// names or numbers of groups, of which one may be set.
const (
	IncludeGroups = "ISTIO_OUTBOUND_OWNER_GROUPS"         // "*"
	ExcludeGroups = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE" // none
)

// Problem is what is wrong with an annotation or variable.
type Problem struct {
	// Name is that of the annotation or variable.
	Name         string
	What, Remedy string
}

func (p Problem) Error() string { return fmt.Sprintf("%s: %s; %s", p.Name, p.What, p.Remedy) }

// Parse reads a workload's annotations, and the variables of its proxyMetadata; others are not looked at. With problems, the rules capture everything: nothing is
// half heeded.
func Parse(annotations, variables map[string]string) (Rules, []Problem) {
	p := &parser{}
	for _, name := range []string{IncludeOutboundIPRanges, ExcludeOutboundIPRanges, IncludeOutboundPorts, ExcludeOutboundPorts, IncludeInboundPorts, ExcludeInboundPorts, ExcludeInterfaces} {
		if text, ok := annotations[name]; ok {
			p.read(name, strings.TrimSpace(text))
		}
	}
	for name := range annotations {
		if strings.HasPrefix(name, Prefix) && !slices.Contains(p.known, name) {
			p.fail(name, "is not supported", "leave it out; read are include and exclude of OutboundIPRanges, OutboundPorts and InboundPorts")
		}
	}
	for _, name := range []string{IncludeGroups, ExcludeGroups} {
		if text, ok := variables[name]; ok {
			p.read(name, strings.TrimSpace(text))
		}
	}
	p.contradictions(variables)
	if len(p.problems) > 0 {
		slices.SortFunc(p.problems, func(a, b Problem) int { return strings.Compare(a.Name+a.What, b.Name+b.What) })
		return Rules{}, p.problems
	}
	if !p.rules.OnlyRanges {
		p.rules.IncludedOutboundPorts = nil // They are captured anyway.
	}
	return p.rules, nil
}

type parser struct {
	rules    Rules
	known    []string
	problems []Problem
}

func (p *parser) fail(name, what, remedy string) {
	p.problems = append(p.problems, Problem{Name: name, What: what, Remedy: remedy})
}

func (p *parser) read(name, text string) {
	p.known = append(p.known, name)
	r := &p.rules
	switch name {
	case IncludeOutboundIPRanges:
		if text != "*" {
			r.OnlyRanges, r.IncludedRanges = true, p.ranges(name, text)
		}
	case ExcludeOutboundIPRanges:
		r.ExcludedRanges = p.ranges(name, text)
	case IncludeOutboundPorts:
		r.IncludedOutboundPorts = p.ports(name, text)
	case ExcludeOutboundPorts:
		r.ExcludedOutboundPorts = p.ports(name, text)
	case IncludeInboundPorts:
		if text != "*" {
			r.OnlyInboundPorts, r.IncludedInboundPorts = true, p.ports(name, text)
		}
	case ExcludeInboundPorts:
		r.ExcludedInboundPorts = p.ports(name, text)
	case ExcludeInterfaces:
		if text != "" {
			p.fail(name, fmt.Sprintf("%q cannot be left out: a workload has one interface, and loopback, which is never captured", text),
				"leave it out; the annotations of ports and ranges say what is not captured")
		}
	case IncludeGroups:
		if text != "*" {
			r.OnlyGroups, r.Groups = true, p.groups(name, text)
		}
	case ExcludeGroups:
		// The other one has been read, and was not there or left all.
		if groups := p.groups(name, text); !r.OnlyGroups {
			r.Groups = groups
		}
	}
}

// contradictions are what Istio takes in silence, with one of the two ignored.
func (p *parser) contradictions(variables map[string]string) {
	r := &p.rules
	for _, port := range r.ExcludedInboundPorts {
		if slices.Contains(r.IncludedInboundPorts, port) {
			p.fail(ExcludeInboundPorts, fmt.Sprintf("port %d is in %s too", port, IncludeInboundPorts), "remove it from one of them")
		}
	}
	if r.OnlyInboundPorts {
		r.ExcludedInboundPorts = nil // They are not among those that are included.
	}
	if r.OnlyGroups && strings.TrimSpace(variables[ExcludeGroups]) != "" {
		p.fail(ExcludeGroups, "has no meaning where "+IncludeGroups+" names those that are captured", "set one of the two")
	}
}

// list takes a list apart; no list is longer than [Most].
func (p *parser) list(name, text, example string) []string {
	if text == "" {
		return nil
	}
	items := strings.Split(text, ",")
	if len(items) > Most {
		p.fail(name, fmt.Sprintf("has %d entries, of which %d at most can be kept", len(items), Most), "name fewer, larger ranges, or say what is included instead of what is excluded")
		return nil
	}
	for i, item := range items {
		items[i] = strings.TrimSpace(item)
		switch items[i] {
		case "":
			p.fail(name, fmt.Sprintf("entry %d of %q is empty", i+1, text), "write a list like "+example)
			return nil
		case "*":
			p.fail(name, `"*" cannot stand here`, wildcardRemedies[name])
			return nil
		}
	}
	return items
}

// wildcardRemedies say what to write instead of "*" where it means nothing, and in lists.
var wildcardRemedies = map[string]string{
	IncludeOutboundIPRanges: `write "*" alone, or a list of ranges`,
	ExcludeOutboundIPRanges: IncludeOutboundIPRanges + `: "" leaves out all`,
	IncludeOutboundPorts:    IncludeOutboundIPRanges + `: "*" includes all`,
	ExcludeOutboundPorts:    IncludeOutboundIPRanges + `: "" leaves out all`,
	IncludeInboundPorts:     `write "*" alone, or a list of ports`,
	ExcludeInboundPorts:     IncludeInboundPorts + `: "" leaves out all`,
	IncludeGroups:           `write "*" alone, or a list of groups`,
	ExcludeGroups:           IncludeGroups + `: "" leaves out all`,
}

func (p *parser) ports(name, text string) []uint16 {
	var out []uint16
	for _, item := range p.list(name, text, "3306,5432") {
		number, err := strconv.ParseUint(item, 10, 16)
		switch {
		case err != nil || number == 0:
			p.fail(name, fmt.Sprintf("%q is no port", item), "write numbers from 1 to 65535, separated by commas")
		case number == cluster.PortOutbound || number == cluster.PortInbound:
			p.fail(name, fmt.Sprintf("port %d is the proxy's, which only captured connections may use", number), "remove it")
		case name == IncludeInboundPorts && (number == cluster.PortHealth || number == cluster.PortMetrics):
			p.fail(name, fmt.Sprintf("port %d is the proxy's, which is always left alone", number), "remove it")
		default:
			out = append(out, uint16(number))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (p *parser) ranges(name, text string) []netip.Prefix {
	var out []netip.Prefix
	for _, item := range p.list(name, text, "10.0.0.0/8,2001:db8::/32") {
		prefix, err := netip.ParsePrefix(item)
		switch {
		case err != nil || prefix.Addr().Is4In6():
			p.fail(name, fmt.Sprintf("%q is no range of addresses", item), "write CIDR blocks separated by commas, a single address as 192.0.2.1/32 or 2001:db8::1/128")
		case name == IncludeOutboundIPRanges && prefix.Addr().IsLoopback():
			p.fail(name, fmt.Sprintf("%s is within the workload, where nothing is captured", item), "remove it")
		default:
			out = append(out, prefix.Masked())
		}
	}
	return outermost(out)
}

// outermost leaves out ranges that lie within others: two ranges have all or nothing of the smaller one in common.
func outermost(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		if a.Bits() != b.Bits() {
			return a.Bits() - b.Bits()
		}
		return a.Addr().Compare(b.Addr())
	})
	var out []netip.Prefix
	for _, p := range ranges {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(p) }) {
			out = append(out, p)
		}
	}
	return out
}

// noGroup stands for none (chown(2)).
const noGroup = 1<<32 - 1

// longestGroup is how long the name of a group may be (shadow's limit).
const longestGroup = 32

func (p *parser) groups(name, text string) []string {
	out := p.list(name, text, "101,java")
	for _, item := range out {
		if _, err := strconv.ParseUint(item, 10, 64); err == nil {
			if id, err := strconv.ParseUint(item, 10, 32); err != nil || id == noGroup {
				p.fail(name, fmt.Sprintf("%s is no group's number", item), "write numbers below 4294967295, or names")
			}
			continue
		}
		if len(item) > longestGroup || strings.ContainsFunc(item, func(c rune) bool { return c <= ' ' || c > '~' || c == ':' || c == '/' }) {
			p.fail(name, fmt.Sprintf("%q is no group", item), "write names or numbers of groups, separated by commas")
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
