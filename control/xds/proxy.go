package xds

import (
	"slices"
	"strconv"
	"sync"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"heddle.io/heddle/control/peer"
)

// holdLimit is how long newer resources of a type wait for the answer to those sent before: a proxy that takes longer is
// stuck already.
const holdLimit = 10 * time.Second

// warmLimit is how long routes wait until a proxy asks for the endpoints of clusters that it was just sent. One that does
// not ask by then does not need them.
const warmLimit = time.Second

// keepLimit is how long clusters and endpoints that are gone stay with a proxy that refused listeners or routes, whose older ones may
// lead there. What it refuses for longer must not have it keep everything that ever was.
const keepLimit = 10 * time.Minute

// maxNotes is how many changes are kept one by one for a proxy before they are put together.
const maxNotes = 32

// Proxy is one stream of a proxy. What is sent over it has this order, so that nothing names what is not there:
//
//   - Of one type, one response at a time is unanswered; meanwhile further changes gather.
//   - Clusters go before endpoints, these before secrets, listeners and routes. Endpoints of clusters that still wait are
//     held back with them; those of other clusters are not. Listeners and routes wait until the clusters sent before are
//     acknowledged, and the proxy was sent the endpoints of new ones.
//   - Clusters and endpoints are removed last, when listeners and routes are acknowledged. A proxy that refused some of
//     these goes on with older ones, and so keeps the clusters, too, for a while.
type Proxy struct {
	server    *Server
	id        string
	connected time.Time
	wake      chan struct{}

	// The server's lock guards these.
	groups []*Group
	joined bool

	// mu guards what follows; [Server] says in which order locks are taken.
	mu      sync.Mutex
	failure string
	// whole says that it speaks the state-of-the-world protocol.
	whole bool
	// notes are changes that are not in the subscriptions yet.
	notes  []*changed
	types  [typeCount]subscription
	nonces int64
	// heavy is the type of the large response that is not answered; giveBack ends its reservation.
	heavy    *Type
	giveBack func()
	// warming are clusters whose endpoints the proxy has not asked for, until warmUntil.
	warming   map[string]struct{}
	warmUntil time.Time
	// synced says that the proxy once acknowledged everything there was; unsettled since when there is something that it has
	// not, zero when there is nothing.
	synced    bool
	unsettled time.Time
	// lastProgress is what its answers came to last, and progressChange what became different of them since [Server.ProgressChanges] was asked.
	lastProgress   progressState
	progressChange ProgressChange
}

// note has the proxy's goroutine look at a change. The server's lock is held for writing.
func (p *Proxy) note(c *changed) {
	p.mu.Lock()
	p.notes = append(p.notes, c)
	if p.unsettled.IsZero() {
		p.unsettled = p.server.now()
	}
	if len(p.notes) > maxNotes {
		p.absorb()
	}
	p.noteProgress()
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// absorb makes of changes names that are to be sent, and takes what is gone from what was refused.
func (p *Proxy) absorb() {
	for _, c := range p.notes {
		for t := range p.types {
			sub := &p.types[t]
			for _, name := range c.names[t] {
				if sub.wants(name) {
					sub.mark(name, false, c.version)
				}
				if sub.refused.names.has(name) && find(p.groups, Type(t), name) == nil {
					sub.forgive(name)
				}
			}
		}
	}
	p.notes = nil
}

// response is what is sent.
type response struct {
	typ     Type
	nonce   string
	version string
	// change is the newest that is in it.
	change    int64
	resources []*Resource
	removed   []string
	size      int
}

// next is what is to be sent now, or nil; then wait, when not zero, is after which time to look again.
func (p *Proxy) next() (r *response, wait time.Duration) {
	p.server.mu.RLock()
	defer p.server.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.noteProgress()
	p.absorb()
	now := p.server.now()
	var set, removed [typeCount][]string
	var busy [typeCount]bool
	idle := true
	for t := range typeCount {
		set[t], removed[t] = p.due(t)
		left := p.types[t].sent.Add(holdLimit).Sub(now)
		if busy[t] = p.types[t].unansweredNow() && left > 0; busy[t] {
			wait = sooner(wait, left)
		}
		// While a large response is on its way, others wait.
		busy[t] = busy[t] || p.heavy != nil && p.weight(t, set[t]) > largeResponse
		idle = idle && !p.types[t].greet && len(set[t])+len(removed[t])+len(p.types[t].owed) == 0
	}
	if idle {
		if p.synced && p.behind() == 0 {
			// What changed is nothing that the proxy asked for.
			p.unsettled = time.Time{}
		}
		return nil, 0
	}
	can := func(t Type) bool { return !busy[t] && (p.types[t].greet || len(set[t]) > 0) }
	if can(Clusters) {
		return p.respond(Clusters, set[Clusters], nil, now), 0
	}
	if can(Endpoints) {
		return p.respond(Endpoints, set[Endpoints], nil, now), 0
	}
	if can(Secrets) || !busy[Secrets] && len(removed[Secrets]) > 0 {
		return p.respond(Secrets, set[Secrets], removed[Secrets], now), 0
	}
	if len(p.warming) > 0 {
		if left := p.warmUntil.Sub(now); left > 0 {
			return nil, sooner(wait, left)
		}
		p.warming = nil
		p.server.metrics.givenUp.WithLabelValues(forEndpoints).Inc()
	}
	if busy[Clusters] || len(set[Clusters])+len(set[Endpoints]) > 0 {
		return nil, wait
	}
	for t := Listeners; t <= Routes; t++ {
		if can(t) || !busy[t] && len(removed[t]) > 0 {
			return p.respond(t, set[t], removed[t], now), 0
		}
	}
	if busy[Listeners] || busy[Routes] {
		return nil, wait
	}
	if none := p.absent(Listeners); len(none) > 0 {
		return p.respond(Listeners, nil, none, now), 0
	}
	for t := Clusters; t <= Endpoints; t++ {
		if len(removed[t]) > 0 {
			if left := p.keeps(); left > 0 {
				return nil, sooner(wait, left)
			}
			if busy[t] {
				return nil, wait
			}
			return p.respond(t, nil, removed[t], now), 0
		}
	}
	return nil, wait
}

// sooner is the shorter of two times, of which zero is none; a bit of it is left.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		a = b
	}
	return max(a, time.Millisecond)
}

