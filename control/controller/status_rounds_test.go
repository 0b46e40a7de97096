package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// TestStatusesFollowWhatTheyAreOf has the status of one object change because of others: of what it names, and of the agents that run
// it. Nobody writes the object itself.
func TestStatusesFollowWhatTheyAreOf(t *testing.T) {
	dir, c := controllerDirectory(t)
	p := startController(t, dir, nil)
	defer p.kill(t)
	if err := answering(t, c, p); err != nil {
		t.Fatalf("%v: %s", err, p.problems.String())
	}
	apply := func(text string) {
		t.Helper()
		if _, err := c.Apply(t.Context(), client.ApplyRequest{Manifests: []client.Manifest{{File: "in.yaml", Content: text}}}); err != nil {
			t.Fatal(err)
		}
	}
	reaches := func(kind *objects.Kind, name, what string, holds func(objects.Status) bool) {
		t.Helper()
		look, bound := time.NewTicker(20*time.Millisecond), time.NewTimer(time.Minute)
		defer look.Stop()
		defer bound.Stop()
		for {
			o, err := c.Get(t.Context(), kind, "default", name)
			if err != nil {
				t.Fatal(err)
			}
			if holds(o.Status) {
				return
			}
			select {
			case <-look.C:
			case <-bound.C:
				t.Fatalf("%s: %+v", what, o.Status)
			}
		}
	}
	is := func(typ string, status metav1.ConditionStatus, reason string) func(objects.Status) bool {
		return func(s objects.Status) bool {
			return slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == typ && c.Status == status && c.Reason == reason })
		}
	}
	apply("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: { name: r }\nspec: { hosts: [s], http: [{ route: [{ destination: { host: s } }] }] }\n")
	reaches(objects.VirtualService, "r", "its service is missing", is(objects.ConditionResolvedRefs, metav1.ConditionFalse, "NoService"))
	apply("apiVersion: v1\nkind: Service\nmetadata: { name: s }\nspec: { selector: { app: a }, ports: [{ name: http, port: 80 }] }\n")
	reaches(objects.VirtualService, "r", "its service is there", is(objects.ConditionResolvedRefs, metav1.ConditionTrue, "ResolvedRefs"))
	reaches(objects.VirtualService, "r", "nobody uses it", is(objects.ConditionProgrammed, metav1.ConditionUnknown, "NoProxies"))

	apply("apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: { name: w, labels: { app: a } }\nspec: { command: [/bin/true]}\n")
	report := func(agent string, replicas ...string) {
		t.Helper()
		r := client.Report{Agent: agent, Replicas: []client.Replica{}}
		for _, name := range replicas {
			r.Replicas = append(r.Replicas, client.Replica{Namespace: "default", Workload: "w", State: objects.ReplicaState{Name: name}})
		}
		if err := c.Report(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(want ...string) func(objects.Status) bool {
		return func(s objects.Status) bool {
			var got []string
			if s.Workload != nil {
				for _, r := range s.Workload.Replicas {
					got = append(got, r.Name)
				}
			}
			return fmt.Sprint(got) == fmt.Sprint(want)
		}
	}
	report("one", "w-1")
	report("two", "w-0", "w-2")
	reaches(objects.Workload, "w", "two agents run it", runs("w-0", "w-1", "w-2"))
	report("two", "w-2")
	reaches(objects.Workload, "w", "one of them runs less", runs("w-1", "w-2"))
}

// TestWorkloadsOfANamespaceThatAllowsLess are looked at, although they have not changed: others wrote the namespace, for the API
// refuses that.
func TestWorkloadsOfANamespaceThatAllowsLess(t *testing.T) {
	namespace := func(labels map[string]string) store.Event {
		o := &objects.Object{Kind: objects.Namespace, Resource: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: labels}}}
		return store.Event{Key: o.Key(), Object: o}
	}
	workload := &objects.Object{Kind: objects.Workload, Resource: &v1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop"}}}
	c := &Controller{objects: map[objects.Key]*objects.Object{}, pending: map[objects.Key]bool{}, changed: make(chan struct{}, 1), restatus: make(chan struct{}, 1)}
	c.take([]store.Event{namespace(map[string]string{access.LabelPrivileged: "true"}), {Key: workload.Key(), Object: workload}})
	for _, step := range []struct {
		labels map[string]string
		looked bool
	}{{map[string]string{access.LabelPrivileged: "true", "team": "a"}, false}, {map[string]string{"team": "a"}, true}} {
		c.stale = nil
		c.take([]store.Event{namespace(step.labels)})
		if _, looked := c.stale[workload.Key()]; looked != step.looked {
			t.Errorf("labels %v: its workload is looked at: %t", step.labels, looked)
		}
	}
}
