package objects

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// form is the form that a value must have in a manifest.
type form int

const (
	formAny form = iota
	formObject
	formMap
	formList
	formString
	formBool
	formInt
	formFloat
	formBytes
	formEnum
	formDuration
	formTime
	formIntOrString
	formQuantity
)

// describe names the form in messages.
func (f form) describe() string {
	return [...]string{
		"any value", "an object", "a map", "a list", "a string", "true or false", "a whole number", "a number",
		"base64 text", "one of a set of words", `a duration such as "10s"`, "a time such as 2006-01-02T15:04:05Z",
		"a number or a string", `a quantity such as "500m" or "64Mi"`,
	}[f]
}

// shape is the form of a value and of what is inside it. Shapes are made from Kubernetes' and our Go types and from
// Istio's message descriptors, so they are never behind the types.
type shape struct {
	form     form
	fields   map[string]*shape
	elem     *shape
	words    []string
	min, max int64
}

// fieldNames are the names of an object's fields, sorted.
func (s *shape) fieldNames() []string {
	names := make([]string, 0, len(s.fields))
	for name := range s.fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

var (
	shapesLock sync.Mutex
	goShapes   = map[reflect.Type]*shape{}
	protoShape = map[protoreflect.FullName]*shape{}
)

// shapeOf gives the shape of a whole manifest of the kind.
func shapeOf(k *Kind) *shape {
	shapesLock.Lock()
	defer shapesLock.Unlock()
	s := goShape(reflect.TypeOf(k.New()).Elem())
	out := &shape{form: formObject, fields: map[string]*shape{}}
	for name, field := range s.fields {
		out.fields[name] = field
	}
	// What the controller says is accepted and dropped, so that `get -o yaml | apply -f -` works.
	out.fields["status"] = &shape{form: formAny}
	return out
}

var (
	protoType       = reflect.TypeFor[proto.Message]()
	timeType        = reflect.TypeFor[metav1.Time]()
	durationType    = reflect.TypeFor[metav1.Duration]()
	intOrString     = reflect.TypeFor[intstr.IntOrString]()
	quantityType    = reflect.TypeFor[resource.Quantity]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func goShape(t reflect.Type) *shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if s, ok := goShapes[t]; ok {
		return s
	}
	s := &shape{}
	goShapes[t] = s
	pointer := reflect.PointerTo(t)
	switch {
	case pointer.Implements(protoType):
		*s = *messageShape(reflect.New(t).Interface().(proto.Message).ProtoReflect().Descriptor())
	case t == timeType || t == reflect.TypeFor[time.Time]():
		s.form = formTime
	case t == durationType:
		s.form = formDuration
	case t == intOrString:
		s.form = formIntOrString
	case t == quantityType:
		s.form = formQuantity
	case t.Kind() == reflect.Struct && !pointer.Implements(jsonUnmarshaler) && !pointer.Implements(textUnmarshaler):
		s.form, s.fields = formObject, map[string]*shape{}
		addFields(s.fields, t)
	case pointer.Implements(jsonUnmarshaler):
		s.form = formAny
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		s.form = formBytes
	case t.Kind() == reflect.Slice:
		s.form, s.elem = formList, goShape(t.Elem())
	case t.Kind() == reflect.Map:
		s.form, s.elem = formMap, goShape(t.Elem())
	case t.Kind() == reflect.String:
		s.form = formString
	case t.Kind() == reflect.Bool:
		s.form = formBool
	case t.Kind() == reflect.Int32:
		s.form, s.min, s.max = formInt, -1<<31, 1<<31-1
	case t.Kind() == reflect.Int64 || t.Kind() == reflect.Int:
		s.form, s.min, s.max = formInt, -1<<63, 1<<63-1
	case t.Kind() == reflect.Float64 || t.Kind() == reflect.Float32:
		s.form = formFloat
	default:
		s.form = formAny
	}
	return s
}

func addFields(fields map[string]*shape, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			addFields(fields, f.Type)
		case name != "":
			fields[name] = goShape(f.Type)
		}
	}
}

func messageShape(d protoreflect.MessageDescriptor) *shape {
	if s, ok := protoShape[d.FullName()]; ok {
		return s
	}
	s := &shape{form: formObject, fields: map[string]*shape{}}
	protoShape[d.FullName()] = s
	fields := d.Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			s.fields[f.JSONName()] = &shape{form: formMap, elem: scalarShape(f.MapValue())}
		case f.IsList():
			s.fields[f.JSONName()] = &shape{form: formList, elem: scalarShape(f)}
		default:
			s.fields[f.JSONName()] = scalarShape(f)
		}
	}
	return s
}

func scalarShape(f protoreflect.FieldDescriptor) *shape {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		switch f.Message().FullName() {
		case "google.protobuf.Duration":
			return &shape{form: formDuration}
		case "google.protobuf.BoolValue":
			return &shape{form: formBool}
		case "google.protobuf.UInt32Value":
			return &shape{form: formInt, max: 1<<32 - 1}
		case "google.protobuf.DoubleValue":
			return &shape{form: formFloat}
		case "google.protobuf.Struct", "google.protobuf.Value":
			return &shape{form: formAny}
		}
		return messageShape(f.Message())
	case protoreflect.EnumKind:
		s := &shape{form: formEnum}
		for i := range f.Enum().Values().Len() {
			s.words = append(s.words, string(f.Enum().Values().Get(i).Name()))
		}
		return s
	case protoreflect.BoolKind:
		return &shape{form: formBool}
	case protoreflect.StringKind:
		return &shape{form: formString}
	case protoreflect.BytesKind:
		return &shape{form: formBytes}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return &shape{form: formFloat}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return &shape{form: formInt, max: 1<<32 - 1}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return &shape{form: formInt, min: -1 << 31, max: 1<<31 - 1}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return &shape{form: formInt, max: 1<<63 - 1}
	default:
		return &shape{form: formInt, min: -1 << 63, max: 1<<63 - 1}
	}
}
