package objects

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// fields says what becomes of each field of one message or struct. Every field must be in exactly one of the three:
// a test walks the types of all kinds, and fails for a field or a struct that is nowhere and for a table of nothing.
type fields struct {
	// translated fields have the effect that their documentation says.
	translated []string
	// ignored fields are accepted, have no effect, and are mentioned in the object's status with this reason.
	ignored map[string]string
	// refused fields make the object invalid; the text says what to do instead.
	refused map[string]string
}

// looked are the fields of objects that are held against the tables, with the path of what stands in them; what else there is
// belongs to the object itself.
var looked = []struct{ field, path string }{
	{"Spec", "spec"}, {"Secrets", ""}, {"ImagePullSecrets", ""}, {"AutomountServiceAccountToken", ""},
	{"Immutable", ""}, {"BinaryData", ""},
}

// lookedIn are those of a type, found once: looking for fields by name is slow.
var lookedIn sync.Map

type lookedField struct {
	index []int
	// name in JSON.
	name string
	path string
}

func lookedFields(t reflect.Type) []lookedField {
	if known, ok := lookedIn.Load(t); ok {
		if out, ok := known.([]lookedField); ok {
			return out
		}
	}
	var out []lookedField
	for _, l := range looked {
		if f, ok := t.FieldByName(l.field); ok {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			out = append(out, lookedField{index: f.Index, name: name, path: l.path})
		}
	}
	lookedIn.Store(t, out)
	return out
}

// treatments walks the fields that are set and holds each against the tables.
func (c *checker) treatments(o *Object) {
	v := reflect.ValueOf(o.Resource).Elem()
	for _, part := range lookedFields(v.Type()) {
		f := v.FieldByIndex(part.index)
		if f.IsZero() && f.Kind() != reflect.Struct {
			continue
		}
		if part.path == "" {
			c.treat(typeName(v.Type()), part.name, part.name)
			continue
		}
		c.walkGo(f, part.path)
	}
}

// treat applies the table to one field that is set. It says whether to look inside.
func (c *checker) treat(typ, field, path string) bool {
	t, ok := treatments[typ]
	if ok {
		if slices.Contains(t.translated, field) {
			return true
		}
		if why, ignored := t.ignored[field]; ignored {
			c.ignored = append(c.ignored, FieldMessage{Path: path, Message: "ignored: " + why})
			return false
		}
		if remedy, refused := t.refused[field]; refused {
			c.fail(path, "is not supported", remedy)
			return false
		}
	}
	c.fail(path, fmt.Sprintf("Heddle does not know the field %s of %s", field, typ), "remove it")
	return false
}

func typeName(t reflect.Type) string {
	pkg := t.PkgPath()
	return pkg[strings.LastIndex(pkg, "/")+1:] + "." + t.Name()
}

func (c *checker) walkGo(v reflect.Value, path string) {
	if v.CanAddr() {
		if m, ok := v.Addr().Interface().(proto.Message); ok {
			c.walkMessage(m.ProtoReflect(), path)
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		c.walkGo(v.Elem(), path)
	case reflect.Slice:
		for i := range v.Len() {
			c.walkGo(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Struct:
		if _, listed := treatments[typeName(v.Type())]; !listed {
			return
		}
		for i := range v.NumField() {
			sf := v.Type().Field(i)
			name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
			// The fields of an embedded struct are those of the one around it.
			if name == "" && sf.Anonymous {
				c.walkGo(v.Field(i), path)
				continue
			}
			if name == "" || name == "-" || v.Field(i).IsZero() {
				continue
			}
			if at := joinField(path, name); c.treat(typeName(v.Type()), name, at) {
				c.walkGo(v.Field(i), at)
			}
		}
	}
}

func (c *checker) walkMessage(m protoreflect.Message, path string) {
	if m.Descriptor().ParentFile().Package() == "google.protobuf" {
		return
	}
	type set struct {
		f protoreflect.FieldDescriptor
		v protoreflect.Value
	}
	var fields []set
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields = append(fields, set{f, v})
		return true
	})
	// Range has no order; errors are to come in the order of the message.
	slices.SortFunc(fields, func(a, b set) int { return a.f.Index() - b.f.Index() })
	for _, s := range fields {
		at := joinField(path, s.f.JSONName())
		if !c.treat(string(m.Descriptor().FullName()), s.f.JSONName(), at) {
			continue
		}
		switch {
		case s.f.IsMap():
			if s.f.MapValue().Message() == nil {
				continue
			}
			entries := map[string]protoreflect.Message{}
			s.v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries[k.String()] = v.Message()
				return true
			})
			for _, key := range slices.Sorted(maps.Keys(entries)) {
				c.walkMessage(entries[key], joinKey(at, key))
			}
		case s.f.IsList():
			if s.f.Message() == nil {
				continue
			}
			for i := range s.v.List().Len() {
				c.walkMessage(s.v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i))
			}
		case s.f.Message() != nil:
			c.walkMessage(s.v.Message(), at)
		}
	}
}

// rangeAny is for Range: it notes that there is a field that is set.
func rangeAny(set *bool) func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
	return func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		*set = true
		return false
	}
}
