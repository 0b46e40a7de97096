package resolve

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// TestANewKindsPart is the recipe of ARCHITECTURE.md for what a kind means: a file, which this test stands for, and one resolver.
func TestANewKindsPart(t *testing.T) {
	kind := &objects.Kind{Group: "example.com", Version: "v1", Kind: "ExampleBalance", New: func() objects.Resource { return &corev1.Secret{} }, Namespaced: true}
	was := resolverOf
	t.Cleanup(func() { resolverOf = was })
	resolverOf = byKind(append([]resolver{{kind, stratumDestinations, partOf(func(b *builder, o *objects.Object, s *corev1.Secret) *model.DestinationPolicy {
		out := &model.DestinationPolicy{Namespace: s.Namespace, Name: s.Name, Host: b.fullName(string(s.Data["host"]), s.Namespace), Source: source(o)}
		if b.serviceOf(out.Host) == nil {
			b.report.missing(o.Key(), "NoService", "spec.host", "there is none", "apply it")
		}
		return out
	})}}, resolvers...))
	balance := &objects.Object{Kind: kind, Resource: &corev1.Secret{Data: map[string][]byte{"host": []byte("web")}}}
	balance.SetNamespace("shop")
	balance.SetName("balance")
	decoded, errs := objects.Decode(strings.NewReader("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.9, selector: {app: web}, ports: [{name: http, port: 80}]}\n"), "", "")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	web := decoded[0]

	m := New(model.DefaultSettings("one"))
	// Its form is that of package objects.
	m.forms = map[*objects.Object]objects.Form{balance: {}}
	mesh := m.Update(Change{Objects: map[objects.Key]*objects.Object{balance.Key(): balance}})
	if len(mesh.Destinations) != 1 || len(m.Report().Unresolved(balance.Key())) != 1 {
		t.Fatalf("%+v, %+v", mesh.Destinations, m.Report().Unresolved(balance.Key()))
	}
	// What it looked up is known: it is worked out again when that comes.
	m.Update(Change{Objects: map[objects.Key]*objects.Object{web.Key(): web}})
	if left := m.Report().Unresolved(balance.Key()); len(left) != 0 {
		t.Errorf("still %+v", left)
	}
}

// A part that nobody gave a place in the mesh does not vanish.
func TestAPartWithoutAPlace(t *testing.T) {
	defer func() {
		if said, _ := recover().(string); !strings.Contains(said, "struct { Name string } has no place in the mesh") {
			t.Errorf("it says %q", said)
		}
	}()
	New(model.DefaultSettings("one")).replacePart(nil, &struct{ Name string }{})
}

// Every list of the mesh is assembled: of parts that objects make, which replacePart takes and changedParts collects, or as a
// whole.
func TestEveryListOfTheMeshIsAssembled(t *testing.T) {
	whole := []reflect.Type{reflect.TypeFor[model.GlobalNamespace](), reflect.TypeFor[model.Credential](), reflect.TypeFor[model.Anchors]()}
	collected := map[reflect.Type]bool{}
	for f := range reflect.TypeFor[changedParts]().Fields() {
		added, _ := f.Type.FieldByName("added")
		collected[added.Type.Elem().Elem()] = true
	}
	for f := range reflect.TypeFor[model.Mesh]().Fields() {
		if f.Type.Kind() != reflect.Slice || f.Name == "Accepted" {
			continue
		}
		part := f.Type.Elem().Elem()
		if slices.Contains(whole, part) == collected[part] {
			t.Errorf("%s: no list of changedParts has %s, and it is not assembled as a whole", f.Name, part)
		}
		if !collected[part] {
			continue
		}
		made := reflect.New(part).Interface()
		if r, is := made.(*model.Replica); is {
			made = &entryReplica{r}
		}
		m := New(model.DefaultSettings("one"))
		m.replacePart(nil, made)
		m.settle()
		if n := reflect.ValueOf(m.mesh).Elem().FieldByName(f.Name).Len(); n != 1 {
			t.Errorf("%s has %d parts after one came", f.Name, n)
		}
		m.replacePart(made, nil)
		m.settle()
		if n := reflect.ValueOf(m.mesh).Elem().FieldByName(f.Name).Len(); n != 0 {
			t.Errorf("%s has %d parts after it went", f.Name, n)
		}
	}
}
