package resolve

import (
	"cmp"
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

// Offer is what one cluster exports, to be shared with others. It is never changed.
type Offer struct {
	sharing *Sharing
	// exports, sorted by namespace and name, that any other cluster might know, and which of owners each belongs to.
	exports []registry.Export
	owner   []int
	// owners are the global namespaces that they belong to, as the sharing numbers them.
	owners []int
}

// Offer looks at what a cluster exports.
func (s *Sharing) Offer(exports []registry.Export, from string) *Offer {
	out := &Offer{sharing: s}
	sorted := slices.SortedFunc(slices.Values(exports), func(x, y registry.Export) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	// By the number of a global namespace and by a namespace, what they are in owners.
	byNumber, byNamespace := map[int]int{}, map[string]int{}
	for _, e := range sorted {
		owner, known := byNamespace[e.Namespace]
		if !known {
			owner = -1
			if number := s.owners.index(from, e.Namespace); number >= 0 {
				if owner, known = byNumber[number]; !known {
					owner = len(out.owners)
					out.owners = append(out.owners, number)
					byNumber[number] = owner
				}
			}
			byNamespace[e.Namespace] = owner
		}
		if owner >= 0 {
			out.exports, out.owner = append(out.exports, e), append(out.owner, owner)
		}
	}
	return out
}

// Audience is the same for all clusters that may know the same of the offer.
func (o *Offer) Audience(to string) string {
	parts := o.sharing.partsOf(to)
	out := make([]byte, len(o.owners))
	for i, number := range o.owners {
		out[i] = '-'
		if parts[number] {
			out[i] = '+'
		}
	}
	return string(out)
}

// For gives what an audience may know, sorted by namespace and name.
func (o *Offer) For(audience string) []registry.Export {
	var out []registry.Export
	for i, e := range o.exports {
		if audience[o.owner[i]] == '+' {
			out = append(out, e)
		}
	}
	return out
}
