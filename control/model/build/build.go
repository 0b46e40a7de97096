// Package build makes the model from objects and replicas, and says of every object whether it is accepted, whether
// what it names exists, and which of its fields have no effect.
package build

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// builder collects the model of one build.
type builder struct {
	settings model.Settings
	mesh     *model.Mesh
	report   *Report
	// created says when an object was made, for precedence.
	created map[objects.Key]time.Time

	namespaces map[string]bool
	accounts   map[objects.Key]bool
	secrets    map[objects.Key]*objects.Object
	// authorizers by the names that policies use.
	authorizers map[string]*model.Authorizer
	// workloads and replicas by what selects them.
	workloads *selection[*v1alpha1.Workload]
	replicas  *selection[*model.Replica]

	owners *ownership
	// canonical names of services by alias.
	canonical map[string]string
	// wanted are the hosts that need a virtual address of the global range.
	wanted []string
	// idle are services whose selector selects nothing here.
	idle []*model.Service
	// publicHosts are the hosts of public services, and whose they are.
	publicHosts map[string]objects.Key
}

func newBuilder(settings model.Settings, objs []*objects.Object) *builder {
	return &builder{
		settings: settings, mesh: &model.Mesh{Settings: settings}, report: newReport(objs),
		created: map[objects.Key]time.Time{}, namespaces: map[string]bool{}, accounts: map[objects.Key]bool{},
		secrets: map[objects.Key]*objects.Object{}, authorizers: map[string]*model.Authorizer{}, canonical: map[string]string{}, publicHosts: map[string]objects.Key{},
	}
}

// Runtime is what is known of the running world, beside the objects. The zero value knows nothing.
type Runtime struct {
	// Instances are this cluster's replicas.
	Instances []registry.Instance
	// Peers are the other clusters, sorted by name.
	Peers []registry.Peer
	// Addresses are the virtual addresses of imported and external services, by full host name (see [GlobalHosts]).
	Addresses map[string]netip.Addr
}

// Mesh builds the model. Objects that contradict others or cannot work are left out and said so in the report; the
// model that comes out is valid whatever goes in.
func Mesh(settings model.Settings, objs []*objects.Object, runtime Runtime) (*model.Mesh, *Report) {
	b := newBuilder(settings, objs)
	sorted := b.admit(objs)
	b.services(sorted, runtime)
	// Destinations are checked against services, routes against both.
	for _, o := range sorted {
		if d, ok := o.Resource.(*networkingv1.DestinationRule); ok {
			b.destination(o, d)
		}
	}
	for _, o := range sorted {
		if m, ok := o.Resource.(*corev1.ConfigMap); ok {
			b.readAuthorizers(o, m)
		}
	}
	for _, o := range sorted {
		switch r := o.Resource.(type) {
		case *v1alpha1.Workload:
			b.workload(o, r)
		case *networkingv1.Gateway:
			b.gateway(o, r)
		case *securityv1.PeerAuthentication:
			b.peerMode(o, r)
		case *securityv1.AuthorizationPolicy:
			b.access(o, r)
		case *securityv1.RequestAuthentication:
			b.authentication(o, r)
		}
		b.namespace(o)
	}
	for _, g := range b.owners.globals {
		b.publicServices(g)
		b.defaultDeny(g)
	}
	slices.SortStableFunc(b.mesh.Access, func(x, y *model.AccessPolicy) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	byAge(b, b.mesh.Gateways, func(g *model.Gateway) objects.Key { return g.Source.Key })
	for _, o := range sorted {
		if v, ok := o.Resource.(*networkingv1.VirtualService); ok {
			b.routes(o, v)
		}
	}
	byAge(b, b.mesh.Routes, func(r *model.Routes) objects.Key { return r.Source.Key })
	byAge(b, b.mesh.Destinations, func(d *model.DestinationPolicy) objects.Key { return d.Source.Key })
	byAge(b, b.mesh.Authentications, func(a *model.Authentication) objects.Key { return a.Source.Key })
	byAge(b, b.mesh.PeerModes, func(p *model.PeerMode) objects.Key { return p.Source.Key })
	b.conflicts()
	return b.mesh, b.report
}

// admit sorts the objects, and leaves out and reports those that are not of good form: none may reach the model, however
// it came into the store.
func (b *builder) admit(objs []*objects.Object) []*objects.Object {
	sorted := slices.Clone(objs)
	slices.SortStableFunc(sorted, func(x, y *objects.Object) int { return compareKeys(x.Key(), y.Key()) })
	sorted = slices.DeleteFunc(sorted, func(o *objects.Object) bool {
		errs := objects.CheckForm(o)
		for _, e := range errs {
			b.report.refuse(o.Key(), "Invalid", e.Path, e.Problem, e.Remedy)
		}
		return len(errs) > 0
	})
	var workloads []*v1alpha1.Workload
	for _, o := range sorted {
		b.created[o.Key()] = o.GetCreationTimestamp().Time
		b.report.ignored(o)
		switch o.Kind {
		case objects.Namespace:
			b.namespaces[o.GetName()] = true
		case objects.ServiceAccount:
			b.accounts[o.Key()] = true
		case objects.Secret:
			b.secrets[o.Key()] = o
		}
		if w, ok := o.Resource.(*v1alpha1.Workload); ok {
			workloads = append(workloads, w)
		}
	}
	b.workloads = newSelection(workloads, (*v1alpha1.Workload).GetNamespace, (*v1alpha1.Workload).GetLabels)
	return sorted
}

func compareKeys(x, y objects.Key) int {
	return cmp.Or(
		cmp.Compare(x.Group, y.Group), cmp.Compare(x.Kind, y.Kind),
		cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name),
	)
}

