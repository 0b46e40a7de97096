package resolve

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

func decode(t *testing.T, text string) []*objects.Object {
	t.Helper()
	objs, errs := objects.Decode(strings.NewReader(text), "in.yaml", "shop")
	for _, err := range errs {
		t.Fatal(err)
	}
	return objs
}

func writes(objs []*objects.Object) []store.Write {
	var out []store.Write
	for _, o := range objs {
		out = append(out, store.Write{Key: o.Key(), Object: o})
	}
	return out
}

const older = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: z-older, creationTimestamp: "2026-01-01T00:00:00Z" }
spec: { hosts: [web], http: [{ route: [{ destination: { host: web } }] }] }
`

const younger = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: a-younger }
spec: { hosts: [web], http: [{ route: [{ destination: { host: web } }] }] }
`

func TestTheYoungerOfTwoThatConflictIsRefused(t *testing.T) {
	settings := model.DefaultSettings("c")
	existing := decode(t, older)
	_, errs := Check(settings, existing, writes(decode(t, younger)))
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "from the older VirtualService/shop/z-older") {
		t.Errorf("got %v", errs)
	}
	// An update keeps its age, so it is not the one that is refused.
	if _, errs := Check(settings, append(existing, decode(t, younger)...), writes(decode(t, strings.Replace(older, `, creationTimestamp: "2026-01-01T00:00:00Z"`, "", 1)))); len(errs) > 0 {
		t.Errorf("got %v", errs)
	}
	// What was wrong before does not stop other changes.
	if _, errs := Check(settings, append(existing, decode(t, younger)...), writes(decode(t, younger))); len(errs) > 0 {
		t.Errorf("got %v", errs)
	}
	// Once the older is deleted, there is no conflict.
	batch := append(writes(decode(t, younger)), store.Write{Key: existing[0].Key()})
	if _, errs := Check(settings, existing, batch); len(errs) > 0 {
		t.Errorf("got %v", errs)
	}
}

func TestCheckRefusesMixedUpBatches(t *testing.T) {
	o := decode(t, younger)
	batch := append(writes(o), writes(o)...)
	batch = append(batch, store.Write{Key: objects.Key{Kind: "Service", Namespace: "shop", Name: "x"}, Object: o[0]})
	_, errs := Check(model.DefaultSettings("c"), nil, batch)
	if len(errs) != 2 {
		t.Errorf("got %v", errs)
	}
}

func TestMeshLeavesOutWhatIsOfBadForm(t *testing.T) {
	o := decode(t, younger)[0]
	o.SetName("Not A Name")
	mesh, report := Mesh(model.DefaultSettings("c"), []*objects.Object{o}, Runtime{})
	if len(mesh.Routes) != 0 {
		t.Error("it is in the model")
	}
	if c := report.Status(o.Key()).Conditions[0]; c.Status != metav1.ConditionFalse || c.Reason != "Invalid" {
		t.Errorf("got %+v", c)
	}
}

func TestConditionsKeepTheirTime(t *testing.T) {
	early, late := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	old := []metav1.Condition{
		{Type: "Accepted", Status: "True", LastTransitionTime: early, Message: "was"},
		{Type: "Programmed", Status: "True", LastTransitionTime: early},
		{Type: "ResolvedRefs", Status: "False", LastTransitionTime: early},
	}
	got := MergeConditions(old, []metav1.Condition{
		{Type: "Accepted", Status: "True", Message: "is"}, {Type: "ResolvedRefs", Status: "True"}, {Type: "New", Status: "True"},
	}, late)
	want := []metav1.Time{early, early, late, late}
	for i, c := range got {
		if !c.LastTransitionTime.Equal(&want[i]) {
			t.Errorf("%s changed at %v", c.Type, c.LastTransitionTime)
		}
	}
	if got[0].Message != "is" || old[0].Message != "was" {
		t.Error("the message was not replaced, or the old one was changed")
	}
}
