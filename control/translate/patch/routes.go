package patch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"heddle.io/heddle/control/model"
)

// parts gives what was made of parts of route tables before, or has it made.
type parts interface {
	// host gives what becomes of a virtual host of a table.
	host(table string, h *routev3.VirtualHost, make func() *Result[*routev3.VirtualHost]) *Result[*routev3.VirtualHost]
	// addition gives the virtual host that a patch adds to a table.
	addition(table string, p *Patch) *routev3.VirtualHost
}

// anew makes all parts, for tables that are a part of something that is kept itself.
type anew struct{}

func (anew) host(_ string, _ *routev3.VirtualHost, make func() *Result[*routev3.VirtualHost]) *Result[*routev3.VirtualHost] {
	return make()
}

func (anew) addition(_ string, p *Patch) *routev3.VirtualHost { return clone[*routev3.VirtualHost](p) }

// table gives what becomes of a route table, of its own or in a listener. Its virtual hosts are changed one by one, so that a
// patch that breaks one is left out of that alone.
func table(patches []*Patch, gateway bool, t *routev3.RouteConfiguration, of parts) *Result[*routev3.RouteConfiguration] {
	name := t.GetName()
	top := run(WithoutHosts(t), (*routev3.RouteConfiguration).GetName, patches, func(a *attempt, original *routev3.RouteConfiguration) (*routev3.RouteConfiguration, bool, error) {
		out := clone[*routev3.RouteConfiguration](&Patch{value: original})
		return out, true, head(a, gateway, out)
	})
	out := &Result[*routev3.RouteConfiguration]{Message: t, Outcome: top.Outcome}
	hosts := make([]*routev3.VirtualHost, 0, len(t.VirtualHosts))
	ofTable := slices.DeleteFunc(slices.Clone(patches), func(p *Patch) bool { return !matchesTable(p, gateway, name) })
	for _, h := range t.VirtualHosts {
		if !mayChange(ofTable, func(p *Patch) bool { return mayChangeHost(p, h) }) {
			hosts = append(hosts, h)
			continue
		}
		one := of.host(name, h, func() *Result[*routev3.VirtualHost] {
			return run(h, func(*routev3.VirtualHost) string { return h.GetName() }, patches, func(a *attempt, original *routev3.VirtualHost) (*routev3.VirtualHost, bool, error) {
				return virtualHost(a, gateway, name, clone[*routev3.VirtualHost](&Patch{value: original}))
			})
		})
		if !one.Removed {
			hosts = append(hosts, one.Message)
		}
		out.add(one.Outcome)
	}
	hosts = append(hosts, top.Message.GetVirtualHosts()...)
	hosts = append(hosts, added(patches, gateway, name, hosts, of, &out.Outcome)...)
	if out.Nothing() {
		return out
	}
	out.Message = WithoutHosts(top.Message)
	out.Message.VirtualHosts = hosts
	return out
}

// head makes the changes of what a table has beside its virtual hosts; a merge may bring further ones.
func head(a *attempt, gateway bool, table *routev3.RouteConfiguration) error {
	name := table.GetName()
	for p := range a.of("ROUTE_CONFIGURATION") {
		if p.merges() && matchesTable(p, gateway, name) {
			a.note(p)
			if err := p.mergeInto(table); err != nil {
				return err
			}
		}
	}
	return nil
}

// added are the virtual hosts that are added to a table, but for those whose names or domains others have: proxies refuse two.
func added(patches []*Patch, gateway bool, table string, hosts []*routev3.VirtualHost, of parts, outcome *Outcome) []*routev3.VirtualHost {
	var out []*routev3.VirtualHost
	var taken map[string]bool
	for _, one := range patches {
		if one.ApplyTo != "VIRTUAL_HOST" || !adds(one) || !matchesTable(one, gateway, table) {
			continue
		}
		if taken == nil {
			taken = map[string]bool{}
			for _, h := range hosts {
				occupy(taken, h)
			}
		}
		h := of.addition(table, one)
		if name := clash(taken, h); name != "" {
			outcome.add(Outcome{Broken: map[*model.Patch]string{one.Patch: fmt.Sprintf("%s: there is a virtual host for %s already", table, name)}})
			continue
		}
		occupy(taken, h)
		out = append(out, h)
		outcome.add(Outcome{Changed: []*model.Patch{one.Patch}})
	}
	return out
}

func occupy(taken map[string]bool, h *routev3.VirtualHost) {
	taken["name "+h.GetName()] = true
	for _, d := range h.GetDomains() {
		taken[strings.ToLower(d)] = true
	}
}

func clash(taken map[string]bool, h *routev3.VirtualHost) string {
	if taken["name "+h.GetName()] {
		return h.GetName()
	}
	for _, d := range h.GetDomains() {
		if taken[strings.ToLower(d)] {
			return d
		}
	}
	return ""
}

