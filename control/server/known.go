package server

import (
	"slices"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// known is what is stored, as the checks of one batch see it: each object as it was when it was looked at first. A batch
// looks at the objects that it writes and at their namespaces, whatever else there is.
type known struct {
	store store.Batch
	seen  map[objects.Key]*objects.Object
}

func (s *Server) known() known {
	return known{store: s.config.Store, seen: map[objects.Key]*objects.Object{}}
}

// object is one object, nil for none.
func (k known) object(key objects.Key) *objects.Object {
	o, looked := k.seen[key]
	if !looked {
		o = k.store.Object(key)
		k.seen[key] = o
	}
	return o
}

// in are the objects in a namespace, sorted. They are picked from all that are stored: this is for changes of the namespace.
func (k known) in(namespace string) []*objects.Object {
	var out []*objects.Object
	for _, o := range k.store.Objects() {
		if o.Kind.Namespaced && o.GetNamespace() == namespace {
			if o = k.object(o.Key()); o != nil {
				out = append(out, o)
			}
		}
	}
	sortByKey(out)
	return out
}

// privileged says whether a namespace allows privileged workloads.
func (k known) privileged(namespace string) bool {
	return access.AllowsPrivileged(k.object(objects.Key{Kind: objects.Namespace.Kind, Name: namespace}))
}

func sortByKey(all []*objects.Object) {
	slices.SortFunc(all, func(a, b *objects.Object) int { return a.Key().Compare(b.Key()) })
}
