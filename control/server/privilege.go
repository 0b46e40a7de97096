package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// permit says whether a caller may make a batch of changes: nil, or what it may not, with status 403.
func permit(caller *access.Caller, b batch, stored known) *client.Problem {
	var refused []*client.Problem
	for _, o := range b.objects {
		refused = append(refused, permitWrite(caller, o, stored)...)
	}
	for _, key := range b.deletes {
		n := needOf(key, "delete")
		if old := stored.object(key); old != nil && systems(old) {
			n.Role, n.Namespace = access.Admin, access.Everywhere
		}
		if p := caller.May(n); p != nil {
			refused = append(refused, p)
		}
	}
	switch len(refused) {
	case 0:
		return nil
	case 1:
		return refused[0]
	}
	all := &client.Problem{Status: http.StatusForbidden, What: fmt.Sprintf("nothing was changed: %s may not make %d of the changes", caller, len(refused)),
		Why: "it has " + caller.Grants.String(), Remedy: refused[0].Remedy}
	const most = 20
	for _, p := range refused[:min(len(refused), most)] {
		all.Errors = append(all.Errors, objects.Error{Problem: p.What + ": " + p.Why, Remedy: p.Remedy})
	}
	return all
}

// editable are the kinds whose objects editors write and delete. A kind that is not listed is for admins of all namespaces, so that
// a new one is refused until somebody thought about it. Of some, what is in an object may need more: see [permitWrite].
var editable = []*objects.Kind{
	objects.GlobalNamespace, objects.Namespace, objects.ServiceAccount, objects.Secret, objects.ConfigMap, objects.Service,
	objects.Workload, objects.WorkloadGroup, objects.WorkloadEntry, objects.ServiceEntry, objects.Sidecar, objects.Gateway,
	objects.VirtualService, objects.DestinationRule, objects.EnvoyFilter,
	objects.GatewayClass, objects.KubernetesGateway, objects.HTTPRoute, objects.GRPCRoute, objects.TLSRoute, objects.TCPRoute,
	objects.ReferenceGrant, objects.BackendTLSPolicy,
	objects.PeerAuthentication, objects.RequestAuthentication, objects.AuthorizationPolicy,
}

// needOf is what the change of an object needs, whatever is in it.
func needOf(key objects.Key, verb string) access.Need {
	n := access.Need{Role: access.Admin, Namespace: access.Everywhere, To: verb + " " + key.String()}
	kind := objects.KindOf(key.Group, key.Kind)
	if !slices.Contains(editable, kind) {
		return n
	}
	n.Role = access.Editor
	// Whatever namespace is written into an object that is in none.
	if kind.Namespaced && key.Namespace != "" {
		n.Namespace = key.Namespace
	}
	return n
}

func permitWrite(caller *access.Caller, o *objects.Object, stored known) []*client.Problem {
	old, verb := stored.object(o.Key()), "create"
	if old != nil {
		verb = "change"
	}
	n := needOf(o.Key(), verb)
	if systems(o) || old != nil && systems(old) {
		n.Role, n.Namespace = access.Admin, access.Everywhere
	}
	if p := caller.May(n); p != nil {
		return []*client.Problem{p}
	}
	if caller.Grants.In(access.Everywhere) >= access.Admin {
		return nil
	}
	switch {
	case o.Kind == objects.Namespace && access.PrivilegedValue(o) != access.PrivilegedValue(old):
		if p := caller.May(access.Need{Role: access.Admin, Namespace: access.Everywhere, To: "set " + access.LabelPrivileged + " on " + o.Key().String()}); p != nil {
			return []*client.Problem{p}
		}
	case o.Kind == objects.EnvoyFilter && !stored.privileged(o.GetNamespace()):
		// It has the proxy read files, run scripts and pass policies over: as much as another proxy program would.
		if p := caller.May(access.Need{Role: access.Admin, Namespace: access.Everywhere, To: verb + " " + o.Key().String()}); p != nil {
			return []*client.Problem{p}
		}
	case o.Kind == objects.Workload && !stored.privileged(o.GetNamespace()):
		return permitWorkload(caller, o, old)
	}
	return nil
}

