// Package envoyapi reads Envoy's messages as users write them, merges them, and says what is wrong with one before a proxy
// has to.
package envoyapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	udpatypev1 "github.com/cncf/xds/go/udpa/type/v1"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
)

// maxDepth bounds how deep typed configurations may stand in each other.
const maxDepth = 32

// Decode reads JSON into a message. Unknown fields and unknown types of typed_config are errors. A TypedStruct of a type that is
// known becomes that type, so that it is checked and merged like one. What is wrong with the values is told by [Check].
func Decode(text []byte, into proto.Message) error {
	if err := protojson.Unmarshal(text, into); err != nil {
		return fmt.Errorf("it is no %s: %s", into.ProtoReflect().Descriptor().Name(), reason(err))
	}
	return walk(into.ProtoReflect(), "", 0, func(m protoreflect.Message, path string) error {
		packed, ok := m.Interface().(*anypb.Any)
		if !ok {
			return nil
		}
		inner, err := unpack(packed)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		typed, err := Pack(inner)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		packed.TypeUrl, packed.Value = typed.TypeUrl, typed.Value
		return nil
	})
}

// reason is the text of an error of protojson without its prefix and without the position in JSON that nobody has written.
func reason(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	if rest, ok := strings.CutPrefix(text, "(line "); ok {
		if _, after, found := strings.Cut(rest, "): "); found {
			text = after
		}
	}
	return strings.Replace(text, `unable to resolve "type.googleapis.com/`, `there is no type "`, 1)
}

// Check says what a proxy would refuse in a message, typed configurations in it included: types that do not exist, bytes that
// are none, values out of range (the rules of Envoy's API), and filters behind the last one.
func Check(m proto.Message) error {
	if err := valid(m); err != nil {
		return err
	}
	return walk(m.ProtoReflect(), "", 0, func(m protoreflect.Message, path string) error {
		err := order(m.Interface())
		if packed, ok := m.Interface().(*anypb.Any); ok {
			var inner proto.Message
			if inner, err = unpack(packed); err == nil {
				err = valid(inner)
			}
		}
		if err != nil && path != "" {
			return fmt.Errorf("%s: %w", path, err)
		}
		return err
	})
}

// valid holds a message against the rules of its fields (protoc-gen-validate).
func valid(m proto.Message) error {
	if v, ok := m.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// walk visits a message and all that stand in it. What stands in typed configurations is visited after them.
func walk(m protoreflect.Message, path string, depth int, visit func(m protoreflect.Message, path string) error) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: stands more than %d typed configurations deep", path, maxDepth)
	}
	if err := visit(m, path); err != nil {
		return err
	}
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			return fmt.Errorf("%s: %s: %s", path, packed.GetTypeUrl(), reason(err))
		}
		before, err := Pack(inner)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := walk(inner.ProtoReflect(), path, depth+1, visit); err != nil {
			return err
		}
		// What was visited may be another now.
		if after, err := Pack(inner); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		} else if !bytes.Equal(before.Value, after.Value) {
			packed.Value = after.Value
		}
		return nil
	}
	if m.Descriptor().ParentFile().Package() == "google.protobuf" {
		return nil
	}
	var failed error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := string(f.Name())
		if path != "" {
			at = path + "." + at
		}
		switch {
		case f.IsMap():
			if f.MapValue().Message() == nil {
				return true
			}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				failed = walk(v.Message(), fmt.Sprintf("%s[%s]", at, k.String()), depth, visit)
				return failed == nil
			})
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if failed = walk(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), depth, visit); failed != nil {
					return false
				}
			}
		default:
			failed = walk(v.Message(), at, depth, visit)
		}
		return failed == nil
	})
	return failed
}

// unpack gives what stands in an Any. What stands in a TypedStruct is read as the type that it names, when that is known:
// Istio's own filters are not part of Envoy's API.
func unpack(packed *anypb.Any) (proto.Message, error) {
	inner, err := packed.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("%s: %s", packed.GetTypeUrl(), reason(err))
	}
	var typeURL string
	var value json.Marshaler
	switch s := inner.(type) {
	case *xdstypev3.TypedStruct:
		typeURL, value = s.TypeUrl, s.Value
	case *udpatypev1.TypedStruct:
		typeURL, value = s.TypeUrl, s.Value
	default:
		return inner, nil
	}
	named, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	if errors.Is(err, protoregistry.NotFound) {
		return inner, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", typeURL, reason(err))
	}
	text, err := value.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", typeURL, err)
	}
	out := named.New().Interface()
	return out, Decode(text, out)
}
