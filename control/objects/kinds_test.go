package objects

import (
	"slices"
	"strings"
	"testing"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
)

// loom is a kind as a file would declare it.
var loom = checked(networkingKind("Loom", "looms", func() Resource { return &networkingv1.WorkloadEntry{} }, "lo"),
	func(c *checker, w *networkingv1.WorkloadEntry) {
		if w.Spec.Address == "" {
			c.fail("spec.address", "missing", "give the loom's address")
		}
	})

// TestAKindIsAFileAndALine: with its declaration in the list, a kind is decoded, checked, shown and found.
func TestAKindIsAFileAndALine(t *testing.T) {
	const manifest = "apiVersion: networking.istio.io/v1\nkind: Loom\nmetadata: {name: a, namespace: b}\nspec: {address: %s}\n"
	text := strings.ReplaceAll(manifest, "%s", "192.0.2.1")
	if _, errs := Decode(strings.NewReader(text), "in.yaml", ""); len(errs) != 1 {
		t.Fatalf("nobody knows the kind yet, but: %v", errs)
	}
	Kinds = append(Kinds, loom)
	defer func() { Kinds = slices.DeleteFunc(Kinds, func(k *Kind) bool { return k == loom }) }()
	decoded, errs := Decode(strings.NewReader(text), "in.yaml", "")
	if len(errs) > 0 || len(decoded) != 1 || decoded[0].Kind != loom {
		t.Fatalf("got %v: %v", decoded, errs)
	}
	var shown strings.Builder
	if err := Encode(&shown, "yaml", false, decoded...); err != nil || !strings.Contains(shown.String(), "kind: Loom") {
		t.Errorf("is shown as %s: %v", shown.String(), err)
	}
	if found, err := FindKind("lo"); err != nil || found != loom {
		t.Errorf("is not found: %v", err)
	}
	_, errs = Decode(strings.NewReader(strings.ReplaceAll(manifest, "%s", `""`)), "in.yaml", "")
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "spec.address: missing; give the loom's address") {
		t.Errorf("its check says %v", errs)
	}
	_, errs = Decode(strings.NewReader(strings.ReplaceAll(manifest, "%s", "192.0.2.1, network: x")), "in.yaml", "")
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "spec.network: is not supported") {
		t.Errorf("the treatment of its fields says %v", errs)
	}
}
