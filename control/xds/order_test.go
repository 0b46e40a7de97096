package xds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// talk is a proxy without a network: requests go in, what is to be sent comes out, and the clock is the test's.
type talk struct {
	t   *testing.T
	p   *Proxy
	now time.Time
	// last response of each type.
	last map[Type]*response
}

func newTalk(t *testing.T, w *world) *talk {
	t.Helper()
	c := &talk{t: t, now: time.Unix(1, 0), last: map[Type]*response{}}
	w.server.now = func() time.Time { return c.now }
	p, err := w.server.join(&core.Node{Id: "n"}, true)
	if err != nil {
		t.Fatal(err)
	}
	c.p = p
	return c
}

// asks subscribes to names, none for all.
func (c *talk) asks(typ Type, names ...string) {
	c.t.Helper()
	c.request(typ, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: names})
}

func (c *talk) request(typ Type, r *discovery.DeltaDiscoveryRequest) {
	c.t.Helper()
	if err := c.p.deltaRequest(typ, r); err != nil {
		c.t.Fatal(err)
	}
}

// answers the last response of a type.
func (c *talk) answers(typ Type) {
	c.t.Helper()
	c.request(typ, &discovery.DeltaDiscoveryRequest{ResponseNonce: c.last[typ].nonce})
}

// refuses some of the last response of a type, and says so; without names, all of it.
func (c *talk) refuses(typ Type, reason string, names ...string) {
	c.t.Helper()
	refusal := &rpcstatus.Status{Message: reason}
	for _, name := range names {
		detail, err := anypb.New(&errdetails.ResourceInfo{ResourceName: name})
		if err != nil {
			c.t.Fatal(err)
		}
		refusal.Details = append(refusal.Details, detail)
	}
	c.request(typ, &discovery.DeltaDiscoveryRequest{ResponseNonce: c.last[typ].nonce, ErrorDetail: refusal})
}

// hears checks everything that is sent now, each response as "CDS a b -c".
func (c *talk) hears(want ...string) {
	c.t.Helper()
	var got []string
	for {
		r, _ := c.p.next()
		if r == nil {
			break
		}
		c.last[r.typ] = r
		text := r.typ.String()
		for _, one := range r.resources {
			text += " " + one.Name()
		}
		for _, name := range r.removed {
			text += " -" + name
		}
		got = append(got, text)
	}
	if !slices.Equal(got, want) {
		c.t.Fatalf("got %q, want %q", got, want)
	}
}

// mesh is a cluster with endpoints for each name, and a listener whose routes lead to them all. With "name=text" the cluster
// says something else, with "name@text" its endpoints do.
func mesh(names ...string) []proto.Message {
	var all []proto.Message
	table := &route.RouteConfiguration{Name: "80"}
	for _, name := range names {
		c, e := &cluster.Cluster{}, &endpoint.ClusterLoadAssignment{}
		var text string
		if c.Name, text, _ = strings.Cut(name, "@"); text != "" {
			e.Endpoints = []*endpoint.LocalityLbEndpoints{{Locality: &core.Locality{Zone: text}}}
		}
		c.Name, c.AltStatName, _ = strings.Cut(c.Name, "=")
		e.ClusterName = c.Name
		table.VirtualHosts = append(table.VirtualHosts, &route.VirtualHost{Name: c.Name})
		all = append(all, c, e)
	}
	return append(all, &listener.Listener{Name: "0.0.0.0_80"}, table)
}

// connected is a proxy that has everything.
func connected(t *testing.T, names ...string) (*world, *talk) {
	t.Helper()
	w, _ := start(t)
	w.has(mesh(names...)...)
	c := newTalk(t, w)
	c.asks(Clusters)
	c.asks(Listeners)
	c.hears("CDS " + strings.Join(names, " "))
	c.asks(Endpoints, names...)
	c.hears("EDS " + strings.Join(names, " "))
	c.answers(Clusters)
	c.hears("LDS 0.0.0.0_80")
	c.asks(Routes, "80")
	c.hears("RDS 80")
	for _, typ := range []Type{Endpoints, Listeners, Routes} {
		c.answers(typ)
	}
	c.hears()
	if n := w.server.Nodes()[0]; !n.Synced || len(w.server.Unsettled()) > 0 {
		t.Fatalf("%+v", n)
	}
	return w, c
}

