package xds

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// names is a generator of clusters with these names.
type names struct {
	revision int64
	clusters []string
}

func (n names) Revision() int64 { return n.revision }

func (n names) Generate(*core.Node) (Resources, error) {
	var all []types.Resource
	for _, name := range n.clusters {
		all = append(all, &cluster.Cluster{Name: name})
	}
	return Resources{resource.ClusterType: all}, nil
}

// proxy is a test client on the incremental protocol.
type proxy struct {
	t      *testing.T
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func start(t *testing.T) (*Server, func() proxy, *atomic.Int64) {
	t.Helper()
	changes := new(atomic.Int64)
	ctx, cancel := context.WithCancel(t.Context())
	s := New(ctx, slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(1, 0) }, func() { changes.Add(1) })
	listener := bufconn.Listen(1 << 16)
	g := grpc.NewServer()
	s.Register(g)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(func() { cancel(); g.Stop() })
	return s, func() proxy {
		conn, err := grpc.NewClient("passthrough:///xds", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		t.Cleanup(cancel)
		stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return proxy{t, stream}
	}, changes
}

func (p proxy) send(r *discovery.DeltaDiscoveryRequest) {
	p.t.Helper()
	r.TypeUrl = resource.ClusterType
	if err := p.stream.Send(r); err != nil {
		p.t.Fatal(err)
	}
}

func (p proxy) receive() *discovery.DeltaDiscoveryResponse {
	p.t.Helper()
	r, err := p.stream.Recv()
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func stateOf(t *testing.T, s *Server, want State) TypeStatus {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for {
		if nodes := s.Nodes(); len(nodes) == 1 && nodes[0].Types[0].State == want {
			return nodes[0].Types[0]
		}
		select {
		case <-deadline:
			t.Fatalf("no proxy became %s: %+v", want, s.Nodes())
		case <-time.After(time.Millisecond):
		}
	}
}

func TestSendsOnlyWhatChangedAndTracksAnswers(t *testing.T) {
	s, connect, changes := start(t)
	s.Update(t.Context(), names{1, []string{"a", "b"}})
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "sidecar~10.0.0.1~a.b~c"}})
	first := p.receive()
	if len(first.GetResources()) != 2 {
		t.Fatalf("got %d resources, want 2", len(first.GetResources()))
	}
	stateOf(t, s, Stale)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: first.GetNonce()})
	if got := stateOf(t, s, Synced); got.Resources != 2 || got.Version == "" {
		t.Errorf("synced status %+v", got)
	}

	s.Update(t.Context(), names{2, []string{"b", "c"}})
	second := p.receive()
	if len(second.GetResources()) != 1 || second.GetResources()[0].GetName() != "c" || len(second.GetRemovedResources()) != 1 {
		t.Fatalf("sent %v, removed %v: want c and a", second.GetResources(), second.GetRemovedResources())
	}
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: second.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "c: no such policy"}})
	if got := stateOf(t, s, Refused); got.Reason != "c: no such policy" {
		t.Errorf("refused status %+v", got)
	}
	if s.Nodes()[0].Synced {
		t.Error("a proxy that refused counts as synced")
	}
	if changes.Load() == 0 {
		t.Error("no change was announced")
	}
}

// TestUnsettledUntilTheNewestIsAcknowledged: whoever waits for a change must not take the answer to an earlier one for it.
func TestUnsettledUntilTheNewestIsAcknowledged(t *testing.T) {
	s, connect, _ := start(t)
	waiting := func(when string, want bool) {
		t.Helper()
		if got := s.Unsettled(); (len(got) > 0) != want {
			t.Errorf("%s: waited for are %q", when, got)
		}
	}
	s.Update(t.Context(), names{1, []string{"a"}})
	waiting("no proxy is there", false)
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}})
	first := p.receive()
	stateOf(t, s, Stale)
	waiting("the first is sent", true)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: first.GetNonce()})
	stateOf(t, s, Synced)
	waiting("the first is acknowledged", false)
	s.Update(t.Context(), names{2, []string{"a", "b"}})
	waiting("the second was made", true)
	second := p.receive()
	waiting("the second arrived", true)
	s.Update(t.Context(), names{3, []string{"a", "b", "c"}})
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: second.GetNonce()})
	third := p.receive()
	waiting("the second is acknowledged, and there is a third", true)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: third.GetNonce()})
	stateOf(t, s, Synced)
	waiting("the third is acknowledged", false)
	s.Update(t.Context(), names{4, []string{"d"}})
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: p.receive().GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "d"}})
	stateOf(t, s, Refused)
	waiting("the fourth is refused", false)
}

func TestReconnectingProxyIsNotSentWhatItHas(t *testing.T) {
	s, connect, _ := start(t)
	s.Update(t.Context(), names{1, []string{"a"}})
	p := connect()
	node := &core.Node{Id: "n"}
	p.send(&discovery.DeltaDiscoveryRequest{Node: node})
	had := p.receive().GetResources()[0]
	again := connect()
	again.send(&discovery.DeltaDiscoveryRequest{Node: node, InitialResourceVersions: map[string]string{"a": had.GetVersion(), "gone": "1"}})
	s.Update(t.Context(), names{2, []string{"a", "d"}})
	for {
		r := again.receive()
		for _, sent := range r.GetResources() {
			if sent.GetName() == "a" {
				t.Fatal("a was sent again although the proxy has it")
			}
			if sent.GetName() == "d" {
				return
			}
		}
		again.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()})
	}
}

func TestRefusesStreamsWithoutNode(t *testing.T) {
	s, connect, _ := start(t)
	s.Update(t.Context(), names{1, nil})
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{})
	if _, err := p.stream.Recv(); err == nil {
		t.Error("a stream without node was served")
	}
}

func TestForgetsProxiesThatLeft(t *testing.T) {
	s, connect, _ := start(t)
	s.Update(t.Context(), names{1, []string{"a"}})
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}})
	p.receive()
	if _, ok := s.Config("n"); !ok {
		t.Error("no configuration for a connected proxy")
	}
	if err := p.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(5 * time.Second)
	for len(s.Nodes()) > 0 {
		select {
		case <-deadline:
			t.Fatal("the proxy is still listed")
		case <-time.After(time.Millisecond):
		}
	}
	if _, ok := s.Config("n"); ok {
		t.Error("a configuration is kept for a proxy that left")
	}
}
