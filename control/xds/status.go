package xds

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
)

// State of a proxy's configuration of one type, in istioctl's words.
type State string

const (
	// Synced means that the proxy acknowledged everything that there is for it.
	Synced State = "SYNCED"
	// Stale means that there is something for it that it has not acknowledged, be it sent or still held back.
	Stale State = "STALE"
	// Refused means that the proxy refused some of what was sent, and runs what it had of that.
	Refused State = "NACK"
	// NotSent means that the proxy asked, and there is nothing for it.
	NotSent State = "NOT SENT"
	// NotAsked means that the proxy did not ask for this type.
	NotAsked State = "IGNORED"
)

// NodeStatus says what one connected proxy runs.
type NodeStatus struct {
	// ID is the node's identifier, `sidecar~address~name.namespace~domain`.
	ID string `json:"id"`
	// Connected since.
	Connected time.Time `json:"connected"`
	// Revision is the controller's count of changes that its configuration was made from.
	Revision int64 `json:"revision"`
	// Synced says that the proxy acknowledged everything that there is for it.
	Synced bool `json:"synced"`
	// Behind is the oldest change that the proxy has not answered, numbered as versions are; zero when there is none.
	Behind int64 `json:"behind,omitempty"`
	// Failure says why its configuration could not be made; empty when it could.
	Failure string `json:"failure,omitempty"`
	// Types in the order CDS, LDS, EDS, RDS, SDS.
	Types []TypeStatus `json:"types"`
}

// TypeStatus is the state of one resource type on a proxy.
type TypeStatus struct {
	// Type is CDS, LDS, EDS, RDS or SDS.
	Type  string `json:"type"`
	State State  `json:"state"`
	// Version acknowledged last, a number that is one more with each change of the mesh.
	Version string `json:"version,omitempty"`
	// Resources of this type that the proxy is to run.
	Resources int `json:"resources"`
	// Reason of a refusal, in the proxy's words.
	Reason string `json:"reason,omitempty"`
}

// status of a proxy. The server's lock is held.
func (p *Proxy) status() NodeStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	// What is not for it is nothing that it is behind with.
	p.absorb()
	status := NodeStatus{ID: p.id, Connected: p.connected, Revision: p.server.revision, Behind: p.behind(), Failure: p.problem()}
	status.Synced = status.Failure == "" && status.Behind == 0
	for _, t := range statusOrder {
		sub := &p.types[t]
		one := TypeStatus{Type: t.String(), State: NotAsked}
		for _, g := range p.groups {
			one.Resources += len(g.resources[t])
		}
		if sub.asked {
			one.State, one.Reason = sub.state, sub.refused.reason
			if one.State != Refused && p.behindOf(t) != 0 {
				one.State = Stale
			}
			if sub.version != 0 {
				one.Version = strconv.FormatInt(sub.version, 10)
			}
		}
		status.Synced = status.Synced && one.State != Stale && one.State != Refused
		status.Types = append(status.Types, one)
	}
	return status
}

// problem says why its configuration could not be made.
func (p *Proxy) problem() string {
	if p.failure != "" {
		return p.failure
	}
	for _, g := range p.groups {
		if g.failure != "" {
			return g.failure
		}
	}
	return ""
}

// Nodes lists the connected proxies, sorted by identifier.
func (s *Server) Nodes() []NodeStatus {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]NodeStatus, 0, len(s.proxies))
	for _, id := range slices.Sorted(maps.Keys(s.proxies)) {
		all = append(all, s.proxies[id].status())
	}
	return all
}

// Connected is the number of connected proxies.
func (s *Server) Connected() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.proxies)
}

// Unsettled lists the connected proxies that have not answered for the newest listeners and clusters. What a proxy refused is not
// waited for: it runs what it had.
func (s *Server) Unsettled() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(s.proxies)) {
		if !s.proxies[id].settled() {
			out = append(out, id)
		}
	}
	return out
}

func (p *Proxy) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.problem() != "" {
		return false
	}
	p.absorb()
	for _, t := range []Type{Clusters, Listeners} {
		sub := &p.types[t]
		set, removed := p.due(t)
		if sub.unansweredNow() || len(set) > 0 || len(removed) > 0 && p.keeps() == 0 {
			return false
		}
	}
	return true
}

