package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/peer"
)

// relay forwards ADS streams to the controller.
//
// When the controller goes away, the proxy's stream ends with UNAVAILABLE: the proxy keeps its configuration, and opens
// a new stream at once, because its peer, this agent, is there. That stream is held until the controller is back, so
// the proxy hears of changes within a fraction of a second of the controller's return rather than at the end of a long
// back-off.
type relay struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	node       *corev3.Node
	connection *grpc.ClientConn
	log        *slog.Logger
	refusals   *Refusals
	streams    streams
}

// What is repeated of a proxy's words, in characters: why it refuses, of which an Envoy says much, and what program it is.
const (
	maxReason = 4 << 10
	maxAgent  = 200
	// maxNode, in bytes, is what a proxy may say of itself: a stock Envoy's names of its extensions are some 60 kB.
	maxNode = 256 << 10
)

// maxConfigStreams of one proxy, which needs one: a controller waits for the answers to what is on its way over each.
const maxConfigStreams = 2

// streams counts a proxy's, and tells who waits for one when there are others.
type streams struct {
	mu sync.Mutex
	// taken are all, and open those that have one of the controller's.
	taken, open int
	changed     chan struct{}
}

// take counts one more, unless there are too many; the result ends it.
func (s *streams) take() (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == maxConfigStreams {
		return nil, status.Errorf(codes.ResourceExhausted, "the proxy has %d streams for its configuration already", maxConfigStreams)
	}
	s.taken++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
	}, nil
}

// opened counts one that has one of the controller's; the result ends that.
func (s *streams) opened() (end func()) {
	s.add(1)
	return func() { s.add(-1) }
}

func (s *streams) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += n
	close(s.changed)
	s.changed = make(chan struct{})
}

// now says whether there are any; the channel is closed when that may be otherwise.
func (s *streams) now() (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open > 0, s.changed
}

func newRelay(config Config) (*relay, error) {
	controller := config.Controller
	connection, err := grpc.NewClient("unix://"+controller,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse), grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", controller)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second, Backoff: backoff.Config{
			BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}}),
	)
	if err != nil {
		return nil, fmt.Errorf("reach controller: %w", err)
	}
	return &relay{node: config.Node, connection: connection, log: config.Log, refusals: config.Refusals, streams: streams{changed: make(chan struct{})}}, nil
}

func (r *relay) close() {
	// Only says that it is closed already.
	_ = r.connection.Close()
}

// take counts a stream of the proxy's, before one of the controller's is waited for.
func (r *relay) take() (end func(), err error) {
	if end, err = r.streams.take(); err != nil {
		r.refusals.configStreams.Add(1)
	}
	return end, err
}

// StreamAggregatedResources forwards state-of-the-world ADS.
func (r *relay) StreamAggregatedResources(down discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	end, err := r.take()
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.connection).StreamAggregatedResources(ctx)
	if err != nil {
		return unavailable(err)
	}
	return forward(r, cancel, down.Recv, up.Send, up.CloseSend, up.Recv, down.Send, func(m *discoveryv3.DiscoveryRequest) {
		m.Node = r.identify(m.Node)
	})
}

// DeltaAggregatedResources forwards incremental ADS.
func (r *relay) DeltaAggregatedResources(down discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	end, err := r.take()
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.connection).DeltaAggregatedResources(ctx)
	if err != nil {
		return unavailable(err)
	}
	return forward(r, cancel, down.Recv, up.Send, up.CloseSend, up.Recv, down.Send, func(m *discoveryv3.DeltaDiscoveryRequest) {
		m.Node = r.identify(m.Node)
	})
}

// identify replaces who the proxy says it is by who the agent knows it is; what the proxy is (its build and its
// extensions) stays its own word, unless it says too much.
func (r *relay) identify(said *corev3.Node) *corev3.Node {
	node, ok := proto.Clone(r.node).(*corev3.Node)
	if !ok {
		return r.node
	}
	if said != nil && proto.Size(said) <= maxNode {
		node.UserAgentName = peer.Words(said.UserAgentName, maxAgent, false)
		node.UserAgentVersionType = said.UserAgentVersionType
		node.Extensions = said.Extensions
		node.ClientFeatures = said.ClientFeatures
	}
	return node
}

// forward pumps both directions until one ends.
func forward[Request, Response any](r *relay, cancel context.CancelFunc,
	downRecv func() (Request, error), upSend func(Request) error, upClose func() error,
	upRecv func() (Response, error), downSend func(Response) error, edit func(Request)) error {
	defer r.streams.opened()()
	requests := make(chan error, 1)
	go func() {
		first := true
		for {
			m, err := downRecv()
			if err != nil {
				// The controller hears of the end by the close or by the cancelled context.
				_ = upClose()
				cancel()
				requests <- err
				return
			}
			// The node is needed in the first message of a stream only, but a proxy may repeat it.
			if first {
				edit(m)
				first = false
			} else {
				clearNode(m)
			}
			clipReason(m)
			if err := r.admit(m); err != nil {
				requests <- err
				cancel()
				return
			}
			if err := upSend(m); err != nil {
				// upRecv tells why.
				requests <- nil
				return
			}
		}
	}()
	for {
		m, err := upRecv()
		if err != nil {
			select {
			case downErr := <-requests:
				switch {
				case errors.Is(downErr, io.EOF):
					return nil
				case status.Code(downErr) == codes.ResourceExhausted:
					return downErr
				}
			default:
			}
			return unavailable(err)
		}
		if err := downSend(m); err != nil {
			return err
		}
	}
}

// admit refuses a request with a name that no resource has: the controller keeps them. How many names there are, and how long they are
// together, the controller counts, for a stream.
func (r *relay) admit(m any) error {
	var names []string
	switch m := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		names = append(m.GetResourceNames(), m.GetTypeUrl())
	case *discoveryv3.DeltaDiscoveryRequest:
		names = slices.Concat(m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe(), []string{m.GetTypeUrl()})
		names = slices.AppendSeq(names, maps.Keys(m.GetInitialResourceVersions()))
	}
	for _, name := range names {
		if len(name) > peer.MaxName {
			r.refusals.names.Add(1)
			return status.Errorf(codes.ResourceExhausted, "a resource's name may have %d bytes, and the proxy gives one of %d", peer.MaxName, len(name))
		}
	}
	return nil
}

func clearNode(m any) {
	switch m := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		m.Node = nil
	case *discoveryv3.DeltaDiscoveryRequest:
		m.Node = nil
	}
}

// clipReason bounds why a proxy refuses, which is kept, logged and shown, and what it says that it refused.
func clipReason(m any) {
	if refusing, ok := m.(interface{ GetErrorDetail() *rpcstatus.Status }); ok && refusing.GetErrorDetail() != nil {
		detail := refusing.GetErrorDetail()
		detail.Message = peer.Words(detail.Message, maxReason, true)
		if peer.Refused(detail) == nil {
			detail.Details = nil
		}
	}
}

// unavailable makes every end of the controller's stream one that the proxy retries, unless the controller refused.
func unavailable(err error) error {
	if s, ok := status.FromError(err); ok && (s.Code() == codes.InvalidArgument || s.Code() == codes.PermissionDenied) {
		return err
	}
	return status.Errorf(codes.Unavailable, "the controller's stream ended: %v", err)
}
