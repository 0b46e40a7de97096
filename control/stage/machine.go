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

// Limits of a [Machine].
type Limits struct {
	// Answer is how long a proxy that takes nothing is waited for.
	Answer time.Duration
	// Anew is how long the preparation of servers may begin anew because something else is wanted. After that, clients go by what
	// was wanted until then first.
	Anew time.Duration
	// Connect is how long a connection may take that a client began before it switched: it sits in the server's queue, or in
	// the middle of its handshake, and must find what the client knew.
	Connect time.Duration
}

// Effect is what a change makes necessary.
type Effect int

// Effects of a change, compared with what clients go by.
const (
	// Alone concerns no server, or changes nothing back: clients may have it at once.
	Alone Effect = iota
	// Adds has servers accept more, and all that they did before.
	Adds
	// Replaces has servers accept something else.
	Replaces
)

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
	// Lag is how long after its answer it may still go by what was before: some say yes first, and have their threads follow.
	Lag time.Duration
}

// Machine says what is in force. It starts with [New]; [Machine.Want] and [Machine.Look] say what happened, and return
// true when [Machine.InForce] has changed, which is then to be pushed to the proxies and said by [Machine.Pushed]. The same
// calls have the same results. It is used by one goroutine at a time.
type Machine struct {
	limits Limits
	// wanted is the newest generation, clients what clients go by now, and former what some of them may still go by. next is what
	// clients go by after that: the wanted one, or, when that was replaced for too long, the last one before.
	wanted, clients, former, next Generation
	// accepted is the change since which servers accept clients' generation and the next one; switched is that since which
	// clients go by theirs. Both are zero until they are pushed.
	accepted, switched int64
	// adds says that servers that go by the wanted generation accept clients' generation by that.
	adds bool
	// began is since when servers are prepared, whatever for.
	began time.Time
	// debts are of proxies that owe something.
	debts map[string]debt
	// over is since when nobody is waited for in this step, zero while somebody is; the step ends when what clients or servers
	// lag behind has passed, too.
	over                 time.Time
	clientLag, serverLag time.Duration
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
func New(limits Limits, clients, former Generation) *Machine {
	return &Machine{limits: limits, wanted: clients, clients: clients, former: former, next: clients, debts: map[string]debt{}, without: map[string]struct{}{}}
}

// InForce is what proxies are to be sent.
type InForce struct {
	// Clients go by this generation.
	Clients Generation
	// Wanted is what servers go by.
	Wanted Generation
	// Former is what some clients may still go by; zero for none.
	Former Generation
	// Accepted are further generations whose clients servers accept, the oldest first; two at the most.
	Accepted []Generation
}

// InForce says what proxies are to be sent now.
func (m *Machine) InForce() InForce {
	out := InForce{Clients: m.clients, Wanted: m.wanted, Former: m.former}
	if m.former != 0 {
		out.Accepted = append(out.Accepted, m.former)
	}
	if m.clients != m.wanted {
		out.Accepted = append(out.Accepted, m.clients)
	}
	if m.next != m.wanted {
		out.Accepted = append(out.Accepted, m.next)
	}
	return out
}

// Want has another generation in place of the one that was wanted; the effect is that compared with what clients go by
// ([InForce.Clients]). Servers are prepared for the new one instead, which begins anew; but whoever goes on wanting something else
// keeps nobody's change from clients for longer than [Limits.Anew]; after that they go by what was wanted until then, and by the new
// one next.
func (m *Machine) Want(now time.Time, g Generation, effect Effect) {
	was := m.step()
	m.wanted = g
	if effect == Alone {
		m.clients, m.next = g, g
		return
	}
	clear(m.without)
	switch {
	case was == Accepting && !now.Before(m.began.Add(m.limits.Anew)):
		m.adds = false
		return
	case was == Settled:
		m.began = now
	}
	m.next, m.accepted, m.adds = g, 0, effect == Adds
	// The time in which clients leave a generation is the same, whatever follows.
	if was != Switching {
		m.over = time.Time{}
	}
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
	m.clientLag, m.serverLag = 0, 0
	for _, p := range proxies {
		m.clientLag = max(m.clientLag, p.Lag+m.limits.Connect)
		if p.Serves {
			m.serverLag = max(m.serverLag, p.Lag)
		}
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
	if step := m.step(); step == Settled || !m.done(now) {
		return false
	}
	m.over, m.began = time.Time{}, now
	if m.former != 0 {
		m.former = 0
		return true
	}
	if !m.adds {
		m.former = m.clients
	}
	m.clients, m.switched = m.next, 0
	if m.next != m.wanted {
		// Servers accept it already; by when, clients take longer to say.
		m.next, m.accepted = m.wanted, 0
	}
	return true
}

func (m *Machine) step() Step {
	switch {
	case m.former != 0:
		return Switching
	case m.clients != m.wanted:
		return Accepting
	}
	return Settled
}

// awaits says whether the step waits for who owes this.
func (m *Machine) awaits(d debt) bool {
	if m.step() == Switching {
		return d.change <= m.switched
	}
	return d.serves && d.change <= m.accepted
}

// lag of those that the step waits for.
func (m *Machine) lag() time.Duration {
	if m.step() == Switching {
		return m.clientLag
	}
	return m.serverLag
}

// done says whether the step waits for nobody any more.
func (m *Machine) done(now time.Time) bool {
	if m.step() == Switching && m.switched == 0 || m.step() == Accepting && m.accepted == 0 {
		return false
	}
	late := map[string]struct{}{}
	for id, d := range m.debts {
		switch {
		case !m.awaits(d):
		case now.Before(d.since.Add(m.limits.Answer)):
			m.over = time.Time{}
			return false
		default:
			late[id] = struct{}{}
		}
	}
	if m.over.IsZero() {
		m.over = now
	}
	if now.Before(m.over.Add(m.lag())) {
		return false
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
	// Look is when to look again though nothing happens: the first of those awaited is not waited for any more, or those that
	// lag behind their answers do so no more. Zero for no such time.
	Look time.Time
}

// Status says how far the change is.
func (m *Machine) Status(now time.Time) Status {
	out := Status{Step: m.step(), Without: slices.Sorted(maps.Keys(m.without))}
	if out.Step == Settled {
		return out
	}
	if !m.over.IsZero() {
		out.Look = m.over.Add(m.lag())
	}
	for id, d := range m.debts {
		end := d.since.Add(m.limits.Answer)
		if !m.awaits(d) || !now.Before(end) {
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
