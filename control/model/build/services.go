package build

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

// services makes the services: this cluster's own, and what global namespaces bring.
func (b *builder) services(sorted []*objects.Object, runtime Runtime) {
	b.instances(runtime.Instances)
	b.clusters(sorted)
	for _, o := range sorted {
		if s, ok := o.Resource.(*corev1.Service); ok {
			b.service(o, s)
		}
	}
	b.sortServices()
	b.globals(sorted, runtime)
	for _, s := range b.idle {
		if len(s.Remote) == 0 {
			b.report.missing(s.Source.Key, "NoWorkload", "spec.selector", "selects no workload",
				"apply a Workload whose labels it selects, in the same namespace")
		}
	}
}

// sortServices keeps them sorted as they become more: services are looked up all the time.
func (b *builder) sortServices() {
	slices.SortFunc(b.mesh.Services, func(x, y *model.Service) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Host, y.Host))
	})
}

func (b *builder) instances(instances []registry.Instance) {
	for _, i := range instances {
		if i.Address.IsValid() { // The agent will tell.
			b.mesh.Replicas = append(b.mesh.Replicas, Replica(i))
		}
	}
	slices.SortFunc(b.mesh.Replicas, func(x, y *model.Replica) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	b.replicas = newSelection(b.mesh.Replicas, func(r *model.Replica) string { return r.Namespace },
		func(r *model.Replica) map[string]string { return r.Labels })
}

// Replica is an instance as the model has it.
func Replica(i registry.Instance) *model.Replica {
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

func (b *builder) service(o *objects.Object, s *corev1.Service) {
	address, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		b.report.refuse(o.Key(), "NoAddress", "spec.clusterIP", "the service has no virtual address",
			"apply it again to get one")
		return
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
	b.mesh.Services = append(b.mesh.Services, svc)
}

// endpoints finds a service's replicas and who may answer for it. Identities come from workloads too, not only from
// running replicas, so that clients do not need a new cluster when the first replica starts.
func (b *builder) endpoints(o *objects.Object, svc *model.Service) {
	identities := map[string]bool{}
	selected := false
	for _, w := range b.workloads.in(svc.Namespace, svc.Selector) {
		selected = true
		identities[b.settings.Identity(w.Namespace, cmp.Or(w.Spec.ServiceAccount, "default"))] = true
		b.targets(o, svc, w)
	}
	for _, r := range b.replicas.in(svc.Namespace, svc.Selector) {
		selected = true
		svc.Replicas = append(svc.Replicas, r)
		identities[b.settings.Identity(r.Namespace, r.Account)] = true
	}
	for id := range identities {
		svc.Identities = append(svc.Identities, id)
	}
	slices.Sort(svc.Identities)
	if !selected {
		b.idle = append(b.idle, svc)
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
	if account != "default" && !b.accounts[key] {
		b.report.missing(o.Key(), "NoServiceAccount", "spec.serviceAccount",
			fmt.Sprintf("there is no ServiceAccount %s in namespace %s", account, w.Namespace),
			"apply it, or leave serviceAccount out")
	}
}