// byAge sorts the oldest first: where two objects want the same, the older has it, as in Istio. An object that is not
// stored yet has no age and is the youngest.
func byAge[T any](b *builder, items []T, key func(T) objects.Key) {
	slices.SortStableFunc(items, func(x, y T) int {
		kx, ky := key(x), key(y)
		return cmp.Or(compareAge(b.created[kx], b.created[ky]), compareKeys(kx, ky))
	})
}

func compareAge(x, y time.Time) int {
	if x.IsZero() != y.IsZero() {
		if x.IsZero() {
			return 1
		}
		return -1
	}
	return x.Compare(y)
}

func source(o *objects.Object) model.Source {
	return model.Source{Key: o.Key(), Origin: o.Origin}
}

// namespace notes objects whose namespace is not declared: they work, and the note helps whoever mistyped it.
func (b *builder) namespace(o *objects.Object) {
	ns := o.GetNamespace()
	if !o.Kind.Namespaced || ns == objects.DefaultNamespace || ns == b.settings.RootNamespace || b.namespaces[ns] {
		return
	}
	b.report.note(o.Key(), "metadata.namespace",
		"there is no Namespace "+ns+"; the object works, but check the spelling or apply the Namespace")
}

// fullName gives the full name of a host written in an object of a namespace: short names belong to it, and a service
// is called by its own name, not by an alias.
func (b *builder) fullName(host, namespace string) string {
	full := b.qualified(strings.ToLower(strings.TrimSuffix(host, ".")), namespace)
	if own, ok := b.canonical[full]; ok {
		return own
	}
	return full
}

func (b *builder) qualified(host, namespace string) string {
	switch parts := strings.Split(host, "."); {
	case host == "*" || strings.HasPrefix(host, "*."):
		return host
	case len(parts) == 1:
		return host + "." + namespace + ".svc." + b.settings.Domain
	case len(parts) == 2 && b.isService(host+".svc."+b.settings.Domain), len(parts) == 3 && parts[2] == "svc":
		return parts[0] + "." + parts[1] + ".svc." + b.settings.Domain
	}
	return host
}

func (b *builder) isService(host string) bool {
	return b.canonical[host] != "" || b.mesh.Service(host) != nil
}

// visibility reads an exportTo list of an object in a namespace.
func visibility(exportTo []string, namespace string) model.Visibility {
	if len(exportTo) == 0 || slices.Contains(exportTo, "*") {
		return model.Visibility{}
	}
	v := model.Visibility{Limited: true}
	for _, e := range exportTo {
		switch e {
		case ".":
			v.Namespaces = append(v.Namespaces, namespace)
		case "~":
		default:
			v.Namespaces = append(v.Namespaces, e)
		}
	}
	slices.Sort(v.Namespaces)
	v.Namespaces = slices.Compact(v.Namespaces)
	return v
}
