package resolve

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
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
	e := &keptObject{object: balance, valid: true}
	m.entries[balance.Key()] = e
	m.dirty[stratumOf(balance.Key())][balance.Key()] = struct{}{}
	mesh := m.Update(Change{Instances: map[string]*registry.Instance{}})
	if len(mesh.Destinations) != 1 || len(m.Report().Unresolved(balance.Key())) != 1 {
		t.Fatalf("%+v, %+v", mesh.Destinations, m.Report().Unresolved(balance.Key()))
	}
	// What it looked up is known: it is worked out again when that comes.
	m.Update(Change{Objects: map[objects.Key]*objects.Object{web.Key(): web}})
	if left := m.Report().Unresolved(balance.Key()); len(left) != 0 {
		t.Errorf("still %+v", left)
	}
}
