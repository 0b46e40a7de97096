package resolve

import (
	"cmp"
	"maps"
	"slices"

	"heddle.io/heddle/control/keyprovider"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// hostIndex finds parts by the host that they are for, then by the object that they come from.
type hostIndex[T any] map[string]map[objects.Key]T

func (x hostIndex[T]) set(host string, key objects.Key, part T, there bool) {
	of := x[host]
	if there {
		if of == nil {
			of = map[objects.Key]T{}
			x[host] = of
		}
		of[key] = part
		return
	}
	if delete(of, key); len(of) == 0 {
		delete(x, host)
	}
}

func sortedBy[T any](of map[objects.Key]T, compare func(x, y objects.Key) int) []T {
	keys := slices.SortedFunc(maps.Keys(of), compare)
	out := make([]T, 0, len(keys))
	for _, k := range keys {
		out = append(out, of[k])
	}
	return out
}

// difference is what becomes of a list of parts.
type difference[T any] struct {
	gone  map[*T]bool
	added []*T
}

func (d *difference[T]) set(part *T, there bool) {
	if there {
		d.add(part)
	} else {
		d.drop(part)
	}
}

func (d *difference[T]) add(part *T) { d.added = append(d.added, part) }

func (d *difference[T]) drop(part *T) {
	if i := slices.Index(d.added, part); i >= 0 {
		d.added = slices.Delete(d.added, i, i+1)
		return
	}
	if d.gone == nil {
		d.gone = map[*T]bool{}
	}
	d.gone[part] = true
}

// fewAdded parts are put into their places one by one; more are sorted together with all.
const fewAdded = 16

// apply gives the list as it is now: a new one, or the same when nothing changed. Parts that compare the same keep the
// order in which they were added.
func (d *difference[T]) apply(list []*T, compare func(x, y *T) int) []*T {
	if len(d.gone)+len(d.added) == 0 {
		return list
	}
	out := make([]*T, 0, len(list)+len(d.added))
	for _, p := range list {
		if !d.gone[p] {
			out = append(out, p)
		}
	}
	if len(d.added) > fewAdded {
		out = append(out, d.added...)
		slices.SortStableFunc(out, compare)
	} else {
		for _, p := range d.added {
			at, _ := slices.BinarySearchFunc(out, p, func(x, p *T) int {
				if compare(x, p) <= 0 {
					return -1
				}
				return 1
			})
			out = slices.Insert(out, at, p)
		}
	}
	*d = difference[T]{}
	if len(out) == 0 {
		return nil
	}
	return out
}

// changedParts are the differences of a mesh's lists.
type changedParts struct {
	services        difference[model.Service]
	replicas        difference[model.Replica]
	routes          difference[model.Routes]
	gateways        difference[model.Gateway]
	destinations    difference[model.DestinationPolicy]
	backendTLS      difference[model.BackendTLS]
	peerModes       difference[model.PeerMode]
	access          difference[model.AccessPolicy]
	authentications difference[model.Authentication]
	sidecars        difference[model.Sidecar]
	envoyFilters    difference[model.EnvoyFilter]
	dependencies    difference[model.Dependencies]
}

// assemble makes the mesh of the parts as they are now.
func (m *Model) assemble(settings model.Settings) {
	mesh := m.meshWith(settings)
	c := &m.changed
	mesh.Globals = m.global.models
	mesh.Services = c.services.apply(mesh.Services, model.CompareServices)
	mesh.Replicas = c.replicas.apply(mesh.Replicas, func(x, y *model.Replica) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	mesh.Routes = c.routes.apply(mesh.Routes, m.compareRoutes)
	mesh.Gateways = c.gateways.apply(mesh.Gateways, func(x, y *model.Gateway) int { return m.age(x.Source.Key, y.Source.Key) })
	mesh.Destinations = c.destinations.apply(mesh.Destinations, func(x, y *model.DestinationPolicy) int { return m.age(x.Source.Key, y.Source.Key) })
	mesh.BackendTLS = c.backendTLS.apply(mesh.BackendTLS, func(x, y *model.BackendTLS) int { return m.age(x.Source.Key, y.Source.Key) })
	mesh.PeerModes = c.peerModes.apply(mesh.PeerModes, func(x, y *model.PeerMode) int { return m.age(x.Source.Key, y.Source.Key) })
	mesh.Access = c.access.apply(mesh.Access, func(x, y *model.AccessPolicy) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	mesh.Authentications = c.authentications.apply(mesh.Authentications, func(x, y *model.Authentication) int { return m.age(x.Source.Key, y.Source.Key) })
	mesh.Sidecars = c.sidecars.apply(mesh.Sidecars, func(x, y *model.Sidecar) int { return m.age(x.Source.Key, y.Source.Key) })
	mesh.EnvoyFilters = c.envoyFilters.apply(mesh.EnvoyFilters, m.inOrder)
	mesh.Dependencies = c.dependencies.apply(mesh.Dependencies, func(x, y *model.Dependencies) int { return cmp.Compare(x.Namespace, y.Namespace) })
	if m.anchorsChanged {
		m.anchorsChanged = false
		mesh.Anchors = m.anchors(mesh.Anchors)
	}
	if m.credentialsChanged {
		m.credentialsChanged = false
		mesh.Credentials = m.credentials(mesh.Credentials)
	}
	m.mesh = mesh
}

// credentials are those that gateways need, sorted; one that verifies clients serves those that do not as well.
func (m *Model) credentials(before []*model.Credential) []*model.Credential {
	found := map[string]*model.Credential{}
	add := func(all []*model.Credential) {
		for _, c := range all {
			name := c.Namespace + "/" + c.Name
			if old := found[name]; old == nil || len(c.Authorities) > 0 {
				found[name] = c
			}
		}
	}
	for _, g := range m.gateways {
		if e := m.entries[g.Source.Key]; e != nil {
			add(e.credentials)
		}
	}
	add(m.global.credentials)
	known := map[string]*model.Credential{}
	for _, c := range before {
		known[c.Namespace+"/"+c.Name] = c
	}
	var out []*model.Credential
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out = append(out, same(m, "credential "+name, known[name], m.withKeyProvider(found[name])))
		delete(known, name)
	}
	for name, gone := range known {
		same(m, "credential "+name, gone, nil)
	}
	return out
}

// withKeyProvider has a key used as the mesh's configuration says, where the provider takes it.
func (m *Model) withKeyProvider(c *model.Credential) *model.Credential {
	if m.config == nil || !keyprovider.Takes(m.config.keyProvider, c.Chain, c.Key) {
		return c
	}
	out := *c
	out.KeyProvider = m.config.keyProvider
	return &out
}
