package resolve

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// Sharing says which of a cluster's services another cluster may know: those of namespaces that belong to a global namespace
// which maps a namespace of the other cluster too. The primary relays by it, without believing what members say about who
// shall know of them. It may be used by several goroutines at once.
type Sharing struct {
	owners *ownership

	mu sync.Mutex
	// parts says, by cluster, in which of the global namespaces it has a part.
	parts map[string][]bool
}

// NewSharing takes all objects, of which GlobalNamespaces of good form matter.
func NewSharing(settings model.Settings, objs []*objects.Object) *Sharing {
	valid := slices.DeleteFunc(slices.Clone(objs), func(o *objects.Object) bool {
		return o.Kind != objects.GlobalNamespace || len(objects.CheckForm(o)) > 0
	})
	return &Sharing{owners: newOwnership(settings, valid), parts: map[string][]bool{}}
}

// partsOf says in which of the global namespaces a cluster has a part.
func (s *Sharing) partsOf(cluster string) []bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts, known := s.parts[cluster]
	if !known {
		parts = make([]bool, len(s.owners.globals))
		for i, g := range s.owners.globals {
			parts[i] = g.names(cluster)
		}
		s.parts[cluster] = parts
	}
	return parts
}

// Offer is what one cluster exports, to be shared with others. It may be used by several goroutines at once.
type Offer struct {
	sharing *Sharing
	from    string
	exports *registry.Exports

	mu sync.Mutex
	// counts says how many of the exports belong to each of the global namespaces, as the sharing numbers them; owners are these,
	// sorted.
	counts map[int]int
	owners []int
	// shares are what audiences may know.
	shares map[string]*registry.Exports
}

// maxShares bounds the audiences of which an offer knows what they may know. With more, all are forgotten, and looked for again
// for whom they are needed.
const maxShares = 256

// Offer looks at what a cluster exports. Where a former offer of that cluster is given, nil for none, it looks at what differs
// from that.
func (s *Sharing) Offer(exports *registry.Exports, from string, former *Offer) *Offer {
	out := &Offer{sharing: s, from: from, exports: exports, counts: map[int]int{}, shares: map[string]*registry.Exports{}}
	var before *registry.Exports
	shares := map[string]*registry.Exports{}
	if former != nil && former.sharing == s && former.from == from {
		former.mu.Lock()
		out.counts, before, shares = maps.Clone(former.counts), former.exports, maps.Clone(former.shares)
		former.mu.Unlock()
	}
	set, gone := exports.Since(before)
	owners := out.ownersOf(set, gone)
	for _, e := range set {
		if number := owners[e.Namespace]; number >= 0 && before.Get(e.Key()) == nil {
			out.counts[number]++
		}
	}
	for _, name := range gone {
		if number := owners[name.Namespace]; number >= 0 {
			if out.counts[number]--; out.counts[number] == 0 {
				delete(out.counts, number)
			}
		}
	}
	out.owners = slices.Sorted(maps.Keys(out.counts))
	for audience, share := range shares {
		out.shares[audience] = share.With(among(owners, audience, set), gone)
	}
	return out
}

// ownersOf gives, by namespace, which global namespace the services belong to, -1 for none.
func (o *Offer) ownersOf(set []*registry.Export, gone []registry.ExportName) map[string]int {
	out := map[string]int{}
	look := func(namespace string) {
		if _, known := out[namespace]; !known {
			out[namespace] = o.sharing.owners.index(o.from, namespace)
		}
	}
	for _, e := range set {
		look(e.Namespace)
	}
	for _, name := range gone {
		look(name.Namespace)
	}
	return out
}

// among are those of the services that belong to an audience's global namespaces.
func among(owners map[string]int, audience string, set []*registry.Export) []*registry.Export {
	parts := map[int]bool{}
	for left := []byte(audience); len(left) > 0; {
		number, n := binary.Uvarint(left)
		parts[int(number)], left = true, left[n:]
	}
	var out []*registry.Export
	for _, e := range set {
		if parts[owners[e.Namespace]] {
			out = append(out, e)
		}
	}
	return out
}

// Audience is the same for all clusters that may know the same of the offer: the global namespaces in which services of it are and in
// which the cluster has a part, by number.
func (o *Offer) Audience(to string) string {
	parts := o.sharing.partsOf(to)
	var out []byte
	for _, number := range o.owners {
		if parts[number] {
			out = binary.AppendUvarint(out, uint64(number))
		}
	}
	return string(out)
}

// For gives what an audience may know.
func (o *Offer) For(audience string) *registry.Exports {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, known := o.shares[audience]
	if !known {
		all := o.exports.Sorted()
		if out = (*registry.Exports)(nil).With(among(o.ownersOf(all, nil), audience, all), nil); len(o.shares) >= maxShares {
			clear(o.shares)
		}
		o.shares[audience] = out
	}
	return out
}
