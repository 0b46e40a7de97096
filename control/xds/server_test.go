package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// world is a source that puts all proxies into one group.
type world struct {
	t      *testing.T
	server *Server
	group  *Group
	// demanded are the listeners that are asked for by name.
	demanded []string
	// changes holds one value when the server has announced a change since it was taken; announced is how many there were.
	changes   chan struct{}
	announced atomic.Int64
}

// until waits until something is so, which it may come to be with each change that the server announces.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.After(10 * time.Second)
	for !holds() {
		select {
		case <-w.changes:
		case <-deadline:
			w.t.Fatalf("%s: not so, with %+v", what, w.server.Nodes())
		}
	}
}

// Attach implements [Source].
func (w *world) Attach(_ *Proxy, node *core.Node, _ bool, join func([]*Group)) error {
	if node.GetId() == "nobody" {
		return errors.New("nobody knows it")
	}
	join([]*Group{w.group})
	return nil
}

// Demand implements [Source].
func (w *world) Demand(_ *Proxy, asked, givenUp []string) {
	w.demanded = slices.DeleteFunc(append(w.demanded, asked...), func(name string) bool { return slices.Contains(givenUp, name) })
}

// Detach implements [Source].
func (w *world) Detach(*Proxy) {}

// has changes the group to these messages, and gives the version of the change.
func (w *world) has(messages ...proto.Message) int64 {
	w.t.Helper()
	return w.server.Update(1, []Change{w.group.Change(w.resources(messages...))}, nil)
}

func (w *world) resources(messages ...proto.Message) []*Resource {
	w.t.Helper()
	clusters := map[string]*Resource{}
	var all []*Resource
	for _, m := range messages {
		var r *Resource
		var err error
		switch m := m.(type) {
		case *cluster.Cluster:
			r, err = NewResource(Clusters, m.Name, m, nil)
			clusters[m.Name] = r
		case *endpoint.ClusterLoadAssignment:
			r, err = NewResource(Endpoints, m.ClusterName, m, clusters[m.ClusterName])
		case *listener.Listener:
			r, err = NewResource(Listeners, m.Name, m, nil)
		case *route.RouteConfiguration:
			r, err = NewResource(Routes, m.Name, m, nil)
		default:
			err = fmt.Errorf("a %T", m)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// clusters of these names.
func clusters(names ...string) []proto.Message {
	var all []proto.Message
	for _, name := range names {
		all = append(all, &cluster.Cluster{Name: name})
	}
	return all
}

// proxy is a test client on the incremental protocol.
type proxy struct {
	t      *testing.T
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func start(t *testing.T) (*world, func() proxy) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{t: t, group: NewGroup(nil, ""), changes: make(chan struct{}, 1)}
	s := New(ctx, slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(1, 0) }, prometheus.NewRegistry(), w, func() {
		w.announced.Add(1)
		select {
		case w.changes <- struct{}{}:
		default:
		}
	})
	w.server = s
	conns := bufconn.Listen(1 << 16)
	g := s.GRPC()
	go func() { _ = g.Serve(conns) }()
	t.Cleanup(func() { cancel(); g.Stop() })
	return w, func() proxy {
		conn, err := grpc.NewClient("passthrough:///xds", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return conns.DialContext(ctx) }))
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
	}
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

// stateOf waits until the clusters of the only proxy are in a state.
func stateOf(w *world, want State) TypeStatus {
	w.t.Helper()
	var got TypeStatus
	w.until("clusters are "+string(want), func() bool {
		nodes := w.server.Nodes()
		if len(nodes) == 1 {
			got = nodes[0].Types[0]
		}
		return got.State == want
	})
	return got
}

func TestSendsOnlyWhatChangedAndTracksAnswers(t *testing.T) {
	w, connect := start(t)
	w.has(clusters("a", "b")...)
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "sidecar~10.0.0.1~a.b~c"}})
	first := p.receive()
	if len(first.GetResources()) != 2 {
		t.Fatalf("got %d resources, want 2", len(first.GetResources()))
	}
	stateOf(w, Stale)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: first.GetNonce()})
	if got := stateOf(w, Synced); got.Resources != 2 || got.Version == "" {
		t.Errorf("synced status %+v", got)
	}

	w.has(clusters("b", "c")...)
	second := p.receive()
	if len(second.GetResources()) != 1 || second.GetResources()[0].GetName() != "c" || len(second.GetRemovedResources()) != 0 {
		t.Fatalf("sent %v, removed %v: want c", second.GetResources(), second.GetRemovedResources())
	}
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: second.GetNonce()})
	if last := p.receive(); len(last.GetResources()) != 0 || !slices.Equal(last.GetRemovedResources(), []string{"a"}) {
		t.Fatalf("sent %v, removed %v: want a removed", last.GetResources(), last.GetRemovedResources())
	} else {
		p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: last.GetNonce()})
	}
	w.has(clusters("b", "c", "d")...)
	second = p.receive()
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: second.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "c: no such policy"}})
	if got := stateOf(w, Refused); got.Reason != "c: no such policy" {
		t.Errorf("refused status %+v", got)
	}
	if w.server.Nodes()[0].Synced {
		t.Error("a proxy that refused counts as synced")
	}
	if w.announced.Load() == 0 {
		t.Error("no change was announced")
	}
}

