package model

import (
	"reflect"
	"slices"
)

// ClientsView gives meshes as clients of a former one see them, one after the other (see [Mesh.AsClientsOf]). What looks as it did is the
// same pointer, so that who compares two of them finds what differs. The zero value is ready.
type ClientsView struct{ mesh, former, seen *Mesh }

// Of is a mesh as clients of a former one see it.
func (v *ClientsView) Of(mesh, former *Mesh) *Mesh {
	if v.mesh == mesh && v.former == former {
		return v.seen
	}
	seen := mesh.AsClientsOf(former)
	if v.former == former {
		seen.Services = keepSame(v.seen.Services, seen.Services)
		seen.Routes = keepSame(v.seen.Routes, seen.Routes)
		seen.Gateways = keepSame(v.seen.Gateways, seen.Gateways)
		seen.Destinations = keepSame(v.seen.Destinations, seen.Destinations)
		seen.BackendTLS = keepSame(v.seen.BackendTLS, seen.BackendTLS)
		seen.Credentials = keepSame(v.seen.Credentials, seen.Credentials)
	}
	v.mesh, v.former, v.seen = mesh, former, seen
	return seen
}

// keepSame is a list with the parts of another in the place of those that say the same.
func keepSame[T any](was, now []*T) []*T {
	out := now
	for i := range min(len(was), len(now)) {
		if was[i] != now[i] && reflect.DeepEqual(was[i], now[i]) {
			if &out[0] == &now[0] {
				out = slices.Clone(now)
			}
			out[i] = was[i]
		}
	}
	return out
}
