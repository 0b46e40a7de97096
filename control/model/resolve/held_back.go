package resolve

import (
	"slices"

	"heddle.io/heddle/control/objects"
)

// asNow are the kinds of which clients of a former mesh have what there is now (see [model.Mesh.AsClientsOf]); all others make
// something that they go by. A kind that is not listed is held back, so that a new one is kept until somebody thought about it.
var asNow = []*objects.Kind{
	// They say who runs, who may call what, and what a proxy is sent of what it sees: never held back. A namespace that nothing but
	// a Workload makes one of this cluster has no clients without it.
	objects.Workload, objects.ServiceAccount, objects.AccessBinding, objects.Sidecar, objects.EnvoyFilter,
	objects.AuthorizationPolicy, objects.RequestAuthentication,
	// Certificates and authorities are as they are now, and no key is kept where it is not sealed.
	objects.Secret,
}

// HeldBack says whether clients who go by a former mesh go by an object of it as it was then, so that whoever builds that mesh
// anew ([Model.With]) needs to know it.
func HeldBack(key objects.Key) bool {
	return !slices.ContainsFunc(asNow, func(k *objects.Kind) bool { return k.Group == key.Group && k.Kind == key.Kind })
}
