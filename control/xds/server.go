// Package xds serves translated configuration to proxies over Envoy's discovery protocol, incremental and state of the
// world, aggregated. It knows which proxy runs what, and what each refused.
//
// The caller proves who a proxy is before its stream reaches this server (the agent forwards each proxy's stream with the
// node that it attested), so the node in the first request of a stream is believed.
//
// Resources are shared: proxies are members of groups, a group holds references to resources, and a change tells the
// members which names changed. Each stream has a goroutine of its own that keeps what is still to be sent as a set of
// names, so that many changes for a slow proxy become one, and sends in the order that [Proxy] describes.
package xds

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of what is on its way to proxies: the bytes of large responses that are not answered yet, all proxies' together,
// and the part of them that one counts for at the most, so that it takes several slow proxies to hold up the others. A proxy
// has one large response on its way at a time. One that does not answer in time has its stream ended: it keeps what it has
// and connects again.
const (
	maxInFlight   = 64 << 20
	maxWeight     = 8 << 20
	largeResponse = 64 << 10
	answerTimeout = 60 * time.Second
)

// Server is the discovery service of a controller. Create it with [New].
//
// Locks are taken in this order: the source's, if it has one (push.Pusher.mu), mu, a [Proxy]'s, progressedMu or that of refusals. The source holds its own
// while it calls [Server.Update], [Server.ProgressChanges] and [Server.Owes], and while it calls what [Source.Attach] is given, which
// takes mu: so the server calls the source with no lock held. Nobody holds the locks of two proxies.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	ctx      context.Context
	log      *slog.Logger
	now      func() time.Time
	source   Source
	onChange func()
	inFlight *semaphore.Weighted
	metrics  metrics
	refusals *refusalLog

	// mu guards groups and who is in them. It is held while names and references are read or changed, never while
	// anything is translated, marshalled or sent.
	mu       sync.RWMutex
	version  int64
	revision int64
	// proxies are the newest streams by node.
	proxies map[string]*Proxy

	// progressed are the proxies whose answers became others since [Server.ProgressChanges] was asked last; its lock is taken after all
	// others.
	progressedMu sync.Mutex
	progressed   map[*Proxy]struct{}
}

// New makes a server that serves until ctx ends. onChange is called, without locks held, after a proxy connected, left,
// acknowledged or refused something; it must not block. What the server counts is in the registry.
func New(ctx context.Context, log *slog.Logger, now func() time.Time, registry prometheus.Registerer, source Source, onChange func()) *Server {
	s := &Server{ctx: ctx, log: log, now: now, source: source, onChange: onChange,
		inFlight: semaphore.NewWeighted(maxInFlight), proxies: map[string]*Proxy{}, progressed: map[*Proxy]struct{}{}}
	s.metrics = newMetrics(s, registry)
	s.refusals = newRefusalLog(log, func(wait time.Duration, then func()) {
		time.AfterFunc(wait, func() {
			if ctx.Err() == nil {
				then()
			}
		})
	})
	return s
}

// Update changes groups and who is in them, all at once: no proxy is sent a part of it in which something is named that has
// not come before. It gives the change its version, which is one more than that of the last. Revision is that of the store
// from which everything is made now.
func (s *Server) Update(revision int64, changes []Change, moves []Move) (version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.revision = revision
	for _, c := range changes {
		c.Group.apply(c, s.version)
	}
	known := map[journey]*changed{}
	for _, m := range moves {
		// One that has left meanwhile is in no group.
		if m.Proxy.joined {
			m.Proxy.move(m.Groups, s.version, known)
		}
	}
	return s.version
}

// Revision of the store from which everything is made now.
func (s *Server) Revision() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// StreamAggregatedResources serves the state of the world.
func (s *Server) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return serve(s, stream, stream.Recv, (*response).world, (*Proxy).wholeRequest)
}

// DeltaAggregatedResources serves increments.
func (s *Server) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return serve(s, stream, stream.Recv, (*response).delta, (*Proxy).deltaRequest)
}

// request of either variant of the protocol.
type request interface {
	GetNode() *core.Node
	GetTypeUrl() string
}

