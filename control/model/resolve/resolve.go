// Package resolve makes the model from objects and replicas by resolving what they name, keeps it up to date, and says of every object whether it is accepted, whether
// what it names exists, and which of its fields have no effect.
package resolve

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// builder works out an object, or a step that concerns several, and takes note of what it looks up.
type builder struct {
	m        *Model
	settings model.Settings
	report   recorder
	read     []fact
	// credentials that are needed.
	credentials []*model.Credential
	// said is what is found out beside the report, for a status in the form of Gateway API.
	said sections
	// unresolved is the first destination of Gateway API that cannot be used.
	unresolved *Finding
	// forSidecars says that the routes which are made are those of Services, whose callers need no grants.
	forSidecars bool
	// working are, while global namespaces are put into force, the services that they have to do with, by host.
	working map[string]*model.Service
}

// Runtime is what is known of the running world, beside the objects. The zero value knows nothing.
type Runtime struct {
	// Instances are this cluster's replicas.
	Instances []registry.Instance
	// Peers are the other clusters, sorted by name.
	Peers []registry.Peer
	// Anchors are this cluster's own intermediates (PEM).
	Anchors []string
	// Addresses are the virtual addresses of imported and external services, by full host name (see [GlobalHosts]).
	Addresses map[string]netip.Addr
}

// Mesh makes a model of objects once. Objects that contradict others or cannot work are left out and said so in the report;
// the mesh that comes out is valid whatever goes in.
func Mesh(settings model.Settings, objs []*objects.Object, runtime Runtime) (*model.Mesh, *Report) {
	m := New(settings)
	m.Update(Change{Objects: byKey(objs), Instances: byID(runtime.Instances), Peers: &runtime.Peers, Anchors: &runtime.Anchors, Addresses: runtime.Addresses})
	return m.Mesh(), m.Report()
}

func byKey(objs []*objects.Object) map[objects.Key]*objects.Object {
	out := make(map[objects.Key]*objects.Object, len(objs))
	for _, o := range objs {
		out[o.Key()] = o
	}
	return out
}

func byID(instances []registry.Instance) map[string]*registry.Instance {
	out := make(map[string]*registry.Instance, len(instances))
	for _, i := range instances {
		out[i.ID()] = &i
	}
	return out
}

// part is the part of the mesh that an object makes, nil for none.
func (b *builder) part(o *objects.Object) any {
	if r, ok := resolverOf[groupKind{o.Kind.Group, o.Kind.Kind}]; ok {
		return r.part(b, o)
	}
	return nil
}

func (b *builder) look(kind factKind, a, s, c string) {
	b.read = append(b.read, fact{kind: kind, a: a, b: s, c: c})
}

// serviceOf finds a service by its full name, not by an alias, or nil.
func (b *builder) serviceOf(host string) *model.Service {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if b.working != nil {
		if s := b.working[host]; s != nil {
			return s
		}
		return b.m.localByHost(host)
	}
	b.look(factService, host, "", "")
	return b.m.services[host]
}

// workloadsIn and replicasIn are what a selector selects in a namespace, or with an empty one in all.
func (b *builder) workloadsIn(namespace string, selector map[string]string) []*v1alpha1.Workload {
	out, by := b.m.workloads.in(namespace, selector)
	b.look(factWorkload, by.namespace, by.key, by.value)
	return out
}

func (b *builder) replicasIn(namespace string, selector map[string]string) []*model.Replica {
	out, by := b.m.replicas.in(namespace, selector)
	b.look(factReplica, by.namespace, by.key, by.value)
	return out
}

func compareKeys(x, y objects.Key) int {
	return cmp.Or(
		cmp.Compare(x.Group, y.Group), cmp.Compare(x.Kind, y.Kind),
		cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name),
	)
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
	if !o.Kind.Namespaced || ns == objects.DefaultNamespace || ns == b.settings.RootNamespace {
		return
	}
	if b.look(factNamespace, ns, "", ""); b.m.namespaces[ns] {
		return
	}
	b.report.note(o.Key(), "metadata.namespace",
		"there is no Namespace "+ns+"; the object works, but check the spelling or apply the Namespace")
}

// fullName gives the full name of a host written in an object of a namespace: short names belong to it, and a service
// is called by its own name, not by an alias.
func (b *builder) fullName(host, namespace string) string {
	full := b.qualified(strings.ToLower(strings.TrimSuffix(host, ".")), namespace)
	if own := b.canonical(full); own != "" {
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
	return b.canonical(host) != "" || b.serviceOf(host) != nil
}

// canonical is the name of the service that an alias stands for, empty for none.
func (b *builder) canonical(alias string) string {
	b.look(factName, alias, "", "")
	return b.m.global.canonical[alias]
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
