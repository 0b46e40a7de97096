package push

import (
	"testing"

	"heddle.io/heddle/control/objects"
)

// BenchmarkStatusRound is what a round of statuses asks of the pusher after one VirtualService among 5000 objects has changed, for
// a hundred proxies: which objects it may make a difference to, and how far these are.
func BenchmarkStatusRound(b *testing.B) {
	w, p := large(b, 5000)
	p.Progress(p.Changed())
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		w.routes(b, i)
		w.update(p)
		b.StartTimer()
		changed := p.Changed()
		if len(changed) == 0 || len(changed) > 3 {
			b.Fatalf("%d objects may be elsewhere", len(changed))
		}
		if got := p.Progress(changed); got[objects.Key{Group: "networking.istio.io", Kind: "VirtualService", Namespace: benchSpace(7), Name: "r"}].Version == "" {
			b.Fatalf("of the routes is known %+v", got)
		}
	}
}
