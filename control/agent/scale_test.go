package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/durable/objectfile"
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
	kick := func() (keys []string) {
		for _, d := range kicked(a) {
			keys = append(keys, d.key)
		}
		slices.Sort(keys)
		return keys
	}
	changed := func(change func(*wishes)) []string {
		a.wish(t.Context(), change)
		return kick()
	}
	tell := func(w *objects.Object) func(*wishes) {
		return func(wishes *wishes) { wishes.workloads[w.Key()] = w }
	}
	one := func(o *objects.Object) []string {
		a.wishOne(t.Context(), o.Key(), o)
		return kick()
	}
	if got := one(crowdWorkload(7, "2")); !slices.Equal(got, []string{"shop/w7"}) {
		t.Errorf("one that changed: %v", got)
	}
	if got := one(crowdWorkload(7, "2")); got != nil {
		t.Errorf("one that is told as it was: %v", got)
	}
	if got := changed(func(w *wishes) {
		for i := range 20 {
			tell(crowdWorkload(i, "1"))(w)
		}
	}); !slices.Equal(got, []string{"shop/w7"}) {
		t.Errorf("a list where one changed back: %v", got)
	}
	// Until the namespaces are known, one without a deployment may have processes of an agent before: its ids are not free.
	if _, _, _, err := a.ids(replicaSpec{Namespace: "shop", Name: "w20-0"}); err != nil {
		t.Fatal(err)
	}
	if a.wishOne(t.Context(), crowdWorkload(20, "1").Key(), nil); a.addresses.Count() != 1 || a.users.Count() == 0 {
		t.Errorf("one that was deleted before the namespaces were known kept %d addresses, %d users", a.addresses.Count(), a.users.Count())
	}
	if got := changed(func(w *wishes) { w.namespaces = map[objects.Key]*objects.Object{} }); got != nil {
		t.Errorf("namespaces that say nothing: %v", got)
	}
	if a.addresses.Count() != 0 || a.users.Count() != 0 {
		t.Errorf("once they are known, it still has %d addresses, %d users", a.addresses.Count(), a.users.Count())
	}
	if got := changed(func(w *wishes) { w.provider = &objects.KeyProvider{} }); len(got) != 20 {
		t.Errorf("another provider for all: %v", got)
	}
	stopped := crowdWorkload(3, "1")
	stopped.SetAnnotations(map[string]string{AnnotationStopped: "true"})
	if got := one(stopped); !slices.Equal(got, []string{"shop/w3"}) {
		t.Errorf("one that is stopped: %v", got)
	}
	// A stopped one that is deleted has addresses to give back, though it wants as little as before.
	a.wishOne(t.Context(), stopped.Key(), nil)
	if got := kick(); !slices.Equal(got, []string{"shop/w3"}) || !a.deployments["shop/w3"].gone {
		t.Errorf("one that is deleted: %v", got)
	}
	// It has no deployment where it was stopped before this agent began.
	if _, _, _, err := a.ids(replicaSpec{Namespace: "shop", Name: "w4-0"}); err != nil {
		t.Fatal(err)
	}
	delete(a.deployments, "shop/w4")
	if a.wishOne(t.Context(), crowdWorkload(4, "1").Key(), nil); a.addresses.Count() != 0 || a.users.Count() != 0 {
		t.Errorf("one that was deleted while it was stopped still has %d addresses, %d users", a.addresses.Count(), a.users.Count())
	}
	if got := changed(func(*wishes) {}); got != nil {
		t.Errorf("nothing: %v", got)
	}
}

func sizes(b *testing.B, run func(b *testing.B, n int)) {
	for _, n := range []int{1000, 5000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { run(b, n) })
	}
}

// What it costs beside n others that one workload is told anew.
func BenchmarkChangeOfOne(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := crowd(b, n)
		for b.Loop() {
			w := crowdWorkload(7, "1")
			a.wishOne(b.Context(), w.Key(), w)
		}
		if got := kicked(a); len(got) > 0 {
			b.Errorf("%d have been told to reconcile", len(got))
		}
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

// What it costs beside n others that one workload is kept for the next agent.
func BenchmarkKeepOne(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		known := crowd(b, n).wishes.workloads
		file, _, err := objectfile.Open(filepath.Join(b.TempDir(), keptName(objects.Workload)))
		if err := errors.Join(err, file.Replace(known)); err != nil {
			b.Fatal(err)
		}
		defer file.Close()
		for i := 0; b.Loop(); i++ {
			w := crowdWorkload(i%n, fmt.Sprint(i))
			known[w.Key()] = w
			if err := file.Change(known, w.Key()); err != nil {
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
