package patch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"heddle.io/heddle/control/model"
)

// ofTable is the patches for one route table, in order; there may be none.
type ofTable struct {
	round int
	// itself are those of what the table has beside its virtual hosts, adds those that add virtual hosts; hosts finds the others.
	itself, adds []*Patch
	hosts        index
	// made is what became of virtual hosts, nil of those that no patch has to do with.
	made map[*routev3.VirtualHost]*kept
}

func newOfTable(patches []*Patch, gateway bool, name string) *ofTable {
	out := &ofTable{made: map[*routev3.VirtualHost]*kept{}}
	var hosts []*Patch
	for _, p := range patches {
		switch {
		case !ofRoutes(p) || !matchesTable(p, gateway, name):
		case p.ApplyTo == "ROUTE_CONFIGURATION":
			if p.merges() {
				out.itself = append(out.itself, p)
			}
		case p.ApplyTo == "VIRTUAL_HOST" && adds(p):
			out.adds = append(out.adds, p)
		default:
			hosts = append(hosts, p)
		}
	}
	out.hosts = newIndex(hosts, func(p *Patch) (word, bool) {
		switch {
		case p.Routes != nil && p.Routes.Host != "":
			return word{byName, p.Routes.Host}, true
		case p.Routes != nil && p.Routes.Domain != "":
			return word{byDomain, p.Routes.Domain}, true
		}
		return word{}, false
	})
	return out
}

func (t *ofTable) empty() bool { return len(t.itself)+len(t.adds)+len(t.hosts.patches) == 0 }

// host are the patches that may have to do with a virtual host that is there.
func (t *ofTable) host(h *routev3.VirtualHost) []*Patch {
	if len(t.hosts.patches) == 0 {
		return nil
	}
	words := make([]word, 0, 16)
	words = append(words, word{byName, h.GetName()})
	for _, d := range h.GetDomains() {
		words = append(words, word{byDomain, d})
	}
	out := t.hosts.find(words, func(p *Patch) bool { return matchesHost(p, h) })
	if slices.ContainsFunc(out, func(p *Patch) bool { return p.ApplyTo == "VIRTUAL_HOST" && p.redefines() }) {
		return t.hosts.patches
	}
	return out
}

// apply gives what becomes of a route table, of its own or in a listener. Its virtual hosts are changed one by one, so that a
// patch that breaks one is left out of that alone: of gives what becomes of each.
func (t *ofTable) apply(table *routev3.RouteConfiguration, of func(*routev3.VirtualHost) Result[*routev3.VirtualHost]) *Result[*routev3.RouteConfiguration] {
	out := &Result[*routev3.RouteConfiguration]{Message: table}
	if t.empty() {
		return out
	}
	top := &Result[*routev3.RouteConfiguration]{Message: WithoutHosts(table)}
	if len(t.itself) > 0 {
		top = run(top.Message, (*routev3.RouteConfiguration).GetName, t.itself, itself)
	}
	all := outcomes{}
	made := make([]Result[*routev3.VirtualHost], 0, len(table.VirtualHosts))
	redefined := false
	for _, h := range table.VirtualHosts {
		one := of(h)
		made = append(made, one)
		redefined = redefined || one.Message != h && !one.Removed && !alike(one.Message, h)
	}
	brought := top.Message.GetVirtualHosts()
	if redefined || len(brought) > 0 {
		t.resolveClashes(table, made, top)
		brought = top.Message.GetVirtualHosts()
	}
	all.add(top.Outcome)
	hosts := make([]*routev3.VirtualHost, 0, len(made)+len(brought))
	for _, one := range made {
		if !one.Removed {
			hosts = append(hosts, one.Message)
		}
		all.add(one.Outcome)
	}
	hosts = append(hosts, brought...)
	hosts = append(hosts, t.added(table.GetName(), hosts, &all)...)
	if out.Outcome = all.Outcome; out.Nothing() {
		return out
	}
	out.Message = WithoutHosts(top.Message)
	out.Message.VirtualHosts = hosts
	return out
}

