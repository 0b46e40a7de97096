package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// Check is [Model.Admit] for objects of which no model is kept, as tests and the golden scenarios have them; the controller keeps
// one.
func Check(settings model.Settings, existing []*objects.Object, writes []store.Write) ([]store.Write, []error) {
	m := New(settings)
	m.Update(Change{Objects: byKey(existing)})
	writes, _, errs := m.Admit(writes)
	return writes, errs
}

// Admit validates a batch of writes as a whole against what exists: it returns the writes as they are to be stored
// (services with their addresses), what works less in them than their author may think, by object, and everything that is
// wrong, each an [*objects.Error] with object, field path and remedy, and file and line where the object has them. When there
// is any error, nothing of the batch may be stored. The model is as before when it returns: the batch is put into it and
// taken out again, so that it costs what the batch changes, whatever the size of the mesh.
//
// Refused is what can never work: bad form, fields that are not supported, addresses that are taken, an object that
// contradicts an older one. What names objects that do not exist is accepted, as kubectl and Istio do, since they may
// come later; its status says so.
func (m *Model) Admit(writes []store.Write) ([]store.Write, map[objects.Key]Warnings, []error) {
	forms, errs := checkForms(writes)
	if len(errs) > 0 {
		return nil, nil, errs
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	writes, err := m.clusterIPs.Assign(m.settings.Services, writes)
	if err != nil {
		return nil, nil, unjoin(err)
	}
	trial, known := make(map[objects.Key]*objects.Object, len(writes)), make(map[objects.Key][]Finding, len(writes))
	regexSizes := map[string]int{}
	for _, w := range writes {
		regexSizes[w.Key.Namespace] = m.regexSizes[w.Key.Namespace]
		trial[w.Key] = w.Object
		if e := m.entries[w.Key]; e != nil {
			known[w.Key] = m.found(w.Key).refused
			trial[w.Key] = aged(w.Object, e.object)
		}
		if form, known := forms[w.Object]; known {
			forms[trial[w.Key]] = form
		}
	}
	warnings := make(map[objects.Key]Warnings, len(writes))
	m.try(trial, forms, func() {
		for _, w := range writes {
			if w.Object == nil {
				continue
			}
			found := m.found(w.Key)
			warnings[w.Key] = Warnings{Unresolved: found.unresolved, Fields: found.fields}
			// Told once for each namespace, of an object that has a part in it.
			if ns := w.Key.Namespace; m.regexSizes[ns] > max(objects.MaxNamespaceRegexSize, regexSizes[ns]) && m.entries[w.Key].regexSize > 0 {
				regexSizes[ns] = m.regexSizes[ns]
				errs = append(errs, at(w.Object, &objects.Error{
					Object:  w.Key,
					Problem: fmt.Sprintf("the regular expressions of namespace %s have a size of more than %d together, once their repetitions are written out", ns, objects.MaxNamespaceRegexSize),
					Remedy:  "repeat less or name fewer characters in these or others of the namespace: proxies hold all of them",
				}))
			}
			for _, f := range found.refused {
				// What was wrong before this batch is not the batch's fault, and must not stop what repairs other things.
				if slices.Contains(known[w.Key], f) {
					continue
				}
				errs = append(errs, at(w.Object, &objects.Error{
					Object: w.Key, Path: f.Path, Problem: f.Problem, Remedy: f.Remedy,
				}))
			}
		}
	})
	if len(errs) > 0 {
		return nil, nil, errs
	}
	return writes, warnings, nil
}

// With is the mesh as it would be with these objects in place of those of their keys; nil for none. addresses gives hosts that need a
// virtual address theirs (see [Model.GlobalHosts]), where there are such that have none as it is; nil for none that can be given.
func (m *Model) With(objs map[objects.Key]*objects.Object, addresses func(hosts []string) map[string]netip.Addr) *model.Mesh {
	m.mu.Lock()
	defer m.mu.Unlock()
	var with *model.Mesh
	m.try(objs, nil, func() {
		with = m.mesh
		hosts, was := m.external.hostsBeside(m.global.wanted), m.addresses
		if !slices.ContainsFunc(hosts, func(h string) bool { return !was[h].IsValid() }) {
			return
		}
		if given := addresses(slices.Clone(hosts)); given != nil {
			m.update(Change{Addresses: given})
			with = m.mesh
			m.setAddresses(was)
		}
	})
	return with
}

// try puts objects in place of those of their keys, nil for none, has somebody look, and takes them out again: everything is then as
// it was, parts of the mesh the same pointers. forms are those of objects that are known.
func (m *Model) try(objs map[objects.Key]*objects.Object, forms map[*objects.Object]objects.Form, look func()) {
	back := make(map[objects.Key]*objects.Object, len(objs))
	m.forms = make(map[*objects.Object]objects.Form, len(forms)+len(objs))
	maps.Copy(m.forms, forms)
	for key := range objs {
		back[key] = nil
		if e := m.entries[key]; e != nil {
			back[key] = e.object
			if e.valid {
				m.forms[e.object] = e.form()
			}
		}
	}
	m.before, m.untried, m.moved = map[any]any{}, m.mesh, map[objects.Key]bool{}
	m.update(Change{Objects: objs})
	look()
	m.returning = true
	m.update(Change{Objects: back})
	m.before, m.untried, m.moved, m.returning, m.forms = nil, nil, nil, false, nil
}

// Warnings are what works less in an object than its author may think.
type Warnings struct {
	// Unresolved is what it names and does not exist.
	Unresolved []Finding
	// Fields that have no effect, or not the expected one.
	Fields []objects.FieldMessage
}

// checkForms looks at each object of a batch by itself.
func checkForms(writes []store.Write) (forms map[*objects.Object]objects.Form, errs []error) {
	forms = make(map[*objects.Object]objects.Form, len(writes))
	batch := make(map[objects.Key]bool, len(writes))
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
		form := objects.FormOf(w.Object)
		forms[w.Object] = form
		for _, e := range form.Errors {
			errs = append(errs, at(w.Object, e))
		}
	}
	return forms, errs
}

// aged is an object that replaces another: age decides precedence, and an update keeps it.
func aged(o, old *objects.Object) *objects.Object {
	if o == nil {
		return nil
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o = o.DeepCopy()
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	return o
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
			out = append(out, aged(n, o))
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
