package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
)

// settleServers says which listeners an older gateway keeps out: one port speaks one protocol, and one certificate is shown
// for a host. Which gateways share proxies is told by their selectors alone.
func (m *Model) settleServers() {
	concerned := map[string]*model.Gateway{}
	for port := range m.reserved {
		maps.Copy(concerned, m.servers[port])
	}
	clear(m.reserved)
	conflicts := map[uint16]map[*model.Server]*Finding{}
	for _, g := range concerned {
		e := m.entries[g.Source.Key]
		if g.Group == "" || e == nil || e.part != any(g) {
			continue
		}
		m.forgetConflicts(g.Source.Key)
		report := recorder{m, saidConflict}
		for i := range g.Servers {
			s := &g.Servers[i]
			if conflicts[s.Port] == nil {
				conflicts[s.Port] = m.serverConflicts(s.Port)
			}
			conflict := conflicts[s.Port][s]
			if conflict == nil {
				continue
			}
			report.missing(g.Source.Key, conflict.Reason, conflict.Path, conflict.Problem, conflict.Remedy)
			if e.sections.conflicts == nil {
				e.sections.conflicts = map[string]Finding{}
			}
			e.sections.conflicts[s.PortName] = *conflict
		}
	}
}

// listener is a server of a port, and its place: gateways by age, and each gateway's servers as they stand in it.
type listener struct {
	gateway *model.Gateway
	server  *model.Server
	place   int
}

// listeners are the first servers of a port, of gateways with the same selector: of each protocol, and of each host.
type listeners struct {
	selector   map[string]string
	byProtocol map[model.ServerProtocol]listener
	byHost     map[string]map[model.ServerProtocol]listener
}

// serverConflicts are what keeps servers of a port out: the first server of an older gateway for the same proxies that speaks
// another protocol, or has the same host.
func (m *Model) serverConflicts(port uint16) map[*model.Server]*Finding {
	out := map[*model.Server]*Finding{}
	var groups []*listeners
	bySelector := map[string]*listeners{}
	place := 0
	for _, g := range slices.SortedFunc(maps.Values(m.servers[port]), func(x, y *model.Gateway) int { return m.age(x.Source.Key, y.Source.Key) }) {
		var against []*listeners
		for _, group := range groups {
			if compatible(group.selector, g.Selector) {
				against = append(against, group)
			}
		}
		for i := range g.Servers {
			if s := &g.Servers[i]; s.Port == port && g.Group != "" {
				if first := firstConflict(s, against); first != nil {
					out[s] = conflictWith(s, first)
				}
			}
		}
		id := fmt.Sprint(g.Selector)
		group := bySelector[id]
		if group == nil {
			group = &listeners{selector: g.Selector, byProtocol: map[model.ServerProtocol]listener{}, byHost: map[string]map[model.ServerProtocol]listener{}}
			groups, bySelector[id] = append(groups, group), group
		}
		for i := range g.Servers {
			if s := &g.Servers[i]; s.Port == port {
				group.add(listener{g, s, place})
				place++
			}
		}
	}
	return out
}

func (x *listeners) add(l listener) {
	if _, known := x.byProtocol[l.server.Protocol]; !known {
		x.byProtocol[l.server.Protocol] = l
	}
	for _, h := range l.server.Hosts {
		of := x.byHost[h.Host]
		if of == nil {
			of = map[model.ServerProtocol]listener{}
			x.byHost[h.Host] = of
		}
		if _, known := of[l.server.Protocol]; !known {
			of[l.server.Protocol] = l
		}
	}
}

// firstConflict is the first of older servers that keeps one out, nil for none.
func firstConflict(s *model.Server, against []*listeners) *listener {
	var first *listener
	consider := func(of map[model.ServerProtocol]listener, conflicts func(model.ServerProtocol) bool) {
		for protocol, l := range of {
			if conflicts(protocol) && (first == nil || l.place < first.place) {
				first = &l
			}
		}
	}
	for _, group := range against {
		// A server that is told apart by nothing has the port for itself.
		consider(group.byProtocol, func(p model.ServerProtocol) bool { return s.Protocol == model.ServerTCP || !p.SharesPort(s.Protocol) })
		if s.Protocol != model.ServerHTTP {
			for _, h := range s.Hosts {
				consider(group.byHost[h.Host], func(model.ServerProtocol) bool { return true })
			}
		}
	}
	return first
}

func conflictWith(s *model.Server, o *listener) *Finding {
	if !o.server.Protocol.SharesPort(s.Protocol) {
		return &Finding{
			Reason: string(gatewayv1.ListenerReasonProtocolConflict), Path: s.Source.Path + ".protocol",
			Problem: "the port is " + string(o.server.Protocol) + " in the older " + named(o.gateway), Remedy: "use another port",
		}
	}
	return &Finding{
		Reason: string(gatewayv1.ListenerReasonHostnameConflict), Path: s.Source.Path + ".hostname",
		Problem: "the older " + named(o.gateway) + " has the same port and host", Remedy: "use another hostname or port",
	}
}

func named(g *model.Gateway) string {
	return strings.TrimSuffix("Gateway "+g.Namespace+"/"+g.Name+" of "+g.Source.Key.Group, " of ")
}

// compatible says whether something can have the labels of both selectors.
func compatible(a, b map[string]string) bool {
	for k, v := range a {
		if other, ok := b[k]; ok && other != v {
			return false
		}
	}
	return true
}
