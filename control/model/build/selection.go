package build

import (
	"heddle.io/heddle/control/model"
)

// selection finds what a selector selects, by namespace and label instead of by going over everything.
type selection[T any] struct {
	all     []T
	inSpace map[string][]T
	byLabel map[label][]T
	labels  func(T) map[string]string
}

type label struct{ namespace, key, value string }

func newSelection[T any](all []T, namespace func(T) string, labels func(T) map[string]string) *selection[T] {
	s := &selection[T]{all: all, inSpace: map[string][]T{}, byLabel: map[label][]T{}, labels: labels}
	for _, one := range all {
		ns := namespace(one)
		s.inSpace[ns] = append(s.inSpace[ns], one)
		for k, v := range labels(one) {
			s.byLabel[label{ns, k, v}] = append(s.byLabel[label{ns, k, v}], one)
		}
	}
	return s
}

// in is what a selector selects in a namespace, in the order of all.
func (s *selection[T]) in(namespace string, selector map[string]string) []T {
	candidates := s.inSpace[namespace]
	for k, v := range selector {
		if with := s.byLabel[label{namespace, k, v}]; len(with) < len(candidates) {
			candidates = with
		}
	}
	var out []T
	for _, one := range candidates {
		if model.Selects(selector, s.labels(one)) {
			out = append(out, one)
		}
	}
	return out
}

// any says whether a selector selects anything in any namespace.
func (s *selection[T]) any(selector map[string]string) bool {
	for _, one := range s.all {
		if model.Selects(selector, s.labels(one)) {
			return true
		}
	}
	return false
}
