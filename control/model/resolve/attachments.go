package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// attachments are the part of a route of Gateway API: a set for the listeners of Gateways that it is attached to, and one for
// each Service.
type attachments struct {
	sets []*model.Routes
}

// attachmentID tells sets of routes apart: those of one object by their Service, empty for the listeners.
type attachmentID struct {
	key     objects.Key
	service string
}

func idOf(r *model.Routes) attachmentID { return attachmentID{r.Source.Key, r.OfService()} }

// pointsOf are the names of the points that routes are attached to: listeners, or ports of a Service for all its callers or
// for those of a namespace.
func pointsOf(r *model.Routes) []string {
	host := r.OfService()
	if host == "" {
		return r.Gateways
	}
	callers := ""
	if r.ExportTo.Limited {
		callers = " from " + r.ExportTo.Namespaces[0]
	}
	out := make([]string, 0, len(r.Ports))
	for _, p := range r.Ports {
		out = append(out, fmt.Sprintf("%s:%d%s", host, p, callers))
	}
	return out
}

// pointName is how the point of a set is called in messages.
func pointName(r *model.Routes, name string) string {
	if r.OfService() != "" {
		return name
	}
	return "listener " + name[strings.LastIndexByte(name, '/')+1:]
}

// point is where routes are attached. Of HTTPRoutes and GRPCRoutes for the same hosts, it has those of one kind only: for a
// listener, the route that goes before keeps the other out (see [Model.routePrecedence]); for a port of a Service, the GRPCRoute
// does (GEP-1294).
type point struct {
	service bool
	sets    map[attachmentID]*model.Routes
	kinds   map[string]int
	// hosts have the sets for a name or a pattern, below those for what a pattern covers.
	hosts, below map[string]map[attachmentID]*model.Routes
	// keptOut are the sets that another one of the other kind keeps out, with that one.
	keptOut map[attachmentID]*model.Routes
}

// attachedRoutes are all points, and what is to be settled.
type attachedRoutes struct {
	points map[string]*point
	// contested are the sets of a point that others may keep out anew.
	contested map[string]map[attachmentID]bool
	// sets as objects have them, and as they are in force: without the points that others keep them out of.
	sets, inForce map[attachmentID]*model.Routes
	// changed are the sets whose place in the mesh may be another.
	changed map[attachmentID]bool
	// users are the Gateways whose routes lead to a service, by its host, with how many do.
	users map[string]map[string]int
	// services have the sets of each service.
	services map[string]map[attachmentID]bool
}

func newAttachedRoutes() attachedRoutes {
	return attachedRoutes{
		points: map[string]*point{}, contested: map[string]map[attachmentID]bool{}, sets: map[attachmentID]*model.Routes{},
		inForce: map[attachmentID]*model.Routes{}, changed: map[attachmentID]bool{}, services: map[string]map[attachmentID]bool{}, users: map[string]map[string]int{},
	}
}

// set takes note of routes that are attached, or not any more.
func (a *attachedRoutes) set(r *model.Routes, there bool) {
	id := idOf(r)
	if delete(a.sets, id); there {
		a.sets[id] = r
	}
	a.changed[id] = true
	if host := id.service; host != "" {
		of := a.services[host]
		if delete(of, id); there {
			if of == nil {
				of = map[attachmentID]bool{}
				a.services[host] = of
			}
			of[id] = true
		}
		if len(of) == 0 {
			delete(a.services, host)
		}
	}
	for _, name := range pointsOf(r) {
		p := a.points[name]
		if p == nil {
			p = &point{
				service: id.service != "",
				sets:    map[attachmentID]*model.Routes{}, kinds: map[string]int{}, hosts: map[string]map[attachmentID]*model.Routes{},
				below: map[string]map[attachmentID]*model.Routes{}, keptOut: map[attachmentID]*model.Routes{},
			}
			a.points[name] = p
		}
		if a.contested[name] == nil {
			a.contested[name] = map[attachmentID]bool{}
		}
		p.set(id, r, there)
		a.contested[name][id] = true
		for other := range p.behind(r) {
			a.changed[other] = true
		}
		for rival := range p.rivals(r) {
			a.contested[name][rival] = true
		}
	}
}

