package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/objects"
)

// Finding is one thing to say about one object.
type Finding struct {
	// Reason in CamelCase, as in Kubernetes' conditions.
	Reason string `json:"reason"`
	// Path of the field, may be empty.
	Path string `json:"path,omitempty"`
	// Problem and Remedy.
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"`
}

// String gives "path: problem; remedy".
func (f Finding) String() string {
	s := f.Problem
	if f.Path != "" {
		s = f.Path + ": " + s
	}
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	return s
}

// findings of one object in one step.
type findings struct {
	refused    []Finding
	unresolved []Finding
	fields     []objects.FieldMessage
	told       []objects.FieldMessage
}

// Steps in which something is said about an object, in the order in which it is read.
const (
	saidForm = iota
	saidSelf
	saidGlobal
	saidIdle
	saidNamespace
	saidPublic
	saidConflict
	segments
)

// recorder takes note of what is found out in a step.
type recorder struct {
	m       *Model
	segment int
}

func (r recorder) of(key objects.Key) *findings {
	e := r.m.entries[key]
	if e == nil {
		return &findings{} // Gone: nobody asks.
	}
	r.m.restate(key)
	if e.said[r.segment] == nil {
		e.said[r.segment] = &findings{}
		if r.segment == saidGlobal || r.segment == saidPublic {
			r.m.global.concerned[r.segment] = append(r.m.global.concerned[r.segment], key)
		}
	}
	return e.said[r.segment]
}

// refuse says that the object, or a part of it, is not in force.
func (r recorder) refuse(key objects.Key, reason, path, problem, remedy string) {
	f := r.of(key)
	f.refused = append(f.refused, Finding{Reason: reason, Path: path, Problem: problem, Remedy: remedy})
}

// missing says that the object names something that does not exist (yet).
func (r recorder) missing(key objects.Key, reason, path, problem, remedy string) {
	f, said := r.of(key), Finding{Reason: reason, Path: path, Problem: problem, Remedy: remedy}
	// Of routes that are made for gateways and for sidecars, what is true of both is said once.
	if !slices.Contains(f.unresolved, said) {
		f.unresolved = append(f.unresolved, said)
	}
}

// note says something about a field that does not stop the object.
func (r recorder) note(key objects.Key, path, message string) {
	f, said := r.of(key), objects.FieldMessage{Path: path, Message: message}
	if !slices.Contains(f.fields, said) {
		f.fields = append(f.fields, said)
	}
}

// inform says what a field has come to, which is nothing to warn of.
func (r recorder) inform(key objects.Key, path, message string) {
	f := r.of(key)
	f.told = append(f.told, objects.FieldMessage{Path: path, Message: message})
}

// Report says what was found out about each object of a model, as it is when it is asked. It is safe for concurrent use.
type Report struct{ m *Model }

// Report of the model.
func (m *Model) Report() *Report { return &Report{m} }

// Keys of all objects of the model, sorted.
func (r *Report) Keys() []objects.Key {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(r.m.entries), compareKeys)
}

// Refused are the reasons why an object or a part of it is not in force; none when it is accepted.
func (r *Report) Refused(key objects.Key) []Finding {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.found(key).refused
}

// Unresolved lists what an object names and does not exist.
func (r *Report) Unresolved(key objects.Key) []Finding {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.found(key).unresolved
}

// Warnings are the messages about an object's fields that its author should know of.
func (r *Report) Warnings(key objects.Key) []objects.FieldMessage {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.found(key).fields
}

// found is all that was said about an object.
func (m *Model) found(key objects.Key) findings {
	var out findings
	e := m.entries[key]
	if e == nil {
		return out
	}
	for _, f := range e.said {
		if f != nil {
			out.refused, out.unresolved = append(out.refused, f.refused...), append(out.unresolved, f.unresolved...)
			out.fields, out.told = append(out.fields, f.fields...), append(out.told, f.told...)
		}
	}
	return out
}

// Status gives an object's conditions Accepted and ResolvedRefs and its field messages. Programmed, Proxies and the
// workload's state are others' to fill in; transition times too, see [MergeConditions].
func (r *Report) Status(key objects.Key) objects.Status {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	e := r.m.entries[key]
	if e == nil {
		return objects.Status{}
	}
	f, generation := r.m.found(key), e.object.GetGeneration()
	status := objects.Status{
		Conditions: []metav1.Condition{
			condition(objects.ConditionAccepted, generation, f.refused, "Accepted", "in force"),
			condition(objects.ConditionResolvedRefs, generation, f.unresolved, "ResolvedRefs",
				"everything that it names exists"),
		},
		Fields: append(slices.Clip(f.told), f.fields...),
	}
	r.m.addSections(e, &status)
	return status
}

// Restated are the objects of which something else may be said than when it was asked last; those that are gone may be among
// them.
func (m *Model) Restated() []objects.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.restated) == 0 {
		return nil
	}
	out := slices.Collect(maps.Keys(m.restated))
	m.restated = map[objects.Key]struct{}{}
	return out
}

// restate notes that something else may be said of an object.
func (m *Model) restate(key objects.Key) { m.restated[key] = struct{}{} }

func condition(typ string, generation int64, problems []Finding, good, message string) metav1.Condition {
	c := metav1.Condition{
		Type: typ, Status: metav1.ConditionTrue, Reason: good, Message: message, ObservedGeneration: generation,
	}
	if len(problems) == 0 {
		return c
	}
	texts := make([]string, 0, len(problems))
	for i, p := range problems {
		if i == maxMessages {
			texts = append(texts, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		texts = append(texts, p.String())
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, problems[0].Reason, strings.Join(texts, "\n")
	return c
}

// maxMessages bounds the length of a condition's message.
const maxMessages = 10

// MergeConditions puts new conditions in place of old ones of the same type. A condition whose status did not change
// keeps its transition time; one that did gets now.
func MergeConditions(old, fresh []metav1.Condition, now metav1.Time) []metav1.Condition {
	out := slices.Clone(old)
	for _, c := range fresh {
		i := slices.IndexFunc(out, func(o metav1.Condition) bool { return o.Type == c.Type })
		switch {
		case i < 0:
			c.LastTransitionTime = now
			out = append(out, c)
		case out[i].Status == c.Status && !out[i].LastTransitionTime.IsZero():
			c.LastTransitionTime = out[i].LastTransitionTime
			out[i] = c
		default:
			c.LastTransitionTime = now
			out[i] = c
		}
	}
	return out
}
