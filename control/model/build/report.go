package build

import (
	"fmt"
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

// findings of one object.
type findings struct {
	refused    []Finding
	unresolved []Finding
	fields     []objects.FieldMessage
	told       []objects.FieldMessage
	generation int64
}

// Report says what was found out about each object of a build.
type Report struct {
	objects map[objects.Key]*findings
}

func newReport(objs []*objects.Object) *Report {
	r := &Report{objects: make(map[objects.Key]*findings, len(objs))}
	for _, o := range objs {
		r.objects[o.Key()] = &findings{generation: o.GetGeneration()}
	}
	return r
}

func (r *Report) of(key objects.Key) *findings {
	f, ok := r.objects[key]
	if !ok {
		f = &findings{}
		r.objects[key] = f
	}
	return f
}

// refuse says that the object, or a part of it, is not in force.
func (r *Report) refuse(key objects.Key, reason, path, problem, remedy string) {
	f := r.of(key)
	f.refused = append(f.refused, Finding{Reason: reason, Path: path, Problem: problem, Remedy: remedy})
}

// missing says that the object names something that does not exist (yet).
func (r *Report) missing(key objects.Key, reason, path, problem, remedy string) {
	f := r.of(key)
	f.unresolved = append(f.unresolved, Finding{Reason: reason, Path: path, Problem: problem, Remedy: remedy})
}

// note says something about a field that does not stop the object.
func (r *Report) note(key objects.Key, path, message string) {
	f := r.of(key)
	f.fields = append(f.fields, objects.FieldMessage{Path: path, Message: message})
}

// tell says what a field has come to, which is nothing to warn of.
func (r *Report) tell(key objects.Key, path, message string) {
	f := r.of(key)
	f.told = append(f.told, objects.FieldMessage{Path: path, Message: message})
}

func (r *Report) ignored(o *objects.Object) {
	f := r.of(o.Key())
	f.fields = append(f.fields, objects.IgnoredFields(o)...)
}

// Keys of all objects of the build, sorted.
func (r *Report) Keys() []objects.Key {
	keys := make([]objects.Key, 0, len(r.objects))
	for k := range r.objects {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// Refused are the reasons why an object or a part of it is not in force; none when it is accepted.
func (r *Report) Refused(key objects.Key) []Finding {
	if f, ok := r.objects[key]; ok {
		return f.refused
	}
	return nil
}

// Unresolved lists what an object names and does not exist.
func (r *Report) Unresolved(key objects.Key) []Finding {
	if f, ok := r.objects[key]; ok {
		return f.unresolved
	}
	return nil
}

// Warnings are the messages about an object's fields that its author should know of.
func (r *Report) Warnings(key objects.Key) []objects.FieldMessage {
	if f, ok := r.objects[key]; ok {
		return f.fields
	}
	return nil
}

// Status gives an object's conditions Accepted and ResolvedRefs and its field messages. Programmed, Proxies and the
// workload's state are others' to fill in; transition times too, see [MergeConditions].
func (r *Report) Status(key objects.Key) objects.Status {
	f, ok := r.objects[key]
	if !ok {
		return objects.Status{}
	}
	return objects.Status{
		Conditions: []metav1.Condition{
			condition(objects.ConditionAccepted, f.generation, f.refused, "Accepted", "in force"),
			condition(objects.ConditionResolvedRefs, f.generation, f.unresolved, "ResolvedRefs",
				"everything that it names exists"),
		},
		Fields: append(slices.Clip(f.told), f.fields...),
	}
}

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
