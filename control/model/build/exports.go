package build

import (
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// Exports are the services that this cluster offers to any other cluster: those of the namespaces that global
// namespaces map, sorted by namespace and name. Imported services are never among them.
func Exports(_ *model.Mesh) []registry.Export { return nil }

// ExportsTo is the part of this cluster's exports that another cluster may know.
func ExportsTo(mesh *model.Mesh, objs []*objects.Object, from, to string) []registry.Export {
	return Shared(Exports(mesh), objs, from, to)
}

// Shared is the part of one cluster's exports that another cluster may know: what it gets is in a global namespace that
// maps the service's namespace in the one and any namespace in the other. objs are all objects; GlobalNamespaces matter.
func Shared(_ []registry.Export, _ []*objects.Object, _, _ string) []registry.Export { return nil }
