package patch

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// routes makes all changes of a route table, in place.
func routes(a *attempt, gateway bool, table *routev3.RouteConfiguration) error {
	name := table.GetName()
	if err := head(a, gateway, table); err != nil {
		return err
	}
	kept := table.VirtualHosts[:0]
	for _, h := range table.VirtualHosts {
		h, keep, err := virtualHost(a, gateway, name, h)
		if err != nil {
			return err
		}
		if keep {
			kept = append(kept, h)
		}
	}
	table.VirtualHosts = slices.Concat(kept, added(a, gateway, name))
	return nil
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

// added are the virtual hosts that are added to a table.
func added(a *attempt, gateway bool, table string) []*routev3.VirtualHost {
	var out []*routev3.VirtualHost
	for p := range a.of("VIRTUAL_HOST") {
		if adds(p) && matchesTable(p, gateway, table) {
			a.note(p)
			out = append(out, clone[*routev3.VirtualHost](p))
		}
	}
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