func (p *point) set(id attachmentID, r *model.Routes, there bool) {
	put := func(in map[string]map[attachmentID]*model.Routes, host string) {
		of := in[host]
		if delete(of, id); there {
			if of == nil {
				of = map[attachmentID]*model.Routes{}
				in[host] = of
			}
			of[id] = r
		}
		if len(of) == 0 {
			delete(in, host)
		}
	}
	delete(p.keptOut, id)
	if _, was := p.sets[id]; was {
		p.kinds[id.key.Kind]--
	}
	if delete(p.sets, id); there {
		p.sets[id] = r
		p.kinds[id.key.Kind]++
	}
	for _, h := range r.Hosts {
		put(p.hosts, h)
		for _, pattern := range patternsOf(strings.TrimPrefix(h, "*"))[1:] {
			if pattern != h {
				put(p.below, pattern)
			}
		}
	}
}

// rivals are the sets of the other kind that have a host in common with one.
func (p *point) rivals(r *model.Routes) map[attachmentID]*model.Routes {
	kind := rivalKind[r.Source.Key.Kind]
	if kind == "" || p.kinds[kind] == 0 {
		return nil
	}
	out := map[attachmentID]*model.Routes{}
	add := func(of map[attachmentID]*model.Routes) {
		for id, other := range of {
			if id.key.Kind == kind {
				out[id] = other
			}
		}
	}
	for _, h := range r.Hosts {
		add(p.hosts[h])
		for _, pattern := range patternsOf(strings.TrimPrefix(h, "*"))[1:] {
			add(p.hosts[pattern])
		}
		add(p.below[h])
	}
	return out
}

// behind are the sets of connections of a kind that want the same as one: those for the same server name, or for all connections.
// The oldest gets them.
func (p *point) behind(r *model.Routes) map[attachmentID]*model.Routes {
	if len(r.TCP) == 0 {
		return nil
	}
	out := map[attachmentID]*model.Routes{}
	for _, h := range r.Hosts {
		for id, other := range p.hosts[h] {
			if id.key.Kind == r.Source.Key.Kind && id.key != r.Source.Key {
				out[id] = other
			}
		}
	}
	return out
}

var rivalKind = map[string]string{objects.HTTPRoute.Kind: objects.GRPCRoute.Kind, objects.GRPCRoute.Kind: objects.HTTPRoute.Kind}

// settle finds out which of these sets others keep out, the first in precedence first, since one that is kept out keeps nobody
// out. It says whose answer is another.
func (p *point) settle(contested map[attachmentID]bool, precedence func(x, y objects.Key) int, changed func(attachmentID)) {
	compare := func(x, y attachmentID) int {
		if p.service && x.key.Kind != y.key.Kind {
			return strings.Compare(x.key.Kind, y.key.Kind) // GRPCRoute, HTTPRoute
		}
		return precedence(x.key, y.key)
	}
	queue := make([]attachmentID, 0, len(contested))
	for id := range contested {
		queue = append(queue, id)
	}
	slices.SortFunc(queue, compare)
	for len(queue) > 0 {
		id := queue[0]
		queue = queue[1:]
		set := p.sets[id]
		if set == nil {
			continue
		}
		was, rivals := p.keptOut[id], p.rivals(set)
		var by *model.Routes
		for other, r := range rivals {
			if compare(other, id) < 0 && p.keptOut[other] == nil && (by == nil || compare(other, idOf(by)) < 0) {
				by = r
			}
		}
		if by == was {
			continue
		}
		if delete(p.keptOut, id); by != nil {
			p.keptOut[id] = by
		}
		changed(id)
		if (by == nil) == (was == nil) {
			continue
		}
		for other := range rivals {
			if compare(other, id) > 0 {
				if at, queued := slices.BinarySearchFunc(queue, other, compare); !queued {
					queue = slices.Insert(queue, at, other)
				}
			}
		}
	}
}

// routePrecedence compares routes of either kind for a listener: the oldest first, then by namespace and name
// (GRPCRouteSpec.hostnames), whatever their kind.
func (m *Model) routePrecedence(x, y objects.Key) int {
	return cmp.Or(compareAge(m.createdOf(x), m.createdOf(y)), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name),
		cmp.Compare(x.Kind, y.Kind))
}

