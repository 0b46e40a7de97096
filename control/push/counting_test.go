package push

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/test/bufconn"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// TestOneOfManyProxiesChangesNoStatus: of what an object's status says, one more proxy that uses it changes nothing, nor does one less,
// but for the first and the last.
func TestOneOfManyProxiesChangesNoStatus(t *testing.T) {
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
	w.put("apiVersion: v1\nkind: Service\nmetadata: {name: s-0, namespace: red}\nspec: {selector: {app: s-0}, ports: [{name: http, port: 80, targetPort: 8080}]}\n")
	w.update(p)
	conns := bufconn.Listen(1 << 16)
	g := p.Server().GRPC()
	go func() { _ = g.Serve(conns) }()
	defer g.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	reach := func(what string, holds func() bool) {
		t.Helper()
		for !holds() {
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("%s: %+v", what, p.Server().Nodes())
			}
		}
	}
	service := objects.Key{Kind: "Service", Namespace: "red", Name: "s-0"}
	comes := func(name string) context.CancelFunc {
		t.Helper()
		visit, leave := context.WithCancel(ctx)
		node := translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: name, Namespace: "red", Domain: "cluster.local", Labels: map[string]string{"app": "s-0"}, Heddle: true}
		go follow(visit, t, conns, node, func(*discovery.DeltaDiscoveryResponse) *rpcstatus.Status { return nil })
		reach(name+" has everything", func() bool {
			return slices.ContainsFunc(p.Server().Nodes(), func(n xds.NodeStatus) bool {
				return n.ID == node.ID() && !slices.ContainsFunc(n.Types, func(t xds.TypeStatus) bool { return t.State != xds.Synced && t.Type != xds.Secrets.String() })
			})
		})
		return leave
	}
	goes := func(leave context.CancelFunc, left int) {
		t.Helper()
		leave()
		reach("one has left", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.proxies) == left
		})
	}
	first := comes("s-0-0")
	if got := p.Changed(); !slices.Contains(got, service) {
		t.Errorf("of the first is said %v", got)
	}
	second := comes("s-0-1")
	// What it answered on its way is of the change that brought the service.
	p.Changed()
	if got := p.Progress([]objects.Key{service})[service]; got.Running() != 2 {
		t.Errorf("two run it: %+v", got)
	}
	goes(second, 1)
	if got := p.Changed(); len(got) != 0 {
		t.Errorf("of one of two that left is said %v", got)
	}
	if got := p.Progress([]objects.Key{service})[service]; got.Running() != 1 {
		t.Errorf("one runs it: %+v", got)
	}
	goes(first, 0)
	if got := p.Changed(); !slices.Contains(got, service) {
		t.Errorf("of the last that left is said %v", got)
	}
}
