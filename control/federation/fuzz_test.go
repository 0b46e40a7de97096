package federation

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// What another cluster says of itself is either refused, or within bounds and the same when it is passed on.
func FuzzReadState(f *testing.F) {
	seed, err := proto.Marshal(State{Version: "v1", Services: registry.NewExports(export("shop", "cart", 2))}.message())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, bytes []byte) {
		m := &pb.State{}
		if proto.Unmarshal(bytes, m) != nil {
			return
		}
		state, err := readState(m, "cluster.local", false)
		if err != nil {
			return
		}
		if state.Services.Len() > maxServices || len(state.Gateways) > maxGateways {
			t.Fatal("out of bounds")
		}
		whole := &pb.State{}
		for i, part := range state.parts() {
			if i == 0 {
				whole = part
				continue
			}
			whole.Services = append(whole.Services, part.Services...)
		}
		again, err := readState(whole, "cluster.local", false)
		if err != nil || !again.equal(state) {
			t.Fatalf("it changes when it is passed on: %v", err)
		}
	})
}

// An object that a primary sends is of a replicated kind, or nothing.
func FuzzReadReplica(f *testing.F) {
	for _, o := range []*objects.Object{clusterObject("cluster2", clusterSpec()), globalNamespace("boutique", "*", "shop")} {
		text, err := replicaText(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"apiVersion":"v1","kind":"Secret","resource":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := readReplica(text)
		if err != nil {
			return
		}
		if o.Kind != objects.Cluster && o.Kind != objects.GlobalNamespace || o.Version != "" {
			t.Fatalf("%s was taken", o.Key())
		}
		if _, err := replicaText(o); err != nil {
			t.Fatal(err)
		}
	})
}