// preceding names a set that goes before another one, and says why.
func (m *Model) preceding(first, second *model.Routes) string {
	if x, y := first.Source.Key, second.Source.Key; compareAge(m.createdOf(x), m.createdOf(y)) == 0 {
		return x.String() + ", which goes before by its name,"
	}
	return "the older " + first.Source.Key.String()
}

// at is how many routes are attached to a point.
func (a *attachedRoutes) at(name string) int {
	if p := a.points[name]; p != nil {
		return len(p.sets) - len(p.keptOut)
	}
	return 0
}

// settleAttachments puts the routes of Gateway API into force, as far as nobody keeps them out.
func (m *Model) settleAttachments() {
	a := &m.attached
	for name, contested := range a.contested {
		p := a.points[name]
		p.settle(contested, m.routePrecedence, func(id attachmentID) { a.changed[id] = true })
		if len(p.sets) == 0 {
			delete(a.points, name)
		}
		if !p.service {
			// How many routes a listener has stands in its Gateway's status.
			if g := m.gateways[gatewayOf(name)]; g != nil {
				m.restate(g.Source.Key)
			}
		}
	}
	clear(a.contested)
	for id := range a.changed {
		was := a.inForce[id]
		now := same(m, id, was, a.inForceOf(id))
		if now != was {
			for _, host := range slices.Concat(a.use(was, -1), a.use(now, 1)) {
				// For which Gateways policies hold stands in their status.
				for policy := range m.backendTLS[host] {
					m.restate(policy)
				}
			}
			if delete(a.inForce, id); now != nil {
				a.inForce[id] = now
				m.changed.routes.add(now)
			}
			if was != nil {
				m.changed.routes.drop(was)
			}
		}
		m.sayOthers(id.key)
	}
	clear(a.changed)
}

// use takes note of the services that routes of Gateways lead to, and gives their hosts.
func (a *attachedRoutes) use(r *model.Routes, by int) []string {
	if r == nil || r.OfService() != "" {
		return nil
	}
	hosts := map[string]bool{}
	for i := range r.HTTP {
		for _, d := range r.HTTP[i].Forward {
			hosts[d.Host] = true
		}
		for _, m := range r.HTTP[i].Mirrors {
			hosts[m.To.Host] = true
		}
	}
	for i := range r.TCP {
		for _, d := range r.TCP[i].Forward {
			hosts[d.Host] = true
		}
	}
	for host := range hosts {
		of := a.users[host]
		if of == nil {
			of = map[string]int{}
			a.users[host] = of
		}
		for _, server := range r.Gateways {
			gateway := gatewayOf(server)
			if of[gateway] += by; of[gateway] == 0 {
				delete(of, gateway)
			}
		}
		if len(of) == 0 {
			delete(a.users, host)
		}
	}
	return slices.Collect(maps.Keys(hosts))
}

// gatewayOf is the full name of the Gateway that a server is of.
func gatewayOf(server string) string { return server[:strings.LastIndexByte(server, '/')] }

// inForceOf are the routes without the points that others keep them out of; nil for none.
func (a *attachedRoutes) inForceOf(id attachmentID) *model.Routes {
	r := a.sets[id]
	if r == nil {
		return nil
	}
	kept := func(name string) bool { return a.points[name].keptOut[id] != nil }
	points := pointsOf(r)
	left := slices.DeleteFunc(slices.Clone(points), kept)
	switch len(left) {
	case len(points):
		return r
	case 0:
		return nil
	}
	out := *r
	if id.service == "" {
		out.Gateways = left
		return &out
	}
	out.Ports = nil
	for i, p := range r.Ports {
		if slices.Contains(left, points[i]) {
			out.Ports = append(out.Ports, p)
		}
	}
	return &out
}

