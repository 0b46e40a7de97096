package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// What is stored is not run with more than its namespace allows, whoever allowed it when it was stored; without the namespaces
// it is neither started nor stopped.
func TestPrivilegedWorkloadsAreRunWhereTheyAreAllowed(t *testing.T) {
	known := func(all ...*objects.Object) map[objects.Key]*objects.Object {
		out := map[objects.Key]*objects.Object{}
		for _, o := range all {
			out[o.Key()] = o
		}
		return out
	}
	workload := func(name string, spec v1alpha1.WorkloadSpec) *objects.Object {
		return &objects.Object{Kind: objects.Workload, Resource: &v1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"}, Spec: spec}}
	}
	namespace := func(value string) *objects.Object {
		return &objects.Object{Kind: objects.Namespace, Resource: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{access.LabelPrivileged: value}}}}
	}
	workloads := known(workload("root", v1alpha1.WorkloadSpec{User: "root"}), workload("raw", v1alpha1.WorkloadSpec{Capabilities: []string{"NET_RAW"}}), workload("plain", v1alpha1.WorkloadSpec{}))
	for name, c := range map[string]struct {
		namespaces map[objects.Key]*objects.Object
		unconfined bool
		// runs is how many replicas the privileged ones have; less than zero when that is unclear.
		runs int
	}{
		"not known":          {nil, false, -1},
		"there is none":      {known(), false, 0},
		"not allowed":        {known(namespace("")), false, 0},
		"not any more":       {known(namespace("false")), false, 0},
		"allowed":            {known(namespace("true")), false, 1},
		"by the cluster":     {known(namespace("")), true, 1},
		"by the cluster too": {nil, true, 1},
	} {
		wanted, unclear := (&wishes{workloads: workloads, namespaces: c.namespaces}).place("c", c.unconfined)
		if len(wanted["shop/plain"]) != 1 || unclear["shop/plain"] {
			t.Errorf("%s: an ordinary workload: %v", name, wanted["shop/plain"])
		}
		for _, key := range []string{"shop/root", "shop/raw"} {
			specs, told := wanted[key]
			if told == unclear[key] || unclear[key] != (c.runs < 0) || told && len(specs) != c.runs {
				t.Errorf("%s: %s: %v, unclear %v", name, key, specs, unclear[key])
			}
		}
	}
}

// teller is a controller that lists workloads and brings their changes.
type teller struct {
	away    atomic.Bool
	list    []*objects.Object
	changes chan client.Change
}

func (c *teller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	encoder := json.NewEncoder(w)
	switch {
	case c.away.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Query().Get("watch") == "":
		_ = encoder.Encode(client.List{Items: c.list, Position: "1"})
	default:
		for {
			w.(http.Flusher).Flush()
			select {
			case change := <-c.changes:
				_ = encoder.Encode(change)
			case <-r.Context().Done():
				return
			}
		}
	}
}

// An agent knows at once what the one before was told, to the last change. Where that cannot be read, torn or of a format that
// it does not know, it knows nothing until the controller tells: nothing is stopped for a file.
func TestWhatTheAgentBeforeWasTold(t *testing.T) {
	a := newAgent(t)
	controller := &teller{list: []*objects.Object{crowdWorkload(0, "1"), crowdWorkload(1, "1")}, changes: make(chan client.Change)}
	serveAPI(t, a, controller)
	// life is an agent's, which is told what is wanted, and dies.
	life := func(what string, f func(told func(want string))) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		said, ended := make(chan string, 100), make(chan struct{})
		go func() {
			defer close(ended)
			a.follow(ctx, objects.Workload, func(known map[objects.Key]*objects.Object, _ *objects.Key) {
				var all []string
				for key, o := range known {
					all = append(all, key.Name+"="+o.Resource.(*v1alpha1.Workload).Spec.Env[0].Value)
				}
				slices.Sort(all)
				said <- strings.Join(all, " ")
			})
		}()
		f(func(want string) {
			t.Helper()
			select {
			case got := <-said:
				if got != want {
					t.Errorf("%s: knows %q, want %q", what, got, want)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: not told", what)
			}
		})
		cancel()
		<-ended
		if len(said) > 0 {
			t.Errorf("%s: knows %q besides", what, <-said)
		}
	}
	change := func(o *objects.Object) { controller.changes <- client.Change{Key: o.Key(), Object: o} }
	life("the first agent", func(told func(string)) {
		told("w0=1 w1=1")
		change(crowdWorkload(1, "2"))
		told("w0=1 w1=2")
		controller.changes <- client.Change{Key: crowdWorkload(0, "").Key()}
		told("w1=2")
		change(crowdWorkload(2, "1"))
		told("w1=2 w2=1")
	})
	controller.away.Store(true)
	life("without a controller", func(told func(string)) { told("w1=2 w2=1") })
	path := filepath.Join(a.config.Cluster.Run(), "agent", keptName(objects.Workload))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	controller.away.Store(false)
	for what, content := range map[string][]byte{"empty": nil, "torn": whole[:len(whole)/2], "zeroes": make([]byte, len(whole)), "another format": []byte(`{"items":[],"position":"7"}`)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		life(what, func(told func(string)) { told("w0=1 w1=1") })
		life("after "+what, func(told func(string)) { told("w0=1 w1=1"); told("w0=1 w1=1") })
	}
}
