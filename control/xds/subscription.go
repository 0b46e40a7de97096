package xds

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// everything is the name that stands for all (xDS protocol, "How the client specifies what resources to return").
const everything = "*"

// subscription is what a proxy wants of one type, and what is still to be done for that. Versions are those of
// [Server.Update]; zero stands for none.
type subscription struct {
	asked    bool
	wildcard bool
	// names that were subscribed to, all by the word of the proxy.
	names nameSet
	// dirty names are to be sent, or to be removed if there is no such resource.
	dirty nameSet
	// owed are names that were asked for beside everything and are not answered: the proxy waits to hear what there is.
	owed map[string]struct{}
	// greet says that a response is due although there may be nothing to send: proxies wait for the first one.
	greet bool
	// unsent is the oldest change among the dirty ones; unanswered that among those sent and not answered, the newest of
	// which is latest.
	unsent, unanswered, latest int64
	// nonce, time and size, in bytes, of the last response.
	nonce    string
	sent     time.Time
	size     int
	answered bool
	// batch are the names in the response that is not answered yet, and batchSaid those of them that are there by the word of the proxy.
	batch     []string
	batchSaid tally
	// world is what a proxy on the state-of-the-world protocol was sent last of its clusters.
	world map[string]*Resource

	state State
	// version is the newest change that was acknowledged.
	version int64
	refused refusedResources
}

// refusedResources are what a proxy refused and has not taken since.
type refusedResources struct {
	names nameSet
	// exact says that these are by the proxy's word those that it refused; else they are all that was in a response.
	exact bool
	// began is since when the newest of them is refused.
	began time.Time
	refusedChanges
}

// refusedChanges are changes that a proxy refused, and why, in its words; of those from the first to the last it is not known which.
// None has no reason and no changes.
type refusedChanges struct {
	reason      string
	since, last int64
}

func (s *subscription) unansweredNow() bool { return s.nonce != "" && !s.answered }

func (s *subscription) wants(name string) bool {
	return s.wildcard || s.names.has(name)
}

// forgive takes back that a name was refused: it is gone, or not asked for any more.
func (s *subscription) forgive(name string) {
	s.refused.names.remove(name)
	if s.refused.names.len() > 0 {
		return
	}
	s.refused = refusedResources{}
	if s.state == Refused {
		s.state = Synced
	}
}

// forgiveUnwanted is [subscription.forgive] for all that is not asked for.
func (s *subscription) forgiveUnwanted() {
	for name := range s.refused.names.said {
		if !s.wants(name) {
			s.forgive(name)
		}
	}
}

// mark has a name sent, or removed if there is no such resource; said is as in [nameSet].
func (s *subscription) mark(name string, said bool, version int64) {
	s.dirty.add(name, said)
	if s.unsent == 0 || version < s.unsent {
		// Before the first change there is one as well: what was there when the proxy came.
		s.unsent = max(version, 1)
	}
}

// subscribe adds a name. The name's own text is used when there is a resource of it: a request's would keep the whole request.
func (p *Proxy) subscribe(t Type, name string) {
	sub := &p.types[t]
	if r := find(p.groups, t, name); r != nil {
		name = r.Name()
		sub.mark(name, false, p.server.version)
	}
	sub.names.add(name, true)
	if sub.wildcard {
		if sub.owed == nil {
			sub.owed = map[string]struct{}{}
		}
		sub.owed[name] = struct{}{}
	}
	if t == Endpoints {
		delete(p.warming, name)
	}
}

// begin takes the first request of a type.
func (p *Proxy) begin(t Type, names []string, resumes bool) {
	sub := &p.types[t]
	sub.asked, sub.state = true, NotSent
	if resumes {
		// What differs follows, and makes it stale until it is acknowledged.
		sub.state = Synced
	}
	if sub.wildcard = len(names) == 0 || slices.Contains(names, everything); sub.wildcard {
		sub.greet = true
		p.markAll(t)
	}
}

func (p *Proxy) markAll(t Type) {
	for _, g := range p.groups {
		for name := range g.resources[t] {
			p.types[t].mark(name, false, p.server.version)
		}
	}
}

