package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// What is found at an address after changes at random is what a look at every service finds.
func TestDestinationsAreThoseOfAllServices(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(12))}) }
	one := func() *Service {
		s := &Service{Namespace: "shop", Name: fmt.Sprint("s", random.IntN(20)), Address: address()}
		switch s.Host = s.Name + ".shop.svc.cluster.local"; random.IntN(4) {
		case 0:
			s.External = &External{Entry: &Entry{Addresses: []netip.Addr{address(), address()}}}
		case 1:
			s.External = &External{Entry: &Entry{Listen: []netip.Prefix{netip.PrefixFrom(address(), 30).Masked()}}}
		}
		return s
	}
	var d Destinations
	mesh := &Mesh{}
	for range 500 {
		next := &Mesh{Services: slices.Clone(mesh.Services)}
		for range random.IntN(3) {
			s := one()
			next.Services = slices.DeleteFunc(next.Services, func(other *Service) bool { return other.Host == s.Host })
			if random.IntN(3) > 0 {
				next.Services = append(next.Services, s)
			}
		}
		slices.SortFunc(next.Services, CompareServices)
		mesh = next
		a := address()
		want := slices.DeleteFunc(slices.Clone(mesh.Services), func(s *Service) bool { return !s.At(a) })
		if got := d.At(mesh, a); !slices.Equal(got, want) {
			t.Fatalf("at %s are %v, want %v", a, got, want)
		}
	}
}

// BenchmarkAt is an address that a proxy asks for among so many services.
func BenchmarkAt(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			mesh := &Mesh{}
			for i := range n {
				mesh.Services = append(mesh.Services, &Service{Namespace: "shop", Name: fmt.Sprintf("s-%05d", i), Host: fmt.Sprintf("s-%05d.shop.svc.cluster.local", i), Address: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})})
			}
			var d Destinations
			a := mesh.Services[7].Address
			d.At(mesh, a)
			b.ReportAllocs()
			for b.Loop() {
				if len(d.At(mesh, a)) != 1 {
					b.Fatal("not found")
				}
			}
		})
	}
}
