// Package interception says what of a workload's TCP traffic is brought to its proxy, in the words of Istio's annotations. Both ways of capture
// follow it (control/agent/network, control/agent/capture); docs/design/0035 says what it costs in safety.
package interception

import (
	"fmt"
	"net/netip"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// Most is how many ports, ranges or groups one annotation may name: what the programs of capture have room for (bpf/interception.h).
const Most = 64

// Rules of a workload. The zero value captures everything. Lists are sorted and say nothing twice, so that equal rules are
// equal in their encoding.
//
// Whatever they say, traffic within the workload, names asked of the cluster's server, and the sidecar's health and metrics ports are left alone.
type Rules struct {
	// ExcludedOutboundPorts are left alone wherever they are dialled, by the proxy too: it reaches its own workload there directly.
	ExcludedOutboundPorts []uint16 `json:",omitempty"`
	// ExcludedRanges are left alone, whichever port is dialled.
	ExcludedRanges []netip.Prefix `json:",omitempty"`
	// OnlyRanges has only what is dialled in IncludedRanges or on IncludedOutboundPorts captured, of what is not excluded.
	OnlyRanges            bool           `json:",omitempty"`
	IncludedRanges        []netip.Prefix `json:",omitempty"`
	IncludedOutboundPorts []uint16       `json:",omitempty"`
	// OnlyGroups has only sockets that were made by a process of one of Groups captured; without it those sockets are left alone. Names
	// are of the machine's groups.
	OnlyGroups bool     `json:",omitempty"`
	Groups     []string `json:",omitempty"`
	// OnlyInboundPorts has only connections to IncludedInboundPorts captured; without it ExcludedInboundPorts are left alone.
	OnlyInboundPorts     bool     `json:",omitempty"`
	IncludedInboundPorts []uint16 `json:",omitempty"`
	ExcludedInboundPorts []uint16 `json:",omitempty"`
}

// LeavesOutbound says whether something that the workload dials is not captured.
func (r Rules) LeavesOutbound() bool {
	return len(r.ExcludedOutboundPorts)+len(r.ExcludedRanges)+len(r.Groups) > 0 || r.OnlyRanges || r.OnlyGroups
}

// LeavesInbound says whether something that dials the workload is not captured.
func (r Rules) LeavesInbound() bool { return len(r.ExcludedInboundPorts) > 0 || r.OnlyInboundPorts }

// CaptureAll says whether everything is captured.
func (r Rules) CaptureAll() bool { return !r.LeavesOutbound() && !r.LeavesInbound() }

// CaptureInbound says whether connections from outside to a port are captured.
func (r Rules) CaptureInbound(port uint16) bool {
	if r.OnlyInboundPorts {
		return slices.Contains(r.IncludedInboundPorts, port)
	}
	return !slices.Contains(r.ExcludedInboundPorts, port)
}

// CaptureOutbound says whether a connection to elsewhere, made by a process of a group, is captured.
func (r Rules) CaptureOutbound(to netip.AddrPort, group uint32) (bool, error) {
	groups, err := r.GroupIDs()
	if err != nil {
		return false, err
	}
	in := func(prefixes []netip.Prefix) bool {
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(to.Addr().Unmap()) })
	}
	switch {
	case slices.Contains(r.ExcludedOutboundPorts, to.Port()), slices.Contains(groups, group) != r.OnlyGroups, in(r.ExcludedRanges):
		return false, nil
	case !r.OnlyRanges, slices.Contains(r.IncludedOutboundPorts, to.Port()), in(r.IncludedRanges):
		return true, nil
	}
	return false, nil
}

// GroupIDs are the numbers of the groups. The error names one that this machine does not have.
func (r Rules) GroupIDs() ([]uint32, error) {
	ids := make([]uint32, 0, len(r.Groups))
	for _, name := range r.Groups {
		text := name
		if _, err := strconv.ParseUint(name, 10, 32); err != nil {
			g, err := user.LookupGroup(name)
			if err != nil {
				return nil, fmt.Errorf("group %q of %s or %s does not exist on this machine; create it or change the annotation", name, IncludeGroups, ExcludeGroups)
			}
			text = g.Gid
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("group %q: %w", name, err)
		}
		ids = append(ids, uint32(id))
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// OfFamily are those of some ranges that are of IPv6, or of IPv4. A workload has addresses of one family, and reaches no other.
func OfFamily(ranges []netip.Prefix, ipv6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ranges {
		if p.Addr().Is6() == ipv6 {
			out = append(out, p)
		}
	}
	return out
}

// String says what is not captured; it is empty where everything is.
func (r Rules) String() string {
	var parts []string
	add := func(what string, values ...string) { parts = append(parts, what+" "+strings.Join(values, ", ")) }
	if len(r.ExcludedOutboundPorts) > 0 {
		add("outbound to ports", words(r.ExcludedOutboundPorts)...)
	}
	if len(r.ExcludedRanges) > 0 {
		add("outbound to", words(r.ExcludedRanges)...)
	}
	switch included := append(words(r.IncludedRanges), prefixed("port ", words(r.IncludedOutboundPorts))...); {
	case !r.OnlyRanges:
	case len(included) == 0:
		parts = append(parts, "all outbound")
	default:
		add("outbound to others than", included...)
	}
	switch {
	case r.OnlyGroups && len(r.Groups) == 0:
		parts = append(parts, "outbound of all groups")
	case r.OnlyGroups:
		add("outbound of other groups than", r.Groups...)
	case len(r.Groups) > 0:
		add("outbound of groups", r.Groups...)
	}
	switch {
	case r.OnlyInboundPorts && len(r.IncludedInboundPorts) == 0:
		parts = append(parts, "all inbound")
	case r.OnlyInboundPorts:
		add("inbound to other ports than", words(r.IncludedInboundPorts)...)
	case len(r.ExcludedInboundPorts) > 0:
		add("inbound to ports", words(r.ExcludedInboundPorts)...)
	}
	return strings.Join(parts, "; ")
}

func words[T any](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprint(v)
	}
	return out
}

func prefixed(prefix string, values []string) []string {
	for i := range values {
		values[i] = prefix + values[i]
	}
	return values
}