// TestWhatIsHeldBackIsStale: a type that waits for the answer to another one is not up to date, though nothing of it is sent.
func TestWhatIsHeldBackIsStale(t *testing.T) {
	w, c := connected(t, "a")
	states := func() (out map[string]State, behind int64) {
		n := w.server.Nodes()[0]
		out = map[string]State{}
		for _, one := range n.Types {
			out[one.Type] = one.State
		}
		return out, n.Behind
	}
	if got, behind := states(); got["CDS"] != Synced || got["RDS"] != Synced || behind != 0 {
		t.Fatalf("before: %v, behind with %d", got, behind)
	}
	version := w.has(mesh("a", "b")...)
	want := map[string]State{"CDS": Stale, "LDS": Synced, "EDS": Synced, "RDS": Stale, "SDS": NotAsked}
	if got, behind := states(); !maps.Equal(got, want) || behind != version {
		t.Errorf("nothing is sent: %v, behind with %d, not %d", got, behind, version)
	}
	c.hears("CDS b")
	if got, behind := states(); !maps.Equal(got, want) || behind != version {
		t.Errorf("routes wait for the clusters' answer: %v, behind with %d, not %d", got, behind, version)
	}
	c.answers(Clusters)
	c.asks(Endpoints, "b")
	c.hears("EDS b", "RDS 80")
	c.answers(Endpoints)
	c.answers(Routes)
	want["CDS"], want["RDS"] = Synced, Synced
	if got, behind := states(); !maps.Equal(got, want) || behind != 0 {
		t.Errorf("everything is answered: %v, behind with %d", got, behind)
	}
}

func TestNothingIsNamedBeforeItIsThere(t *testing.T) {
	w, c := connected(t, "a")
	w.has(mesh("a", "b")...)
	c.hears("CDS b")
	// Its acknowledgement alone is not enough: the proxy has no endpoints of b, and so does not use it.
	c.answers(Clusters)
	c.hears()
	c.asks(Endpoints, "b")
	c.hears("EDS b", "RDS 80")
	c.answers(Endpoints)
	c.answers(Routes)
	// One that does not ask for endpoints does not need them, and gets routes all the same.
	w.has(mesh("a", "b", "c")...)
	c.hears("CDS c")
	c.answers(Clusters)
	c.now = c.now.Add(warmLimit)
	c.hears("RDS 80")
}

// A listener that was asked for by name, beside all others, is answered when all that came with it is in force; so is one that
// there is not.
func TestWhatIsAskedForOnDemandIsAnsweredLast(t *testing.T) {
	w, c := connected(t, "a")
	w.has(mesh("a", "b")...)
	c.asks(Listeners, "10.0.0.1_80")
	c.hears("CDS b")
	c.answers(Clusters)
	c.asks(Endpoints, "b")
	c.hears("EDS b", "RDS 80")
	c.answers(Endpoints)
	c.answers(Routes)
	c.hears("LDS -10.0.0.1_80")
	c.answers(Listeners)
	c.hears()
	// One that there is comes, though the proxy has it.
	c.asks(Listeners, "0.0.0.0_80")
	c.hears("LDS 0.0.0.0_80")
	c.answers(Listeners)
	// One that is not asked for any more is still among all, of which the proxy is told once more.
	c.request(Listeners, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"10.0.0.2_80"}, ResourceNamesUnsubscribe: []string{"10.0.0.1_80"}})
	c.hears("LDS -10.0.0.1_80")
	c.answers(Listeners)
	c.hears("LDS -10.0.0.2_80")
}

