package translate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
)

// Role is the part of a proxy's configuration that a [Kind] is about.
type Role string

// Roles. A sidecar has the first two, a gateway has the last.
const (
	// Outbound is what a sidecar needs as a client.
	Outbound Role = "outbound"
	// Inbound is what a sidecar needs as a server.
	Inbound Role = "inbound"
	// Edge is everything of a gateway.
	Edge Role = "gateway"
)

// Kind is all of a proxy, and nothing else of it, that a role's configuration depends on. Proxies of one kind get the
// same resources, which are made once.
type Kind struct {
	Role      Role
	Namespace string
	// Labels of the workload. As a client, only those that a route's source labels or a destination policy's selector in
	// force ask for.
	Labels map[string]string
	// Ports that the workload names, as a server: services' target ports go by them.
	Ports []model.ReplicaPort
	// Scope is the full name of the Sidecar that holds for the workload, empty for none.
	Scope string
	// IPv6 says which family's addresses are listened on.
	IPv6 bool
	// Heddle says that the proxy is heddle-proxy (see [Node]).
	Heddle bool
	// Workload is that of a client whose services are those that it was seen to use; empty for all. Its replicas are of one
	// kind, and what it uses is told when the kind's configuration is made ([Cache.Client]).
	Workload string
	// Filters are the EnvoyFilters that have patches for the role, in order.
	Filters []FilterRef
}

// Plain is what the ID of the kind is without its EnvoyFilters.
func (k Kind) Plain() string {
	k.Filters = nil
	return k.ID()
}

// ID tells kinds apart.
func (k Kind) ID() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", k.Role, k.Namespace)
	for _, key := range slices.Sorted(maps.Keys(k.Labels)) {
		fmt.Fprintf(&b, " %q=%q", key, k.Labels[key])
	}
	for _, p := range k.Ports {
		fmt.Fprintf(&b, " %q:%d", p.Name, p.Number)
	}
	if k.Scope != "" {
		fmt.Fprintf(&b, " scope %s", k.Scope)
	}
	if k.IPv6 {
		b.WriteString(" IPv6")
	}
	if k.Workload != "" {
		fmt.Fprintf(&b, " observed %s", k.Workload)
	}
	if !k.Heddle {
		b.WriteString(" stock")
	}
	for _, f := range k.Filters {
		b.WriteByte(' ')
		b.WriteString(f.String())
	}
	return b.String()
}

// Kinds are the kinds that a proxy is of; what it gets is what they all get, and no two of them have a resource of the same
// type and name.
func Kinds(mesh *model.Mesh, node Node) ([]Kind, error) { return NewCache().Kinds(mesh, node) }

// Kinds is the function of that name, at the cost of what differs in the mesh since the last.
func (c *Cache) Kinds(mesh *model.Mesh, node Node) ([]Kind, error) {
	c.enter(mesh)
	all := Kind{Namespace: node.Namespace, Labels: node.Labels, IPv6: node.Address.Is6(), Heddle: node.Heddle}
	switch node.Type {
	case Sidecar:
		if scope := mesh.SidecarFor(node.Namespace, node.Labels); scope != nil {
			all.Scope = scope.FullName()
		}
		client, server := all, all
		client.Role, client.Labels = Outbound, c.askers.labels(node)
		server.Role = Inbound
		if node.OnDemand && mesh.Observes(node.Namespace) {
			client.Workload = node.Workload
		}
		client.Filters, server.Filters = filtersFor(mesh, node, Outbound), filtersFor(mesh, node, Inbound)
		// One that has not been reported yet names no ports, so that services with named target ports wait.
		if r := mesh.Replica(node.Namespace, node.Name); r != nil {
			server.Ports = slices.Clone(r.Ports)
			slices.SortFunc(server.Ports, func(a, b model.ReplicaPort) int {
				return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Number, b.Number))
			})
		}
		return []Kind{client, server}, nil
	case Router:
		all.Role, all.Filters = Edge, filtersFor(mesh, node, Edge)
		return []Kind{all}, nil
	}
	return nil, fmt.Errorf("node %s: type %q is neither %s nor %s", node.ID(), node.Type, Sidecar, Router)
}

// MayRegroup says whether a change of the model may put any proxy into other kinds: it has a part that [Regroups] looks at, or
// replicas, whose ports are a part of a kind.
func MayRegroup(d *model.Difference) bool {
	return len(d.Replicas)+len(d.Sidecars)+len(d.EnvoyFilters)+len(d.Dependencies)+len(d.Destinations)+len(d.Routes) > 0
}

// Regroups says whether a change of the model may put a proxy into other kinds, beside one of its replica.
func Regroups(d *model.Difference, root string, node Node) bool {
	if node.Type == Sidecar && slices.ContainsFunc(model.Both(d.Sidecars), func(s *model.Sidecar) bool {
		return (s.Namespace == node.Namespace || s.Namespace == root) && model.Selects(s.Selector, node.Labels)
	}) || slices.ContainsFunc(model.Both(d.EnvoyFilters), func(f *model.EnvoyFilter) bool { return f.Selects(root, node.Namespace, node.Labels) }) {
		return true
	}
	if node.Type != Sidecar {
		return false
	}
	if slices.ContainsFunc(model.Both(d.Dependencies), func(n *model.Dependencies) bool { return n.Namespace == node.Namespace }) {
		return true
	}
	asks := func(m model.Scope) bool {
		for key := range m.SourceLabels {
			if _, has := node.Labels[key]; has {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(model.Both(d.Destinations), func(p *model.DestinationPolicy) bool {
		return p.Namespace == node.Namespace && len(p.Clients) > 0
	}) || slices.ContainsFunc(model.Both(d.Routes), func(r *model.Routes) bool {
		return r.ExportTo.In(node.Namespace) && (slices.ContainsFunc(r.HTTP, func(h model.HTTPRoute) bool {
			return slices.ContainsFunc(h.Matches, func(m model.HTTPMatch) bool { return asks(m.Scope) })
		}) || slices.ContainsFunc(r.TCP, func(t model.TCPRoute) bool { return slices.ContainsFunc(t.Matches, asks) }))
	})
}

// node is a proxy of the kind. Nothing but what is set here may make a difference to the role's configuration.
func (k Kind) node() Node {
	n := Node{Type: Sidecar, Namespace: k.Namespace, Labels: k.Labels, Address: netip.IPv4Unspecified(), Heddle: k.Heddle}
	if k.Role == Edge {
		n.Type = Router
	}
	if k.IPv6 {
		n.Address = netip.IPv6Unspecified()
	}
	return n
}
