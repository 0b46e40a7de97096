package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func exportOf(i int, ready uint32) *Export {
	return &Export{Namespace: fmt.Sprintf("ns-%d", i%7), Name: fmt.Sprintf("s-%d", i), Ports: []ExportPort{{Number: 80, Protocol: "HTTP"}},
		Groups: []ExportGroup{{Labels: map[string]string{"app": "a"}, Ready: ready}}}
}

// Random changes give what a map has by the same ones, leave all that was before as it was, and are found again.
func TestExportsAreWhatChangesMakeThem(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		want := map[ExportName]*Export{}
		var x *Exports
		type version struct {
			x    *Exports
			want map[ExportName]*Export
		}
		var versions []version
		for range 40 {
			var set []*Export
			var gone []ExportName
			for range random.IntN(8) {
				if i := random.IntN(300); random.IntN(3) == 0 {
					gone = append(gone, exportOf(i, 0).Key())
				} else {
					set = append(set, exportOf(i, uint32(random.IntN(3))))
				}
			}
			before := x
			x = x.With(set, gone)
			for _, e := range set {
				if was := want[e.Key()]; was == nil || !was.Equal(e) {
					want[e.Key()] = e
				}
			}
			for _, name := range gone {
				delete(want, name)
			}
			if before.Equal(x) && before != x {
				// It may have been taken and given back; what is the same must be found to be.
				if set, gone := x.Since(before); len(set)+len(gone) > 0 {
					t.Fatalf("%d differ of what is equal", len(set)+len(gone))
				}
			}
			versions = append(versions, version{x, maps.Clone(want)})
		}
		for _, v := range versions {
			size := 0
			for name, e := range v.want {
				size += e.Size()
				if v.x.Get(name) != e {
					t.Fatalf("%s is another one", name)
				}
			}
			if v.x.Len() != len(v.want) || v.x.Size() != size || len(v.x.Sorted()) != len(v.want) {
				t.Fatalf("%d of %d bytes, want %d of %d", v.x.Len(), v.x.Size(), len(v.want), size)
			}
			// From each version to each other.
			for _, from := range versions {
				set, gone := v.x.Since(from.x)
				if got := from.x.With(set, gone); !reflect.DeepEqual(got.List(), v.x.List()) || got.Size() != v.x.Size() {
					t.Fatal("what differs does not make one of the other")
				}
				for _, e := range set {
					if was := from.want[e.Key()]; was != nil && was.Equal(e) {
						t.Fatalf("%s is said to differ", e.Key())
					}
				}
				if got := from.x.Replaced(v.x.Sorted()); !got.Equal(v.x) {
					t.Fatal("replaced by others, it is not these")
				}
			}
		}
	}
}

func TestEqualExportsAreTheSame(t *testing.T) {
	x := NewExports(*exportOf(1, 1), *exportOf(2, 1))
	if x.With([]*Export{exportOf(1, 1)}, []ExportName{{"no", "such"}}) != x || x.Replaced([]*Export{exportOf(2, 1), exportOf(1, 1)}) != x {
		t.Error("nothing differs, and it is another one")
	}
	var none *Exports
	if none.With(nil, nil) != none || none.Len() != 0 || none.Get(ExportName{}) != nil || !none.Equal(&Exports{}) || len(none.List()) != 0 {
		t.Error("none is something")
	}
}

func TestExportsAreAListInJSON(t *testing.T) {
	all := []Export{*exportOf(3, 1), *exportOf(1, 1), *exportOf(2, 1)}
	text, err := json.Marshal(NewExports(all...))
	if err != nil {
		t.Fatal(err)
	}
	var read *Exports
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Export) int { return a.Key().Compare(b.Key()) })
	if !reflect.DeepEqual(read.List(), all) {
		t.Errorf("%+v", read.List())
	}
}
