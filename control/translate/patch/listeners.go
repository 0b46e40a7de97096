package patch

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/envoyapi"
)

const (
	virtualInbound  = "virtualInbound"
	virtualOutbound = "virtualOutbound"
	filterHCM       = "envoy.filters.network.http_connection_manager"
)

// listener makes the changes of a listener, of its filter chains and of the filters in them. Routes that stand in the listener
// itself are changed as well.
func listener(patches []*Patch, gateway bool, l *listenerv3.Listener) *Result[*listenerv3.Listener] {
	return run(l, (*listenerv3.Listener).GetName, patches, func(a *attempt, original *listenerv3.Listener) (*listenerv3.Listener, bool, error) {
		out := proto.CloneOf(original)
		for p := range a.of("LISTENER") {
			if !matchesListener(p, out) {
				continue
			}
			if p.Operation == "REMOVE" {
				a.outcomes = outcomes{}
				a.note(p)
				return nil, false, nil
			}
			if p.merges() {
				a.note(p)
				if err := p.mergeInto(out); err != nil {
					return nil, false, err
				}
			}
		}
		for p := range a.of("LISTENER_FILTER") {
			if matchesListener(p, out) {
				name := ""
				if p.Listener != nil {
					name = p.Listener.ListenerFilter
				}
				out.ListenerFilters = change(a, out.ListenerFilters, p, name != "", func(f *listenerv3.ListenerFilter) bool { return f.GetName() == name })
			}
		}
		return out, true, chains(a, gateway, out)
	})
}

// ofListener are the patches that may have to do with a listener that is there, or with what is in it.
func (p *part) ofListener(l *listenerv3.Listener) []*Patch {
	there := func(p *Patch) bool { return !addsWhole(p.Patch) }
	out := p.find([]word{{byName, l.GetName()}}, func(p *Patch) bool { return there(p) && (ofRoutes(p) || matchesListener(p, l)) })
	if slices.ContainsFunc(out, func(p *Patch) bool { return p.ApplyTo == "LISTENER" && p.redefines() }) {
		return p.all(there)
	}
	return out
}

// chains makes the changes of a listener's filter chains. One without filters goes.
func chains(a *attempt, gateway bool, l *listenerv3.Listener) error {
	kept := l.FilterChains[:0]
	for _, c := range l.FilterChains {
		keep, err := chain(a, gateway, l, c)
		if err != nil {
			return err
		}
		if keep {
			kept = append(kept, c)
		}
	}
	l.FilterChains = kept
	if c := l.GetDefaultFilterChain(); c != nil {
		keep, err := chain(a, gateway, l, c)
		if err != nil {
			return err
		}
		if !keep {
			l.DefaultFilterChain = nil
		}
	}
	for p := range a.of("FILTER_CHAIN") {
		if adds(p) && matchesListener(p, l) {
			a.note(p)
			l.FilterChains = append(l.FilterChains, clone[*listenerv3.FilterChain](p))
		}
	}
	return nil
}

// adds says whether the operation adds to what has no order: INSERT_* does, as in Istio.
func adds(p *Patch) bool {
	return slices.Contains([]string{"ADD", "INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST"}, p.Operation)
}

func chain(a *attempt, gateway bool, l *listenerv3.Listener, c *listenerv3.FilterChain) (keep bool, err error) {
	for p := range a.of("FILTER_CHAIN") {
		if !matchesListener(p, l) || !matchesChain(p, l, c) {
			continue
		}
		if p.Operation == "REMOVE" {
			a.note(p)
			return false, nil
		}
		if p.merges() {
			a.note(p)
			if err := p.mergeInto(c); err != nil {
				return false, err
			}
		}
	}
	for p := range a.of("NETWORK_FILTER") {
		if matchesListener(p, l) && matchesChain(p, l, c) {
			c.Filters = change(a, c.Filters, p, filterName(p) != "", func(f *listenerv3.Filter) bool { return f.GetName() == filterName(p) })
		}
	}
	for _, f := range c.Filters {
		if err := filter(a, gateway, l, c, f); err != nil {
			return false, err
		}
	}
	// A chain that lost its last filter is gone.
	return len(c.Filters) > 0 || a.made == 0, nil
}

func filterName(p *Patch) string {
	if p.Listener == nil {
		return ""
	}
	return p.Listener.Filter
}