// deltaRequest takes a request of the incremental protocol. After an error the stream is to end.
func (p *Proxy) deltaRequest(t Type, r *discovery.DeltaDiscoveryRequest) error {
	p.server.mu.RLock()
	defer p.server.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.absorb()
	defer p.settle()
	p.answer(t, r.GetResponseNonce(), r.GetErrorDetail())
	sub := &p.types[t]
	known := r.GetInitialResourceVersions()
	if !namesWithin(slices.Values(r.GetResourceNamesSubscribe())) || !namesWithin(maps.Keys(known)) {
		return p.longName()
	}
	if first := !sub.asked; first {
		p.begin(t, r.GetResourceNamesSubscribe(), len(known) > 0)
	} else {
		known = nil
		if slices.Contains(r.GetResourceNamesSubscribe(), everything) && !sub.wildcard {
			sub.wildcard, sub.greet = true, true
			p.markAll(t)
		}
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		if name != everything {
			p.subscribe(t, name)
		}
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		delete(sub.owed, name)
		switch {
		case name == everything:
			sub.wildcard = false
			sub.forgiveUnwanted()
		case sub.names.has(name) && sub.wildcard:
			// It is still among everything, and the proxy is to be told whether it exists.
			sub.names.remove(name)
			p.markSaid(t, name)
		default:
			sub.names.remove(name)
			sub.dirty.remove(name)
			sub.forgive(name)
		}
	}
	for name, version := range known {
		switch has := find(p.groups, t, name); {
		case !sub.wants(name):
		case has == nil:
			p.markSaid(t, name)
		case has.Version() == version:
			sub.dirty.remove(name)
		}
	}
	if sub.dirty.len() == 0 {
		sub.unsent, sub.dirty = 0, nameSet{}
	}
	return p.bounded()
}

// markSaid marks a name that a request has. The text of a resource's own name is used where there is one: a request's would be kept.
func (p *Proxy) markSaid(t Type, name string) {
	r := find(p.groups, t, name)
	if r != nil {
		name = r.Name()
	}
	p.types[t].mark(name, r == nil, p.server.version)
}

// wholeRequest takes a request of the state-of-the-world protocol. After an error the stream is to end.
func (p *Proxy) wholeRequest(t Type, r *discovery.DiscoveryRequest) error {
	p.server.mu.RLock()
	defer p.server.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = true
	p.absorb()
	defer p.settle()
	sub := &p.types[t]
	if !namesWithin(slices.Values(r.GetResourceNames())) {
		return p.longName()
	}
	if first := !sub.asked; first {
		p.begin(t, r.GetResourceNames(), r.GetVersionInfo() != "")
	} else {
		if r.GetResponseNonce() != sub.nonce {
			return nil // It was sent before the proxy had heard the last response, and another follows.
		}
		p.answer(t, r.GetResponseNonce(), r.GetErrorDetail())
	}
	before := sub.names
	sub.names = nameSet{}
	for _, name := range r.GetResourceNames() {
		if name == everything {
			continue
		}
		if before.has(name) {
			sub.names.add(name, true)
			continue
		}
		p.subscribe(t, name)
	}
	maps.DeleteFunc(sub.owed, func(name string, _ struct{}) bool { return !sub.names.has(name) })
	if len(r.GetResourceNames()) > 0 && !slices.Contains(r.GetResourceNames(), everything) {
		sub.wildcard = false
	}
	for name := range sub.dirty.said {
		if !sub.wants(name) {
			sub.dirty.remove(name)
		}
	}
	sub.forgiveUnwanted()
	if sub.nonce == "" && r.GetVersionInfo() != "" && r.GetVersionInfo() == p.digest(t) {
		// It has all of that from another stream.
		sub.dirty, sub.greet = nameSet{}, false
	}
	if sub.dirty.len() == 0 {
		sub.unsent, sub.dirty = 0, nameSet{}
	}
	return p.bounded()
}

// wholeWorld fills a response in the state-of-the-world protocol. Of clusters and listeners, what is not in it is removed, so
// all are in it; clusters that are to be removed are too, until it is their turn.
func (p *Proxy) wholeWorld(r *response, set []string, remove bool) {
	sub := &p.types[r.typ]
	r.version = p.digest(r.typ)
	if r.typ != Clusters && r.typ != Listeners {
		slices.Sort(set)
		for _, name := range set {
			r.resources = append(r.resources, find(p.groups, r.typ, name))
		}
		return
	}
	world := p.wanted(r.typ)
	if r.typ == Clusters {
		if !remove {
			for name, one := range sub.world {
				if _, there := world[name]; !there && sub.wants(name) {
					world[name] = one
				}
			}
		}
		sub.world = world
	}
	for _, name := range slices.Sorted(maps.Keys(world)) {
		r.resources = append(r.resources, world[name])
	}
}

// wanted is all that a proxy is to have of a type, by name. Of two groups with one name, the first counts, as [find] has it: a patch may add
// to a server what a client has.
func (p *Proxy) wanted(t Type) map[string]*Resource {
	out := map[string]*Resource{}
	for _, g := range slices.Backward(p.groups) {
		for name, r := range g.resources[t] {
			if p.types[t].wants(name) {
				out[name] = r
			}
		}
	}
	return out
}

// digest is a version of all that a proxy is to have of a type. It is the same in another controller.
func (p *Proxy) digest(t Type) string {
	wanted := p.wanted(t)
	digest := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		fmt.Fprintf(digest, "%q %q\n", name, wanted[name].Version())
	}
	return base64.RawURLEncoding.EncodeToString(digest.Sum(nil)[:versionBytes])
}
