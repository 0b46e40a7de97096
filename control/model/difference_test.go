package model

import (
	"reflect"
	"testing"
)

// Every list of the mesh is compared, and what differs there is more than endpoints.
func TestEveryListIsCompared(t *testing.T) {
	mesh := reflect.TypeFor[Mesh]()
	for f := range mesh.Fields() {
		if f.Type.Kind() != reflect.Slice || f.Name == "Accepted" {
			continue
		}
		with := &Mesh{}
		part := reflect.New(f.Type.Elem().Elem())
		list := reflect.ValueOf(with).Elem().FieldByName(f.Name)
		list.Set(reflect.Append(list, part))
		d := Differ(&Mesh{}, with)
		compared := reflect.ValueOf(d).FieldByName(f.Name)
		if !compared.IsValid() || compared.Len() != 1 || compared.Index(0).FieldByName("After").Pointer() != part.Pointer() {
			t.Errorf("a difference says nothing of one in %s", f.Name)
		}
		if d.EndpointsAlone() {
			t.Errorf("one more in %s is taken for one of endpoints alone", f.Name)
		}
	}
}