// due are the names of a type that are to be sent, and those that are to be removed. Endpoints wait for the clusters of
// their name.
func (p *Proxy) due(t Type) (set, removed []string) {
	sub := &p.types[t]
	for name := range sub.dirty.said {
		if find(p.groups, t, name) == nil {
			if p.whole && t != Clusters && t != Listeners {
				// The state of the world has no word for it.
				sub.dirty.remove(name)
				continue
			}
			removed = append(removed, name)
			continue
		}
		if t == Endpoints && p.types[Clusters].dirty.has(name) {
			continue
		}
		set = append(set, name)
	}
	if sub.dirty.len() == 0 {
		sub.unsent = 0
	}
	return set, removed
}

// absent are the names that a proxy asked for beside everything and that there are no resources of. Those that there are have
// been sent.
func (p *Proxy) absent(t Type) []string {
	sub := &p.types[t]
	var out []string
	for name := range sub.owed {
		if find(p.groups, t, name) == nil {
			out = append(out, name)
		}
	}
	sub.owed = nil
	return out
}

// respond makes a response and takes note of it.
func (p *Proxy) respond(t Type, set, removed []string, now time.Time) *response {
	sub := &p.types[t]
	// Of a proxy that does not say what it refused of a response, as Envoy, all of that comes again together with what may mend it.
	if !sub.refused.exact && slices.ContainsFunc(set, sub.refused.names.has) {
		in := make(map[string]struct{}, len(set))
		for _, name := range set {
			in[name] = struct{}{}
		}
		for name := range sub.refused.names.said {
			if _, is := in[name]; !is && find(p.groups, t, name) != nil {
				set = append(set, name)
			}
		}
	}
	p.nonces++
	if sub.unansweredNow() || t >= Listeners && p.types[Clusters].unansweredNow() {
		p.server.metrics.givenUp.WithLabelValues(forAnswer).Inc()
	}
	sub.nonce, sub.answered, sub.sent, sub.greet = strconv.FormatInt(p.nonces, 10), false, now, false
	sub.batchSaid = tally{}
	for _, name := range set {
		sub.dirty.remove(name)
	}
	for _, name := range removed {
		if sub.dirty.said[name] {
			sub.batchSaid.add(tally{1, len(name)})
		}
		sub.dirty.remove(name)
	}
	if sub.unanswered == 0 {
		sub.unanswered = sub.unsent
	}
	if sub.dirty.len() == 0 {
		sub.unsent, sub.dirty = 0, nameSet{}
	}
	sub.batch, sub.latest, sub.state = slices.Concat(set, removed), p.server.version, Stale
	r := &response{typ: t, nonce: sub.nonce, version: strconv.FormatInt(p.server.version, 10), change: p.server.version}
	if p.whole {
		p.wholeWorld(r, set, len(removed) > 0)
	} else {
		slices.Sort(set)
		slices.Sort(removed)
		r.removed = removed
		for _, name := range set {
			r.resources = append(r.resources, find(p.groups, t, name))
		}
		p.warm(t, set, now)
	}
	for _, one := range r.resources {
		r.size += one.size()
	}
	if sub.size = r.size; r.size > largeResponse {
		p.heavy = &t
	}
	return r
}

