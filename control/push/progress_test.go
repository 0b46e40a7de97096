package push

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// TestProgressOfObjects has sidecars take their configuration over a network: an object is where the proxies that use it are,
// each counted once, and one that moves to another kind is sent what differs there.
func TestProgressOfObjects(t *testing.T) {
	changed := make(chan struct{}, 1)
	p := New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), noDependencies(t), func(source xds.Source) *xds.Server {
		return xds.New(t.Context(), slog.New(slog.DiscardHandler), time.Now, prometheus.NewRegistry(), source, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	w := newTown(t, 1)
	update := func(text string) {
		t.Helper()
		w.put(text)
		w.update(p)
	}
	update("apiVersion: v1\nkind: Service\nmetadata: {name: s-0, namespace: red}\nspec: {selector: {app: s-0}, ports: [{name: http, port: 80, targetPort: 8080}]}\n")
	conns := bufconn.Listen(1 << 16)
	g := p.Server().GRPC()
	go func() { _ = g.Serve(conns) }()
	defer g.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	refuse := make(chan struct{})
	heard := make(chan string, 100)
	for _, s := range []string{"s-0", "s-1"} {
		node := translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: s + "-0", Namespace: "red", Domain: "cluster.local", Labels: map[string]string{"app": s}, Heddle: true}
		go follow(ctx, t, conns, node, func(r *discovery.DeltaDiscoveryResponse) *rpcstatus.Status {
			for _, one := range r.GetResources() {
				if s == "s-1" && r.GetTypeUrl() == resource.RouteType && strings.Contains(string(one.GetResource().GetValue()), "for-one") {
					heard <- s
				}
				if strings.Contains(string(one.GetResource().GetValue()), "bad") && r.GetTypeUrl() == resource.RouteType {
					select {
					case <-refuse:
						return &rpcstatus.Status{Message: "no such thing"}
					case <-ctx.Done():
					}
				}
			}
			return nil
		})
	}
	reached := func(what string, holds func(Progress) bool, key objects.Key) {
		t.Helper()
		for !holds(progressOf(p, key)) {
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("%s: %+v %+v", what, progressOf(p, key), p.Server().Nodes())
			}
		}
	}
	service := objects.Key{Kind: "Service", Namespace: "red", Name: "s-0"}
	policy := objects.Key{Group: "security.istio.io", Kind: "AuthorizationPolicy", Namespace: "red", Name: "p"}
	routes := objects.Key{Group: "networking.istio.io", Kind: "VirtualService", Namespace: "red", Name: "r"}
	reached("both run the service", func(p Progress) bool { return p.Running() == 2 && p.Version == "1" }, service)
	update("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: red}\nspec: {selector: {matchLabels: {app: s-0}}, action: ALLOW, rules: [{}]}\n")
	reached("one runs the policy", func(p Progress) bool { return p.Running() == 1 && p.Proxies == 1 }, policy)
	// Labels count from now on, and who has them moves.
	if len(p.groups) != 3 {
		t.Errorf("%d kinds, want one of clients and two of servers", len(p.groups))
	}
	update("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: red}\n" +
		"spec: {hosts: [s-0], http: [{name: for-one, match: [{sourceLabels: {app: s-1}}], route: [{destination: {host: s-0}}]}, {route: [{destination: {host: s-0}}]}]}\n")
	select {
	case <-heard:
	case <-ctx.Done():
		t.Fatal("the routes for one were not sent to it")
	}
	reached("both run the routes", func(p Progress) bool { return p.Running() == 2 }, routes)
	update("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: red}\n" +
		"spec: {hosts: [s-0], http: [{name: bad, route: [{destination: {host: s-0}}]}]}\n")
	if got := p.Progress([]objects.Key{routes, policy, service}); got[routes].Waiting != 2 || got[policy].Waiting != 0 || got[service].Waiting != 0 || got[service].Running() != 2 {
		t.Errorf("routes %+v, policy %+v, service %+v", got[routes], got[policy], got[service])
	}
	close(refuse)
	reached("both refuse the routes", func(p Progress) bool { return len(p.Refused) == 2 && p.Running() == 0 }, routes)
	if got := progressOf(p, service); got.Running() != 2 {
		t.Errorf("the service is taken back: %+v", got)
	}
}

func progressOf(p *Pusher, key objects.Key) Progress { return p.Progress([]objects.Key{key})[key] }

// follow is a proxy that acknowledges what answer has nothing against.
func follow(ctx context.Context, t *testing.T, conns *bufconn.Listener, node translate.Node, answer func(*discovery.DeltaDiscoveryResponse) *rpcstatus.Status) {
	conn := dial(t, conns)
	defer conn.Close()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	// What cannot be sent ends the stream, and so the loop.
	send := func(r *discovery.DeltaDiscoveryRequest) { _ = stream.Send(r) }
	send(&discovery.DeltaDiscoveryRequest{Node: node.Proto(), TypeUrl: resource.ClusterType})
	send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.ListenerType})
	for {
		r, err := stream.Recv()
		if err != nil {
			return
		}
		send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: answer(r)})
		for _, one := range r.GetResources() {
			switch name := one.GetName(); {
			case r.GetTypeUrl() == resource.ClusterType && strings.HasPrefix(name, "outbound|"):
				send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{name}})
			case name == "0.0.0.0_80":
				send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.RouteType, ResourceNamesSubscribe: []string{"80"}})
			}
		}
	}
}

func dial(t *testing.T, conns *bufconn.Listener) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///xds", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return conns.DialContext(ctx) }))
	if err != nil {
		t.Error(err)
	}
	return conn
}
