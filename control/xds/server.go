// Package xds serves translated configuration to proxies over Envoy's discovery protocol, incremental and state of the
// world, aggregated. It knows which proxy runs what, and what each refused.
//
// The caller proves who a proxy is before its stream reaches this server (the agent forwards each proxy's stream with the
// node that it attested), so the node in the first request of a stream is believed.
package xds

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

// Resources are what one proxy is to run, by type URL.
type Resources map[resource.Type][]types.Resource

// Generator makes the configuration of one proxy from the model in force.
type Generator interface {
	// Generate is a pure function of the model and the node. An error leaves the proxy with what it has; it is
	// shown by [Server.Nodes].
	Generate(node *core.Node) (Resources, error)
	// Revision of the store that the model was made from.
	Revision() int64
}

// typeNames are the types served, with the short names that `proxy status` shows, in that order.
var typeNames = []struct{ url, short string }{
	{resource.ClusterType, "CDS"}, {resource.ListenerType, "LDS"}, {resource.EndpointType, "EDS"},
	{resource.RouteType, "RDS"}, {resource.SecretType, "SDS"},
}

// Server is the discovery service of a controller. Create it with [New].
type Server struct {
	log      *slog.Logger
	now      func() time.Time
	cache    cache.SnapshotCache
	server   serverv3.Server
	onChange func()

	// programming is held while a proxy's configuration is made, so that an older one never follows a newer.
	programming sync.Mutex

	mu        sync.Mutex
	generator Generator
	nodes     map[string]*node
	streams   map[int64]string
}

// New makes a server without configuration: proxies that connect wait until [Server.Update]. onChange is called, without
// locks held, after a proxy connected, left, acknowledged or refused something; it must not block.
func New(ctx context.Context, log *slog.Logger, now func() time.Time, onChange func()) *Server {
	s := &Server{log: log, now: now, onChange: onChange, cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil),
		nodes: map[string]*node{}, streams: map[int64]string{}}
	s.server = serverv3.NewServer(ctx, watched{s.cache, s.watches}, serverv3.CallbackFuncs{
		StreamRequestFunc: func(stream int64, r *discovery.DiscoveryRequest) error {
			return s.request(stream, exchange{node: r.GetNode(), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), failure: r.GetErrorDetail().GetMessage(), refused: r.GetErrorDetail() != nil})
		},
		StreamDeltaRequestFunc: func(stream int64, r *discovery.DeltaDiscoveryRequest) error {
			return s.request(stream, exchange{node: r.GetNode(), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), failure: r.GetErrorDetail().GetMessage(), refused: r.GetErrorDetail() != nil, resumes: len(r.GetInitialResourceVersions()) > 0})
		},
		StreamResponseFunc: func(_ context.Context, stream int64, _ *discovery.DiscoveryRequest, r *discovery.DiscoveryResponse) {
			s.response(stream, r.GetTypeUrl(), r.GetNonce(), r.GetVersionInfo())
		},
		StreamDeltaResponseFunc: func(stream int64, _ *discovery.DeltaDiscoveryRequest, r *discovery.DeltaDiscoveryResponse) {
			s.response(stream, r.GetTypeUrl(), r.GetNonce(), r.GetSystemVersionInfo())
		},
		StreamClosedFunc:      func(stream int64, _ *core.Node) { s.closed(stream) },
		DeltaStreamClosedFunc: func(stream int64, _ *core.Node) { s.closed(stream) },
	})
	return s
}

// Register offers the aggregated discovery service on a gRPC server.
func (s *Server) Register(g *grpc.Server) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s.server)
}

// Update puts a new model into force: every connected proxy's configuration is made anew, and what changed is sent.
// Revisions must not decrease.
func (s *Server) Update(ctx context.Context, generator Generator) {
	s.mu.Lock()
	s.generator = generator
	connected := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		connected = append(connected, n)
	}
	s.mu.Unlock()
	for _, n := range connected {
		s.program(ctx, n, generator)
	}
	s.onChange()
}

// program makes one proxy's configuration and hands it to the cache, which sends what differs.
func (s *Server) program(ctx context.Context, n *node, generator Generator) {
	s.programming.Lock()
	defer s.programming.Unlock()
	s.mu.Lock()
	identity, revision := n.identity, n.revision
	s.mu.Unlock()
	if generator.Revision() < revision {
		return
	}
	resources, err := generator.Generate(identity)
	var snapshot *cache.Snapshot
	if err == nil {
		snapshot, err = cache.NewSnapshot(fmt.Sprint(generator.Revision()), resources)
	}
	if err == nil {
		err = keepVersions(snapshot)
	}
	if err == nil && s.hold(n, snapshot.GetVersion(resource.ClusterType)) {
		return
	}
	if err == nil {
		err = s.cache.SetSnapshot(ctx, n.id, snapshot)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.failure = ""
	if err != nil {
		n.failure = err.Error()
		s.log.Error("proxy keeps its configuration: the new one could not be made", "proxy", n.id, "error", err)
		return
	}
	n.resources, n.revision, n.clusters = resources, generator.Revision(), snapshot.GetVersion(resource.ClusterType)
}

// exchange is what the server reads from a request of either protocol variant.
type exchange struct {
	node    *core.Node
	typeURL string
	nonce   string
	failure string
	refused bool
	// resumes says that the proxy has resources of the type from an earlier stream: it is sent what differs only.
	resumes bool
}

func (s *Server) request(stream int64, r exchange) error {
	n, generator, fresh, err := s.attach(stream, r.node)
	if err != nil {
		return err
	}
	if fresh && generator != nil {
		s.program(context.Background(), n, generator)
	}
	s.mu.Lock()
	if n.newest == stream {
		n.answered(r, s.now())
	}
	s.mu.Unlock()
	if r.refused {
		s.log.Warn("proxy refused configuration", "proxy", n.id, "type", shortName(r.typeURL), "reason", r.failure)
	}
	s.onChange()
	return nil
}

// attach finds the proxy of a stream; the stream's first request names it.
func (s *Server) attach(stream int64, identity *core.Node) (n *node, generator Generator, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, known := s.streams[stream]; known {
		return s.nodes[id], nil, false, nil
	}
	if identity.GetId() == "" {
		return nil, nil, false, fmt.Errorf("the first request of a stream names no node: set node.id in the proxy's bootstrap")
	}
	n = s.nodes[identity.GetId()]
	if n == nil {
		n = newNode(identity, s.now())
		s.nodes[n.id] = n
	}
	// What is known of answers belongs to a stream, and the newest one counts: an older one that has not been noticed
	// to be dead answers nothing any more.
	n.newest, n.types, n.watching = stream, map[string]*subscription{}, false
	n.identity = identity
	n.streams++
	s.streams[stream] = n.id
	return n, s.generator, true, nil
}

func (s *Server) response(stream int64, typeURL, nonce, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[s.streams[stream]]; n != nil && n.newest == stream {
		n.sent(typeURL, nonce, version, s.now())
		n.watching = n.watching && typeURL != resource.ClusterType
	}
}

func (s *Server) closed(stream int64) {
	s.mu.Lock()
	id := s.streams[stream]
	delete(s.streams, stream)
	gone := false
	if n := s.nodes[id]; n != nil {
		n.streams--
		gone = n.streams == 0
		if gone {
			delete(s.nodes, id)
		}
	}
	s.mu.Unlock()
	if gone {
		s.cache.ClearSnapshot(id)
		s.onChange()
	}
}
