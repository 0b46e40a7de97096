// Package patch makes the changes that EnvoyFilters ask for in what proxies are sent, as Istio makes them. A result is checked as
// a proxy would; patches that break it are left out, and named.
package patch

import (
	"fmt"
	"maps"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/envoyapi"
	"heddle.io/heddle/control/model"
)

// Patch is one whose value is decoded.
type Patch struct {
	*model.Patch
	value proto.Message
	// number tells it apart from all that its sets have decoded.
	number uint64
}

// New decodes a patch.
func New(p *model.Patch) (*Patch, error) {
	out := &Patch{Patch: p}
	if len(p.Value) > 0 {
		out.value = envoyapi.Subject(p.ApplyTo)
		if out.value == nil {
			return nil, fmt.Errorf("there is no applyTo %q", p.ApplyTo)
		}
		if err := envoyapi.Decode(p.Value, out.value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// merges says whether the operation merges.
func (p *Patch) merges() bool {
	return p.Operation == "MERGE" || p.Operation == "MERGE_AND_REPLACE_LIST"
}

// redefines says whether the patch may give what it changes another name, or what else patches go by.
func (p *Patch) redefines() bool {
	switch v := p.value.(type) {
	case *listenerv3.Listener:
		// Another name is refused.
		return v.GetAddress() != nil
	case *routev3.VirtualHost:
		return v.GetName() != "" || len(v.GetDomains()) > 0
	}
	return false
}

// mergeInto merges the value into a message.
func (p *Patch) mergeInto(m proto.Message) error {
	return envoyapi.Merge(m, p.value, p.Operation == "MERGE_AND_REPLACE_LIST")
}

// clone gives a copy of the value, which is a message of that type.
func clone[M proto.Message](p *Patch) M {
	out, _ := proto.Clone(p.value).(M)
	return out
}

// Result is what became of a resource.
type Result[M proto.Message] struct {
	// Message is the resource as it is now, the same as before when nothing changed it. There is none when Removed.
	Message M
	Removed bool
	Outcome
}

// Outcome says which patches changed a resource, and which were left out because they broke it.
type Outcome struct {
	Changed []*model.Patch
	Broken  map[*model.Patch]string
}

// Nothing says that no patch had to do with the resource.
func (o *Outcome) Nothing() bool { return len(o.Changed)+len(o.Broken) == 0 }

// leaveOut says that a patch was left out. The outcome may be shared: it is not changed in place.
func (o *Outcome) leaveOut(p *model.Patch, why string) {
	broken := maps.Clone(o.Broken)
	if broken == nil {
		broken = map[*model.Patch]string{}
	}
	broken[p] = why
	o.Broken = broken
}

// outcomes puts together what became of the parts of a resource.
type outcomes struct {
	Outcome
	// changed are the patches in Changed.
	changed map[*model.Patch]bool
}

func (o *outcomes) add(part Outcome) {
	for _, p := range part.Changed {
		if o.changed[p] {
			continue
		}
		if o.changed == nil {
			o.changed = map[*model.Patch]bool{}
		}
		o.changed[p] = true
		o.Changed = append(o.Changed, p)
	}
	for p, why := range part.Broken {
		if o.Broken == nil {
			o.Broken = map[*model.Patch]string{}
		}
		o.Broken[p] = why
	}
}

// attempt holds patches against one resource, and notes what they change. A step gives what is left of the resource: the same
// pointer when nothing changed.
type attempt struct {
	patches []*Patch
	outcomes
	// made counts changes.
	made int
}

func (a *attempt) note(p *Patch) { a.take(Outcome{Changed: []*model.Patch{p.Patch}}) }

// take notes what became of a part whose patches were attempted by themselves.
func (a *attempt) take(part Outcome) {
	a.made += len(part.Changed)
	a.add(part)
}

// of gives the patches of a part of a configuration.
func (a *attempt) of(applyTo string) func(func(*Patch) bool) {
	return func(yield func(*Patch) bool) {
		for _, p := range a.patches {
			if p.ApplyTo == applyTo && !yield(p) {
				return
			}
		}
	}
}

// run makes all changes of a resource, and without those that break it when there are any: a patch is left out when the
// resource with it, and with those before it, is one that a proxy would refuse.
func run[M proto.Message](original M, name func(M) string, patches []*Patch, step func(*attempt, M) (M, bool, error)) *Result[M] {
	try := func(patches []*Patch) (*Result[M], error) {
		a := &attempt{patches: patches}
		changed, keep, err := step(a, original)
		if err != nil {
			return nil, err
		}
		out := &Result[M]{Message: original, Outcome: a.Outcome}
		switch {
		case !keep:
			out.Removed = true
		case len(a.Changed) > 0:
			if got := name(changed); got != name(original) {
				return nil, fmt.Errorf("it changes the name %s to %s", name(original), got)
			}
			if err := envoyapi.Check(changed); err != nil {
				return nil, err
			}
			out.Message = changed
		}
		return out, nil
	}
	out, err := try(patches)
	if err == nil {
		return out
	}
	var good []*Patch
	broken := map[*model.Patch]string{}
	for _, p := range patches {
		if _, err := try(append(slices.Clip(good), p)); err != nil {
			broken[p.Patch] = fmt.Sprintf("%s: %v", name(original), err)
			continue
		}
		good = append(good, p)
	}
	// Without a patch nothing can fail.
	if out, err = try(good); err != nil {
		out = &Result[M]{Message: original}
	}
	for p, why := range broken {
		out.leaveOut(p, why)
	}
	return out
}
