package dns

import (
	"net/netip"
	"sync"
)

// places bound what is under way, for all and for one who asks.
type places struct {
	most, ofOne int

	mu  sync.Mutex
	all int
	of  map[netip.Addr]int
}

func newPlaces(most, ofOne int) *places {
	return &places{most: most, ofOne: ofOne, of: map[netip.Addr]int{}}
}

func (p *places) take(asker netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == p.most || p.of[asker] == p.ofOne {
		return false
	}
	p.all++
	p.of[asker]++
	return true
}

func (p *places) leave(asker netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.of[asker]--; p.of[asker] == 0 {
		delete(p.of, asker)
	}
}
