package cluster

import (
	"fmt"
	"net/netip"
)

// Family is the IP version that a cluster's workloads, gateways and links use.
type Family string

// Families of `heddle up --ip-family`.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

// ParseFamily reads a family; empty means IPv4.
func ParseFamily(text string) (Family, error) {
	switch f := Family(text); f {
	case "":
		return IPv4, nil
	case IPv4, IPv6:
		return f, nil
	}
	return "", fmt.Errorf("IP family %q: use %s or %s", text, IPv4, IPv6)
}

// FamilyOf an address.
func FamilyOf(address netip.Addr) Family {
	if address.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Ranges are the addresses of a cluster. They are the same in every cluster of a family, on purpose: nothing may rely on
// routes between clusters.
type Ranges struct {
	// Pods is where workloads get their addresses; its first address is the bridge's.
	Pods netip.Prefix
	// Services is where services get their virtual addresses.
	Services netip.Prefix
	// Globals is where imported and external services get theirs.
	Globals netip.Prefix
	// WAN joins the isolated clusters of one machine; its first address is the machine's.
	WAN netip.Prefix
}

// Ranges of the family (the IPv6 ones are unique local, RFC 4193, and for documentation, RFC 3849).
func (f Family) Ranges() Ranges {
	p := netip.MustParsePrefix
	if f == IPv6 {
		return Ranges{Pods: p("fd00:10:244::/64"), Services: p("fd00:10:96::/112"), Globals: p("fd00:240:240::/112"), WAN: p("2001:db8:198:18::/64")}
	}
	return Ranges{Pods: p("10.244.0.0/16"), Services: p("10.96.0.0/16"), Globals: p("240.240.0.0/16"), WAN: p("198.18.0.0/24")}
}

// Gateway is the bridge's own address with the pods' prefix length.
func (r Ranges) Gateway() netip.Prefix { return netip.PrefixFrom(r.Pods.Addr().Next(), r.Pods.Bits()) }

// Host is the machine's own address on the WAN bridge.
func (r Ranges) Host() netip.Prefix { return netip.PrefixFrom(r.WAN.Addr().Next(), r.WAN.Bits()) }