// WithoutHosts is a route table with all but its virtual hosts; what is in it is shared.
func WithoutHosts(t *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	hosts := (&routev3.RouteConfiguration{}).ProtoReflect().Descriptor().Fields().ByName("virtual_hosts")
	out := &routev3.RouteConfiguration{}
	t.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Number() != hosts.Number() {
			out.ProtoReflect().Set(f, v)
		}
		return true
	})
	return out
}

// virtualHost makes the changes of a virtual host and its routes, in place where it stays the same one.
func virtualHost(a *attempt, gateway bool, table string, h *routev3.VirtualHost) (out *routev3.VirtualHost, keep bool, err error) {
	for p := range a.of("VIRTUAL_HOST") {
		if !matchesTable(p, gateway, table) || !matchesHost(p, h) {
			continue
		}
		switch {
		case p.Operation == "REMOVE":
			a.note(p)
			return nil, false, nil
		case p.merges():
			a.note(p)
			if err := p.mergeInto(h); err != nil {
				return nil, false, err
			}
		case p.Operation == "REPLACE":
			a.note(p)
			h = clone[*routev3.VirtualHost](p)
		}
	}
	kept := h.Routes[:0]
	for _, r := range h.Routes {
		gone := false
		for p := range a.of("HTTP_ROUTE") {
			if !matchesTable(p, gateway, table) || !matchesHost(p, h) || !matchesRoute(p, r) {
				continue
			}
			if p.Operation == "REMOVE" {
				a.note(p)
				gone = true
				break
			}
			if p.merges() {
				a.note(p)
				if err := p.mergeInto(r); err != nil {
					return nil, false, err
				}
			}
		}
		if !gone {
			kept = append(kept, r)
		}
	}
	h.Routes = kept
	for p := range a.of("HTTP_ROUTE") {
		if p.merges() || p.Operation == "REMOVE" || !matchesTable(p, gateway, table) || !matchesHost(p, h) {
			continue
		}
		named := p.Routes != nil && p.Routes.ByRoute
		if p.Operation == "INSERT_FIRST" && named && !slices.ContainsFunc(h.Routes, func(r *routev3.Route) bool { return matchesRoute(p, r) }) {
			continue
		}
		h.Routes = change(a, h.Routes, p, named, func(r *routev3.Route) bool { return matchesRoute(p, r) })
	}
	return h, true, nil
}

// matchesTable compares the name of a table, and what it is made of: a port; of a gateway http.PORT or
// https.PORT.PORTNAME.GATEWAY.NAMESPACE; of a server inbound|PORT||.
func matchesTable(p *Patch, gateway bool, name string) bool {
	m := p.Routes
	if m == nil {
		return true
	}
	port, portName, of := name, "", ""
	switch parts := strings.Split(name, "."); {
	case strings.HasPrefix(name, "inbound|"):
		port = strings.Split(name, "|")[1]
	case gateway && len(parts) >= 2:
		if port = parts[1]; parts[0] == "https" && len(parts) >= 5 {
			portName, of = parts[2], parts[len(parts)-1]+"/"+strings.Join(parts[3:len(parts)-1], ".")
		}
	}
	return (m.Name == "" || m.Name == name) && (m.Port == 0 || strconv.FormatUint(uint64(m.Port), 10) == port) &&
		(!gateway || (m.PortName == "" || m.PortName == portName) && (m.Gateway == "" || m.Gateway == of))
}

func matchesHost(p *Patch, h *routev3.VirtualHost) bool {
	m := p.Routes
	return m == nil || (m.Host == "" || m.Host == h.GetName()) && (m.Domain == "" || slices.Contains(h.GetDomains(), m.Domain))
}

// mayChangeHost says whether a patch of a table, which may be of anything, may have to do with a virtual host that is there.
func mayChangeHost(p *Patch, h *routev3.VirtualHost) bool {
	return (p.ApplyTo == "VIRTUAL_HOST" && !adds(p) || p.ApplyTo == "HTTP_ROUTE") && matchesHost(p, h)
}

func matchesRoute(p *Patch, r *routev3.Route) bool {
	m := p.Routes
	if m == nil || !m.ByRoute {
		return true
	}
	if m.Route != "" && m.Route != r.GetName() {
		return false
	}
	switch r.GetAction().(type) {
	case *routev3.Route_Route:
		return m.Action == "" || m.Action == "ROUTE"
	case *routev3.Route_Redirect:
		return m.Action == "" || m.Action == "REDIRECT"
	case *routev3.Route_DirectResponse:
		return m.Action == "" || m.Action == "DIRECT_RESPONSE"
	}
	return true
}