// resolveClashes leaves patches out that give virtual hosts names or domains which others have, or bring such ones: proxies refuse two.
func (t *ofTable) resolveClashes(table *routev3.RouteConfiguration, made []Result[*routev3.VirtualHost], top *Result[*routev3.RouteConfiguration]) {
	taken, twice := map[string]bool{}, ""
	take := func(h *routev3.VirtualHost) {
		if name := clash(taken, h); name != "" {
			twice = name
		}
		occupy(taken, h)
	}
	for _, one := range made {
		if !one.Removed {
			take(one.Message)
		}
	}
	if twice != "" {
		clear(taken)
		for i, h := range table.VirtualHosts {
			if one := made[i]; one.Message != h && !one.Removed && !alike(one.Message, h) {
				made[i] = *virtualHost(slices.DeleteFunc(slices.Clone(t.host(h)), (*Patch).redefines), h)
				for _, p := range one.Changed {
					if slices.ContainsFunc(t.hosts.patches, func(q *Patch) bool { return q.Patch == p && q.redefines() }) {
						made[i].leaveOut(p, fmt.Sprintf("%s: there would be two virtual hosts for %s", table.GetName(), twice))
					}
				}
			}
			if !made[i].Removed {
				occupy(taken, made[i].Message)
			}
		}
	}
	twice = ""
	for _, h := range top.Message.GetVirtualHosts() {
		take(h)
	}
	if twice == "" {
		return
	}
	good := []*Patch{}
	var bad []*model.Patch
	for _, p := range t.itself {
		if v, _ := p.value.(*routev3.RouteConfiguration); len(v.GetVirtualHosts()) > 0 {
			bad = append(bad, p.Patch)
		} else {
			good = append(good, p)
		}
	}
	*top = *run(WithoutHosts(table), (*routev3.RouteConfiguration).GetName, good, itself)
	for _, p := range bad {
		top.leaveOut(p, fmt.Sprintf("%s: there is a virtual host for %s already", table.GetName(), twice))
	}
}

// alike says whether two virtual hosts have the same name and domains.
func alike(x, y *routev3.VirtualHost) bool {
	return x.GetName() == y.GetName() && slices.Equal(x.GetDomains(), y.GetDomains())
}

// itself makes the changes of what a table has beside its virtual hosts; a merge may bring further ones.
func itself(a *attempt, original *routev3.RouteConfiguration) (*routev3.RouteConfiguration, bool, error) {
	out := proto.CloneOf(original)
	for _, p := range a.patches {
		a.note(p)
		if err := p.mergeInto(out); err != nil {
			return nil, false, err
		}
	}
	return out, true, nil
}

// added are the virtual hosts that are added to a table, but for those whose names or domains others have: proxies refuse two.
func (t *ofTable) added(table string, hosts []*routev3.VirtualHost, all *outcomes) []*routev3.VirtualHost {
	if len(t.adds) == 0 {
		return nil
	}
	taken := map[string]bool{}
	for _, h := range hosts {
		occupy(taken, h)
	}
	var out []*routev3.VirtualHost
	for _, p := range t.adds {
		h, _ := p.value.(*routev3.VirtualHost)
		if name := clash(taken, h); name != "" {
			all.add(Outcome{Broken: map[*model.Patch]string{p.Patch: fmt.Sprintf("%s: there is a virtual host for %s already", table, name)}})
			continue
		}
		occupy(taken, h)
		out = append(out, h)
		all.add(Outcome{Changed: []*model.Patch{p.Patch}})
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

// virtualHost makes the changes of a virtual host and its routes with the patches of its table.
func virtualHost(patches []*Patch, h *routev3.VirtualHost) *Result[*routev3.VirtualHost] {
	// Another name is no error.
	return run(h, func(*routev3.VirtualHost) string { return h.GetName() }, patches, changeHost)
}

func changeHost(a *attempt, original *routev3.VirtualHost) (out *routev3.VirtualHost, keep bool, err error) {
	h := proto.CloneOf(original)
	for p := range a.of("VIRTUAL_HOST") {
		if !matchesHost(p, h) {
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
			if !matchesHost(p, h) || !matchesRoute(p, r) {
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
		if p.merges() || p.Operation == "REMOVE" || !matchesHost(p, h) {
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