// Config returns what a connected proxy is to run, by short type name; false when no such proxy is connected.
func (s *Server) Config(id string) (map[string][]proto.Message, bool) {
	s.mu.RLock()
	p := s.proxies[id]
	var all [typeCount][]*Resource
	if p != nil {
		for t := range all {
			for _, g := range p.groups {
				all[t] = slices.AppendSeq(all[t], maps.Values(g.resources[t]))
			}
		}
	}
	s.mu.RUnlock()
	if p == nil {
		return nil, false
	}
	config := map[string][]proto.Message{}
	for t, resources := range all {
		slices.SortFunc(resources, func(a, b *Resource) int { return cmp.Compare(a.Name(), b.Name()) })
		for _, r := range resources {
			m, err := r.Message()
			if err != nil {
				s.log.Error("a resource cannot be shown", "name", r.Name(), "error", err)
				continue
			}
			config[Type(t).String()] = append(config[Type(t).String()], m)
		}
	}
	return config, true
}

// Progress is how far the proxies of a group are. Those that have not acknowledged everything once, since they connected, do
// not count: they run nothing of ours yet.
type Progress struct {
	// Proxies of the group that count.
	Proxies int
	// behind are the oldest changes that proxies have not answered, sorted.
	behind []int64
	// refusals of changes.
	refusals []refusedBy
	failure  string
}

// refusedBy is what a proxy refused of a type.
type refusedBy struct {
	proxy string
	typ   Type
	refusedChanges
}

// Progress tells how far the proxies of a group are.
func (s *Server) Progress(g *Group) Progress {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := Progress{failure: g.failure}
	for p := range g.members {
		if s.proxies[p.id] != p {
			continue
		}
		p.mu.Lock()
		for t := range p.types {
			if r := p.types[t].refused; r.names.len() > 0 {
				out.refusals = append(out.refusals, refusedBy{p.id, Type(t), r.refusedChanges})
			}
		}
		if p.synced {
			out.Proxies++
			if b := p.behind(); b != 0 {
				out.behind = append(out.behind, b)
			}
		}
		p.mu.Unlock()
	}
	slices.Sort(out.behind)
	slices.SortFunc(out.refusals, func(a, b refusedBy) int { return cmp.Or(cmp.Compare(a.proxy, b.proxy), cmp.Compare(a.typ, b.typ)) })
	return out
}

// Waiting is how many proxies have not answered a change yet.
func (p Progress) Waiting(version int64) int {
	i, _ := slices.BinarySearch(p.behind, version+1)
	return i
}

// Refused gives, by proxy, the words in which a change was refused.
func (p Progress) Refused(version int64) []Refusal {
	var out []Refusal
	for _, r := range p.refusals {
		if r.since <= version && version <= r.last {
			out = append(out, Refusal{Proxy: r.proxy, Reason: r.typ.String() + ": " + r.reason})
		}
	}
	return out
}

// owedLimit is how long what a proxy named as refused is owed: it may be mended. After that it will not be taken for being waited for,
// and all else the proxy has taken.
const owedLimit = 30 * time.Second

// Owes is the oldest change that a proxy has not taken, be it that it has not answered or that it refused (see [owedLimit]); zero when
// it has taken all. One that has not acknowledged everything once, since it connected, may run whatever it ran before, and owes the
// first change, 1. current is false for a stream in whose place the proxy has another.
func (s *Server) Owes(p *Proxy) (change int64, current bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.proxies[p.id] != p {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// What is not for it is nothing that it owes.
	p.absorb()
	if !p.synced || p.problem() != "" {
		return 1, true
	}
	oldest := p.behind()
	for t := range p.types {
		r := &p.types[t].refused
		if r.names.len() == 0 || r.exact && s.now().Sub(r.began) >= owedLimit {
			continue
		}
		if oldest == 0 || r.since < oldest {
			oldest = max(r.since, 1)
		}
	}
	return oldest, true
}

// Failure says why the group does not have what it should have; empty when it has.
func (p Progress) Failure() string { return p.failure }

// Refusal is a proxy's no to a change.
type Refusal struct {
	// Proxy is its node's identifier.
	Proxy  string
	Reason string
}
