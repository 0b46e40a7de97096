package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// Bindings finds the AccessBindings of a caller among all of them. It only says where to look: what a binding gives, the
// store confirms with each request. The zero value has none.
type Bindings struct {
	mu       sync.RWMutex
	bindings map[objects.Key]*objects.Object
	subjects map[subject]map[objects.Key]struct{}
}

// subject is one whom bindings name, by what [Caller.is] compares.
type subject struct{ kind, name string }

func subjectOf(s v1alpha1.AccessSubject) subject {
	if s.Kind == v1alpha1.SubjectServiceAccount {
		return subject{s.Kind, s.Namespace + "/" + s.Name}
	}
	return subject{s.Kind, s.Name}
}

// Take keeps up with the store: it is told of all changes, in order, own writes before they return. Objects are kept and
// not changed.
func (b *Bindings) Take(events []store.Event) {
	for _, e := range events {
		if e.Key.Group == objects.AccessBinding.Group && e.Key.Kind == objects.AccessBinding.Kind {
			b.take(e.Key, e.Object)
		}
	}
}

func (b *Bindings) take(key objects.Key, o *objects.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bindings == nil {
		b.bindings, b.subjects = map[objects.Key]*objects.Object{}, map[subject]map[objects.Key]struct{}{}
	}
	for _, s := range subjectsOf(b.bindings[key]) {
		if delete(b.subjects[s], key); len(b.subjects[s]) == 0 {
			delete(b.subjects, s)
		}
	}
	if delete(b.bindings, key); o == nil {
		return
	}
	b.bindings[key] = o
	for _, s := range subjectsOf(o) {
		if b.subjects[s] == nil {
			b.subjects[s] = map[objects.Key]struct{}{}
		}
		b.subjects[s][key] = struct{}{}
	}
}

func subjectsOf(o *objects.Object) []subject {
	if o == nil {
		return nil
	}
	binding, ok := o.Resource.(*v1alpha1.AccessBinding)
	if !ok {
		return nil
	}
	out := make([]subject, 0, len(binding.Spec.Subjects))
	for _, s := range binding.Spec.Subjects {
		out = append(out, subjectOf(s))
	}
	return out
}

// naming are the bindings that name a caller.
func (b *Bindings) naming(c *Caller) map[objects.Key]*objects.Object {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := map[objects.Key]*objects.Object{}
	for _, s := range c.subjects() {
		for key := range b.subjects[s] {
			out[key] = b.bindings[key]
		}
	}
	return out
}

// of are the roles that bindings give a caller. Each binding that gives one is compared with the store: what was taken away,
// here or by another controller of the same store, counts at once. It costs what the caller has, whatever others have.
func (b *Bindings) of(ctx context.Context, s store.Store, c *Caller) (Grants, error) {
	found := b.naming(c)
	if len(found) == 0 {
		return nil, nil
	}
	keys := make([]objects.Key, 0, len(found))
	for key := range found {
		keys = append(keys, key)
	}
	versions, err := s.Versions(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read who may do what: %w", err)
	}
	var all []Grant
	for i, key := range keys {
		o := found[key]
		if versions[i] != o.Version {
			if o, err = s.Get(ctx, key); errors.Is(err, store.ErrNotFound) {
				continue
			} else if err != nil {
				return nil, fmt.Errorf("read who may do what: %w", err)
			}
		}
		all = append(all, c.grants(o)...)
	}
	return grantsOf(all), nil
}

// grants are what one binding gives the caller.
func (c *Caller) grants(o *objects.Object) []Grant {
	b, ok := o.Resource.(*v1alpha1.AccessBinding)
	if !ok {
		return nil
	}
	role, err := ParseRole(b.Spec.Role)
	if err != nil || !slices.ContainsFunc(b.Spec.Subjects, c.is) {
		return nil
	}
	out := make([]Grant, 0, len(b.Spec.Namespaces))
	for _, namespace := range b.Spec.Namespaces {
		out = append(out, Grant{Role: role, Namespace: namespace})
	}
	return out
}

// grantsOf has the highest role for each namespace, in the order that [Grants.In] looks in.
func grantsOf(all []Grant) Grants {
	slices.SortFunc(all, func(a, b Grant) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Role, a.Role))
	})
	return slices.CompactFunc(all, func(a, b Grant) bool { return a.Namespace == b.Namespace })
}

// subjects are all by whose name a binding can mean the caller.
func (c *Caller) subjects() []subject {
	switch c.Kind {
	case KindUser:
		out := []subject{{v1alpha1.SubjectUser, c.Name}, {v1alpha1.SubjectUser, strconv.Itoa(c.UID)}}
		for _, group := range c.Groups {
			out = append(out, subject{v1alpha1.SubjectGroup, group})
		}
		return out
	case KindServiceAccount:
		return []subject{{v1alpha1.SubjectServiceAccount, c.Name}}
	}
	return nil
}

// is says whether the caller is the subject.
func (c *Caller) is(s v1alpha1.AccessSubject) bool {
	switch s.Kind {
	case v1alpha1.SubjectUser:
		if _, err := strconv.ParseUint(s.Name, 10, 32); err == nil {
			// A number is the id of an account, and never the name of somebody else.
			return c.Kind == KindUser && strconv.Itoa(c.UID) == s.Name
		}
		return c.Kind == KindUser && c.Name == s.Name
	case v1alpha1.SubjectGroup:
		return c.Kind == KindUser && slices.Contains(c.Groups, s.Name)
	case v1alpha1.SubjectServiceAccount:
		return c.Kind == KindServiceAccount && c.Name == s.Namespace+"/"+s.Name
	}
	return false
}
