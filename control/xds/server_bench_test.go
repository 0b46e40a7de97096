package xds

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// alone is a source with one group.
type alone struct{ group *Group }

func (s alone) Attach(_ *Proxy, _ *core.Node, _ bool, join func([]*Group)) error {
	join([]*Group{s.group})
	return nil
}

func (alone) Demand(*Proxy, []string, []string) {}
func (alone) Detach(*Proxy)                     {}

// crowd is a server of one group with so many clusters.
func crowd(b *testing.B, n int) (*Server, []*Resource) {
	b.Helper()
	all := make([]*Resource, 0, n)
	for i := range n {
		name := fmt.Sprintf("outbound|80||service-%d.namespace-%d.svc.cluster.local", i, i%20)
		r, err := NewResource(Clusters, name, &cluster.Cluster{Name: name}, nil)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, r)
	}
	return New(context.Background(), slog.New(slog.DiscardHandler), time.Now, prometheus.NewRegistry(), alone{NewGroup(all, "")}, func() {}), all
}

// BenchmarkRefused is one change for an Envoy that refused its first clusters: as many come again with it, as it does not say which.
func BenchmarkRefused(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, all := crowd(b, n)
			p, err := s.join(&core.Node{Id: "x"}, true)
			if err != nil {
				b.Fatal(err)
			}
			p.types[Clusters].asked, p.types[Clusters].wildcard = true, true
			p.markAll(Clusters)
			b.ReportAllocs()
			for b.Loop() {
				r, _ := p.next()
				if r == nil || len(r.resources) != n {
					b.Fatalf("to be sent is %+v", r)
				}
				p.mu.Lock()
				p.answer(Clusters, r.nonce, &rpcstatus.Status{Message: "no"})
				p.types[Clusters].mark(all[7].Name(), false, s.version)
				p.mu.Unlock()
			}
		})
	}
}

// BenchmarkJoin is a proxy that connects and leaves: what others wait for who need the server's lock.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{1000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, _ := crowd(b, n)
			b.ReportAllocs()
			for b.Loop() {
				p, err := s.join(&core.Node{Id: "x"}, true)
				if err != nil {
					b.Fatal(err)
				}
				s.leave(p)
			}
		})
	}
}

// BenchmarkMove is a hundred proxies, each with a group of its own besides, that go from one group of so many clusters to another: what
// others wait for who need the server's lock.
func BenchmarkMove(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, all := crowd(b, n)
			from, to := NewGroup(all, ""), NewGroup(all[1:], "")
			var there, back []Move
			for i := range 100 {
				p, err := s.join(&core.Node{Id: fmt.Sprint(i)}, true)
				if err != nil {
					b.Fatal(err)
				}
				p.types[Clusters].asked, p.types[Clusters].wildcard = true, true
				own := NewGroup(nil, "")
				there, back = append(there, Move{p, []*Group{to, own}}), append(back, Move{p, []*Group{from, own}})
			}
			s.Update(1, nil, back)
			b.ReportAllocs()
			for b.Loop() {
				s.Update(1, nil, there)
				s.Update(1, nil, back)
			}
		})
	}
}
