package agent

import (
	"errors"
	"fmt"
	"path/filepath"
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
		d := &deployment{agent: a, key: key, kick: make(chan struct{}, 1), done: make(chan struct{}), running: map[string]*replica{}, wanted: specs, placed: true, cancel: func() {}}
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
