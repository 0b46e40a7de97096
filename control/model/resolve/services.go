package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// replicaOf is an instance as the model has it.
func replicaOf(i registry.Instance) *model.Replica {
	r := &model.Replica{
		Namespace: i.Namespace(), Name: i.Name, Workload: i.Workload.Name, Address: i.Address, Labels: i.Labels,
		Account: cmp.Or(i.ServiceAccount, "default"), Ready: i.Ready, Cluster: i.Cluster,
		Locality: model.Locality(i.Locality), HasProxy: i.HasProxy,
	}
	for _, p := range i.Ports {
		r.Ports = append(r.Ports, model.ReplicaPort(p))
	}
	return r
}

const unknownProtocol = "neither the name nor appProtocol says the protocol, so the port is plain TCP; " +
	`call it for example "http" or "grpc-api" to have requests routed and measured`

// exportAnnotation is Istio's annotation of Services for their visibility.
const exportAnnotation = "networking.istio.io/exportTo"

func (b *builder) service(o *objects.Object, s *corev1.Service) *model.Service {
	address, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		b.report.refuse(o.Key(), "NoAddress", "spec.clusterIP", "the service has no virtual address",
			"apply it again to get one")
		return nil
	}
	svc := &model.Service{
		Namespace: o.GetNamespace(), Name: o.GetName(), Address: address, Selector: s.Spec.Selector,
		Host:   o.GetName() + "." + o.GetNamespace() + ".svc." + b.settings.Domain,
		Source: source(o), ExportTo: visibility(splitList(o.GetAnnotations()[exportAnnotation]), o.GetNamespace()),
	}
	for i, p := range s.Spec.Ports {
		app := ""
		if p.AppProtocol != nil {
			app = *p.AppProtocol
		}
		protocol, known := model.ProtocolOf(app, p.Name)
		if !known {
			b.report.note(o.Key(), fmt.Sprintf("spec.ports[%d].name", i), unknownProtocol)
		}
		port := model.ServicePort{Name: p.Name, Number: uint16(p.Port), Protocol: protocol}
		if p.TargetPort.Type == intstr.String {
			port.TargetName = p.TargetPort.StrVal
		} else {
			port.Target = uint16(p.TargetPort.IntVal)
		}
		svc.Ports = append(svc.Ports, port)
	}
	b.endpoints(o, svc)
	return svc
}

// endpoints finds a service's replicas and who may answer for it. Identities come from workloads too, not only from
// running replicas, so that clients do not need a new cluster when the first replica starts.
func (b *builder) endpoints(o *objects.Object, svc *model.Service) {
	identities := map[string]bool{}
	selected := false
	for _, w := range b.workloadsIn(svc.Namespace, svc.Selector) {
		selected = true
		identities[b.settings.Identity(w.Namespace, cmp.Or(w.Spec.ServiceAccount, "default"))] = true
		b.targets(o, svc, w)
	}
	for _, r := range b.replicasIn(svc.Namespace, svc.Selector) {
		selected = true
		svc.Replicas = append(svc.Replicas, r)
		if r.Account == "" {
			continue // Outside of the mesh nobody has an identity.
		}
		identities[b.settings.Identity(r.Namespace, r.Account)] = true
	}
	for id := range identities {
		svc.Identities = append(svc.Identities, id)
	}
	slices.Sort(svc.Identities)
	if delete(b.m.idle, o.Key()); !selected {
		b.m.idle[o.Key()] = true
	}
}

func (b *builder) targets(o *objects.Object, svc *model.Service, w *v1alpha1.Workload) {
	for i, p := range svc.Ports {
		if p.TargetName == "" {
			continue
		}
		if !slices.ContainsFunc(w.Spec.Ports, func(wp v1alpha1.WorkloadPort) bool { return wp.Name == p.TargetName }) {
			b.report.missing(o.Key(), "NoPort", fmt.Sprintf("spec.ports[%d].targetPort", i),
				fmt.Sprintf("Workload %s has no port named %q", w.Name, p.TargetName),
				"name the port in the workload, or give its number")
		}
	}
}

func (b *builder) workload(o *objects.Object, w *v1alpha1.Workload) {
	account := cmp.Or(w.Spec.ServiceAccount, "default")
	key := objects.Key{Kind: objects.ServiceAccount.Kind, Namespace: w.Namespace, Name: account}
	if b.look(factAccount, key.Namespace, key.Name, ""); account != "default" && !b.m.accounts[key] {
		b.report.missing(o.Key(), "NoServiceAccount", "spec.serviceAccount",
			fmt.Sprintf("there is no ServiceAccount %s in namespace %s", account, w.Namespace),
			"apply it, or leave serviceAccount out")
	}
}
