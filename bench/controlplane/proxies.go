package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// proxies take their configuration and acknowledge it.
type proxies struct {
	// count is how many acknowledge at once, which is what is measured.
	count int
	// received counts the bytes of all responses.
	received atomic.Int64
	// expected is what every proxy is to hear of next; nil for nothing.
	expected atomic.Pointer[expectation]
	connects sync.WaitGroup
	ended    chan error
}

// expectation is a resource that every proxy is to be sent.
type expectation struct {
	typeURL, name string
	missing       atomic.Int64
	done          chan struct{}
}

// maxResponse is what the agent takes.
const maxResponse = 256 << 20

// streamsPerConnection is how many proxies one agent speaks for.
const streamsPerConnection = 50

// connect starts the proxies of the first endpoints and returns once all have everything.
func connect(ctx context.Context, size Size, socket string) (*proxies, error) {
	all := &proxies{ended: make(chan error, size.Proxies)}
	for i := range size.Proxies {
		if size.manner(i) == steady {
			all.count++
		}
	}
	all.connects.Add(all.count)
	var connection *grpc.ClientConn
	for i := range size.Proxies {
		if i%streamsPerConnection == 0 {
			var err error
			connection, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
			if err != nil {
				return nil, fmt.Errorf("reach the controller: %w", err)
			}
			context.AfterFunc(ctx, func() { connection.Close() })
		}
		number, as := i*size.Endpoints%(size.Services*size.Endpoints)+i/size.Services, size.manner(i)
		go func() {
			for as == leaving && ctx.Err() == nil {
				visit, leave := context.WithTimeout(ctx, shortStay)
				// That the stay ends is what it is for.
				_ = all.run(visit, connection, size, number, as)
				leave()
			}
			if ctx.Err() != nil {
				return
			}
			if err := all.run(ctx, connection, size, number, as); ctx.Err() == nil {
				all.ended <- err
			}
		}()
	}
	complete := make(chan struct{})
	go func() { all.connects.Wait(); close(complete) }()
	select {
	case <-complete:
		return all, nil
	case err := <-all.ended:
		return nil, fmt.Errorf("a proxy's stream ended: %w", err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run is one proxy.
func (all *proxies) run(ctx context.Context, connection *grpc.ClientConn, size Size, number int, as manner) error {
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: size.node(number).Proto(), TypeUrl: resource.ClusterType}); err != nil {
		return err
	}
	if err := stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.ListenerType}); err != nil {
		return err
	}
	// wanted are the resources asked for by name, true once they came.
	wanted := map[string]map[string]bool{resource.EndpointType: {}, resource.RouteType: {}}
	missing, heard := 0, map[string]bool{}
	connected := false
	var last *expectation
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if as == steady {
			all.received.Add(int64(proto.Size(r)))
		}
		heard[r.GetTypeUrl()] = true
		var ask []string
		kind, name := follows(r.GetTypeUrl())
		for _, one := range r.GetResources() {
			if got, named := wanted[r.GetTypeUrl()][one.GetName()]; named && !got {
				wanted[r.GetTypeUrl()][one.GetName()] = true
				missing--
			}
			if kind == "" {
				continue
			}
			if follower := name(one.GetName()); follower != "" {
				if _, known := wanted[kind][follower]; !known {
					wanted[kind][follower] = false
					missing++
					ask = append(ask, follower)
				}
			}
		}
		if as == slow {
			wait := time.NewTimer(slowAnswer)
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return ctx.Err()
			}
		}
		if err := stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}); err != nil {
			return err
		}
		if len(ask) > 0 {
			if err := stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: kind, ResourceNamesSubscribe: ask}); err != nil {
				return err
			}
		}
		if as == steady && !connected && missing == 0 && heard[resource.ClusterType] && heard[resource.ListenerType] {
			connected = true
			all.connects.Done()
		}
		if e := all.expected.Load(); as == steady && e != nil && e != last && e.in(r) {
			last = e
			if e.missing.Add(-1) == 0 {
				close(e.done)
			}
		}
	}
}

// follows says which resources a proxy asks for by name once it has those of a type, and how they are called.
func follows(typeURL string) (kind string, name func(string) string) {
	switch typeURL {
	case resource.ClusterType:
		return resource.EndpointType, func(cluster string) string {
			if strings.HasPrefix(cluster, "outbound|") {
				return cluster
			}
			return ""
		}
	case resource.ListenerType:
		return resource.RouteType, func(listener string) string {
			port, _ := strings.CutPrefix(listener, "0.0.0.0_")
			if port == listener {
				return ""
			}
			return port
		}
	}
	return "", nil
}

func (e *expectation) in(r *discovery.DeltaDiscoveryResponse) bool {
	if r.GetTypeUrl() != e.typeURL {
		return false
	}
	for _, one := range r.GetResources() {
		if one.GetName() == e.name {
			return true
		}
	}
	return false
}

// arrival makes a change and returns how long it takes until every proxy has acknowledged a resource, and how many bytes
// they were sent meanwhile.
func (all *proxies) arrival(ctx context.Context, typeURL, name string, change func() error) (time.Duration, int64, error) {
	e := &expectation{typeURL: typeURL, name: name, done: make(chan struct{})}
	e.missing.Store(int64(all.count))
	all.expected.Store(e)
	defer all.expected.Store(nil)
	before, started := all.received.Load(), time.Now()
	if err := change(); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	select {
	case <-e.done:
		return time.Since(started), all.received.Load() - before, nil
	case err := <-all.ended:
		return 0, 0, fmt.Errorf("a proxy's stream ended: %w", err)
	case <-ctx.Done():
		return 0, 0, errors.Join(ctx.Err(), fmt.Errorf("%d of %d proxies were not sent %s", e.missing.Load(), all.count, name))
	}
}
