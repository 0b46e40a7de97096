package model

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
)

// staged is a former mesh of so many services, and what becomes of it while clients still go by it: replica 0 of the first moves.
func staged(n int) (former *Mesh, now func(moves int) *Mesh) {
	mesh := func(port uint16, moves int) *Mesh {
		m := &Mesh{Settings: DefaultSettings("c")}
		for i := range n {
			r := &Replica{Namespace: "shop", Name: fmt.Sprintf("s-%05d-0", i), Labels: map[string]string{"app": fmt.Sprint(i)}, Address: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true}
			s := &Service{Namespace: "shop", Name: fmt.Sprintf("s-%05d", i), Host: fmt.Sprintf("s-%05d.shop.svc.cluster.local", i), Selector: r.Labels, Ports: []ServicePort{{Number: 80, Target: port}}, Replicas: []*Replica{r}}
			m.Replicas, m.Services = append(m.Replicas, r), append(m.Services, s)
		}
		return m
	}
	former = mesh(80, 0)
	wanted := *former
	return former, func(moves int) *Mesh {
		next := wanted
		next.Services, next.Replicas = append([]*Service(nil), wanted.Services...), append([]*Replica(nil), wanted.Replicas...)
		moved, s := *wanted.Replicas[0], *wanted.Services[0]
		moved.Address = netip.AddrFrom4([4]byte{10, 2, 0, byte(moves)})
		next.Replicas[0], s.Replicas = &moved, []*Replica{&moved}
		s.Ports = []ServicePort{{Number: 80, Target: 81}}
		next.Services[0] = &s
		// Another service is another since the former mesh, and stays as it is.
		if moves == 0 {
			o, r := *wanted.Services[1], *wanted.Replicas[1]
			r.Ready = false
			o.Replicas, o.Ports = []*Replica{&r}, []ServicePort{{Number: 80, Target: 81}}
			wanted.Services, wanted.Replicas = append([]*Service(nil), wanted.Services...), append([]*Replica(nil), wanted.Replicas...)
			wanted.Services[1], wanted.Replicas[1] = &o, &r
			next.Services[1], next.Replicas[1] = &o, &r
		}
		return &next
	}
}

// What clients of a former mesh see costs what differs since they saw it last.
func TestWhatClientsOfAFormerMeshSeeStaysTheSame(t *testing.T) {
	former, now := staged(10)
	var v ClientsView
	first := now(0)
	before := v.Of(first, former)
	if again := v.Of(first, former); again != before {
		t.Error("the same mesh is seen anew")
	}
	second := now(1)
	after := v.Of(second, former)
	if !reflect.DeepEqual(after, second.AsClientsOf(former)) {
		t.Errorf("seen is %+v", after)
	}
	d := Differ(before, after)
	if len(d.Services) != 1 || d.Services[0].After.Name != "s-00000" || len(d.Replicas) != 1 {
		t.Errorf("%d services differ, %d replicas: %+v", len(d.Services), len(d.Replicas), d.Services)
	}
	other, _ := staged(10)
	if got := v.Of(second, other); !reflect.DeepEqual(got, second.AsClientsOf(other)) {
		t.Errorf("by another former mesh is seen %+v", got)
	}
}

// BenchmarkAsClientsOf is what a push costs while a change is staged among so many services: another push of the same, and a replica that
// moved.
func BenchmarkAsClientsOf(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		former, now := staged(n)
		now(0)
		b.Run(fmt.Sprintf("same/%d", n), func(b *testing.B) {
			var v ClientsView
			mesh := now(1)
			v.Of(mesh, former)
			b.ReportAllocs()
			for b.Loop() {
				v.Of(mesh, former)
			}
		})
		b.Run(fmt.Sprintf("moved/%d", n), func(b *testing.B) {
			var v ClientsView
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				v.Of(now(1+i%100), former)
			}
		})
	}
}
