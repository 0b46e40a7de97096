package build

import (
	"fmt"
	"slices"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
)

// Check validates a batch of writes as a whole against what exists: it returns the writes as they are to be stored
// (services with their addresses) and everything that is wrong, each an [*objects.Error] with object, field path and
// remedy, and file and line where the object has them. When there is any error, nothing of the batch may be stored.
//
// Refused is what can never work: bad form, fields that are not supported, addresses that are taken, an object that
// contradicts an older one. What names objects that do not exist is accepted, as kubectl and Istio do, since they may
// come later; its status says so.
func Check(settings model.Settings, existing []*objects.Object, writes []store.Write) ([]store.Write, []error) {
	var errs []error
	batch := map[objects.Key]bool{}
	for _, w := range writes {
		if batch[w.Key] {
			errs = append(errs, at(w.Object, &objects.Error{Object: w.Key, Problem: "is in the batch twice",
				Remedy: "remove one of the two"}))
		}
		batch[w.Key] = true
		if w.Object == nil {
			continue
		}
		if w.Object.Key() != w.Key {
			errs = append(errs, at(w.Object, &objects.Error{Object: w.Key,
				Problem: fmt.Sprintf("holds the object %s", w.Object.Key()), Remedy: "use the object's own name"}))
			continue
		}
		for _, e := range objects.CheckForm(w.Object) {
			errs = append(errs, at(w.Object, e))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	writes, err := registry.AssignAddresses(settings.Services, existing, writes)
	if err != nil {
		return nil, unjoin(err)
	}
	after := Merge(existing, writes)
	_, before := Mesh(settings, existing, Runtime{})
	_, report := Mesh(settings, after, Runtime{})
	for _, w := range writes {
		if w.Object == nil {
			continue
		}
		known := before.Refused(w.Key)
		for _, f := range report.Refused(w.Key) {
			// What was wrong before this batch is not the batch's fault, and must not stop what repairs other things.
			if slices.Contains(known, f) {
				continue
			}
			errs = append(errs, at(w.Object, &objects.Error{
				Object: w.Key, Path: f.Path, Problem: f.Problem, Remedy: f.Remedy,
			}))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return writes, nil
}

func at(o *objects.Object, e *objects.Error) *objects.Error {
	if o != nil && o.Origin.File != "" {
		e.File, e.Line = o.Origin.File, o.FieldLine(e.Path)
	}
	return e
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// Merge gives the objects as they are after the writes.
func Merge(existing []*objects.Object, writes []store.Write) []*objects.Object {
	changed := make(map[objects.Key]*objects.Object, len(writes))
	for _, w := range writes {
		changed[w.Key] = w.Object
	}
	out := make([]*objects.Object, 0, len(existing)+len(writes))
	for _, o := range existing {
		n, isChanged := changed[o.Key()]
		switch {
		case !isChanged:
			out = append(out, o)
		case n != nil:
			// Age decides precedence, and an update keeps it.
			if created := n.GetCreationTimestamp(); created.IsZero() {
				n = n.DeepCopy()
				n.SetCreationTimestamp(o.GetCreationTimestamp())
			}
			out = append(out, n)
		}
		delete(changed, o.Key())
	}
	for _, w := range writes {
		if o := changed[w.Key]; o != nil {
			out = append(out, o)
		}
	}
	return out
}
