package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
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
