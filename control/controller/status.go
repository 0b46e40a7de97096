package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/push"
)

// reachedBy puts the address on which the ports of the ingress gateway are offered in place of its own, which may not be reached from
// elsewhere, in the status of a Gateway that it serves.
func reachedBy(o *objects.Object, status *objects.Status, advertised netip.Addr, domain string) {
	if g, ok := o.Resource.(*gatewayv1.Gateway); ok && len(status.Addresses) > 0 && advertised.IsValid() && resolve.ServedByIngress(g, domain) {
		status.Addresses = resolve.AddressesOf([]netip.Addr{advertised})
	}
}

// ingressAddress is where the ports of the ingress gateway are offered beside its own addresses, invalid for nowhere.
func (c *Controller) ingressAddress() netip.Addr {
	options, err := c.config.Cluster.Options()
	if err != nil || !options.ExposeIngress {
		return netip.Addr{}
	}
	return options.Advertise
}

// confined says of a workload that asks for more than its namespace allows that it is not run; nil for all others. It was
// stored when the cluster allowed it.
func (c *Controller) confined(o *objects.Object) *metav1.Condition {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok || c.privilegedWorkloads {
		return nil
	}
	asked := access.Beyond(w)
	c.mu.Lock()
	namespace := c.objects[objects.Key{Kind: objects.Namespace.Kind, Name: o.GetNamespace()}]
	c.mu.Unlock()
	if len(asked) == 0 || access.AllowsPrivileged(namespace) {
		return nil
	}
	var texts []string
	for _, path := range slices.Sorted(maps.Keys(asked)) {
		texts = append(texts, fmt.Sprintf("%s: %s is privileged", path, asked[path]))
	}
	return &metav1.Condition{Type: objects.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "Privileged", ObservedGeneration: o.GetGeneration(),
		Message: fmt.Sprintf("it is not run: %s, and namespace %q does not allow it; leave that out, or have an admin of all namespaces label the Namespace %s: \"true\"", strings.Join(texts, ", "), o.GetNamespace(), access.LabelPrivileged)}
}

// normal makes statuses that say the same equal: times with and without location, empty and missing lists, and a number of proxies, which
// is not stored any more.
func normal(s objects.Status) objects.Status {
	s = s.DeepCopy()
	s.Proxies = 0
	s.EachConditions(func(list *[]metav1.Condition) {
		if *list = slices.Clip(*list); *list == nil {
			*list = []metav1.Condition{}
		}
		for i := range *list {
			(*list)[i].LastTransitionTime = metav1.Time{}
		}
	})
	if len(s.Fields) == 0 {
		s.Fields = nil
	}
	if s.Workload != nil {
		w := *s.Workload
		w.Replicas = append([]objects.ReplicaState{}, w.Replicas...)
		for i := range w.Replicas {
			w.Replicas[i].Started = time.Unix(w.Replicas[i].Started.Unix(), 0).UTC()
		}
		if len(w.Replicas) == 0 {
			s.Workload = nil
		} else {
			s.Workload = &w
		}
	}
	return s
}

// programmed says whether every proxy that uses the object runs it. Kinds that no proxy sees have no such condition. The
// message says nothing that changes while the answer is the same.
func programmed(o *objects.Object, p push.Progress, staged stageView) *metav1.Condition {
	if !o.Kind.Programmed() {
		return nil
	}
	condition := &metav1.Condition{Type: objects.ConditionProgrammed, ObservedGeneration: o.GetGeneration()}
	var refused []string
	if p.Failure != "" {
		refused = append(refused, p.Failure)
	}
	for _, path := range slices.Sorted(maps.Keys(p.Broken)) {
		refused = append(refused, path+" is left out, because proxies would refuse the result: "+p.Broken[path][0])
	}
	for _, r := range p.Refused {
		refused = append(refused, proxyName(r.Proxy)+" refused "+r.Reason)
	}
	switch {
	case len(refused) > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Refused", brief(refused)
	case p.Proxies == 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, "NoProxies", "no connected proxy uses it"
	case staged.objects[o.Key()]:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Staged", staged.message()
	case p.Waiting > 0 || p.Version != o.Version:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Pending", "proxies have not acknowledged it yet"+staged.without()
	default:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, "Programmed", "every connected proxy that uses it runs it"
	}
	return condition
}

// patchFields says of patches which change nothing, and which are left out.
func patchFields(p push.Progress) []objects.FieldMessage {
	var out []objects.FieldMessage
	for _, path := range p.Idle {
		out = append(out, objects.FieldMessage{Path: path, Message: "changes nothing in any connected proxy: compare match and context with `heddle proxy config`"})
	}
	for _, path := range slices.Sorted(maps.Keys(p.Broken)) {
		for _, why := range p.Broken[path] {
			out = append(out, objects.FieldMessage{Path: path, Message: "left out: " + why})
		}
	}
	return out
}

// proxyName is namespace/name of a node's identifier, type~address~name.namespace~domain.
func proxyName(id string) string {
	if parts := strings.Split(id, "~"); len(parts) == 4 {
		if cut := strings.LastIndexByte(parts[2], '.'); cut > 0 {
			return parts[2][cut+1:] + "/" + parts[2][:cut]
		}
	}
	return id
}

// brief bounds the length of a message.
func brief(lines []string) string {
	const most = 5
	if len(lines) > most {
		return strings.Join(lines[:most], "\n") + fmt.Sprintf("\nand %d more", len(lines)-most)
	}
	return strings.Join(lines, "\n")
}
