package push

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/test/bufconn"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
)

// wanderer is a proxy that leaves and comes back, sometimes with what it has and sometimes with nothing.
type wanderer struct {
	node   translate.Node
	random *rand.Rand

	mu sync.Mutex
	// has are the versions of what it was sent, by type and name.
	has map[string]map[string]string
}

// visit connects until ctx ends or so many responses came, none for no bound.
func (w *wanderer) visit(ctx context.Context, t *testing.T, conns *bufconn.Listener, responses int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn := dial(t, conns)
	defer conn.Close()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return
	}
	// What cannot be sent ends the stream, and so the visit.
	send := func(r *discovery.DeltaDiscoveryRequest) { _ = stream.Send(r) }
	w.mu.Lock()
	if w.random.IntN(2) == 0 {
		w.has = map[string]map[string]string{}
	}
	asked := map[string]map[string]bool{resource.EndpointType: {}, resource.RouteType: {}}
	node := w.node.Proto()
	for _, typeURL := range []string{resource.ClusterType, resource.ListenerType} {
		send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, InitialResourceVersions: maps.Clone(w.has[typeURL])})
	}
	for typeURL, follower := range followers {
		for name := range w.has[typeURL] {
			if name = w.followed(typeURL, name); name != "" {
				asked[follower][name] = true
			}
		}
		if names := slices.Collect(maps.Keys(asked[follower])); len(names) > 0 {
			send(&discovery.DeltaDiscoveryRequest{TypeUrl: follower, ResourceNamesSubscribe: names, InitialResourceVersions: maps.Clone(w.has[follower])})
		}
	}
	w.mu.Unlock()
	for n := 0; responses == 0 || n < responses; n++ {
		r, err := stream.Recv()
		if err != nil {
			return
		}
		w.mu.Lock()
		if w.has[r.GetTypeUrl()] == nil {
			w.has[r.GetTypeUrl()] = map[string]string{}
		}
		var ask []string
		follower := followers[r.GetTypeUrl()]
		for _, one := range r.GetResources() {
			w.has[r.GetTypeUrl()][one.GetName()] = one.GetVersion()
			if name := w.followed(r.GetTypeUrl(), one.GetName()); name != "" && !asked[follower][name] {
				asked[follower][name] = true
				ask = append(ask, name)
			}
		}
		// What follows from something goes with it.
		var drop []string
		for _, name := range r.GetRemovedResources() {
			delete(w.has[r.GetTypeUrl()], name)
			if name := w.followed(r.GetTypeUrl(), name); name != "" {
				delete(w.has[follower], name)
				delete(asked[follower], name)
				drop = append(drop, name)
			}
		}
		w.mu.Unlock()
		send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
		if len(ask)+len(drop) > 0 {
			send(&discovery.DeltaDiscoveryRequest{TypeUrl: follower, ResourceNamesSubscribe: ask, ResourceNamesUnsubscribe: drop})
		}
	}
}

// followers are the types that proxies ask for by names that stand in others.
var followers = map[string]string{resource.ClusterType: resource.EndpointType, resource.ListenerType: resource.RouteType}

// followed is the name to ask for, empty for none.
func (w *wanderer) followed(typeURL, name string) string {
	switch typeURL {
	case resource.ClusterType:
		return name
	case resource.ListenerType:
		port, of := strings.CutPrefix(name, "0.0.0.0_")
		switch {
		case !of:
			return ""
		case strings.HasPrefix(port, "15"):
			return ""
		case w.node.Type == translate.Router:
			return "http." + port
		}
		return port
	}
	return ""
}

// leadsTo says whether a listener that it has takes its routes from that table.
func (w *wanderer) leadsTo(table string) bool {
	for name := range w.has[resource.ListenerType] {
		if w.followed(resource.ListenerType, name) == table {
			return true
		}
	}
	return false
}