func TestWhatIsUsedIsRemovedLast(t *testing.T) {
	w, c := connected(t, "a", "b")
	w.has(mesh("a")...)
	c.hears("RDS 80")
	c.answers(Routes)
	c.hears("CDS -b")
	c.answers(Clusters)
	c.hears("EDS -b")
	c.answers(Endpoints)
	// A proxy that refuses the routes goes on with older ones, and with the clusters that these name.
	w.has(mesh("c")...)
	c.hears("CDS c")
	c.asks(Endpoints, "c")
	c.answers(Endpoints)
	c.answers(Clusters)
	c.hears("EDS c", "RDS 80")
	c.answers(Endpoints)
	c.refuses(Routes, "no")
	c.hears()
	if got := w.server.Unsettled(); len(got) > 0 {
		t.Errorf("waited for are %q", got)
	}
	w.has(mesh("d")...)
	c.hears("CDS d")
	c.asks(Endpoints, "d")
	c.answers(Clusters)
	c.hears("EDS d", "RDS 80")
	c.answers(Endpoints)
	c.answers(Routes)
	c.hears("CDS -a -c")
}

// TestEndpointsNeverOvertakeTheirCluster has a proxy that answers clusters late, as Envoy does while clusters warm. Whatever
// changes meanwhile, each changed cluster must be followed by its endpoints.
func TestEndpointsNeverOvertakeTheirCluster(t *testing.T) {
	w, c := connected(t, "a", "b")
	w.has(mesh("a=2", "b")...)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	// The next version waits, with its endpoints; those of another cluster do not.
	w.has(mesh("a=3@new", "b@new")...)
	c.hears("EDS b")
	w.has(mesh("a=4@newer", "b@new")...)
	c.answers(Endpoints)
	c.hears()
	c.answers(Clusters)
	c.hears("CDS a", "EDS a")
	if got := c.last[Endpoints].resources[0].Version(); !strings.HasSuffix(got, "-"+c.last[Clusters].resources[0].Version()) {
		t.Errorf("the endpoints are of another version of the cluster: %s", got)
	}
	// A proxy that never answers is stuck already.
	w.has(mesh("a=5@newer", "b@new")...)
	c.hears()
	_, wait := c.p.next()
	if wait != holdLimit {
		t.Errorf("looked at again after %s", wait)
	}
	c.now = c.now.Add(holdLimit)
	c.hears("CDS a", "EDS a")
}

func TestWhatWasRefusedTogetherComesAgain(t *testing.T) {
	w, c := connected(t, "a", "b", "c")
	w.has(mesh("a=bad", "b=good", "c")...)
	c.hears("CDS a b", "EDS a b")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad")
	version := w.has(mesh("a=bad", "b=good", "c=2")...)
	c.hears("CDS c", "EDS c")
	c.answers(Endpoints)
	c.answers(Clusters)
	if n := w.server.Nodes()[0]; n.Types[0].State != Refused || n.Types[0].Reason != "bad" {
		t.Errorf("%+v", n)
	}
	// Only what was in the refused response counts as refused.
	if p := w.server.Progress(w.group); p.Proxies != 1 || p.Waiting(version) != 0 || len(p.Refused(version)) != 0 || len(p.Refused(version-1)) != 1 {
		t.Errorf("%+v", p)
	}
	w.has(mesh("a=mended", "b=good", "c=2")...)
	c.hears("CDS a b", "EDS a")
	c.answers(Clusters)
	c.answers(Endpoints)
	if n := w.server.Nodes()[0]; !n.Synced {
		t.Errorf("%+v", n)
	}
}

