package envoyapi

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Merge puts a message into another of the same type, as Istio's EnvoyFilter does: fields that are set take the place of those
// that were, lists are appended to, messages are merged. Durations, wrapped values, structs and typed configurations of
// another type are replaced whole; of the same type, typed configurations are merged inside. With replaceLists, a list takes
// the place of the one before (MERGE_AND_REPLACE_LIST).
func Merge(into, from proto.Message, replaceLists bool) error {
	if a, b := into.ProtoReflect().Descriptor(), from.ProtoReflect().Descriptor(); a != b {
		return fmt.Errorf("a %s cannot be merged into a %s", b.Name(), a.Name())
	}
	return merge(into.ProtoReflect(), from.ProtoReflect(), replaceLists)
}

func merge(into, from protoreflect.Message, replaceLists bool) error {
	var failed error
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			if replaceLists {
				into.Clear(f)
			}
			to := into.Mutable(f).List()
			for i := range v.List().Len() {
				to.Append(cloned(f, v.List().Get(i)))
			}
		case f.IsMap():
			to := into.Mutable(f).Map()
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				to.Set(k, cloned(f.MapValue(), v))
				return true
			})
		case f.Message() == nil || !into.Has(f):
			into.Set(f, cloned(f, v))
		case f.Message().FullName() == "google.protobuf.Any":
			failed = mergeAny(into, f, v, replaceLists)
		case f.Message().ParentFile().Package() == "google.protobuf":
			into.Set(f, cloned(f, v))
		default:
			failed = merge(into.Mutable(f).Message(), v.Message(), replaceLists)
		}
		return failed == nil
	})
	return failed
}

func cloned(f protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	if f.Message() == nil {
		return v
	}
	return protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
}

func mergeAny(into protoreflect.Message, f protoreflect.FieldDescriptor, v protoreflect.Value, replaceLists bool) error {
	was, ok := into.Get(f).Message().Interface().(*anypb.Any)
	now, fine := v.Message().Interface().(*anypb.Any)
	if !ok || !fine {
		return fmt.Errorf("%s is no Any", f.FullName())
	}
	if was.GetTypeUrl() != now.GetTypeUrl() {
		into.Set(f, cloned(f, v))
		return nil
	}
	a, err := was.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("read a %s: %w", was.GetTypeUrl(), err)
	}
	b, err := now.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("read a %s: %w", now.GetTypeUrl(), err)
	}
	if err := merge(a.ProtoReflect(), b.ProtoReflect(), replaceLists); err != nil {
		return err
	}
	packed, err := Pack(a)
	if err != nil {
		return err
	}
	into.Set(f, protoreflect.ValueOfMessage(packed.ProtoReflect()))
	return nil
}

// Pack puts a message into an Any. Equal messages give equal bytes.
func Pack(m proto.Message) (*anypb.Any, error) {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("packing a %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return out, nil
}
