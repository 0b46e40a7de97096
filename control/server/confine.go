package server

import (
	"fmt"
	"maps"
	"slices"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
)

// confine refuses workloads that ask for another user than their own or for capabilities where their namespace does not allow
// it, whoever the caller is, and namespaces that cease to allow what is in them. Who is admin can allow it; nobody has it by
// oversight.
func (s *Server) confine(b batch, stored known) []error {
	if s.config.PrivilegedWorkloads {
		return nil
	}
	// written is what the batch makes of what it writes, nil for what it deletes; changed are the namespaces among that, as
	// they are or were.
	written := make(map[objects.Key]*objects.Object, len(b.objects)+len(b.deletes))
	changed := map[string]*objects.Object{}
	for _, o := range b.objects {
		written[o.Key()] = o
		if o.Kind == objects.Namespace {
			changed[o.GetName()] = o
		}
	}
	for _, key := range b.deletes {
		written[key] = nil
		if key.Kind == objects.Namespace.Kind && stored.object(key) != nil {
			changed[key.Name] = stored.object(key)
		}
	}
	allows := func(namespace string) bool {
		if o, is := written[objects.Key{Kind: objects.Namespace.Kind, Name: namespace}]; is {
			return access.AllowsPrivileged(o)
		}
		return stored.privileged(namespace)
	}
	var errs []error
	for _, o := range b.objects {
		w, ok := o.Resource.(*v1alpha1.Workload)
		if !ok || allows(o.GetNamespace()) {
			continue
		}
		if old := stored.object(o.Key()); old != nil {
			// What is there may be stopped, started and labelled as it is.
			if was, ok := old.Resource.(*v1alpha1.Workload); ok && sameSpec(w, was) {
				continue
			}
		}
		asked := access.Beyond(w)
		for _, path := range sortedNames(asked) {
			errs = append(errs, &objects.Error{File: o.Origin.File, Line: o.FieldLine(path), Object: o.Key(), Path: path,
				Problem: fmt.Sprintf("%s is privileged, and namespace %q does not allow it", asked[path], o.GetNamespace()),
				Remedy:  fmt.Sprintf("leave it out: the workload then runs as a user of its own without capabilities; or have an admin of all namespaces apply the Namespace with the label %s: \"true\"", access.LabelPrivileged)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		o := changed[name]
		if allows(name) || !stored.privileged(name) {
			continue
		}
		for _, in := range stored.in(name) {
			key := in.Key()
			w, ok := in.Resource.(*v1alpha1.Workload)
			if _, is := written[key]; ok && !is && len(access.Beyond(w)) > 0 {
				errs = append(errs, &objects.Error{File: o.Origin.File, Line: o.Origin.Line, Object: o.Key(), Path: "metadata.labels[" + access.LabelPrivileged + "]",
					Problem: fmt.Sprintf("%s needs it: it is privileged", key), Remedy: "delete or change that workload first, or in the same command"})
			}
		}
	}
	return errs
}
