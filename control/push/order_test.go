package push

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/translate"
)

// TestRoutesLeadToWhatIsThere renames a subset, and moves all routes to it, again and again, in one change each. A proxy that
// answers late must never have a route to a cluster that it has not, or that has no endpoints yet, and in the end have nothing
// of the former names.
func TestRoutesLeadToWhatIsThere(t *testing.T) {
	p := newPusher(t)
	conns := bufconn.Listen(1 << 16)
	g := p.Server().GRPC()
	go func() { _ = g.Serve(conns) }()
	defer g.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := newTown(t, 5)
	w.setReplica(w.instance("red", "s-0", 0))
	w.put("apiVersion: v1\nkind: Service\nmetadata: {name: s-0, namespace: red}\nspec: {selector: {app: s-0}, ports: [{name: http, port: 80, targetPort: 8080}]}\n")
	rename := func(to int) {
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: s-0, namespace: red}\n"+
			"spec: {host: s-0, subsets: [{name: n%d, labels: {app: s-0}}]}\n", to))
		w.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: s-0, namespace: red}\n"+
			"spec: {hosts: [s-0], http: [{route: [{destination: {host: s-0, subset: n%d}}]}]}\n", to))
		w.update(p)
	}
	rename(0)
	conn := dial(t, conns)
	defer conn.Close()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	node := translate.Node{
		Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: "s-1-0", Namespace: "red", Domain: "cluster.local",
		Labels: map[string]string{"app": "s-1"}, Heddle: true,
	}.Proto()
	send := func(r *discovery.DeltaDiscoveryRequest) {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.ClusterType})
	send(&discovery.DeltaDiscoveryRequest{TypeUrl: resource.ListenerType})
	const renames = 40
	has, leads, renamed, answered := map[string]map[string]bool{}, "", 0, 0
	for last := fmt.Sprintf("outbound|80|n%d|s-0.red.svc.cluster.local", renames); ; {
		r, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %d renames and %d responses: %v", renamed, answered, err)
		}
		if has[r.TypeUrl] == nil {
			has[r.TypeUrl] = map[string]bool{}
		}
		var ask []string
		for _, one := range r.Resources {
			has[r.TypeUrl][one.Name] = true
			switch {
			case r.TypeUrl == resource.ClusterType:
				ask = append(ask, one.Name)
			case r.TypeUrl == resource.ListenerType && one.Name == "0.0.0.0_80":
				ask = append(ask, "80")
			case r.TypeUrl == resource.RouteType:
				table := &routev3.RouteConfiguration{}
				if err := proto.Unmarshal(one.Resource.Value, table); err != nil {
					t.Fatal(err)
				}
				at := slices.IndexFunc(table.VirtualHosts, func(h *routev3.VirtualHost) bool { return h.Name == "s-0.red.svc.cluster.local:80" })
				leads = table.VirtualHosts[at].Routes[0].GetRoute().GetCluster()
			}
		}
		for _, name := range r.RemovedResources {
			delete(has[r.TypeUrl], name)
		}
		if leads != "" && (!has[resource.ClusterType][leads] || !has[resource.EndpointType][leads]) {
			t.Fatalf("after %d renames and %d responses, routes lead to %s, and there are clusters %v with endpoints %v",
				renamed, answered, leads, has[resource.ClusterType], has[resource.EndpointType])
		}
		if answered++; len(ask) > 0 {
			send(&discovery.DeltaDiscoveryRequest{TypeUrl: followers[r.TypeUrl], ResourceNamesSubscribe: ask})
		}
		// The next change is there before this response is answered: what it removes is in use still.
		if leads != "" && renamed < renames {
			renamed++
			rename(renamed)
		}
		send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
		former := 0
		for name := range has[resource.ClusterType] {
			if name != last && len(name) > 12 && name[:13] == "outbound|80|n" {
				former++
			}
		}
		if renamed == renames && leads == last && former == 0 {
			return
		}
	}
}
