package push

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// uses is what a proxy asked for.
type uses struct {
	workload string
	// destinations are the addresses, whether or not there is a service, with how many listeners of each it names.
	destinations map[netip.Addr]int
	// hosts are the services that they are for.
	hosts map[string]bool
}

// workload of a kind whose services are those that it was seen to use; empty for others.
func workload(k translate.Kind) string {
	if k.Workload == "" {
		return ""
	}
	return k.Namespace + "/" + k.Workload
}

// observed is the workload of a proxy that gets what it was seen to use; empty for others.
func (m *proxy) observed() string {
	for _, g := range m.groups {
		if w := workload(g.kind); w != "" {
			return w
		}
	}
	return ""
}

// kindsOf are the kinds of a proxy. A workload that uses more than is kept gets everything.
func (p *Pusher) kindsOf(node translate.Node) []translate.Kind {
	// The type was checked when the node was read.
	kinds, _ := p.cache.Kinds(p.mesh, node)
	for i := range kinds {
		if w := workload(kinds[i]); w != "" {
			if _, all := p.dependencies.Of(w); all {
				kinds[i].Workload = ""
			}
		}
	}
	return kinds
}

// needed are the hosts that a kind is limited to, nil for none. The groups of a workload share them.
func (p *Pusher) needed(k translate.Kind) map[string]bool {
	w := workload(k)
	if w == "" {
		return nil
	}
	if p.needs[w] == nil {
		p.needs[w] = map[string]bool{}
		hosts, _ := p.dependencies.Of(w)
		for _, h := range hosts {
			p.needs[w][h] = true
		}
	}
	return p.needs[w]
}

// Demand implements [xds.Source].
func (p *Pusher) Demand(connected *xds.Proxy, asked, givenUp []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	member := p.proxies[connected]
	if member == nil {
		return
	}
	var fresh []netip.Addr
	if p.mesh != nil && member.observed() != "" {
		fresh = member.dial(asked)
	}
	member.uses.giveUp(givenUp)
	if len(fresh) == 0 {
		return
	}
	known := len(p.carried)
	var found []*model.Service
	for _, a := range fresh {
		found = append(found, p.destinations.At(p.mesh, a)...)
	}
	started := time.Now()
	changes, moves := p.use(member, found)
	if len(changes)+len(moves) > 0 {
		p.version = p.server.Update(p.server.Revision(), changes, moves)
		p.carry(known)
		p.trace(causeDemand, Update{}, changes, moves, started)
	}
}

// dial notes listeners that a proxy asks for, and gives the addresses that it did not ask for before.
func (m *proxy) dial(listeners []string) (fresh []netip.Addr) {
	for _, name := range listeners {
		a, ok := destination(name)
		if !ok {
			continue
		}
		if m.uses.destinations == nil {
			m.uses = uses{workload: m.observed(), destinations: map[netip.Addr]int{}, hosts: map[string]bool{}}
		}
		if m.uses.destinations[a]++; m.uses.destinations[a] == 1 {
			fresh = append(fresh, a)
		}
	}
	return fresh
}

// giveUp has addresses be asked for no more when none of their listeners is. What there was at them stays in use.
func (u *uses) giveUp(listeners []string) {
	for _, name := range listeners {
		a, _ := destination(name)
		if n := u.destinations[a]; n > 1 {
			u.destinations[a] = n - 1
		} else {
			delete(u.destinations, a)
		}
	}
}