// systems says whether an object is what the cluster itself keeps: tokens, which are as good as the roles that they give.
func systems(o *objects.Object) bool {
	secret, ok := o.Resource.(*corev1.Secret)
	if ok && o.Unreadable != "" && o.GetNamespace() == cluster.GatewayNamespace {
		return true // Whose type nobody can read may be one.
	}
	return ok && strings.HasPrefix(string(secret.Type), "heddle.io/")
}

// permitWorkload says what of a workload is privileged. One that is stored already, as it is, may be stopped, started and
// deleted by every editor.
func permitWorkload(caller *access.Caller, o, old *objects.Object) []*client.Problem {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok {
		return nil
	}
	before := map[string]string{}
	if old != nil {
		if was, ok := old.Resource.(*v1alpha1.Workload); ok && sameSpec(w, was) {
			before = privileges(was)
		}
	}
	var out []*client.Problem
	for _, path := range sortedNames(privileges(w)) {
		value := privileges(w)[path]
		if before[path] == value {
			continue
		}
		out = append(out, &client.Problem{Status: http.StatusForbidden,
			What:   fmt.Sprintf("%s may not start %s with %s: %s", caller, o.Key(), path, value),
			Why:    fmt.Sprintf("it is privileged, for which an admin of all namespaces is needed, or a namespace that allows it; %s has %s", caller, caller.Grants),
			Remedy: fmt.Sprintf("leave %s out; or an admin labels the namespace %s: \"true\"", path, access.LabelPrivileged)})
	}
	return out
}

// ordinary are the fields of a Workload that give its processes nothing that an ordinary program in a sandbox has not. A field that is not listed is privileged, so that a new one is refused until somebody thought about it.
var ordinary = map[string]bool{
	"cluster": true, "replicas": true, "serviceAccount": true, "command": true, "args": true, "env": true, "ports": true, "readiness": true,
	"resources": true, "restart": true,
}

// ordinaryAnnotations are those of the annotations that Heddle heeds which are not privileged.
var ordinaryAnnotations = []string{"heddle.io/stopped", "heddle.io/restarted-at"}

// privileges are the parts of a workload that are privileged, by path, with their values.
func privileges(w *v1alpha1.Workload) map[string]string {
	out := map[string]string{}
	content, err := json.Marshal(w.Spec)
	var fields map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(content, &fields)
	}
	if err != nil {
		out["spec"] = err.Error()
	}
	for name, value := range fields {
		if !ordinary[name] {
			out["spec."+name] = string(value)
		}
	}
	for name, value := range w.Annotations {
		if strings.HasPrefix(name, "heddle.io/") && !slices.Contains(ordinaryAnnotations, name) {
			out["metadata.annotations["+name+"]"] = value
		}
	}
	// What is not captured passes by the proxy's policies, those of an admin included.
	maps.Copy(out, objects.LeftOut(w))
	return out
}

func sameSpec(a, b *v1alpha1.Workload) bool {
	x, xErr := json.Marshal(a.Spec)
	y, yErr := json.Marshal(b.Spec)
	return xErr == nil && yErr == nil && string(x) == string(y)
}

func sortedNames(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// shown is an object as its reader may see it: secrets nobody, the environment of workloads, in which passwords are,
// only those who may change it.
func shown(caller *access.Caller, o *objects.Object) *objects.Object {
	o = o.Redacted()
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok || len(w.Spec.Env) == 0 || caller.Grants.In(o.GetNamespace()) >= access.Editor {
		return o
	}
	hidden := o.DeepCopy()
	copied, ok := hidden.Resource.(*v1alpha1.Workload)
	if !ok {
		return hidden
	}
	for i := range copied.Spec.Env {
		copied.Spec.Env[i].Value = hiddenValue
	}
	delete(copied.Annotations, corev1.LastAppliedConfigAnnotation)
	return hidden
}

// hiddenValue stands for what the reader may not see.
const hiddenValue = "<hidden from viewers>"
