package translate

import "testing"

// Kinds that get something else have other IDs, whatever their EnvoyFilters are called.
func TestKindsOfOtherFiltersAreOthers(t *testing.T) {
	with := func(filters ...FilterRef) string {
		return Kind{Role: Outbound, Namespace: "shop", Filters: filters}.ID()
	}
	ids := map[string]int{}
	for i, id := range []string{
		with(),
		with(FilterRef{Namespace: "shop", Name: "f"}),
		with(FilterRef{Namespace: "shop", Name: "f", Without: []int{1}}),
		with(FilterRef{Namespace: "shop", Name: "f-1"}),
		with(FilterRef{Namespace: "shop", Name: "f", Without: []int{1, 2}}),
		with(FilterRef{Namespace: "shop", Name: "f-1-2"}),
		with(FilterRef{Namespace: "shop", Name: "f-1", Without: []int{2}}),
		with(FilterRef{Namespace: "shop", Name: "f", Without: []int{12}}),
	} {
		if other, known := ids[id]; known {
			t.Errorf("%d and %d are both %s", other, i, id)
		}
		ids[id] = i
	}
}
