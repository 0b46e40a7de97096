package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"heddle.io/heddle/control/agent/pinned"
	"heddle.io/heddle/control/interception"
)

// The rules of a workload, as in bpf/interception.h.
type (
	portList struct {
		Count uint32
		Port  [interception.Most]uint16
	}
	groupList struct {
		Count uint32
		ID    [interception.Most]uint32
	}
	addressRange struct{ Address, Mask [2]uint64 }
	rangeList    struct {
		Count, Unused uint32
		Range         [interception.Most]addressRange
	}
	rules struct {
		Only, Unused                               uint32
		ExcludedPorts, IncludedPorts, InboundPorts portList
		Groups                                     groupList
		ExcludedRanges, IncludedRanges             rangeList
	}
)

const (
	onlyRanges = 1 << iota
	onlyInboundPorts
	onlyGroups
)

// rulesOf has rules in the programs' form, for a workload of a family.
func rulesOf(r interception.Rules, ipv6 bool) (rules, error) {
	groups, err := r.GroupIDs()
	if err != nil {
		return rules{}, err
	}
	excluded, included := interception.OfFamily(r.ExcludedRanges, ipv6), interception.OfFamily(r.IncludedRanges, ipv6)
	var out rules
	inbound := r.ExcludedInboundPorts
	if r.OnlyInboundPorts {
		out.Only |= onlyInboundPorts
		inbound = r.IncludedInboundPorts
	}
	if r.OnlyRanges {
		out.Only |= onlyRanges
	}
	if r.OnlyGroups {
		out.Only |= onlyGroups
	}
	for _, n := range []int{len(r.ExcludedOutboundPorts), len(r.IncludedOutboundPorts), len(inbound), len(groups), len(excluded), len(included)} {
		if n > interception.Most {
			return rules{}, fmt.Errorf("%d ports, ranges or groups, of which the programs have room for %d", n, interception.Most)
		}
	}
	out.ExcludedPorts, out.IncludedPorts, out.InboundPorts = portsOf(r.ExcludedOutboundPorts), portsOf(r.IncludedOutboundPorts), portsOf(inbound)
	out.Groups.Count = uint32(copy(out.Groups.ID[:], groups))
	out.ExcludedRanges, out.IncludedRanges = rangesOf(excluded), rangesOf(included)
	return out, nil
}

func portsOf(ports []uint16) portList {
	var l portList
	l.Count = uint32(copy(l.Port[:], ports))
	return l
}

func rangesOf(prefixes []netip.Prefix) rangeList {
	var l rangeList
	for i, p := range prefixes {
		// Addresses of IPv4 are mapped into IPv6 (RFC 4291, section 2.5.5.2).
		bits := p.Bits() + 128 - p.Addr().BitLen()
		var mask [16]byte
		for b := range bits {
			mask[b/8] |= 0x80 >> (b % 8)
		}
		l.Range[i] = addressRange{Address: halves(p.Masked().Addr().As16()), Mask: halves(mask)}
	}
	l.Count = uint32(len(prefixes))
	return l
}

// halves of an address, as the programs read it.
func halves(a [16]byte) [2]uint64 {
	return [2]uint64{binary.NativeEndian.Uint64(a[:8]), binary.NativeEndian.Uint64(a[8:])}
}

// leave has the programs follow a workload's rules, all at once, or none where everything is captured.
func (c *Capture) leave(cookie uint64, w Workload) error {
	if w.Rules.CaptureAll() {
		if err := c.objects.Maps["rules"].Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("capture all of %s: %w", w.Netns, err)
		}
		return nil
	}
	value, err := rulesOf(w.Rules, w.Address.Is6())
	if err != nil {
		return fmt.Errorf("capture %s: %w", w.Netns, err)
	}
	if err := pinned.Put(c.objects.Maps, "rules", cookie, &value, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("leave out of the capture of %s what its annotations say: %w", w.Netns, err)
	}
	return nil
}
