package patch

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"
)

// list stands for patches in their order; of equal ones there is one, as long as it is in use.
type list struct{ round int }

// made is what a list of patches makes of a message, which others that have those patches for it share, whatever patches they
// have for other messages.
type made struct {
	list    *list
	message proto.Message
}

type kept struct {
	round int
	// result is a [Result] of the message's type.
	result any
}

// list gives the one with these patches. Those of gateways, which match by other names, are lists of their own.
func (s *Sets) list(gateway bool, patches []*Patch) *list {
	s.key = s.key[:0]
	if gateway {
		s.key = append(s.key, 0)
	}
	for _, p := range patches {
		s.key = binary.AppendUvarint(s.key, p.number)
	}
	l := s.lists[string(s.key)]
	if l == nil {
		l = &list{}
		s.lists[string(s.key)] = l
	}
	l.round = s.round
	return l
}

// keep has made of a message with these patches what is not there yet; nil is kept without patches.
func keep[M proto.Message](p *part, patches []*Patch, m M, make func([]*Patch, M) *Result[M]) *kept {
	if len(patches) == 0 {
		return nil
	}
	key := made{p.sets.list(p.gateway, patches), m}
	k := p.sets.results[key]
	if k == nil {
		k = &kept{result: make(patches, m)}
		p.sets.results[key] = k
	}
	return k
}

// resultOf is what was kept for a message, which is then in use; the message itself where nothing was.
func resultOf[M proto.Message](p *part, k *kept, m M) Result[M] {
	if k != nil {
		k.round = p.sets.round
		if r, is := k.result.(*Result[M]); is {
			return *r
		}
	}
	return Result[M]{Message: m}
}