// TestWhatWasTakenBesideDoesNotComeAgain: of a proxy that says what it refused.
func TestWhatWasTakenBesideDoesNotComeAgain(t *testing.T) {
	w, c := connected(t, "a", "b", "c")
	first := w.has(mesh("a=bad", "b=good", "c=2")...)
	c.hears("CDS a b c", "EDS a b c")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad", "a", "nothing of it")
	if n := w.server.Nodes()[0]; n.Synced || n.Types[0].State != Refused || n.Types[0].Reason != "bad" {
		t.Errorf("%+v", n)
	}
	w.has(mesh("a=bad", "b=better", "c=2")...)
	c.hears("CDS b", "EDS b")
	c.answers(Clusters)
	c.answers(Endpoints)
	if n := w.server.Nodes()[0]; n.Synced || n.Types[0].State != Refused {
		t.Errorf("%+v", n)
	}
	// Who is refused for something else than this one knows nothing of it.
	innocent := w.has(mesh("a=bad2", "b=better", "c=2")...)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad", "a")
	if p := w.server.Progress(w.group); len(p.Refused(innocent)) != 0 || len(p.Refused(first)) != 1 {
		t.Errorf("%+v", p)
	}
	w.has(mesh("a=bad3", "b=better", "c=2")...)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad in another way", "a")
	if p := w.server.Progress(w.group); len(p.Refused(innocent+1)) != 1 {
		t.Errorf("%+v", p)
	}
	// Two are wrong; one is mended.
	w.has(mesh("a=bad3", "b=bad", "c=2")...)
	c.hears("CDS b", "EDS b")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad", "b")
	w.has(mesh("a=mended", "b=bad", "c=2")...)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	c.answers(Clusters)
	if n := w.server.Nodes()[0]; n.Synced || n.Types[0].State != Refused {
		t.Errorf("%+v", n)
	}
	w.has(mesh("a=mended", "b=mended", "c=2")...)
	c.hears("CDS b", "EDS b")
	c.answers(Endpoints)
	c.answers(Clusters)
	if n := w.server.Nodes()[0]; !n.Synced || n.Types[0].Reason != "" {
		t.Errorf("%+v", n)
	}
	// Who names nothing that was in it may have refused all of it.
	w.has(mesh("a=bad", "b=2", "c=2")...)
	c.hears("CDS a b", "EDS a b")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad", "x")
	w.has(mesh("a=mended", "b=2", "c=2")...)
	c.hears("CDS a b", "EDS a")
}

// TestARefusalDoesNotKeepWhatIsGoneForEver: what a proxy refuses and never takes is no reason to keep all clusters that ever were.
func TestARefusalDoesNotKeepWhatIsGoneForEver(t *testing.T) {
	w, c := connected(t, "a", "b", "c", "d")
	// A refused cluster leads to no other, and is gone when it is.
	w.has(mesh("a=bad", "b", "c", "d")...)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad", "a")
	w.has(mesh("b", "c", "d")...)
	c.hears("RDS 80")
	c.answers(Routes)
	c.hears("CDS -a")
	c.answers(Clusters)
	c.hears("EDS -a")
	c.answers(Endpoints)
	if n := w.server.Nodes()[0]; !n.Synced {
		t.Errorf("%+v", n)
	}
	// Older routes may lead to what is gone, which is kept for a while.
	w.has(mesh("b", "c")...)
	c.hears("RDS 80")
	c.refuses(Routes, "bad", "80")
	c.hears()
	if _, wait := c.p.next(); wait != keepLimit {
		t.Errorf("looked at again after %s", wait)
	}
	c.now = c.now.Add(keepLimit / 2)
	w.has(mesh("b", "c", "e")...)
	c.hears("CDS e")
	c.asks(Endpoints, "e")
	c.answers(Clusters)
	c.hears("EDS e", "RDS 80")
	c.answers(Endpoints)
	c.refuses(Routes, "still bad", "80")
	c.hears()
	c.now = c.now.Add(keepLimit / 2)
	c.hears("CDS -d")
	c.answers(Clusters)
	c.hears("EDS -d")
	c.answers(Endpoints)
	// What is not asked for any more is not refused.
	c.request(Routes, &discovery.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{"80"}})
	if n := w.server.Nodes()[0]; n.Types[3].State == Refused || n.Types[3].Reason != "" {
		t.Errorf("%+v", n)
	}
}

