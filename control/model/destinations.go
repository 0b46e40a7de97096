package model

import (
	"net/netip"
	"slices"
)

// Destinations finds the services that connections to an address are for. It costs what is new in a mesh since the one before, which must be of the
// same kept model (see [Differ]). The zero value is ready.
type Destinations struct {
	services []*Service
	at       map[netip.Addr][]*Service
	// ranges are the services that whole ranges of addresses are for: few.
	ranges []*Service
}

// At are the services of a mesh that connections to an address are for, in its order.
func (d *Destinations) At(mesh *Mesh, a netip.Addr) []*Service {
	for _, p := range pairs(d.services, mesh.Services, func(s *Service) *Service { return s }) {
		d.set(p.Before, false)
		d.set(p.After, true)
	}
	d.services = mesh.Services
	out := slices.Clone(d.at[a])
	for _, s := range d.ranges {
		if s.At(a) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, CompareServices)
	return slices.Compact(out)
}

func (d *Destinations) set(s *Service, there bool) {
	if s == nil {
		return
	}
	set := func(list []*Service) []*Service {
		if there {
			return append(list, s)
		}
		return slices.DeleteFunc(list, func(one *Service) bool { return one == s })
	}
	if d.at == nil {
		d.at = map[netip.Addr][]*Service{}
	}
	for _, a := range s.Addresses() {
		if !a.IsValid() {
			continue
		}
		if d.at[a] = set(d.at[a]); len(d.at[a]) == 0 {
			delete(d.at, a)
		}
	}
	if s.External != nil && s.External.Entry != nil && len(s.External.Entry.Listen) > 0 {
		d.ranges = set(d.ranges)
	}
}