// serve runs a stream of either variant.
func serve[R request](s *Server, stream grpc.ServerStream, receive func() (R, error), form func(*response) (wire, error), handle func(*Proxy, Type, R) error) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	requests, ended := make(chan R), make(chan error, 1)
	go func() {
		defer close(requests)
		for {
			r, err := receive()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	send := func(r *response) error {
		message, err := form(r)
		if err != nil {
			return err
		}
		return stream.SendMsg(message)
	}
	// Sending may block for as long as the proxy does not read: returning from here ends that too.
	go func() { ended <- exchange(s, ctx, cancel, requests, send, handle) }()
	select {
	case err := <-ended:
		return err
	case <-s.ctx.Done():
		return status.Error(codes.Unavailable, "the controller ends")
	case <-ctx.Done():
		// The proxy went away, or did not answer.
		return status.Error(codes.Unavailable, context.Cause(ctx).Error())
	}
}

// exchange answers a stream's requests and sends what changes, until either ends.
func exchange[R request](s *Server, ctx context.Context, cancel context.CancelCauseFunc, requests <-chan R, send func(*response) error, handle func(*Proxy, Type, R) error) error {
	var p *Proxy
	defer func() {
		if p != nil {
			s.leave(p)
		}
	}()
	again := time.NewTimer(0)
	defer again.Stop()
	var wake <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case r, more := <-requests:
			if !more {
				return nil
			}
			if p == nil {
				var err error
				if p, err = s.join(r.GetNode(), begins(r)); err != nil {
					return err
				}
				wake = p.wake
			}
			if r.GetTypeUrl() == "" {
				return status.Error(codes.InvalidArgument, "a request on an aggregated stream must say its type")
			}
			t, served := typeOf(r.GetTypeUrl())
			if !served {
				p.traceNotServed(r.GetTypeUrl())
				continue
			}
			if d, delta := any(r).(*discovery.DeltaDiscoveryRequest); delta && t == Listeners {
				if err := p.demand(d); err != nil {
					return err
				}
			}
			if err := handle(p, t, r); err != nil {
				return err
			}
			s.onChange()
		case <-wake:
		case <-again.C:
		}
		for p != nil {
			r, wait := p.next()
			if r == nil {
				if wait > 0 {
					again.Reset(wait)
				}
				break
			}
			made := time.Now()
			if err := s.reserve(ctx, cancel, p, r.size); err != nil {
				return err
			}
			if err := send(r); err != nil {
				return err
			}
			s.metrics.pushes.WithLabelValues(r.typ.String()).Inc()
			s.metrics.pushTime.WithLabelValues(r.typ.String()).Observe(time.Since(made).Seconds())
			p.traceSent(r)
		}
	}
}

// reserve waits until a response may be on its way, if it is a large one. Its weight is given back when it is answered.
func (s *Server) reserve(ctx context.Context, cancel context.CancelCauseFunc, p *Proxy, size int) error {
	if size <= largeResponse {
		return nil
	}
	weight := int64(min(size, maxWeight))
	// Who waits holds nothing that others wait for.
	p.mu.Lock()
	if p.giveBack != nil {
		p.giveBack()
		p.giveBack = nil
	}
	p.mu.Unlock()
	if !s.inFlight.TryAcquire(weight) {
		s.metrics.budgetWaits.Inc()
		if err := s.inFlight.Acquire(ctx, weight); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	s.metrics.inFlight.Add(float64(weight))
	late := time.AfterFunc(answerTimeout, func() { cancel(fmt.Errorf("the proxy has not answered a response within %s", answerTimeout)) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveBack = func() {
		late.Stop()
		s.inFlight.Release(weight)
		s.metrics.inFlight.Sub(float64(weight))
	}
	return nil
}

// begins says whether a stream's first request is of a proxy that has nothing yet.
func begins(r any) bool {
	switch r := r.(type) {
	case *discovery.DeltaDiscoveryRequest:
		return len(r.GetInitialResourceVersions()) == 0
	case *discovery.DiscoveryRequest:
		return r.GetVersionInfo() == ""
	}
	return false
}

// join makes the proxy of a stream; the stream's first request names it.
func (s *Server) join(node *core.Node, fresh bool) (*Proxy, error) {
	if node.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the first request of a stream names no node: set node.id in the proxy's bootstrap")
	}
	p := &Proxy{server: s, id: node.GetId(), connected: s.now(), unsettled: s.now(), wake: make(chan struct{}, 1)}
	s.mu.Lock()
	// What is known of answers belongs to a stream, and the newest one counts: an older one that has not been noticed to be
	// dead answers nothing any more.
	older := s.proxies[p.id]
	s.proxies[p.id] = p
	p.joined = true
	if older != nil {
		older.mu.Lock()
		older.noteProgress()
		older.mu.Unlock()
	}
	s.mu.Unlock()
	if err := s.source.Attach(p, node, fresh, func(groups []*Group) {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.move(groups, s.version, map[journey]*changed{})
	}); err != nil {
		s.log.Error("a proxy gets no configuration", "proxy", p.id, "error", err)
		p.mu.Lock()
		p.failure = err.Error()
		p.mu.Unlock()
	}
	p.traceJoined(fresh)
	return p, nil
}

func (s *Server) leave(p *Proxy) {
	s.mu.Lock()
	p.joined = false
	for _, g := range p.groups {
		delete(g.members, p)
	}
	if s.proxies[p.id] == p {
		delete(s.proxies, p.id)
	}
	p.mu.Lock()
	// What it refused, or had not answered, is not said of it any more.
	p.noteProgress()
	p.lighten()
	p.mu.Unlock()
	s.mu.Unlock()
	s.source.Detach(p)
	p.traceLeft()
	s.onChange()
}
