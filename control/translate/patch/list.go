package patch

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// change makes one change of a list of filters or routes. is says whether an element is the one that the patch matches; named
// that it matches by name at all. Merges are made elsewhere.
func change[M proto.Message](a *attempt, list []M, p *Patch, named bool, is func(M) bool) []M {
	at := -1
	if named {
		at = slices.IndexFunc(list, is)
	}
	switch p.Operation {
	case "ADD":
		a.note(p)
		return append(list, clone[M](p))
	case "INSERT_FIRST":
		a.note(p)
		return slices.Insert(list, 0, clone[M](p))
	case "INSERT_BEFORE":
		if !named {
			at = 0
		}
		if at < 0 {
			return list
		}
		a.note(p)
		return slices.Insert(list, at, clone[M](p))
	case "INSERT_AFTER":
		if !named {
			at = len(list) - 1
		} else if at < 0 {
			return list
		}
		a.note(p)
		return slices.Insert(list, at+1, clone[M](p))
	case "REPLACE":
		if at < 0 {
			return list
		}
		a.note(p)
		list[at] = clone[M](p)
	case "REMOVE":
		if at < 0 {
			return list
		}
		a.note(p)
		return slices.DeleteFunc(list, is)
	}
	return list
}