// differs says what the proxy has and should not have, or the other way round.
func (w *wanderer) differs(want map[string]string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := map[string]string{}
	for typeURL, short := range map[string]string{resource.ClusterType: "CDS", resource.EndpointType: "EDS", resource.ListenerType: "LDS", resource.RouteType: "RDS"} {
		for name, version := range w.has[typeURL] {
			got[short+" "+name] = version
		}
	}
	for key, text := range want {
		version, _, _ := strings.Cut(text, " ")
		// A patch may have removed what leads to it: it is asked for by nobody.
		if name, routes := strings.CutPrefix(key, "RDS "); routes && !w.leadsTo(name) {
			continue
		}
		if got[key] != version {
			return fmt.Sprintf("%s has %s %q, want %q", w.node.ID(), key, got[key], version)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		return fmt.Sprintf("%s still has %v", w.node.ID(), got)
	}
	return ""
}

var long = flag.Bool("long", false, "make 100 changes a second for a minute while proxies come and go, instead of 300 as fast as it goes")

// TestProxiesThatComeAndGoEndWithWhatAFreshOneGets makes changes of all sorts while proxies connect, leave and come back.
func TestProxiesThatComeAndGoEndWithWhatAFreshOneGets(t *testing.T) {
	p := newPusher(t)
	conns := bufconn.Listen(1 << 16)
	g := p.Server().GRPC()
	go func() { _ = g.Serve(conns) }()
	defer g.Stop()
	bound := 2 * time.Minute
	if *long {
		bound = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	stay := make(chan struct{})
	told := &told{pusher: p, of: map[objects.Key]Progress{}}
	var all []*wanderer
	for i, labels := range []map[string]string{{"app": "s-0"}, {"app": "s-1"}, {"app": "s-2"}, {"app": "s-1"}, {"istio": "ingressgateway"}, {"istio": "eastwestgateway"}} {
		n := translate.Node{
			Type: translate.Sidecar, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Name: fmt.Sprintf("%s-%d", labels["app"], i), Namespace: spaces[i%2],
			Domain: "cluster.local", Labels: labels, Heddle: true,
		}
		if labels["istio"] != "" {
			n.Type, n.Namespace, n.Name = translate.Router, "istio-system", labels["istio"]
		}
		one := &wanderer{node: n, random: rand.New(rand.NewPCG(3, uint64(i))), has: map[string]map[string]string{}}
		all = append(all, one)
		go func() {
			for {
				select {
				case <-stay:
					one.visit(ctx, t, conns, 0)
					return
				default:
					one.visit(ctx, t, conns, 1+one.random.IntN(12))
				}
			}
		}()
	}
	w := newTown(t, 4)
	changes := 300
	var pace <-chan time.Time
	if *long {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		changes, pace = 6000, ticker.C
	}
	for range changes {
		if pace != nil {
			<-pace
		}
		w.change()
		w.update(p)
		told.look()
	}
	close(stay)
	// Those that wait for a response before they leave are woken by one more change.
	w.put("apiVersion: v1\nkind: Service\nmetadata: {name: s-9, namespace: red}\nspec: {selector: {app: s-0}, ports: [{name: http, port: 80, targetPort: 8080}]}\n")
	w.update(p)
	fresh := w.fresh(t)
	for _, one := range all {
		want := fresh.config(t, fresh.attach(t, one.node))
		look := time.NewTicker(10 * time.Millisecond)
		for one.differs(want) != "" {
			select {
			case <-look.C:
			case <-ctx.Done():
				t.Fatal(one.differs(want))
			}
		}
		look.Stop()
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for told.differs(w) != "" {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal(told.differs(w))
		}
	}
}

// told is what somebody knows of objects who asks for those alone that are said to have changed.
type told struct {
	pusher *Pusher
	of     map[objects.Key]Progress
}

func (o *told) look() { maps.Copy(o.of, o.pusher.Progress(o.pusher.Changed())) }

// said is what of how far an object is stands in its status: how many proxies there are is not said, but whether there are any.
func said(p Progress) Progress {
	p.Proxies, p.Waiting, p.Refusing = min(p.Proxies, 1), min(p.Waiting, 1), 0
	return p
}

// differs says what is not known as it is. Answers that come meanwhile do not count: they are heard of at the next look.
func (o *told) differs(w *town) string {
	o.look()
	for key, is := range o.pusher.Progress(slices.Collect(maps.Keys(w.objects))) {
		// What proxies are told and what an object is made of are the same for one that nobody has a part of.
		if got := o.of[key]; !reflect.DeepEqual(said(got), said(is)) && got.Proxies+is.Proxies > 0 {
			return fmt.Sprintf("%s: known is %+v, but it is %+v", key, got, is)
		}
	}
	return ""
}
