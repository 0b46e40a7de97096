package server

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
)

// adminsOnly are the kinds of which somebody thought that editors may not write them.
var adminsOnly = []*objects.Kind{objects.AccessBinding, objects.Cluster}

// Somebody thought about every kind, and the reference says what.
func TestWhoMayWriteAnObjectIsSaidOfEveryKind(t *testing.T) {
	content, err := os.ReadFile("../../docs/reference/access.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[bool][]string{}
	for _, kind := range objects.Kinds {
		edits := slices.Contains(editable, kind)
		if edits == slices.Contains(adminsOnly, kind) {
			t.Errorf("%s of %q: is it for editors, or for admins alone? It belongs in one of editable and adminsOnly", kind.Kind, kind.Group)
		}
		name := kind.Kind
		if kind.Typed() != kind.Plural {
			name += "." + kind.Group
		}
		names[edits] = append(names[edits], name)
		need := needOf(objects.Key{Group: kind.Group, Kind: kind.Kind, Namespace: "shop", Name: "x"}, "create")
		want := access.Need{Role: access.Admin, Namespace: access.Everywhere, To: need.To}
		if edits {
			want.Role = access.Editor
			if kind.Namespaced {
				want.Namespace = "shop"
			}
		}
		if need != want {
			t.Errorf("%s needs %+v, want %+v", kind.Kind, need, want)
		}
	}
	text := strings.Join(strings.Fields(string(content)), " ")
	for edits, begin := range map[bool]string{true: "Editors write objects of these kinds: ", false: "Only admins of all namespaces write those of the others: "} {
		if want := begin + strings.Join(names[edits], ", ") + "."; !strings.Contains(text, want) {
			t.Errorf("the reference does not say: %s", want)
		}
	}
}

// A kind that is new, and one that there is not, are no editor's.
func TestAKindThatNobodyThoughtOf(t *testing.T) {
	kind := &objects.Kind{Group: "example.com", Version: "v1", Versions: []string{"v1"}, Kind: "Example", Plural: "examples", Namespaced: true, New: func() objects.Resource { return &corev1.Secret{} }}
	of := func(group, kind string) objects.Key {
		return objects.Key{Group: group, Kind: kind, Namespace: "shop", Name: "x"}
	}
	refused := func(what string) {
		t.Helper()
		for _, key := range []objects.Key{of(kind.Group, kind.Kind), of("example.com", objects.Service.Kind)} {
			if n := needOf(key, "delete"); n.Role != access.Admin || n.Namespace != access.Everywhere {
				t.Errorf("%s, %s/%s needs %+v", what, key.Group, key.Kind, n)
			}
		}
	}
	refused("unknown")
	was := objects.Kinds
	t.Cleanup(func() { objects.Kinds = was })
	objects.Kinds = append(slices.Clone(was), kind)
	refused("new")
}
