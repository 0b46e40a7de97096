package federation

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/registry"
)

// BenchmarkEndpoint is the readiness of one endpoint in a member with so many exported services, in a mesh with so many others:
// what the member sends, what the primary makes of it and sends to all, and what one of them makes of that. sent-B/op is what
// the member and the primary send together.
func BenchmarkEndpoint(b *testing.B) {
	for _, others := range []int{1, 10, 50} {
		for _, services := range []int{100, 5000} {
			b.Run(fmt.Sprintf("peers=%d/services=%d", others, services), func(b *testing.B) {
				c := newCrowd(b, others+1)
				all := make([]registry.Export, 0, services)
				for i := range services {
					all = append(all, export("shop", fmt.Sprintf("service%04d", i), 1))
				}
				member, hears := newCrowd(b, 0).f, newCrowd(b, 0).f
				s := &session{heard: true}
				own, sent := registry.NewExports(all...), 0
				var said *State
				var known State
				round := func(ready uint32) {
					changed := export("shop", "service0007", ready)
					own = own.With([]*registry.Export{&changed}, nil)
					member.SetOwn(registry.Locality{}, own)
					now := member.told()
					var growing *pb.State
					for _, part := range parts(now.since(said)) {
						text, err := proto.Marshal(&pb.FromMember{Message: &pb.FromMember_Report{Report: &pb.Report{State: part}}})
						if err != nil {
							b.Fatal(err)
						}
						sent += len(text)
						var m pb.FromMember
						if err := proto.Unmarshal(text, &m); err != nil {
							b.Fatal(err)
						}
						if growing == nil {
							growing = m.GetReport().GetState()
						} else {
							joined(growing, m.GetReport().GetState())
						}
					}
					state, err := known.with(growing, said != nil, "cluster.local", true)
					if err != nil {
						b.Fatal(err)
					}
					said, known = &now, state
					if c.f.differs(c.streams[0], state) {
						c.f.note(c.streams[0], state)
					}
					c.f.Peers()
					for i, st := range c.streams {
						var whole *pb.Update
						for _, u := range c.f.updates(st) {
							text, err := proto.Marshal(&pb.FromPrimary{Message: &pb.FromPrimary_Update{Update: u}})
							if err != nil {
								b.Fatal(err)
							}
							sent += len(text)
							if i != 1 {
								continue
							}
							var m pb.FromPrimary
							if err := proto.Unmarshal(text, &m); err != nil {
								b.Fatal(err)
							}
							if u := m.GetUpdate(); whole == nil {
								whole = u
							} else {
								whole.Peers = append(whole.Peers, u.GetPeers()...)
							}
						}
						if whole != nil {
							if err := hears.take(b.Context(), s, whole); err != nil {
								b.Fatal(err)
							}
						}
					}
				}
				round(1)
				sent = 0
				b.ReportAllocs()
				n := uint32(2)
				for b.Loop() {
					round(n)
					n++
				}
				b.ReportMetric(float64(sent)/float64(b.N), "sent-B/op")
				if got := hears.peers["cluster2"].Services.Get(registry.ExportName{Namespace: "shop", Name: "service0007"}).Groups[0].Ready; got != n-1 {
					b.Fatal(got)
				}
			})
		}
	}
}
