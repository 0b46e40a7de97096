package registry

import (
	"cmp"
	"encoding/json"
	"hash/maphash"
	"maps"
	"slices"
)

// ExportName is a service among those that a cluster exports.
type ExportName struct{ Namespace, Name string }

// Compare orders by namespace, then by name.
func (n ExportName) Compare(o ExportName) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

func (n ExportName) String() string { return n.Namespace + "/" + n.Name }

// Key is what the service is called.
func (e *Export) Key() ExportName { return ExportName{e.Namespace, e.Name} }

// Equal says whether two exports say the same.
func (e *Export) Equal(o *Export) bool {
	return e == o || e.Namespace == o.Namespace && e.Name == o.Name && slices.Equal(e.Ports, o.Ports) && slices.Equal(e.Identities, o.Identities) &&
		slices.EqualFunc(e.Groups, o.Groups, func(g, h ExportGroup) bool { return g.Ready == h.Ready && maps.Equal(g.Labels, h.Labels) })
}

// Size is at least how many bytes an export takes in a message between clusters, and little more.
func (e *Export) Size() int {
	// A field's number and length, a number's bytes.
	const field, number = 5, 6
	size := field + field + len(e.Namespace) + field + len(e.Name)
	for _, p := range e.Ports {
		size += field + field + len(p.Name) + number + field + len(p.Protocol)
	}
	for _, id := range e.Identities {
		size += field + len(id)
	}
	for _, g := range e.Groups {
		size += field + number
		for k, v := range g.Labels {
			size += field + field + len(k) + field + len(v)
		}
	}
	return size
}

// exportBuckets is into how many parts exports are divided. A change copies as many pointers, and one part: with the most
// services that a cluster may export, a part has some forty.
const exportBuckets = 256

// Exports are the services that a cluster exports. They are never changed, and neither is what they hold: [Exports.With] makes
// others that share with these what is the same. So a change of few costs little, however many there are, and what two have
// in common is passed over when they are compared. A nil has none.
type Exports struct {
	// buckets hold exports by their names' hashes, sorted by name.
	buckets     [exportBuckets]*[]*Export
	count, size int
}

// Nobody who chooses names can have them fall into one bucket.
var exportSeed = maphash.MakeSeed()

func (n ExportName) bucket() int { return int(maphash.Comparable(exportSeed, n) % exportBuckets) }

// NewExports has these services. Of several with one name, it has the last.
func NewExports(services ...Export) *Exports {
	set := make([]*Export, len(services))
	for i := range services {
		set[i] = &services[i]
	}
	return (*Exports)(nil).With(set, nil)
}

// Len is how many there are.
func (x *Exports) Len() int {
	if x == nil {
		return 0
	}
	return x.count
}

// Size is that of all exports together ([Export.Size]).
func (x *Exports) Size() int {
	if x == nil {
		return 0
	}
	return x.size
}

func findExport(in []*Export, name ExportName) (int, bool) {
	return slices.BinarySearchFunc(in, name, func(e *Export, name ExportName) int { return e.Key().Compare(name) })
}

func (x *Exports) bucket(i int) []*Export {
	if x == nil || x.buckets[i] == nil {
		return nil
	}
	return *x.buckets[i]
}

// Get is the service of that name, or nil.
func (x *Exports) Get(name ExportName) *Export {
	in := x.bucket(name.bucket())
	if i, there := findExport(in, name); there {
		return in[i]
	}
	return nil
}

// With has these services too, in place of those of their names, and not those that are gone. It is the same when nothing
// differs by that, and has the same pointers to what does not.
func (x *Exports) With(set []*Export, gone []ExportName) *Exports {
	out := x
	var own [exportBuckets]bool
	// edit gives a bucket that may be changed, with room for one more.
	edit := func(i int) *[]*Export {
		if out == x {
			if out = new(Exports); x != nil {
				*out = *x
			}
		}
		if !own[i] {
			own[i] = true
			in := out.bucket(i)
			copied := append(make([]*Export, 0, len(in)+1), in...)
			out.buckets[i] = &copied
		}
		return out.buckets[i]
	}
	for _, e := range set {
		name := e.Key()
		b := name.bucket()
		i, there := findExport(out.bucket(b), name)
		if there && out.bucket(b)[i].Equal(e) {
			continue
		}
		in := edit(b)
		if there {
			out.size -= (*in)[i].Size()
			(*in)[i] = e
		} else {
			*in = slices.Insert(*in, i, e)
			out.count++
		}
		out.size += e.Size()
	}
	for _, name := range gone {
		b := name.bucket()
		i, there := findExport(out.bucket(b), name)
		if !there {
			continue
		}
		in := edit(b)
		out.size -= (*in)[i].Size()
		out.count--
		*in = slices.Delete(*in, i, i+1)
	}
	return out
}

// Replaced has these services and no others, and what is the same of them in x is the same pointer; it is x when all are.
func (x *Exports) Replaced(by []*Export) *Exports {
	kept := make(map[ExportName]bool, len(by))
	for _, e := range by {
		kept[e.Key()] = true
	}
	var gone []ExportName
	for i := range exportBuckets {
		for _, e := range x.bucket(i) {
			if !kept[e.Key()] {
				gone = append(gone, e.Key())
			}
		}
	}
	return x.With(by, gone)
}

// Since is how x comes of others: the services that are new or say something else, and those that are gone, each sorted by name.
func (x *Exports) Since(before *Exports) (set []*Export, gone []ExportName) {
	if x == before {
		return nil, nil
	}
	for b := range exportBuckets {
		if x != nil && before != nil && x.buckets[b] == before.buckets[b] {
			continue
		}
		was, is := before.bucket(b), x.bucket(b)
		for len(was)+len(is) > 0 {
			order := 0
			switch {
			case len(was) == 0:
				order = 1
			case len(is) == 0:
				order = -1
			case was[0] != is[0]:
				order = was[0].Key().Compare(is[0].Key())
			}
			switch {
			case order < 0:
				gone, was = append(gone, was[0].Key()), was[1:]
			case order > 0:
				set, is = append(set, is[0]), is[1:]
			default:
				if !was[0].Equal(is[0]) {
					set = append(set, is[0])
				}
				was, is = was[1:], is[1:]
			}
		}
	}
	slices.SortFunc(set, func(a, b *Export) int { return a.Key().Compare(b.Key()) })
	slices.SortFunc(gone, ExportName.Compare)
	return set, gone
}

// Sorted are all, by namespace and name.
func (x *Exports) Sorted() []*Export {
	set, _ := x.Since(nil)
	return set
}

// List is a copy of all, by namespace and name.
func (x *Exports) List() []Export {
	var out []Export
	for _, e := range x.Sorted() {
		out = append(out, *e)
	}
	return out
}

// Equal says whether two say the same.
func (x *Exports) Equal(o *Exports) bool {
	if x.Len() != o.Len() {
		return false
	}
	set, gone := x.Since(o)
	return len(set)+len(gone) == 0
}

// MarshalJSON writes a list, sorted by namespace and name.
func (x *Exports) MarshalJSON() ([]byte, error) {
	return json.Marshal(x.List())
}

// UnmarshalJSON reads a list in any order.
func (x *Exports) UnmarshalJSON(text []byte) error {
	var list []Export
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*x = Exports{}
	if next := NewExports(list...); next != nil {
		*x = *next
	}
	return nil
}
