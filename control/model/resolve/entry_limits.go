package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
)

// What those who write ServiceEntries and WorkloadEntries in their namespace may not take from others: names that stand for
// services of other namespaces, addresses of the mesh's own, and the proxies' administration.

// ownHost says whether a ServiceEntry may name a host, and notes if not. Below the mesh's domain, where also the names lie that
// applications' resolvers try first (the search domains of resolv.conf), each namespace has its own part.
func (b *builder) ownHost(o *objects.Object, at, host string) bool {
	ns, domain := o.GetNamespace(), b.settings.Domain
	for _, services := range []string{".svc." + domain, ".svc"} {
		if strings.HasSuffix(host, "."+ns+services) {
			return true
		}
	}
	bare, pattern := strings.CutPrefix(host, "*")
	switch dotted := "." + strings.TrimPrefix(bare, "."); {
	case strings.HasSuffix(dotted, "."+domain), strings.HasSuffix(dotted, ".svc"):
	case pattern && strings.HasSuffix("."+domain, dotted):
	default:
		return true
	}
	b.report.refuse(o.Key(), "HostOfOthers", at, fmt.Sprintf("%s is among the names of services of other namespaces", host),
		fmt.Sprintf("name a host that ends in .%s.svc.%s, or one outside of %[2]s and svc", ns, domain))
	return false
}

// ownAddress says whether a WorkloadEntry may have an address, and notes if not: every client's proxy would reach itself by it.
func (b *builder) ownAddress(o *objects.Object, at string, a netip.Addr) bool {
	if a = a.Unmap(); !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() {
		return true
	}
	b.report.refuse(o.Key(), "AddressNotOfMachine", at, fmt.Sprintf("%s is every client's own address, or many machines'", a), "give the address by which others reach the machine")
	return false
}

// administers says whether by a ServiceEntry clients could reach their proxies' administration, and notes where. Names resolve
// to whatever their owner likes, so that only the port counts.
func (b *builder) administers(o *objects.Object, e *networking.ServiceEntry) (found bool) {
	if e.Resolution == networking.ServiceEntry_NONE {
		return false // Connections go where they were going.
	}
	refuse := func(at string) {
		found = true
		b.report.refuse(o.Key(), "ProxyAdministration", at, fmt.Sprintf("%d is where proxies are administered", cluster.PortAdmin), "have the server listen on another port")
	}
	for i, p := range e.Ports {
		switch {
		case p.TargetPort == cluster.PortAdmin:
			refuse(fmt.Sprintf("spec.ports[%d].targetPort", i))
		case p.TargetPort == 0 && p.Number == cluster.PortAdmin:
			refuse(fmt.Sprintf("spec.ports[%d].number", i))
		}
	}
	for i, w := range e.Endpoints {
		for _, name := range slices.Sorted(maps.Keys(w.Ports)) {
			if w.Ports[name] == cluster.PortAdmin {
				refuse(fmt.Sprintf("spec.endpoints[%d].ports[%s]", i, name))
			}
		}
	}
	return found
}
