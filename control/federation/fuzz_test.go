package federation

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// What another cluster says of itself is either refused, or within bounds and the same when it is passed on: all of it, or what
// is different of it.
func FuzzState(f *testing.F) {
	first := State{About: About{Version: "v1"}, Services: registry.NewExports(export("shop", "cart", 2), export("shop", "ads", 2))}
	second := State{About: About{Version: "v2"}, Services: registry.NewExports(export("shop", "cart", 3))}
	for _, seed := range [][2]*pb.State{{first.since(nil), second.since(&first)}, {second.since(nil), first.since(&second)}, {{}, {}}} {
		whole, err := proto.Marshal(seed[0])
		if err != nil {
			f.Fatal(err)
		}
		different, err := proto.Marshal(seed[1])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(whole, different)
	}
	f.Fuzz(func(t *testing.T, whole, different []byte) {
		var said, known State
		for i, text := range [][]byte{whole, different} {
			m := &pb.State{}
			if proto.Unmarshal(text, m) != nil {
				return
			}
			next, err := said.with(m, i > 0, "cluster.local", false)
			if err != nil {
				if !next.equal(said) {
					t.Fatal("what is refused changes something")
				}
				return
			}
			if next.Services.Len() > maxServices || next.Services.Size() > maxStateBytes || len(next.Gateways) > maxGateways {
				t.Fatal("out of bounds")
			}
			told := &said
			if i == 0 {
				told = nil
			}
			if passed := next.since(told); passed != nil {
				all := parts(passed)
				for _, part := range all[1:] {
					joined(all[0], part)
				}
				if known, err = known.with(all[0], i > 0, "cluster.local", false); err != nil {
					t.Fatalf("it cannot be passed on: %v", err)
				}
			}
			if !known.equal(next) {
				t.Fatal("it changes when it is passed on")
			}
			said = next
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
