package scenarios

import (
	"testing"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
)

// A status says how far proxies are with objects of those kinds that some proxy's configuration comes from, and of no others:
// of one that never does, it would say for ever that no proxy uses it.
func TestProgrammedKindsReachProxies(t *testing.T) {
	reached := map[*objects.Kind]string{}
	for _, name := range names(t) {
		s := load(t, name)
		for _, node := range s.nodes {
			r, err := translate.Proxy(s.mesh, node)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range r.Sources() {
				reached[objects.KindOf(key.Group, key.Kind)] = name
			}
		}
	}
	for _, k := range objects.Kinds {
		switch in := reached[k]; {
		case k == objects.Cluster || k == objects.Secret:
			// The status of the one says by itself how the cluster is, and most of the others are for no proxy.
		case k.Programmed() && in == "":
			t.Errorf("no proxy gets anything that comes from a %s of %q: its status would say so for ever", k.Kind, k.Group)
		case !k.Programmed() && in != "":
			t.Errorf("%s: a proxy gets something that comes from a %s of %q, and its status says nothing of it", in, k.Kind, k.Group)
		}
	}
}