// TestAnUnrelatedChangeTakesNothingBack: what was acknowledged stays so, whatever is on its way.
func TestAnUnrelatedChangeTakesNothingBack(t *testing.T) {
	w, c := connected(t, "a", "b")
	first := w.has(mesh("a@2", "b")...)
	if p := w.server.Progress(w.group); p.Waiting(first) != 1 || p.Waiting(first-1) != 0 {
		t.Errorf("%+v", p)
	}
	c.hears("EDS a")
	second := w.has(mesh("a@2", "b=2")...)
	c.answers(Endpoints)
	c.hears("CDS b", "EDS b")
	if p := w.server.Progress(w.group); p.Waiting(first) != 0 || p.Waiting(second) != 1 {
		t.Errorf("%+v", p)
	}
	// One that came later does not count before it has everything.
	later := newTalk(t, w)
	if p := w.server.Progress(w.group); p.Proxies != 0 || p.Waiting(second) != 0 {
		t.Errorf("%+v", p)
	}
	later.asks(Clusters)
	later.hears("CDS a b")
}

func TestManyChangesForASlowProxyBecomeOne(t *testing.T) {
	w, c := connected(t, "a", "b")
	for i := range 10 * maxNotes {
		w.has(mesh(fmt.Sprintf("a@%d", i+1), "b")...)
	}
	if len(c.p.notes) > maxNotes {
		t.Errorf("%d changes are kept", len(c.p.notes))
	}
	c.hears("EDS a")
}

// TestTheFirstGroupCounts: of two groups with a resource of one name, both variants of the protocol send that of the first.
func TestTheFirstGroupCounts(t *testing.T) {
	w, _ := start(t)
	first, second := NewGroup(w.resources(mesh("a=first")...), ""), NewGroup(w.resources(mesh("a=second")...), "")
	c := newTalk(t, w)
	w.server.Update(2, nil, []Move{{Proxy: c.p, Groups: []*Group{first, second}}})
	if err := c.p.wholeRequest(Clusters, &discovery.DiscoveryRequest{}); err != nil {
		t.Fatal(err)
	}
	c.hears("CDS a")
	want := first.Resource(Clusters, "a")
	if got := c.last[Clusters].resources[0]; got != want || find(c.p.groups, Clusters, "a") != want {
		t.Errorf("the state of the world has %v", got)
	}
	both := c.p.digest(Clusters)
	c.p.groups = []*Group{first}
	if c.p.digest(Clusters) != both {
		t.Error("the version is that of the second")
	}
}

func TestStateOfTheWorld(t *testing.T) {
	w, _ := start(t)
	w.has(mesh("a", "b")...)
	c := newTalk(t, w)
	request := func(typ Type, version string, names ...string) {
		t.Helper()
		nonce := ""
		if c.last[typ] != nil {
			nonce = c.last[typ].nonce
		}
		if err := c.p.wholeRequest(typ, &discovery.DiscoveryRequest{ResponseNonce: nonce, VersionInfo: version, ResourceNames: names}); err != nil {
			t.Fatal(err)
		}
	}
	request(Clusters, "")
	c.hears("CDS a b")
	request(Endpoints, "", "a", "b")
	c.hears("EDS a b")
	version := c.last[Clusters].version
	request(Clusters, version)
	request(Listeners, "")
	c.hears("LDS 0.0.0.0_80")
	request(Routes, "", "80")
	c.hears("RDS 80")
	request(Routes, c.last[Routes].version, "80")
	request(Listeners, c.last[Listeners].version)
	request(Endpoints, c.last[Endpoints].version, "a", "b")
	c.hears()
	// What is to go stays with what is new, until nothing names it.
	w.has(mesh("a", "c")...)
	c.hears("CDS a b c")
	request(Clusters, c.last[Clusters].version)
	c.hears("RDS 80")
	request(Endpoints, c.last[Endpoints].version, "a", "b", "c")
	c.hears("EDS c")
	request(Routes, c.last[Routes].version, "80")
	c.hears("CDS a c")
	request(Clusters, c.last[Clusters].version)
	request(Endpoints, c.last[Endpoints].version, "a", "c")
	c.hears()
	if n := w.server.Nodes()[0]; !n.Synced {
		t.Errorf("%+v", n)
	}
	// Who comes back with what it has is not sent it, and who has something else is.
	version = c.last[Clusters].version
	c = newTalk(t, w)
	request(Clusters, version)
	c.hears()
	w.has(mesh("a", "c", "d")...)
	c.hears("CDS a c d")
	c = newTalk(t, w)
	request(Clusters, version)
	c.hears("CDS a c d")
}

