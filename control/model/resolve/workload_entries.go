package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// entryReplica is the replica that a WorkloadEntry stands for.
type entryReplica struct{ *model.Replica }

// tlsModeLabel says that an endpoint speaks the mesh's mutual TLS ("istio") or does not ("disabled"); Istio's label.
const tlsModeLabel = "security.istio.io/tlsMode"

// workloadEntry makes the replica of a WorkloadEntry, with what its group's template says where it says nothing.
func (b *builder) workloadEntry(o *objects.Object, w *networkingv1.WorkloadEntry) *entryReplica {
	ns, spec := o.GetNamespace(), &w.Spec
	labels := maps.Clone(o.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, spec.Labels)
	merged := &networking.WorkloadEntry{
		Address: spec.Address, Ports: spec.Ports, Labels: labels, Locality: spec.Locality, Weight: spec.Weight, ServiceAccount: spec.ServiceAccount,
	}
	if name := o.GetAnnotations()[objects.GroupAnnotation]; name != "" {
		b.fromGroup(o, merged, name)
	}
	// No replica of a workload has a name with a colon.
	r := b.endpoint(ns, "workloadentry:"+o.GetName(), merged)
	r.Workload = o.GetName()
	if !b.ownAddress(o, "spec.address", r.Address) || !b.reachable(o, "spec.address", r.Address) {
		return nil
	}
	return &entryReplica{r}
}

func (b *builder) fromGroup(o *objects.Object, w *networking.WorkloadEntry, name string) {
	key := objects.Key{Group: objects.WorkloadGroup.Group, Kind: objects.WorkloadGroup.Kind, Namespace: o.GetNamespace(), Name: name}
	b.look(factGroup, key.Namespace, name, "")
	group := b.m.groups[key]
	if group == nil {
		b.report.missing(o.Key(), "NoGroup", "metadata.annotations["+objects.GroupAnnotation+"]", fmt.Sprintf("there is no WorkloadGroup %s in namespace %s", name, key.Namespace),
			"apply it, or remove the annotation")
		return
	}
	g, is := group.Resource.(*networkingv1.WorkloadGroup)
	if !is {
		return
	}
	t := g.Spec.Template
	for _, labels := range []map[string]string{t.Labels, g.Spec.GetMetadata().GetLabels()} {
		for k, v := range labels {
			if _, own := w.Labels[k]; !own {
				w.Labels[k] = v
			}
		}
	}
	if len(w.Ports) == 0 {
		w.Ports = t.Ports
	}
	w.Locality, w.ServiceAccount = cmp.Or(w.Locality, t.Locality), cmp.Or(w.ServiceAccount, t.ServiceAccount)
	w.Weight = cmp.Or(w.Weight, t.Weight)
}

// endpoint is an endpoint as a replica. It speaks mutual TLS of the mesh when its label says so, or by itself when it has an
// account (Istio's rule). Nobody reports whether it is ready, so it is.
func (b *builder) endpoint(namespace, name string, w *networking.WorkloadEntry) *model.Replica {
	r := &model.Replica{
		Namespace: namespace, Name: name, Workload: name, Labels: w.Labels, Account: w.ServiceAccount, ServicePorts: servicePorts(w.Ports),
		Weight: w.Weight, Ready: true, Cluster: b.settings.Cluster, Locality: localityOf(w.Locality),
	}
	// Its form was checked; a name, of an entry that is resolved by DNS, makes no replica.
	r.Address, _ = netip.ParseAddr(w.Address)
	switch mode, said := w.Labels[tlsModeLabel]; {
	case said:
		r.HasProxy = mode == "istio"
	default:
		r.HasProxy = w.ServiceAccount != ""
	}
	return r
}

func servicePorts(ports map[string]uint32) map[string]uint16 {
	if len(ports) == 0 {
		return nil
	}
	out := make(map[string]uint16, len(ports))
	for name, n := range ports {
		out[name] = uint16(n)
	}
	return out
}

// localityOf reads region/zone/subzone.
func localityOf(text string) model.Locality {
	region, rest, _ := strings.Cut(text, "/")
	zone, sub, _ := strings.Cut(rest, "/")
	return model.Locality{Region: region, Zone: zone, SubZone: sub}
}
