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
func (s *Server) confine(b batch, existing map[objects.Key]*objects.Object) []error {
	if s.config.PrivilegedWorkloads {
		return nil
	}
	after := make(map[objects.Key]*objects.Object, len(existing)+len(b.objects))
	for key, o := range existing {
		after[key] = o
	}
	changed := map[string]*objects.Object{}
	for _, o := range b.objects {
		after[o.Key()] = o
		if o.Kind == objects.Namespace {
			changed[o.GetName()] = o
		}
	}
	for _, key := range b.deletes {
		delete(after, key)
		if key.Kind == objects.Namespace.Kind && existing[key] != nil {
			changed[key.Name] = existing[key]
		}
	}
	var errs []error
	for _, o := range b.objects {
		w, ok := o.Resource.(*v1alpha1.Workload)
		if !ok || privilegedNamespace(o.GetNamespace(), after) {
			continue
		}
		if old := existing[o.Key()]; old != nil {
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
		if privilegedNamespace(name, after) || !privilegedNamespace(name, existing) {
			continue
		}
		for _, in := range sorted(after) {
			key := in.Key()
			w, ok := in.Resource.(*v1alpha1.Workload)
			if ok && key.Namespace == name && len(access.Beyond(w)) > 0 && existing[key] == in {
				errs = append(errs, &objects.Error{File: o.Origin.File, Line: o.Origin.Line, Object: o.Key(), Path: "metadata.labels[" + access.LabelPrivileged + "]",
					Problem: fmt.Sprintf("%s needs it: it is privileged", key), Remedy: "delete or change that workload first, or in the same command"})
			}
		}
	}
	return errs
}
