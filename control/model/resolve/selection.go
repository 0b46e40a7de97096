package resolve

import (
	"maps"
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
)

// selection finds what a selector selects, by namespace and label instead of by going over everything.
type selection[T any] struct {
	// byLabel are all that have a label, by namespace/name; an empty label is any, an empty namespace all.
	byLabel map[label]map[string]T
	all     map[string]T
	labels  func(T) map[string]string
}

type label struct{ namespace, key, value string }

func newSelection[T any](labels func(T) map[string]string) *selection[T] {
	return &selection[T]{byLabel: map[label]map[string]T{}, all: map[string]T{}, labels: labels}
}

func (s *selection[T]) find(id string) T { return s.all[id] }

// set adds one, or takes it away. Its labels must be those that it was added with.
func (s *selection[T]) set(namespace, name string, one T, there bool) {
	id := namespace + "/" + name
	if delete(s.all, id); there {
		s.all[id] = one
	}
	set := func(l label) {
		of := s.byLabel[l]
		if !there {
			if delete(of, id); len(of) == 0 {
				delete(s.byLabel, l)
			}
			return
		}
		if of == nil {
			of = map[string]T{}
			s.byLabel[l] = of
		}
		of[id] = one
	}
	for _, ns := range []string{namespace, ""} {
		set(label{namespace: ns})
		for k, v := range s.labels(one) {
			set(label{ns, k, v})
		}
	}
}

// in is what a selector selects in a namespace, in all with an empty one, sorted; and the label by which it was found: the
// answer is the same until something with that label changes.
func (s *selection[T]) in(namespace string, selector map[string]string) ([]T, label) {
	by := label{namespace: namespace}
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		if l := (label{namespace, k, selector[k]}); len(s.byLabel[l]) < len(s.byLabel[by]) || by.key == "" {
			by = l
		}
	}
	var ids []string
	for id, one := range s.byLabel[by] {
		if model.Selects(selector, s.labels(one)) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int {
		nsX, nameX, _ := strings.Cut(x, "/")
		nsY, nameY, _ := strings.Cut(y, "/")
		if nsX != nsY {
			return strings.Compare(nsX, nsY)
		}
		return strings.Compare(nameX, nameY)
	})
	out := make([]T, 0, len(ids))
	for _, id := range ids {
		out = append(out, s.byLabel[by][id])
	}
	return out, by
}
