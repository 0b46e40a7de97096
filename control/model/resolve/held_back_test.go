package resolve

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// TestAFormerMeshIsBuiltOfWhatIsHeldBack makes changes at random and then the mesh before them anew, of the objects as they are and
// those as they were that are held back. It must be what clients went by: all that model.Mesh.AsClientsOf takes of a former mesh.
func TestAFormerMeshIsBuiltOfWhatIsHeldBack(t *testing.T) {
	rounds := 2000
	if testing.Short() {
		rounds = 300
	}
	w := newChanging(t, 3, 4)
	m := New(w.settings)
	changed := map[*objects.Kind]bool{}
	was, then := m.Mesh(), map[objects.Key]*objects.Object{}
	for round := range rounds {
		if round%20 == 0 {
			// Replicas, other clusters and the address of a host are the same for both.
			m.Update(w.change())
			m.Update(Change{Addresses: w.assign(slices.Collect(maps.Keys(w.addresses)))})
			for _, ns := range []string{"red", "green", "blue", "istio-system"} {
				// Or a Workload might be all that makes one of them a namespace of this cluster.
				if o := decode(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")[0]; w.objects[o.Key()] == nil {
					w.objects[o.Key()] = o
				}
			}
			m.Update(Change{Objects: w.objects, Addresses: w.assign(m.GlobalHosts())})
			was, then = m.Mesh(), maps.Clone(w.objects)
		}
		now := w.object()
		if now.Kind == objects.Secret {
			continue // What is certified is as it is now.
		}
		changed[now.Kind] = true
		if w.random.IntN(3) == 0 && now.Kind != objects.Namespace && w.objects[now.Key()] != nil {
			delete(w.objects, now.Key())
			m.Update(Change{Objects: map[objects.Key]*objects.Object{now.Key(): nil}})
		} else {
			w.objects[now.Key()] = now
			m.Update(Change{Objects: map[objects.Key]*objects.Object{now.Key(): now}})
		}
		// Addresses are given for what there is now.
		hosts := m.GlobalHosts()
		given := maps.Clone(w.addresses)
		maps.DeleteFunc(given, func(host string, _ netip.Addr) bool { return !slices.Contains(hosts, host) })
		m.Update(Change{Addresses: given})
		left := map[objects.Key]*objects.Object{}
		for key, o := range w.objects {
			if then[key] != o && HeldBack(key) {
				left[key] = then[key]
			}
		}
		for key, o := range then {
			if w.objects[key] == nil && HeldBack(key) {
				left[key] = o
			}
		}
		before, anew := wentBy(was), wentBy(m.With(left, w.given))
		if !reflect.DeepEqual(before, anew) {
			a, b := reflect.ValueOf(*before), reflect.ValueOf(*anew)
			for i := range a.NumField() {
				if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
					t.Errorf("%s: was %s, anew %s", a.Type().Field(i).Name, text(a.Field(i).Interface()), text(b.Field(i).Interface()))
				}
			}
			t.Fatalf("round %d: the mesh that is built anew is another", round)
		}
	}
	for _, kind := range objects.Kinds {
		if !changed[kind] && kind != objects.Secret && kind != objects.AccessBinding && !testing.Short() {
			t.Errorf("no %s of %q was changed", kind.Kind, kind.Group)
		}
	}
}

// given are the addresses that hosts have got.
func (w *changing) given([]string) map[string]netip.Addr { return w.addresses }

// wentBy is what clients go by of a former mesh where there is nothing of now: all but who may answer for services that select, which
// the replicas of now say.
func wentBy(m *model.Mesh) *model.Mesh {
	out := (&model.Mesh{Settings: m.Settings}).AsClientsOf(m)
	for i, s := range out.Services {
		if s.Local() || s.External != nil && s.External.Entry != nil && s.External.Entry.Selector != nil {
			bare := *s
			bare.Identities = nil
			out.Services[i] = &bare
		}
	}
	out.Settings = model.Settings{}
	return out
}
