package translate

import (
	"cmp"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
)

// Services of ServiceEntries: how they are listened for, and how their hosts are found.

// entryListeners take the connections to a service of a ServiceEntry on a port whose contents are not read: on each of its
// addresses, and, on all addresses, by a range or by the server name.
func (g *generator) entryListeners(s *model.Service, p model.ServicePort, to []model.Destination, routed bool) {
	e, chain := s.External.Entry, func(match *listenerv3.FilterChainMatch) {
		if g.chains == nil {
			g.chains = map[uint16][]*listenerv3.FilterChain{}
		}
		name := outboundCluster(s.Host, p.Number, "")
		g.chains[p.Number] = append(g.chains[p.Number], &listenerv3.FilterChain{Name: name, FilterChainMatch: match, Filters: g.tcpFilters(name, to, "")})
	}
	// Services are the source of what they bring, listeners or none.
	g.from(s.Source)
	for _, l := range e.Listen {
		if l.IsSingleIP() {
			produce := func() *listenerv3.Listener { return g.listenerOn(l.Addr(), s, p, to) }
			if routed {
				g.out.Listeners = append(g.out.Listeners, produce())
			} else {
				g.clientListener(addressName(l.Addr(), p.Number), produce, s.Host, g.portPolicies[outboundCluster(s.Host, p.Number, "")].Pool)
			}
			continue
		}
		chain(&listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{{
			AddressPrefix: l.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(l.Bits())),
		}}})
	}
	if e.ByName && p.Sealed {
		chain(&listenerv3.FilterChainMatch{ServerNames: []string{s.Host}, TransportProtocol: "tls"})
	}
}

// entryCluster reaches the hosts of a service that has no endpoints of the mesh's knowing: where connections were going, or
// what names resolve to.
func (g *generator) entryCluster(c *clusterv3.Cluster, s *model.Service, p model.ServicePort, labels map[string]string, http2 bool, rules model.PortPolicy) {
	e := s.External.Entry
	c.EdsClusterConfig = nil
	if t := rules.TLS; t != nil {
		switch t.Mode {
		case model.TLSSimple, model.TLSMutual:
			c.TransportSocket = g.originatedTLS(entryTLS(s, t), http2)
		case model.TLSMesh:
			if !e.Mesh {
				break // As for endpoints that are known.
			}
			c.TransportSocket = g.outboundTLS(s, serverName(s.Host, p.Number, ""), http2, t)
		}
	}
	if e.Resolution == model.ResolveNone {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		return
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	// Both families are looked up, because a name may have one only; this cluster's own goes first.
	c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
	if g.mesh.Settings.Family == cluster.IPv6 {
		c.DnsLookupFamily = clusterv3.Cluster_AUTO
	}
	if rules.Balance == "" && e.Balance != "" {
		c.LbPolicy = lbPolicy(e.Balance)
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.Name, Endpoints: entryLocalities(e, p, labels)}
}

// entryLocalities are the hosts that a subset's labels select, nil for all, by locality.
func entryLocalities(e *model.Entry, p model.ServicePort, labels map[string]string) []*endpointv3.LocalityLbEndpoints {
	found := map[model.Locality]*endpointv3.LocalityLbEndpoints{}
	var order []model.Locality
	for i := range e.Hosts {
		h := &e.Hosts[i]
		if !model.Selects(labels, h.Labels) {
			continue
		}
		in := found[h.Locality]
		if in == nil {
			in = &endpointv3.LocalityLbEndpoints{Locality: locality(h.Locality), LoadBalancingWeight: count(0)}
			found[h.Locality], order = in, append(order, h.Locality)
		}
		weight := max(h.Weight, 1)
		one := lbEndpoint(socketAddress(h.Host, h.PortOf(p)), weight, nil)
		one.Metadata = nil
		in.LbEndpoints = append(in.LbEndpoints, one)
		in.LoadBalancingWeight.Value += weight
	}
	slices.SortFunc(order, func(a, b model.Locality) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.SubZone, b.SubZone))
	})
	out := make([]*endpointv3.LocalityLbEndpoints, 0, len(order))
	for _, l := range order {
		out = append(out, found[l])
	}
	return out
}

// entryTLS is how clients speak TLS with a service of a ServiceEntry: where the policy leaves names out, the server is asked for
// by the service's host, and its certificate must have one of the entry's names, else that.
func entryTLS(s *model.Service, t *model.ClientTLS) *model.ClientTLS {
	if s.External == nil || s.External.Entry == nil {
		return t
	}
	out := *t
	if out.ServerName == "" && !s.Pattern() {
		out.ServerName = s.Host
	}
	if len(out.SubjectNames) == 0 {
		out.SubjectNames = s.External.Entry.SubjectNames
	}
	if len(out.SubjectNames) == 0 && out.ServerName != "" && !strings.HasPrefix(out.ServerName, "*") {
		out.SubjectNames = []string{out.ServerName}
	}
	return &out
}
