package access

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// bound are the roles that bindings give a caller. They are read anew each time: one that was taken away counts at once.
func bound(ctx context.Context, s store.Store, c *Caller) (Grants, error) {
	all, _, err := s.List(ctx, objects.AccessBinding, "")
	if err != nil {
		return nil, fmt.Errorf("read who may do what: %w", err)
	}
	var out Grants
	for _, o := range all {
		b, ok := o.Resource.(*v1alpha1.AccessBinding)
		if !ok {
			continue
		}
		role, err := ParseRole(b.Spec.Role)
		if err != nil || !slices.ContainsFunc(b.Spec.Subjects, c.is) {
			continue
		}
		for _, namespace := range b.Spec.Namespaces {
			out = append(out, Grant{Role: role, Namespace: namespace})
		}
	}
	return out, nil
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