// destination is the address in a listener's name, address_port.
func destination(name string) (netip.Addr, bool) {
	at := strings.LastIndexByte(name, '_')
	if at < 0 {
		return netip.Addr{}, false
	}
	if _, err := strconv.ParseUint(name[at+1:], 10, 16); err != nil {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(name[:at])
	return a, err == nil && a.Zone() == ""
}

// use notes services that a proxy uses, and makes what that changes for its workload.
func (p *Pusher) use(member *proxy, found []*model.Service) ([]xds.Change, []xds.Move) {
	w := member.observed()
	fresh, all := p.note(member, found)
	if all {
		p.log.Info("a workload uses more services than are kept one by one; it gets all", "workload", w, "limit", registry.MaxDependencies)
		return nil, p.limitNoMore(w)
	}
	return p.remake(w, fresh), nil
}

// note has services belong to what a proxy uses, and gives the hosts that its workload was not known to use.
func (p *Pusher) note(member *proxy, found []*model.Service) (fresh []string, all bool) {
	w := member.observed()
	var hosts []string
	for _, s := range found {
		if s.ExportTo.In(member.node.Namespace) && !member.uses.hosts[s.Host] {
			member.uses.hosts[s.Host] = true
			hosts = append(hosts, s.Host)
		}
	}
	if len(hosts) == 0 {
		return nil, false
	}
	if fresh, all = p.dependencies.Use(w, hosts); all {
		return nil, true
	}
	needs := p.needs[w]
	fresh = slices.DeleteFunc(fresh, func(h string) bool { return needs[h] })
	for _, h := range fresh {
		needs[h] = true
	}
	return fresh, false
}

// remake makes what services bring to the clients of a workload anew, after a change of what it needs.
func (p *Pusher) remake(w string, hosts []string) []xds.Change {
	if len(hosts) == 0 {
		return nil
	}
	var changes []xds.Change
	for _, g := range p.groups {
		// One that nobody is in is kept for who comes back.
		if workload(g.kind) != w {
			continue
		}
		if change := p.remakeGroup(g, hosts); !change.Nothing() {
			changes = append(changes, change)
		}
	}
	return changes
}

func (p *Pusher) remakeGroup(g *group, hosts []string) xds.Change {
	defer p.judge(g)
	if client, is := g.kept.(*translate.Client); is {
		delta, ok, err := p.cache.Remake(client, p.mesh, hosts)
		if err == nil && ok {
			change, err := p.apply(g, delta)
			if err == nil {
				return change
			}
			return p.failed(g, err)
		}
		if err != nil {
			return p.failed(g, err)
		}
	}
	return p.changeOf(g, nil)
}

// limitNoMore has a workload get all. Nobody comes into the groups that were limited to what it was known to use: should it be limited
// again, that is not what it uses then.
func (p *Pusher) limitNoMore(w string) []xds.Move {
	delete(p.needs, w)
	moves := p.moveWorkload(w)
	for id, g := range p.groups {
		if workload(g.kind) == w && g.proxies == 0 {
			p.flush(g)
			p.leave(id, g)
		}
	}
	return moves
}

// moveWorkload puts the proxies of a workload into the groups that they belong to now.
func (p *Pusher) moveWorkload(w string) []xds.Move {
	var moves []xds.Move
	for connected, member := range p.proxies {
		if member.observed() != w {
			continue
		}
		groups := p.groupsOf(member.node)
		p.enter(member, groups)
		moves = append(moves, xds.Move{Proxy: connected, Groups: shared(groups)})
	}
	return moves
}

// arrived notes services that are new, or have other addresses, for proxies that asked for their addresses before. The groups
// are still to be changed.
func (p *Pusher) arrived(services []model.Pair[model.Service]) (moves []xds.Move) {
	arrived := map[netip.Addr][]*model.Service{}
	for _, s := range services {
		if s.After != nil && (s.Before == nil || !slices.Equal(s.Before.Addresses(), s.After.Addresses())) {
			for _, a := range s.After.Addresses() {
				arrived[a] = append(arrived[a], s.After)
			}
		}
	}
	if len(arrived) == 0 {
		return nil
	}
	for _, member := range p.proxies {
		if len(member.uses.destinations) == 0 {
			continue
		}
		var found []*model.Service
		for a, at := range arrived {
			if member.uses.destinations[a] > 0 {
				found = append(found, at...)
			}
		}
		if w := member.observed(); w != "" && len(found) > 0 {
			if _, all := p.note(member, found); all {
				moves = append(moves, p.limitNoMore(w)...)
			}
		}
	}
	return moves
}

// Forget has clients do without what their workloads have not used for long.
func (p *Pusher) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	started := time.Now()
	var changes []xds.Change
	for w, hosts := range p.dependencies.Expire() {
		needs := p.needs[w]
		for _, h := range hosts {
			delete(needs, h)
		}
		if p.mesh != nil {
			changes = append(changes, p.remake(w, hosts)...)
		}
	}
	// Those of workloads without proxies are read again when one comes.
	there := p.workloads()
	maps.DeleteFunc(p.needs, func(w string, _ map[string]bool) bool { return !there[w] })
	if len(changes) > 0 {
		p.version = p.server.Update(p.server.Revision(), changes, nil)
		p.trace(causeUnused, Update{}, changes, nil, started)
	}
}

// workloads that groups are limited to the dependencies of.
func (p *Pusher) workloads() map[string]bool {
	out := map[string]bool{}
	for _, g := range p.groups {
		out[workload(g.kind)] = true
	}
	return out
}

// Observed are the services that connected proxies are limited to, sorted, by node; proxies that get all are not among them.
func (p *Pusher) Observed() map[string][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string][]string{}
	for _, member := range p.proxies {
		if w := member.observed(); w != "" {
			hosts, _ := p.dependencies.Of(w)
			out[member.node.ID()] = append([]string{}, hosts...)
		}
	}
	return out
}

// Measure counts dependencies in a registry of metrics.
func Measure(d *registry.Dependencies, metrics prometheus.Registerer) {
	for _, m := range []struct {
		name, help string
		total      bool
		value      func(registry.Counts) int
	}{
		{"heddle_dependencies_workloads", "Workloads whose dependencies are kept.", false, func(c registry.Counts) int { return c.Workloads }},
		{"heddle_dependencies_hosts", "Hosts that workloads were seen to use.", false, func(c registry.Counts) int { return c.Hosts }},
		{"heddle_dependencies_learned_total", "Hosts that workloads came to use.", true, func(c registry.Counts) int { return c.Learned }},
		{"heddle_dependencies_forgotten_total", "Hosts that no proxy of a workload used for long.", true, func(c registry.Counts) int { return c.Forgotten }},
		{"heddle_dependencies_crowded_total", "Workloads that came to use too many hosts and get all.", true, func(c registry.Counts) int { return c.Crowded }},
	} {
		value := func() float64 { return float64(m.value(d.Counts())) }
		if m.total {
			metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help}, value))
		} else {
			metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.name, Help: m.help}, value))
		}
	}
}