// TestUnsettledUntilTheNewestIsAcknowledged: whoever waits for a change must not take the answer to an earlier one for it.
func TestUnsettledUntilTheNewestIsAcknowledged(t *testing.T) {
	w, connect := start(t)
	waiting := func(when string, want bool) {
		t.Helper()
		if got := w.server.Unsettled(); (len(got) > 0) != want {
			t.Errorf("%s: waited for are %q", when, got)
		}
	}
	w.has(clusters("a")...)
	waiting("no proxy is there", false)
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}})
	first := p.receive()
	stateOf(w, Stale)
	waiting("the first is sent", true)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: first.GetNonce()})
	stateOf(w, Synced)
	waiting("the first is acknowledged", false)
	w.has(clusters("a", "b")...)
	waiting("the second was made", true)
	second := p.receive()
	waiting("the second arrived", true)
	w.has(clusters("a", "b", "c")...)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: second.GetNonce()})
	third := p.receive()
	waiting("the second is acknowledged, and there is a third", true)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: third.GetNonce()})
	stateOf(w, Synced)
	waiting("the third is acknowledged", false)
	w.has(clusters("d")...)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: p.receive().GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "d"}})
	gone := p.receive()
	waiting("the fourth is refused, and what is gone not yet", true)
	p.send(&discovery.DeltaDiscoveryRequest{ResponseNonce: gone.GetNonce()})
	stateOf(w, Refused)
	waiting("the fourth is refused", false)
}

func TestReconnectingProxyIsNotSentWhatItHas(t *testing.T) {
	w, connect := start(t)
	w.has(clusters("a")...)
	p := connect()
	node := &core.Node{Id: "n"}
	p.send(&discovery.DeltaDiscoveryRequest{Node: node})
	had := p.receive().GetResources()[0]
	again := connect()
	again.send(&discovery.DeltaDiscoveryRequest{Node: node, InitialResourceVersions: map[string]string{"a": had.GetVersion(), "gone": "1"}})
	w.has(clusters("a", "d")...)
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
	w, connect := start(t)
	w.has()
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{})
	if _, err := p.stream.Recv(); err == nil {
		t.Error("a stream without node was served")
	}
}

func TestForgetsProxiesThatLeft(t *testing.T) {
	w, connect := start(t)
	w.has(clusters("a")...)
	p := connect()
	p.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "n"}})
	p.receive()
	if _, ok := w.server.Config("n"); !ok {
		t.Error("no configuration for a connected proxy")
	}
	if err := p.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	w.until("the proxy is not listed", func() bool { return len(w.server.Nodes()) == 0 })
	if _, ok := w.server.Config("n"); ok {
		t.Error("a configuration is kept for a proxy that left")
	}
}
