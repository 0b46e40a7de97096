package resolve

import (
	"testing"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// TestAKindIsAFileAndALine: with its line in the list, the objects of a kind are worked out in their turn, and taken back.
func TestAKindIsAFileAndALine(t *testing.T) {
	loom := &objects.Kind{Group: "looms.example.com", Version: "v1", Kind: "Loom", Plural: "looms", Namespaced: true}
	before := resolversByKind
	defer func() { resolversByKind = before }()
	resolversByKind = index(append(resolvers[:len(resolvers):len(resolvers)], resolved(loom, stratumEndpoints, (*builder).workloadEntry)))

	m := New(model.DefaultSettings("one"))
	entry := &networkingv1.WorkloadEntry{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}}
	entry.Spec.Address = "192.0.2.1"
	o := &objects.Object{Kind: loom, Resource: entry}
	mesh := m.Update(Change{Objects: map[objects.Key]*objects.Object{o.Key(): o}})
	if len(mesh.Replicas) != 1 || mesh.Replicas[0].Address.String() != "192.0.2.1" {
		t.Fatalf("got %+v", mesh.Replicas)
	}
	if mesh = m.Update(Change{Objects: map[objects.Key]*objects.Object{o.Key(): nil}}); len(mesh.Replicas) != 0 {
		t.Errorf("left: %+v", mesh.Replicas)
	}
}
