package xds

import (
	"math"
	"slices"
)

// ProgressChange is what has become different of a proxy's answers.
type ProgressChange struct {
	Proxy *Proxy
	// Counts says whether the proxy counts in [Progress], Whole that it came to, or ceased to, be it in between.
	Counts, Whole bool
	// Changes are those that it answers otherwise than before, or did in between.
	Changes []Range
}

// Range is of changes, both ends included.
type Range struct{ From, To int64 }

// maxRanges is how many ranges are kept for a proxy before they are put together.
const maxRanges = 16

// progressState is what [Progress] tells of a proxy.
type progressState struct {
	counts   bool
	behind   int64
	refusals [typeCount]refusedChanges
}

// ProgressChanges are the proxies whose answers became others since it was asked last, or that left with some. Those that came to be in
// other groups are not among them: the source knows.
func (s *Server) ProgressChanges() []ProgressChange {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.progressedMu.Lock()
	progressed := s.progressed
	s.progressed = map[*Proxy]struct{}{}
	s.progressedMu.Unlock()
	out := make([]ProgressChange, 0, len(progressed))
	for p := range progressed {
		p.mu.Lock()
		p.progressChange.Proxy, p.progressChange.Counts = p, p.lastProgress.counts
		out = append(out, p.progressChange)
		p.progressChange = ProgressChange{}
		p.mu.Unlock()
	}
	return out
}

// noteProgress takes note of what is different of a proxy's answers. The server's lock and the proxy's are held.
func (p *Proxy) noteProgress() {
	was, now := p.lastProgress, p.progress()
	if was == now {
		return
	}
	p.lastProgress = now
	p.progressChange.Whole = p.progressChange.Whole || was.counts != now.counts
	all := slices.Concat(p.progressChange.Changes, waits(was.behind, now.behind))
	for t := range now.refusals {
		all = append(all, now.refusals[t].differs(was.refusals[t])...)
	}
	if len(all) > maxRanges {
		whole := all[0]
		for _, r := range all {
			whole = Range{min(whole.From, r.From), max(whole.To, r.To)}
		}
		all = []Range{whole}
	}
	p.progressChange.Changes = all
	p.server.progressedMu.Lock()
	p.server.progressed[p] = struct{}{}
	p.server.progressedMu.Unlock()
}

// progress of a proxy. One in whose place its node has another stream has none. The server's lock and
// the proxy's are held.
func (p *Proxy) progress() progressState {
	var out progressState
	if p.server.proxies[p.id] != p {
		return out
	}
	if out.counts = p.synced; p.synced {
		out.behind = p.behind()
	}
	for t := range p.types {
		if r := &p.types[t].refused; r.names.len() > 0 {
			out.refusals[t] = r.refusedChanges
		}
	}
	return out
}

// waits are the changes that are waited for now and were not, or the other way round, when the oldest that is waited for is
// another one; zero for none.
func waits(was, now int64) []Range {
	switch {
	case was == now:
		return nil
	case was == 0 || now == 0:
		return []Range{{max(was, now), math.MaxInt64}}
	}
	return []Range{{min(was, now), max(was, now) - 1}}
}

// differs are the changes that are refused otherwise than before.
func (r refusedChanges) differs(was refusedChanges) []Range {
	switch none := (refusedChanges{}); {
	case r == was:
		return nil
	case r.reason == was.reason && r.since == was.since:
		return []Range{{min(r.last, was.last) + 1, max(r.last, was.last)}}
	case was == none:
		return []Range{{r.since, r.last}}
	case r == none:
		return []Range{{was.since, was.last}}
	}
	return []Range{{was.since, was.last}, {r.since, r.last}}
}
