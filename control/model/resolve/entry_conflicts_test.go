package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// entryOfAge is a ServiceEntry of a plain TCP service on an address, of that age.
func entryOfAge(age int, name, host, address string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, creationTimestamp: \"2026-01-%02dT00:00:00Z\"}\nspec: {hosts: [%s], addresses: [%s], resolution: STATIC, ports: [{number: 5432, name: tcp, protocol: TCP}], endpoints: [{address: 192.0.2.1}]}\n",
		name, age, host, address)
}

// TestOneThatIsNotInForceKeepsNobodyOut takes chains of entries that keep each other out.
func TestOneThatIsNotInForceKeepsNobodyOut(t *testing.T) {
	for name, c := range map[string]struct {
		entries []string
		want    []string
	}{
		"the oldest of two has the address": {[]string{entryOfAge(1, "a", "a.example.com", "198.51.100.1"), entryOfAge(2, "b", "b.example.com", "198.51.100.1")}, []string{"a"}},
		"the second is kept out by its host, the third has the address": {
			[]string{entryOfAge(1, "a", "a.example.com", "198.51.100.1"), entryOfAge(2, "b", "a.example.com", "198.51.100.2"), entryOfAge(3, "c", "c.example.com", "198.51.100.2")},
			[]string{"a", "c"},
		},
		"the second is kept out by its address, the third has the host": {
			[]string{entryOfAge(1, "a", "a.example.com", "198.51.100.1"), entryOfAge(2, "b", "b.example.com", "198.51.100.1"), entryOfAge(3, "c", "b.example.com", "198.51.100.3")},
			[]string{"a", "c"},
		},
		"the third is in force and keeps the fourth out": {
			[]string{
				entryOfAge(1, "a", "a.example.com", "198.51.100.1"), entryOfAge(2, "b", "b.example.com", "198.51.100.1, 198.51.100.2"),
				entryOfAge(3, "c", "c.example.com", "198.51.100.2, 198.51.100.4"), entryOfAge(4, "d", "d.example.com", "198.51.100.4"),
			},
			[]string{"a", "c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := decode(t, strings.Join(c.entries, "---\n"))
			mesh, report := Mesh(model.DefaultSettings("c"), all, Runtime{})
			if got := namesInForce(mesh, report, all); !slices.Equal(got, c.want) {
				t.Fatalf("in force are %q, want %q", got, c.want)
			}
			// The oldest goes and comes back: those behind it change places, however far.
			kept := New(model.DefaultSettings("c"))
			kept.Update(Change{Objects: byKey(all)})
			kept.Update(Change{Objects: map[objects.Key]*objects.Object{all[0].Key(): nil}})
			mesh, report = Mesh(model.DefaultSettings("c"), all[1:], Runtime{})
			want := namesInForce(mesh, report, all[1:])
			if got := namesInForce(kept.Mesh(), kept.Report(), all[1:]); !slices.Equal(got, want) {
				t.Errorf("without the oldest, in force are %q, want %q", got, want)
			}
			kept.Update(Change{Objects: map[objects.Key]*objects.Object{all[0].Key(): all[0]}})
			if got := namesInForce(kept.Mesh(), kept.Report(), all); !slices.Equal(got, c.want) {
				t.Errorf("with the oldest again, in force are %q, want %q", got, c.want)
			}
		})
	}
}

// namesInForce are the names of the entries in force, which must be those that are not refused.
func namesInForce(mesh *model.Mesh, report *Report, all []*objects.Object) []string {
	var out []string
	for _, o := range all {
		serves := slices.ContainsFunc(mesh.Services, func(s *model.Service) bool { return s.Source.Key == o.Key() })
		refused := slices.ContainsFunc(report.Status(o.Key()).Conditions, func(c metav1.Condition) bool { return c.Reason == "Conflict" })
		if serves {
			out = append(out, o.GetName())
		}
		if serves == refused {
			out = append(out, o.GetName()+" is said to be otherwise")
		}
	}
	return out
}
