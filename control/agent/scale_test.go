package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
)

// crowd gives an agent n workloads of one replica each, placed and without processes.
func crowd(tb testing.TB, n int) *Agent {
	tb.Helper()
	a := newAgent(tb)
	a.wishes.workloads = map[objects.Key]*objects.Object{}
	for i := range n {
		w := crowdWorkload(i, "1")
		a.wishes.workloads[w.Key()] = w
	}
	wanted, _ := a.wishes.place(a.config.Cluster.Name, false)
	for key, specs := range wanted {
		d := &deployment{agent: a, key: key, kick: make(chan struct{}, 1), running: map[string]*replica{}, wanted: specs, placed: true, cancel: func() {}}
		for _, s := range specs {
			d.running[s.Name] = a.newReplica(s)
		}
		a.deployments[key] = d
	}
	return a
}

func crowdWorkload(i int, level string) *objects.Object {
	return &objects.Object{Kind: objects.Workload, Resource: &v1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i), Namespace: "shop", Labels: map[string]string{"app": fmt.Sprint("w", i)}},
		Spec:       v1alpha1.WorkloadSpec{Command: []string{"/bin/server", "--verbose"}, Env: []v1alpha1.EnvVar{{Name: "LEVEL", Value: level}}},
	}}
}

// kicked are the deployments that have been told to reconcile.
func kicked(a *Agent) (out []*deployment) {
	for _, d := range a.deployments {
		select {
		case <-d.kick:
			out = append(out, d)
		default:
		}
	}
	return out
}

// A workload that changes costs itself: the others are not told to reconcile, neither where the list brings them anew.
func TestChangeOfOneLeavesTheOthers(t *testing.T) {
	a := crowd(t, 20)
	changed := func(change func(*wishes)) (keys []string) {
		t.Helper()
		a.wish(t.Context(), change)
		for _, d := range kicked(a) {
			keys = append(keys, d.key)
		}
		slices.Sort(keys)
		return keys
	}
	tell := func(w *objects.Object) func(*wishes) {
		return func(wishes *wishes) { wishes.workloads[w.Key()] = w }
	}
	if got := changed(tell(crowdWorkload(7, "2"))); !slices.Equal(got, []string{"shop/w7"}) {
		t.Errorf("one that changed: %v", got)
	}
	if got := changed(func(w *wishes) {
		for i := range 20 {
			tell(crowdWorkload(i, "1"))(w)
		}
	}); !slices.Equal(got, []string{"shop/w7"}) {
		t.Errorf("a list where one changed back: %v", got)
	}
	if got := changed(func(w *wishes) { w.namespaces = map[objects.Key]*objects.Object{} }); got != nil {
		t.Errorf("namespaces that say nothing: %v", got)
	}
	if got := changed(func(w *wishes) { w.provider = &objects.KeyProvider{} }); len(got) != 20 {
		t.Errorf("another provider for all: %v", got)
	}
	stopped := crowdWorkload(3, "1")
	stopped.SetAnnotations(map[string]string{AnnotationStopped: "true"})
	if got := changed(tell(stopped)); !slices.Equal(got, []string{"shop/w3"}) {
		t.Errorf("one that is stopped: %v", got)
	}
	// A stopped one that is deleted has addresses to give back, though it wants as little as before.
	if got := changed(func(w *wishes) { delete(w.workloads, stopped.Key()) }); !slices.Equal(got, []string{"shop/w3"}) {
		t.Errorf("one that is deleted: %v", got)
	}
}

func sizes(b *testing.B, run func(b *testing.B, n int)) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { run(b, n) })
	}
}

// What it costs the others that one workload is told anew.
func BenchmarkChangeOfOne(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := crowd(b, n)
		told := 0
		for i := 0; b.Loop(); i++ {
			w := crowdWorkload(7, "1")
			a.wish(b.Context(), func(wishes *wishes) { wishes.workloads[w.Key()] = w })
			for _, d := range kicked(a) {
				told++
				d.reconcile(b.Context())
			}
		}
		b.ReportMetric(float64(told)/float64(b.N), "reconciled/op")
	})
}

func BenchmarkFind(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := crowd(b, n)
		for b.Loop() {
			if a.find("shop", "w7-0") == nil {
				b.Fatal("not found")
			}
		}
	})
}

func BenchmarkKeepObjects(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := crowd(b, n)
		for b.Loop() {
			if err := keepObjects(filepath.Join(b.TempDir(), "workloads.json"), a.wishes.workloads); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// What the ids of a workload of a hundred replicas cost beside those of n.
func BenchmarkIDs(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := newAgent(b)
		specs := func(workload string, n int) (out []replicaSpec) {
			for i := range n {
				out = append(out, replicaSpec{Namespace: "shop", Name: fmt.Sprintf("%s-%d", workload, i)})
			}
			return out
		}
		if _, _, _, err := a.ids(specs("cart", n)...); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, _, _, err := a.ids(specs("new", 100)...); err != nil {
				b.Fatal(err)
			}
			if err := errors.Join(a.addresses.Release("shop/new"), a.users.Release("shop/new")); err != nil {
				b.Fatal(err)
			}
		}
	})
}
