package objects

import (
	"fmt"

	"heddle.io/heddle/api/v1alpha1"
)

// LabelCluster names the cluster that an object belongs to.
const LabelCluster = "heddle.io/cluster"

// Owner is the cluster that an object names as its own: by [LabelCluster], a Workload also by spec.cluster; "" when it
// names none. Two different names are an error.
func (o *Object) Owner() (string, *Error) {
	owner := o.GetLabels()[LabelCluster]
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok || w.Spec.Cluster == "" {
		return owner, nil
	}
	if owner != "" && owner != w.Spec.Cluster {
		return "", &Error{File: o.Origin.File, Line: o.FieldLine("spec.cluster"), Object: o.Key(), Path: "spec.cluster",
			Problem: fmt.Sprintf("names cluster %q, and the label %s names %q", w.Spec.Cluster, LabelCluster, owner),
			Remedy:  "let both name the same cluster, or remove one"}
	}
	return w.Spec.Cluster, nil
}
