package patch

import "slices"

// index has patches in their order, and finds those that may have to do with something without looking at all of them: most patches
// name what they are for.
type index struct {
	patches []*Patch
	// by has the places of those that name a word, others of those that name none.
	by     map[word][]int
	others []int
}

// word is a name that patches go by, of one kind.
type word struct {
	kind wordKind
	name string
}

type wordKind uint8

const (
	byName wordKind = iota
	byService
	byDomain
)

// newIndex puts each patch under the word that it names; of gives none for one that names none.
func newIndex(patches []*Patch, of func(*Patch) (word, bool)) index {
	out := index{patches: patches, by: map[word][]int{}}
	for i, p := range patches {
		if w, names := of(p); names {
			out.by[w] = append(out.by[w], i)
		} else {
			out.others = append(out.others, i)
		}
	}
	return out
}

// find gives those patches in order that go by one of the words or by none, as far as they match.
func (x *index) find(words []word, matches func(*Patch) bool) []*Patch {
	places := x.others
	for _, w := range words {
		if of := x.by[w]; len(of) > 0 {
			// The others are common to all that is looked for.
			places = append(slices.Clip(places), of...)
		}
	}
	if len(places) > len(x.others) {
		slices.Sort(places)
		places = slices.Compact(places)
	}
	var out []*Patch
	for _, i := range places {
		if p := x.patches[i]; matches(p) {
			out = append(out, p)
		}
	}
	return out
}

// all gives those that match, whatever they go by: where one changes what those behind it go by.
func (x *index) all(matches func(*Patch) bool) []*Patch {
	return slices.DeleteFunc(slices.Clone(x.patches), func(p *Patch) bool { return !matches(p) })
}
