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
// patch that breaks one is left out of that alone: of gives what becomes of each, again of one without some of its patches.
func (t *ofTable) apply(table *routev3.RouteConfiguration, of func(*routev3.VirtualHost) Result[*routev3.VirtualHost], again func([]*Patch, *routev3.VirtualHost) Result[*routev3.VirtualHost]) *Result[*routev3.RouteConfiguration] {
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
	var redefined []int
	for i, h := range table.VirtualHosts {
		one := of(h)
		made = append(made, one)
		if one.Message != h && !one.Removed && !alike(one.Message, h) {
			redefined = append(redefined, i)
		}
	}
	if len(redefined)+len(top.Message.GetVirtualHosts()) > 0 {
		taken := t.undoClashes(table, made, redefined, again)
		top = t.brought(table, top, taken)
	}
	brought := top.Message.GetVirtualHosts()
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

// undoClashes leaves patches out that give virtual hosts names or domains which others have: proxies refuse two. Those that nothing gives
// others stand first, then the table's order decides. It gives who has which name and domain in the end.
func (t *ofTable) undoClashes(table *routev3.RouteConfiguration, made []Result[*routev3.VirtualHost], redefined []int, again func([]*Patch, *routev3.VirtualHost) Result[*routev3.VirtualHost]) map[string]int {
	owners := map[string]int{}
	open := make(map[int]bool, len(redefined))
	for _, i := range redefined {
		open[i] = true
	}
	own := func(i int) {
		for _, key := range keysOf(made[i].Message) {
			owners[key] = i
		}
	}
	for i := range made {
		if !open[i] && !made[i].Removed {
			own(i)
		}
	}
	originals := map[string]int{}
	if len(redefined) > 0 {
		for i, h := range table.VirtualHosts {
			for _, key := range keysOf(h) {
				originals[key] = i
			}
		}
	}
	var undo func(i int, name string)
	undo = func(i int, name string) {
		was, h := made[i], table.VirtualHosts[i]
		patches := t.host(h)
		bad := map[*Patch]bool{}
		for _, p := range patches {
			bad[p] = p.redefines()
		}
		with := func() Result[*routev3.VirtualHost] {
			return again(slices.DeleteFunc(slices.Clone(patches), func(p *Patch) bool { return bad[p] }), h)
		}
		// Those that clash with nobody by themselves stay, in their order.
		for _, p := range patches {
			if bad[p] {
				bad[p] = false
				one := with()
				bad[p] = !one.Removed && slices.ContainsFunc(keysOf(one.Message), func(key string) bool {
					owner, taken := owners[key]
					first, there := originals[key]
					return taken && owner != i || there && first != i
				})
			}
		}
		made[i] = with()
		for p, why := range was.Broken {
			made[i].leaveOut(p, why)
		}
		for _, p := range patches {
			if bad[p] && slices.Contains(was.Changed, p.Patch) {
				made[i].leaveOut(p.Patch, fmt.Sprintf("%s: there would be two virtual hosts for %s", table.GetName(), name))
			}
		}
		if made[i].Removed {
			return
		}
		// Who took what it had before has to give it back.
		for at, key := range keysOf(made[i].Message) {
			if other, taken := owners[key]; taken && other != i {
				for _, k := range keysOf(made[other].Message) {
					delete(owners, k)
				}
				undo(other, spelt(made[i].Message, at))
			}
		}
		own(i)
	}
	for _, i := range redefined {
		keys := keysOf(made[i].Message)
		at := slices.IndexFunc(keys, func(key string) bool { _, taken := owners[key]; return taken })
		if at >= 0 {
			undo(i, spelt(made[i].Message, at))
		} else {
			own(i)
		}
	}
	return owners
}

// brought leaves those patches of a table out that bring virtual hosts for what others have.
func (t *ofTable) brought(table *routev3.RouteConfiguration, top *Result[*routev3.RouteConfiguration], owners map[string]int) *Result[*routev3.RouteConfiguration] {
	taken := make(map[string]bool, len(owners))
	for key := range owners {
		taken[key] = true
	}
	var good []*Patch
	bad := map[*model.Patch]string{}
	for _, p := range t.itself {
		value, is := p.value.(*routev3.RouteConfiguration)
		if !is {
			continue
		}
		if slices.Contains(top.Changed, p.Patch) {
			for _, h := range value.GetVirtualHosts() {
				if name := clash(taken, h); name != "" {
					bad[p.Patch] = fmt.Sprintf("%s: there would be two virtual hosts for %s", table.GetName(), name)
				}
			}
		}
		if bad[p.Patch] != "" {
			continue
		}
		good = append(good, p)
		for _, h := range value.GetVirtualHosts() {
			occupy(taken, h)
		}
	}
	if len(bad) == 0 {
		return top
	}
	out := run(WithoutHosts(table), (*routev3.RouteConfiguration).GetName, good, itself)
	for p, why := range bad {
		out.leaveOut(p, why)
	}
	return out
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
		h, is := p.value.(*routev3.VirtualHost)
		if !is {
			continue
		}
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

// keysOf are what no other virtual host of a table may have: the name, and the domains in small letters.
func keysOf(h *routev3.VirtualHost) []string {
	out := make([]string, 0, 1+len(h.GetDomains()))
	out = append(out, "name "+h.GetName())
	for _, d := range h.GetDomains() {
		out = append(out, strings.ToLower(d))
	}
	return out
}

// spelt is one of [keysOf] as it stands in the virtual host.
func spelt(h *routev3.VirtualHost, at int) string {
	if at == 0 {
		return h.GetName()
	}
	return h.GetDomains()[at-1]
}

func occupy(taken map[string]bool, h *routev3.VirtualHost) {
	for _, key := range keysOf(h) {
		taken[key] = true
	}
}

// clash is what a virtual host has that others have, or that it has twice; empty when there is none.
func clash(taken map[string]bool, h *routev3.VirtualHost) string {
	keys := keysOf(h)
	for i, key := range keys {
		if taken[key] || slices.Contains(keys[:i], key) {
			return spelt(h, i)
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
	if slices.ContainsFunc(a.patches, (*Patch).redefines) {
		// One that is merged twice is harmless.
		known := map[string]bool{}
		h.Domains = slices.DeleteFunc(h.Domains, func(d string) bool {
			d = strings.ToLower(d)
			twice := known[d]
			known[d] = true
			return twice
		})
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
