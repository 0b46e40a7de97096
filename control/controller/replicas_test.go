package controller

import (
	"reflect"
	"testing"

	"heddle.io/heddle/control/objects"
)

// Of an agent whose host was renamed the report stays for a while: a status whose order changed would be written for ever.
func TestReplicasOfOneNameHaveOneOrder(t *testing.T) {
	workload := objects.Key{Kind: objects.Workload.Kind, Namespace: "shop", Name: "cart"}
	states := replicaStates{workload: {
		"new": {{Name: "cart-0", Phase: "Running"}, {Name: "cart-1"}},
		"old": {{Name: "cart-0", Phase: "Pending"}},
	}}
	first := states.of(workload)
	for range 50 {
		if again := states.of(workload); !reflect.DeepEqual(again, first) {
			t.Fatalf("%+v, then %+v", first, again)
		}
	}
}
