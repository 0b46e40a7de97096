package scenarios

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/envoyapi"
	"heddle.io/heddle/control/translate"
)

// TestResourcesPassTheCheckOfPatches: what is made without patches passes the check that patched resources must pass, else each
// patch of it would be left out.
func TestResourcesPassTheCheckOfPatches(t *testing.T) {
	for _, name := range names(t) {
		s := load(t, name)
		for _, node := range s.nodes {
			if len(s.errors) > 0 {
				break
			}
			r, err := translate.Proxy(s.mesh, node)
			if err != nil {
				t.Fatal(err)
			}
			r.Each(func(m proto.Message) {
				if err := envoyapi.Check(m); err != nil {
					t.Errorf("%s, %s: %s: %v", name, node.Name, m.ProtoReflect().Descriptor().Name(), err)
				}
			})
		}
	}
}
