package push

import (
	"fmt"
	"net/netip"
	"testing"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// patchedTown has two services in two namespaces, and proxies of both.
func patchedTown(t *testing.T) (*town, *Pusher, []attached) {
	w, p := newTown(t, 1), newPusher(t)
	var all []attached
	for i, ns := range []string{"red", "green"} {
		w.put(fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s-%d, namespace: %s}\nspec: {selector: {app: s-%d}, ports: [{name: http, port: 80}]}\n", i, ns, i))
		w.setReplica(w.instance(ns, fmt.Sprintf("s-%d", i), 0))
		all = append(all, p.attach(t, translate.Node{
			Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: fmt.Sprintf("s-%d-0", i), Namespace: ns, Domain: "cluster.local",
			Labels: map[string]string{"app": fmt.Sprintf("s-%d", i)}, Heddle: true,
		}))
	}
	return w, p, all
}

func (p *Pusher) resource(a attached, t xds.Type, name string) *xds.Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.proxies[a.proxy].groups {
		if r := g.group.Resource(t, name); r != nil {
			return r
		}
	}
	return nil
}

// filter is an EnvoyFilter with one patch of the clusters of s-0.
func filter(namespace, timeout string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: timeouts, namespace: %s}\n"+
		"spec: {configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: s-0.red.svc.cluster.local}}, "+
		"patch: {operation: MERGE, value: {connect_timeout: %s}}}]}\n", namespace, timeout)
}

// TestSamePatchesAreSharedResources: proxies of different kinds with the same patches have the same resource, not only the same
// bytes; what is not patched is shared with everybody; and a changed replica changes the endpoints of the patched cluster.
func TestSamePatchesAreSharedResources(t *testing.T) {
	const patched, other = "outbound|80||s-0.red.svc.cluster.local", "outbound|80||s-1.green.svc.cluster.local"
	w, p, all := patchedTown(t)
	w.update(p)
	plain := p.resource(all[0], xds.Clusters, patched)
	w.put(filter("istio-system", "3s"))
	w.update(p)
	red, green := p.resource(all[0], xds.Clusters, patched), p.resource(all[1], xds.Clusters, patched)
	if red != green || red == plain {
		t.Errorf("with the same patches there are %p and %p, without %p", red, green, plain)
	}
	// One namespace has another patch besides: the cluster that it does not concern is still one for all.
	w.put(filter("green", "4s"))
	w.update(p)
	if r, g := p.resource(all[0], xds.Clusters, patched), p.resource(all[1], xds.Clusters, patched); r != red || g == red {
		t.Errorf("red has %p, had %p; green has %p", r, red, g)
	}
	if r, g := p.resource(all[0], xds.Clusters, other), p.resource(all[1], xds.Clusters, other); r != g {
		t.Errorf("what is not patched is %p and %p", r, g)
	}
	before := []*xds.Resource{p.resource(all[0], xds.Endpoints, patched), p.resource(all[1], xds.Endpoints, patched)}
	i := w.replicas["red/s-0-0"]
	i.Ready = false
	w.setReplica(i)
	w.update(p)
	for n, a := range all {
		if now := p.resource(a, xds.Endpoints, patched); now == before[n] || now.Version() == before[n].Version() {
			t.Errorf("proxy %d has the endpoints that it had", n)
		}
	}
}

// TestPatchesAreJudged says which patches change nothing, and which are left out; a change that mends one is heard of.
func TestPatchesAreJudged(t *testing.T) {
	w, p, _ := patchedTown(t)
	text := filter("red", "-3s")
	w.put(text[:len(text)-3] + ", {applyTo: CLUSTER, match: {cluster: {name: nowhere}}, patch: {operation: REMOVE}}]}\n")
	w.update(p)
	key := objects.Key{Group: "networking.istio.io", Kind: "EnvoyFilter", Namespace: "red", Name: "timeouts"}
	got := progressOf(p, key)
	if len(got.Idle) != 1 || got.Idle[0] != "spec.configPatches[1]" || len(got.Broken) != 1 || len(got.Broken["spec.configPatches[0]"]) != 1 {
		t.Errorf("%+v", got)
	}
	w.put(filter("red", "3s"))
	w.update(p)
	if got := progressOf(p, key); len(got.Idle)+len(got.Broken) > 0 {
		t.Errorf("after it was mended: %+v", got)
	}
}

// TestASweepForgetsNoRefusal: what is said of a patch that adds what servers have already stays when what nobody uses is forgotten.
func TestASweepForgetsNoRefusal(t *testing.T) {
	w, p, _ := patchedTown(t)
	w.put("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: twice, namespace: red}\nspec: {configPatches: [" +
		"{applyTo: CLUSTER, match: {context: SIDECAR_INBOUND}, patch: {operation: ADD, value: {name: InboundPassthroughCluster, connect_timeout: 1s}}}]}\n")
	w.update(p)
	key := objects.Key{Group: "networking.istio.io", Kind: "EnvoyFilter", Namespace: "red", Name: "twice"}
	if got := progressOf(p, key); len(got.Broken) != 1 {
		t.Fatalf("%+v", got)
	}
	p.sweep()
	for _, g := range p.groups {
		p.judge(g)
	}
	if got := progressOf(p, key); len(got.Broken) != 1 || len(got.Idle) != 0 {
		t.Errorf("after a sweep: %+v", got)
	}
}