func TestOneWhoComesBackIsSentWhatDiffers(t *testing.T) {
	w, _ := connected(t, "a", "b", "c")
	known := map[string]string{"gone": "1"}
	for _, name := range []string{"a", "b", "c"} {
		known[name] = w.group.Resource(Clusters, name).Version()
	}
	endpoints := map[string]string{"a": w.group.Resource(Endpoints, "a").Version()}
	w.has(mesh("a=2", "b", "c")...)
	c := newTalk(t, w)
	c.request(Clusters, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: known})
	c.hears("CDS a")
	// The endpoints are the same, and are needed because the cluster is not.
	c.request(Endpoints, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: endpoints, ResourceNamesSubscribe: []string{"a"}})
	c.hears("EDS a")
	c.answers(Endpoints)
	c.answers(Clusters)
	c.hears("CDS -gone")
}

func TestOneWhomNobodyKnows(t *testing.T) {
	w, _ := start(t)
	if _, err := w.server.join(&core.Node{Id: "nobody"}, true); err != nil {
		t.Fatal(err)
	}
	if n := w.server.Nodes(); len(n) != 1 || n[0].Synced || n[0].Failure != "nobody knows it" {
		t.Errorf("%+v", n)
	}
}

func TestOneWhoMovesIsToldTheDifference(t *testing.T) {
	w, c := connected(t, "a", "b")
	other := NewGroup(w.resources(mesh("a", "c")...), "")
	w.server.Update(2, nil, []Move{{Proxy: c.p, Groups: []*Group{other}}})
	c.hears("CDS c")
	c.answers(Clusters)
	c.asks(Endpoints, "c")
	c.hears("EDS c", "RDS 80")
	c.answers(Endpoints)
	c.answers(Routes)
	c.hears("CDS -b")
	if len(w.group.members) != 0 || len(other.members) != 1 {
		t.Errorf("members: %d before, %d now", len(w.group.members), len(other.members))
	}
}

// TestOneInTwoGroupsMoves: each group takes the place of one. What one of them has now that the other had stays, and is sent again.
func TestOneInTwoGroupsMoves(t *testing.T) {
	w, c := connected(t, "a", "b", "c")
	clusters := func(names ...string) *Group {
		return NewGroup(slices.DeleteFunc(w.resources(mesh(names...)...), func(r *Resource) bool { return r.Type() != Clusters && r.Type() != Endpoints }), "")
	}
	move := func(revision int64, groups ...*Group) {
		w.server.Update(revision, nil, []Move{{Proxy: c.p, Groups: groups}})
	}
	own := clusters()
	move(2, w.group, own)
	c.hears()
	move(3, w.group, clusters())
	c.hears()
	move(4, NewGroup(w.resources(mesh("a", "b=2")...), ""), clusters("c"))
	c.hears("CDS b c", "EDS b c")
	c.answers(Clusters)
	c.answers(Endpoints)
	c.hears("RDS 80")
	if len(own.members) != 0 {
		t.Errorf("%d members are left", len(own.members))
	}
}

