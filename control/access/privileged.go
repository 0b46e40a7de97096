package access

import (
	"fmt"
	"strings"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
)

// LabelPrivileged with the value "true" on a Namespace allows privileged workloads in it: as root, as other users of the
// machine, with capabilities; and has editors start them, those with another proxy program, and write EnvoyFilters. Only an
// admin of all namespaces may set or remove it.
const LabelPrivileged = "heddle.io/privileged"

// PrivilegedValue is what a Namespace says, empty without one; other parts of Heddle may look at the annotation, so it is guarded alike.
func PrivilegedValue(o *objects.Object) string {
	if o == nil {
		return ""
	}
	return o.GetLabels()[LabelPrivileged] + o.GetAnnotations()[LabelPrivileged]
}

// AllowsPrivileged says whether a Namespace allows privileged workloads; one that is not there does not.
func AllowsPrivileged(namespace *objects.Object) bool { return PrivilegedValue(namespace) == "true" }

// Beyond is what a workload asks for beyond a user of its own without capabilities, by field. It is run with that only where
// its namespace allows it, or everywhere with `heddle up --privileged-workloads`.
func Beyond(w *v1alpha1.Workload) map[string]string {
	out := map[string]string{}
	if w.Spec.User != "" {
		out["spec.user"] = fmt.Sprintf("user %q", w.Spec.User)
	}
	if len(w.Spec.Capabilities) > 0 {
		out["spec.capabilities"] = "capability " + strings.Join(w.Spec.Capabilities, ", ")
	}
	return out
}