// weight is about the size of a response with these.
func (p *Proxy) weight(t Type, set []string) int {
	size := 0
	for _, name := range set {
		size += find(p.groups, t, name).size()
	}
	return size
}

// lighten says that the large response is answered, or will never be.
func (p *Proxy) lighten() {
	if p.giveBack != nil {
		p.giveBack()
	}
	p.heavy, p.giveBack = nil, nil
}

// warm notes new clusters: the proxy will ask for their endpoints, and must have them before routes lead there.
func (p *Proxy) warm(t Type, clusters []string, now time.Time) {
	if t != Clusters || !p.types[Endpoints].asked {
		return
	}
	for _, name := range clusters {
		if !p.types[Endpoints].wants(name) && find(p.groups, Endpoints, name) != nil {
			if p.warming == nil {
				p.warming = map[string]struct{}{}
			}
			p.warming[name] = struct{}{}
			p.warmUntil = now.Add(warmLimit)
		}
	}
}

// answer takes the answer to a response. With a refusal the proxy did not take all of it; that says why, in its words, which may be
// none, and perhaps what ([peer.Refused]).
func (p *Proxy) answer(t Type, nonce string, refusal *rpcstatus.Status) {
	sub := &p.types[t]
	if nonce == "" || nonce != sub.nonce || sub.answered {
		return // A new subscription, or an answer to something older than what was sent last.
	}
	sub.answered = true
	p.traceAnswered(t, refusal != nil)
	if p.heavy != nil && *p.heavy == t {
		p.lighten()
	}
	named := peer.Refused(refusal)
	isNamed := func(name string) bool { _, is := named[name]; return is }
	exact := slices.ContainsFunc(sub.batch, isNamed)
	r := &sub.refused
	if r.names.len() == 0 {
		*r = refusedResources{exact: exact}
		r.since = sub.unanswered
	}
	known := r.names.len()
	for _, name := range sub.batch {
		// What is gone, or not asked for any more, is mended by that.
		if refusal == nil || exact && !isNamed(name) || find(p.groups, t, name) == nil || !sub.wants(name) {
			r.names.remove(name)
		} else if !r.names.has(name) {
			r.names.add(name, false)
			r.began = p.server.now()
		}
	}
	if refusal != nil {
		// One that is refused for what it was refused for is a table in which something else has changed, and was taken.
		if !exact || !r.exact || r.names.len() != known || r.reason != refusal.GetMessage() {
			r.last = sub.latest
		}
		r.reason = refusal.GetMessage()
		r.exact = exact && (r.exact || r.names.all(isNamed))
		p.server.metrics.rejects.WithLabelValues(t.String()).Inc()
		p.server.refusals.note(p.id, t, refusal.GetMessage())
	} else {
		sub.version = sub.latest
	}
	if r.names.len() == 0 {
		*r = refusedResources{}
	}
	sub.state = Synced
	if sub.refused.names.len() > 0 {
		sub.state = Refused
	}
	sub.unanswered, sub.batch, sub.batchSaid = 0, nil, tally{}
}

// settle notes when there is nothing left to do. The server's lock and the proxy's are held.
func (p *Proxy) settle() {
	defer p.noteProgress()
	if p.unsettled.IsZero() || !p.types[Clusters].asked || !p.types[Listeners].asked || p.behind() != 0 {
		return
	}
	p.server.metrics.convergence.Observe(p.server.now().Sub(p.unsettled).Seconds())
	p.synced, p.unsettled = true, time.Time{}
}

// behind is the oldest change that the proxy has not answered; zero when there is none.
func (p *Proxy) behind() int64 {
	var oldest int64
	if len(p.notes) > 0 {
		oldest = p.notes[0].version
	}
	for t := range typeCount {
		oldest = older(oldest, p.behindOf(t))
	}
	return oldest
}

// behindOf is the oldest change of a type that the proxy has not answered, among those that are in the subscription.
func (p *Proxy) behindOf(t Type) int64 {
	sub := &p.types[t]
	if t <= Endpoints && sub.unsent != 0 && p.keeps() > 0 {
		// What it goes on using, because it refused what was to replace it, is not waited for.
		if set, _ := p.due(t); len(set) == 0 {
			return sub.unanswered
		}
	}
	return older(sub.unanswered, sub.unsent)
}

// older is that of two changes which came first; zero is none.
func older(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// keeps is for how long yet the proxy keeps the clusters and endpoints that are gone, because it goes on with older listeners or routes;
// zero when it does not.
func (p *Proxy) keeps() time.Duration {
	var longest time.Duration
	for _, t := range []Type{Listeners, Routes} {
		if r := &p.types[t].refused; r.names.len() > 0 {
			longest = max(longest, r.began.Add(keepLimit).Sub(p.server.now()))
		}
	}
	return longest
}
