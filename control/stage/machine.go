// Package stage says what is in force while a change that concerns two ends of a connection goes through the mesh: mutual
// TLS switched on or off, a port moved, destinations that are new. Servers accept the former way and the wanted one first;
// once they all do, clients go the wanted way; once they all do that, servers accept nothing else.
//
// What is wanted are generations, of which a later one replaces an earlier one, also in the middle. The package knows
// nothing of what stands in them, keeps no time of its own and does nothing: see [Machine].
package stage

import (
	"maps"
	"slices"
	"time"
)

// DefaultLimit is how long a proxy that answers nothing is waited for, unless told otherwise.
const DefaultLimit = 30 * time.Second

// Generation numbers what was wanted; a later one has a higher number. Zero stands for none.
type Generation int64

// Step is how far a change has come.
type Step string

// Steps, in their order.
const (
	// Settled means that servers and clients go by what is wanted.
	Settled Step = "Settled"
	// Accepting means that clients go the former way, until servers accept the wanted one as well.
	Accepting Step = "Accepting"
	// Switching means that servers accept the former way as well, until clients have left it.
	Switching Step = "Switching"
)

// Proxy is what is known of a proxy's answers.
type Proxy struct {
	ID string
	// Owes is the oldest change that it has not taken, be it that it has not answered, that it refused, or that it is not
	// connected; zero when it has taken all. Of one that may run anything, it is 1, the first change there is.
	Owes int64
	// Serves says that it is a server of other proxies in the mesh, as sidecars are.
	Serves bool
}

// Machine says what is in force. It starts with [New]; [Machine.Want] and [Machine.Look] say what happened, and return
// true when [Machine.InForce] has changed, which is then to be pushed to the proxies and said by [Machine.Pushed]. The same
// calls have the same results. It is used by one goroutine at a time.
type Machine struct {
	limit time.Duration
	// wanted is the newest generation, clients what clients go by now, and former what some of them may still go by.
	wanted, clients, former Generation
	// accepted is the change since which servers accept clients' generation and the wanted one; switched is that since which
	// clients go by theirs. Both are zero until they are pushed.
	accepted, switched int64
	// debts are of proxies that owe something.
	debts map[string]debt
	// without are those that a step of this change did not wait for any longer.
	without map[string]struct{}
}

// debt is what a proxy owes, and since when.
type debt struct {
	change int64
	since  time.Time
	serves bool
}

// New makes a machine for proxies that go by a generation already, and may, after a restart, be on the way to it from a
// former one. A proxy that does not take anything for as long as the limit is not waited for until it does.
func New(limit time.Duration, clients, former Generation) *Machine {
	return &Machine{limit: limit, wanted: clients, clients: clients, former: former, debts: map[string]debt{}, without: map[string]struct{}{}}
}

// InForce is what proxies are to be sent.
type InForce struct {
	// Clients go by this generation.
	Clients Generation
	// Wanted is what servers go by.
	Wanted Generation
	// Accepted are further generations whose clients servers accept, the oldest first.
	Accepted []Generation
}

// InForce says what proxies are to be sent now.
func (m *Machine) InForce() InForce {
	out := InForce{Clients: m.clients, Wanted: m.wanted}
	if m.former != 0 {
		out.Accepted = append(out.Accepted, m.former)
	}
	if m.clients != m.wanted {
		out.Accepted = append(out.Accepted, m.clients)
	}
	return out
}

// Want has another generation in place of the one that was wanted. both says that it concerns both ends, compared with
// what clients go by ([InForce.Clients]): if it does not, they have it at once.
func (m *Machine) Want(g Generation, both bool) {
	m.wanted = g
	if both {
		m.accepted = 0
		clear(m.without)
		return
	}
	m.clients = g
}

// Pushed says that what is in force has been sent as this change.
func (m *Machine) Pushed(change int64) {
	if m.accepted == 0 {
		m.accepted = change
	}
	if m.switched == 0 {
		m.switched = change
	}
}

// Look takes note of what the proxies owe at a time, and says whether something else is in force by that. Proxies that are
// not named are gone. To be called when any has answered, come or gone, and when [Status.Look] is over.
func (m *Machine) Look(now time.Time, proxies []Proxy) bool {
	before := m.debts
	m.debts = make(map[string]debt, len(before))
	for _, p := range proxies {
		if p.Owes == 0 {
			continue
		}
		d := debt{change: p.Owes, since: now, serves: p.Serves}
		// One that has taken something meanwhile is alive, and begins anew.
		if was, known := before[p.ID]; known && was.change == d.change {
			d.since = was.since
		}
		m.debts[p.ID] = d
	}
	changed := false
	if m.former != 0 && m.left(now) {
		m.former, changed = 0, true
	}
	if m.clients != m.wanted && m.former == 0 && m.ready(now) {
		m.former, m.clients, m.switched, changed = m.clients, m.wanted, 0, true
	}
	return changed
}

// left says whether clients have left the former generation.
func (m *Machine) left(now time.Time) bool {
	return m.switched != 0 && m.over(now, func(d debt) bool { return d.change <= m.switched })
}

// ready says whether servers accept the wanted generation.
func (m *Machine) ready(now time.Time) bool {
	return m.accepted != 0 && m.over(now, func(d debt) bool { return d.serves && d.change <= m.accepted })
}

// over says whether nobody is waited for any more, of those that a step waits for.
func (m *Machine) over(now time.Time, awaited func(debt) bool) bool {
	late := map[string]struct{}{}
	for id, d := range m.debts {
		switch {
		case !awaited(d):
		case now.Before(d.since.Add(m.limit)):
			return false
		default:
			late[id] = struct{}{}
		}
	}
	maps.Copy(m.without, late)
	return true
}

// Status is how far the change is that is under way.
type Status struct {
	Step Step
	// Awaited are the proxies that the step waits for, sorted.
	Awaited []string
	// Without are those that the change went on without, after the limit, sorted. They stay named until the next change
	// that concerns both ends.
	Without []string
	// Look is when the first of those awaited is not waited for any more; zero when none is.
	Look time.Time
}

// Status says how far the change is.
func (m *Machine) Status(now time.Time) Status {
	out := Status{Step: Settled, Without: slices.Sorted(maps.Keys(m.without))}
	awaited := func(debt) bool { return false }
	switch {
	case m.former != 0:
		out.Step = Switching
		awaited = func(d debt) bool { return m.switched != 0 && d.change <= m.switched }
	case m.clients != m.wanted:
		out.Step = Accepting
		awaited = func(d debt) bool { return m.accepted != 0 && d.serves && d.change <= m.accepted }
	}
	for id, d := range m.debts {
		end := d.since.Add(m.limit)
		if !awaited(d) || !now.Before(end) {
			continue
		}
		out.Awaited = append(out.Awaited, id)
		if out.Look.IsZero() || end.Before(out.Look) {
			out.Look = end
		}
	}
	slices.Sort(out.Awaited)
	return out
}
