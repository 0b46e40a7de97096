package xds

import (
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// timed is a generator of one cluster that differs by its timeout, and of its endpoints, which stay the same.
type timed int64

func (n timed) Revision() int64 { return int64(n) }

func (n timed) Generate(*core.Node) (Resources, error) {
	return Resources{
		resource.ClusterType: {types.Resource(&cluster.Cluster{
			Name: "a", ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
			ConnectTimeout: durationpb.New(time.Duration(n) * time.Second),
		})},
		resource.EndpointType: {types.Resource(&endpoint.ClusterLoadAssignment{ClusterName: "a"})},
	}, nil
}

// TestEndpointsNeverOvertakeTheirCluster has a proxy that answers endpoints at once and clusters late, as Envoy does
// while clusters warm. Whatever changes meanwhile, each changed cluster must be followed by its endpoints.
func TestEndpointsNeverOvertakeTheirCluster(t *testing.T) {
	s, connect, _ := start(t)
	s.Update(t.Context(), timed(1))
	p := connect()
	ask := func(r *discovery.DeltaDiscoveryRequest, typeURL string) {
		t.Helper()
		r.TypeUrl = typeURL
		if err := p.stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(typeURL string) *discovery.DeltaDiscoveryResponse {
		t.Helper()
		r := p.receive()
		if r.GetTypeUrl() != typeURL || len(r.GetResources()) != 1 {
			t.Fatalf("got %s with %d resources, want %s with 1", r.GetTypeUrl(), len(r.GetResources()), typeURL)
		}
		return r
	}
	answer := func(r *discovery.DeltaDiscoveryResponse) {
		t.Helper()
		ask(&discovery.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()}, r.GetTypeUrl())
	}

	ask(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}}, resource.ClusterType)
	answer(expect(resource.ClusterType))
	ask(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}}, resource.EndpointType)
	answer(expect(resource.EndpointType))
	until(t, s, func(n NodeStatus) bool { return n.Types[2].State == Synced && watching(s) })

	s.Update(t.Context(), timed(2))
	late := expect(resource.ClusterType)
	answer(expect(resource.EndpointType))
	until(t, s, func(n NodeStatus) bool { return n.Types[2].State == Synced })
	// The endpoints could be sent now, the clusters not.
	s.Update(t.Context(), timed(3))
	answer(late)
	answer(expect(resource.ClusterType))
	answer(expect(resource.EndpointType))
	until(t, s, func(n NodeStatus) bool { return n.Synced && n.Revision == 3 && watching(s) })

	// The same without a pause between the versions, so that the second is not even sent when the third is there.
	for revision := timed(4); revision < 60; revision += 2 {
		s.Update(t.Context(), revision)
		s.Update(t.Context(), revision+1)
		late := expect(resource.ClusterType)
		answer(expect(resource.EndpointType))
		until(t, s, func(n NodeStatus) bool { return n.Types[2].State == Synced })
		answer(late)
		answer(expect(resource.ClusterType))
		answer(expect(resource.EndpointType))
		until(t, s, func(n NodeStatus) bool { return n.Synced && n.Revision == int64(revision+1) && watching(s) })
	}
}

// watching says whether the cache waits for newer clusters on the proxy's behalf.
func watching(s *Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes["n"].watching
}

// until waits for a state of the only proxy.
func until(t *testing.T, s *Server, reached func(NodeStatus) bool) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for !reached(s.Nodes()[0]) {
		select {
		case <-deadline:
			t.Fatalf("not reached: %+v", s.Nodes())
		case <-time.After(time.Millisecond):
		}
	}
}