// filter makes the changes inside of a network filter.
func filter(a *attempt, gateway bool, l *listenerv3.Listener, c *listenerv3.FilterChain, f *listenerv3.Filter) error {
	matches := func(p *Patch) bool {
		return matchesListener(p, l) && matchesChain(p, l, c) && (filterName(p) == "" || filterName(p) == f.GetName())
	}
	for p := range a.of("NETWORK_FILTER") {
		if p.merges() && f.GetTypedConfig() != nil && matches(p) {
			a.note(p)
			if err := p.mergeInto(f); err != nil {
				return err
			}
		}
	}
	if f.GetName() != filterHCM || f.GetTypedConfig() == nil || !slices.ContainsFunc(a.patches, func(p *Patch) bool { return insideHCM(p) && (p.ApplyTo != "HTTP_FILTER" || matches(p)) }) {
		return nil
	}
	manager := &hcmv3.HttpConnectionManager{}
	if err := f.GetTypedConfig().UnmarshalTo(manager); err != nil {
		return err
	}
	before := a.made
	for p := range a.of("HTTP_FILTER") {
		if !matches(p) {
			continue
		}
		if at := classPlace(p, manager.HttpFilters); at >= 0 {
			a.note(p)
			manager.HttpFilters = slices.Insert(manager.HttpFilters, at, clone[*hcmv3.HttpFilter](p))
			continue
		}
		manager.HttpFilters = change(a, manager.HttpFilters, p, httpFilterName(p) != "", func(f *hcmv3.HttpFilter) bool { return f.GetName() == httpFilterName(p) })
	}
	for _, h := range manager.HttpFilters {
		for p := range a.of("HTTP_FILTER") {
			if p.merges() && h.GetTypedConfig() != nil && matches(p) && (httpFilterName(p) == "" || httpFilterName(p) == h.GetName()) {
				a.note(p)
				if err := p.mergeInto(h); err != nil {
					return err
				}
			}
		}
	}
	if routes := manager.GetRouteConfig(); routes != nil {
		of := newOfTable(a.patches, gateway, routes.GetName())
		again := func(patches []*Patch, h *routev3.VirtualHost) Result[*routev3.VirtualHost] {
			return *virtualHost(patches, h)
		}
		result := of.apply(routes, func(h *routev3.VirtualHost) Result[*routev3.VirtualHost] { return again(of.host(h), h) }, again)
		a.take(result.Outcome)
		manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: result.Message}
	}
	if a.made == before {
		return nil
	}
	packed, err := envoyapi.Pack(manager)
	if err != nil {
		return err
	}
	f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	return nil
}

func insideHCM(p *Patch) bool {
	return p.ApplyTo == "HTTP_FILTER" || ofRoutes(p)
}

func ofRoutes(p *Patch) bool {
	return p.ApplyTo == "ROUTE_CONFIGURATION" || p.ApplyTo == "VIRTUAL_HOST" || p.ApplyTo == "HTTP_ROUTE"
}

func httpFilterName(p *Patch) string {
	if p.Listener == nil {
		return ""
	}
	return p.Listener.HTTPFilter
}

// classPlace is where the class of a filter that is added puts it, -1 for one without a class.
func classPlace(p *Patch, all []*hcmv3.HttpFilter) int {
	behind := func(names ...string) int {
		at := 0
		for i, f := range all {
			if slices.Contains(names, f.GetName()) {
				at = i + 1
			}
		}
		return at
	}
	switch p.FilterClass {
	case "AUTHN":
		return behind("istio.metadata_exchange", "envoy.filters.http.jwt_authn")
	case "AUTHZ":
		return behind("istio.metadata_exchange", "envoy.filters.http.jwt_authn", "envoy.filters.http.ext_authz", "envoy.filters.http.rbac")
	case "STATS":
		at := slices.IndexFunc(all, func(f *hcmv3.HttpFilter) bool {
			return f.GetName() == "istio.stats" || f.GetName() == "envoy.filters.http.router"
		})
		if at < 0 {
			return len(all)
		}
		return at
	}
	return -1
}

// matchesListener compares name and port. The listeners for all that comes or goes have the ports in their chains.
func matchesListener(p *Patch, l *listenerv3.Listener) bool {
	m := p.Listener
	switch {
	case m == nil:
		return true
	case m.Name != "" && m.Name != l.GetName():
		return false
	case p.ApplyTo != "LISTENER" && virtual(l):
		return true
	}
	return m.Port == 0 || m.Port == l.GetAddress().GetSocketAddress().GetPortValue()
}

func virtual(l *listenerv3.Listener) bool {
	return l.GetName() == virtualInbound || l.GetName() == virtualOutbound
}

func matchesChain(p *Patch, l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	m := p.Listener
	if m == nil {
		return true
	}
	is := c.GetFilterChainMatch()
	if virtual(l) && m.Port > 0 && is.GetDestinationPort().GetValue() != m.Port {
		return false
	}
	return (m.Chain == "" || m.Chain == c.GetName()) &&
		(m.ServerName == "" || slices.Contains(is.GetServerNames(), m.ServerName)) &&
		(m.Transport == "" || m.Transport == is.GetTransportProtocol()) &&
		!slices.ContainsFunc(m.Protocols, func(name string) bool { return !slices.Contains(is.GetApplicationProtocols(), name) }) &&
		(m.ChainPort == 0 || m.ChainPort == is.GetDestinationPort().GetValue())
}