// TestLargeResponsesAreBounded: a proxy has one large response on its way, and gives its part of the budget back with the answer
// or when it leaves.
func TestLargeResponsesAreBounded(t *testing.T) {
	w, _ := start(t)
	big := strings.Repeat("x", largeResponse)
	w.has(mesh("a="+big, "b@"+big)...)
	c := newTalk(t, w)
	c.asks(Clusters)
	c.asks(Endpoints, "b")
	c.hears("CDS a b")
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := w.server.reserve(ctx, cancel, c.p, c.last[Clusters].size); err != nil {
		t.Fatal(err)
	}
	free := func() bool {
		if !w.server.inFlight.TryAcquire(maxInFlight) {
			return false
		}
		w.server.inFlight.Release(maxInFlight)
		return true
	}
	if free() {
		t.Error("nothing is reserved")
	}
	if got := counted(t, w.server.metrics.inFlight, ""); got != float64(c.last[Clusters].size) {
		t.Errorf("%v bytes are in flight, and %d were sent", got, c.last[Clusters].size)
	}
	c.hears()
	c.answers(Clusters)
	if !free() {
		t.Error("the answer gave nothing back")
	}
	c.hears("EDS b")
	if err := w.server.reserve(ctx, cancel, c.p, c.last[Endpoints].size); err != nil {
		t.Fatal(err)
	}
	w.server.leave(c.p)
	if !free() {
		t.Error("leaving gave nothing back")
	}
	if got := counted(t, w.server.metrics.inFlight, ""); got != 0 {
		t.Errorf("%v bytes are in flight when all are answered", got)
	}
}

func TestMetrics(t *testing.T) {
	w, c := connected(t, "a")
	w.has(mesh("a=2")...)
	c.hears("CDS a", "EDS a")
	c.refuses(Clusters, "no")
	c.answers(Endpoints)
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.server.metrics.rejects, w.server.metrics.convergence)
	all, err := registry.Gather()
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	// One for its arrival, one for the change, which it has answered.
	if got := all[0].GetMetric()[0].GetHistogram().GetSampleCount(); got != 2 {
		t.Errorf("%d times of convergence", got)
	}
	if got := all[1].GetMetric()[0]; got.GetCounter().GetValue() != 1 || got.GetLabel()[0].GetValue() != "CDS" {
		t.Errorf("%v", got)
	}
}

// TestWhatIsOwed: a change is owed until it is answered, and for longer when the answer is no.
func TestWhatIsOwed(t *testing.T) {
	w, c := connected(t, "a", "b")
	owes := func(want int64) {
		t.Helper()
		if got, current := w.server.Owes(c.p); got != want || !current {
			t.Errorf("owes %d, want %d", got, want)
		}
	}
	owes(0)
	bad := w.has(mesh("a=bad", "b")...)
	owes(bad)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	c.refuses(Clusters, "bad")
	owes(bad)
	w.has(mesh("a=mended", "b@2")...)
	c.hears("CDS a", "EDS a b")
	c.answers(Clusters)
	owes(bad + 1)
	c.answers(Endpoints)
	owes(0)
	// What a proxy says it refused, and nothing else, it will not take for being waited for longer.
	w.has(mesh("a=worse", "b@2")...)
	c.hears("CDS a", "EDS a")
	c.answers(Endpoints)
	owes(bad + 2)
	c.refuses(Clusters, "worse", "a")
	owes(bad + 2)
	c.now = c.now.Add(owedLimit)
	owes(0)
	w.has(mesh("a=worse", "b@3")...)
	owes(bad + 3)
	c.hears("EDS b")
	c.answers(Endpoints)
	owes(0)
	// One that comes back may run anything, however new the change is that it is to have.
	before := c.p
	c = newTalk(t, w)
	if _, current := w.server.Owes(before); current {
		t.Error("a stream counts that has another in its place")
	}
	owes(1)
	c.asks(Clusters)
	c.hears("CDS a b")
	owes(1)
}