// sayOthers says of a route what others do to it: where they keep it out, go before it, or get its connections.
func (m *Model) sayOthers(key objects.Key) {
	e := m.entries[key]
	if e == nil {
		return
	}
	m.forgetConflicts(key)
	part, is := e.part.(*attachments)
	if !is {
		return
	}
	for _, r := range part.sets {
		m.sayPrecedence(r)
		for _, name := range pointsOf(r) {
			m.sayBehind(r, name)
			by := m.attached.points[name].keptOut[idOf(r)]
			if by == nil {
				continue
			}
			f := Finding{
				Reason: reasonConflicted, Path: "spec.hostnames",
				Problem: fmt.Sprintf("%s has %s for one of the hosts", pointName(r, name), m.preceding(by, r)),
				Remedy:  fmt.Sprintf("give %ss and %ss hosts of their own, or listeners", key.Kind, by.Source.Key.Kind),
			}
			if r.OfService() != "" {
				f.Path, f.Problem = "spec.parentRefs", fmt.Sprintf("%s has %s, which goes before %ss", name, by.Source.Key, key.Kind)
				f.Remedy = "write all routes for a port as one kind"
			}
			if e.sections.keptOut == nil {
				e.sections.keptOut = map[string]Finding{}
			}
			e.sections.keptOut[name] = f
			recorder{m, saidConflict}.missing(key, f.Reason, f.Path, f.Problem, f.Remedy)
		}
	}
}

// sayBehind says of routes for connections who gets these in their place.
func (m *Model) sayBehind(r *model.Routes, name string) {
	first := map[string]*model.Routes{}
	for _, other := range m.attached.points[name].behind(r) {
		for _, h := range other.Hosts {
			if slices.Contains(r.Hosts, h) && m.compareRoutes(other, r) < 0 && (first[h] == nil || m.compareRoutes(other, first[h]) < 0) {
				first[h] = other
			}
		}
	}
	for _, h := range slices.Sorted(maps.Keys(first)) {
		what := "all connections"
		if r.Source.Key.Kind == objects.TLSRoute.Kind {
			what = h
		}
		recorder{m, saidConflict}.note(r.Source.Key, "spec.parentRefs", fmt.Sprintf("%s has %s for %s", pointName(r, name), m.preceding(first[h], r), what))
	}
}

// sayPrecedence says of routes for a Service that those of VirtualServices are tried before.
func (m *Model) sayPrecedence(r *model.Routes) {
	host := r.OfService()
	if host == "" {
		return
	}
	for _, h := range patternsOf(host) {
		for _, v := range sortedBy(m.routes[h], m.age) {
			if overlaps(v.ExportTo, r.ExportTo) {
				recorder{m, saidConflict}.note(r.Source.Key, "spec.parentRefs", fmt.Sprintf("callers of %s try the routes of %s first", host, v.Source.Key))
				return
			}
		}
	}
}

// rehosted has it said anew of routes for Services who goes before them, after a change of VirtualServices for these hosts.
func (a *attachedRoutes) rehosted(hosts map[string]bool) {
	for h := range hosts {
		for id := range a.services[h] {
			a.changed[id] = true
		}
		if !isPattern(h) {
			continue
		}
		for host, ids := range a.services {
			if model.CoversHost(h, host) {
				for id := range ids {
					a.changed[id] = true
				}
			}
		}
	}
}

// addKeptOut completes what is said for each parent of a route that others keep out: not accepted when they do so at all points.
func (m *Model) addKeptOut(e *keptObject, to *objects.Status) {
	s := &e.sections
	to.Parents = slices.Clone(to.Parents)
	accepted := false
	var first *Finding
	for i := range to.Parents {
		var out []Finding
		for _, name := range s.points[i] {
			if f, is := s.keptOut[name]; is {
				out, first = append(out, f), cmpOr(first, &f)
			}
		}
		parent := &to.Parents[i]
		parent.Conditions = slices.Clone(parent.Conditions)
		for j := range parent.Conditions {
			c := &parent.Conditions[j]
			if c.Type != string(gatewayv1.RouteConditionAccepted) || c.Status != metav1.ConditionTrue {
				continue
			}
			all := len(out) > 0 && len(out) == len(s.points[i])
			*c = keptOutOf(*c, out, all)
			accepted = accepted || !all
		}
	}
	if !accepted && first != nil {
		to.Conditions[0] = condition(objects.ConditionAccepted, e.object.GetGeneration(), []Finding{*first}, "", "")
	}
}

// reasonConflicted is that of a route which another one keeps out. The API has the rule, but no reason for it; this is
// GEP-1294's for routes of several kinds for a Service, and that of policies.
const reasonConflicted = string(gatewayv1.PolicyReasonConflicted)

// compareRoutes orders sets of routes: the oldest first, those of one object by their service.
func (m *Model) compareRoutes(x, y *model.Routes) int {
	return cmp.Or(m.age(x.Source.Key, y.Source.Key), strings.Compare(x.OfService(), y.OfService()))
}
