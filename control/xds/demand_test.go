package xds

import (
	"fmt"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestAHostileProxyDemandsABoundedNumberOfListeners: the source hears of as many listeners as a stream may name, however often a proxy
// names others, and of none of a request that is refused.
func TestAHostileProxyDemandsABoundedNumberOfListeners(t *testing.T) {
	w, connect := start(t)
	w.has(mesh("a")...)
	p := connect()
	many := func(round, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("10.%d.%d.%d_80", round, i>>8, i&255))
		}
		return names
	}
	ask := func(r *discovery.DeltaDiscoveryRequest) {
		t.Helper()
		r.TypeUrl = resource.ListenerType
		if err := p.stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	ask(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}, ResourceNamesSubscribe: []string{everything}})
	p.receive()
	const rounds = 5
	for i := range rounds {
		names := many(i, maxListeners/2)
		// The same again is nothing new.
		ask(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: append(names, names[0])})
		if i < rounds-1 {
			ask(&discovery.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: append(names, names[0], "10.9.9.9_80")})
		}
	}
	ask(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(rounds, maxListeners/2+1)})
	for {
		if _, err := p.stream.Recv(); err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Error(err)
			}
			break
		}
	}
	if len(w.demanded) != maxListeners/2 {
		t.Errorf("the source was told of %d listeners, want %d", len(w.demanded), maxListeners/2)
	}
}
