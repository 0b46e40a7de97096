package federation

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// servicesEach is how many services each cluster of a crowd has.
const servicesEach = 100

// crowd is a primary with many members, whose streams are read by the test alone.
type crowd struct {
	f       *Federation
	objects []*objects.Object
	streams []*stream
	ready   uint32
	// known is what members know by what they heard.
	known map[*stream]map[string]*knownPeer
}

func newCrowd(t testing.TB, members int) *crowd {
	t.Helper()
	where := place(t, "cluster1")
	authority, err := ca.Open(ca.Options{Dir: AuthorityDir(where), Cluster: where.Name, TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	gateway := netip.MustParseAddrPort("127.0.0.1:1")
	c := &crowd{known: map[*stream]map[string]*knownPeer{}, objects: []*objects.Object{globalNamespace("boutique", "cluster*", "shop"), globalNamespace("rest", "nobody", "*")}}
	c.f, err = Open(Config{
		Cluster: where, Settings: model.DefaultSettings(where.Name), Version: "test", Authority: authority, Gateways: func() []netip.AddrPort { return []netip.AddrPort{gateway} },
		Listen: func() (net.Listener, error) { return nil, net.ErrClosed }, Changed: func() {}, Log: slog.New(slog.DiscardHandler), Pace: testPace,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range members {
		c.objects = append(c.objects, clusterObject(fmt.Sprintf("cluster%d", i+2), v1alpha1.ClusterSpec{Key: fmt.Sprint(i)}))
	}
	c.f.SetObjects(c.objects)
	c.f.SetOwn(registry.Locality{}, c.services(0))
	for i := range members {
		s := newStream(peerOf{cluster: fmt.Sprintf("cluster%d", i+2)})
		s.end = func(error) {}
		c.f.attach(s, nil)
		c.streams = append(c.streams, s)
		c.f.note(s, State{About: About{Gateways: []netip.AddrPort{gateway}}, Services: c.services(0)})
	}
	for _, s := range c.streams {
		c.hear(t, s)
	}
	return c
}

// services of which the first has so many ready endpoints.
func (c *crowd) services(ready uint32) *registry.Exports {
	out := make([]registry.Export, 0, servicesEach)
	for i := range servicesEach {
		out = append(out, export("shop", fmt.Sprintf("service%03d", i), 1))
	}
	out[0].Groups[0].Ready = ready
	return registry.NewExports(out...)
}

// change is one of one service's endpoints, at one member.
func (c *crowd) change() {
	c.ready++
	e := c.f.peers[c.streams[0].cluster]
	c.f.note(c.streams[0], State{About: About{Gateways: e.Gateways}, Services: c.services(c.ready)})
}

// tell gives how many members are told something.
func (c *crowd) tell() (told int) {
	for _, s := range c.streams {
		if len(c.f.updates(s)) > 0 {
			told++
		}
	}
	return told
}

// What a change costs grows with the members that are told of it, not with their square. Memory that is asked for counts what
// is built, however fast the machine is.
func TestAChangeCostsWhatItChanges(t *testing.T) {
	perMember := func(members int) float64 {
		c := newCrowd(t, members)
		return testing.AllocsPerRun(5, func() {
			c.change()
			if told := c.tell(); told != members-1 {
				t.Errorf("%d of %d members were told", told, members-1)
			}
		}) / float64(members)
	}
	few, many := perMember(20), perMember(100)
	t.Logf("%.0f allocations for each of 20 members, %.0f for each of 100", few, many)
	if many > few {
		t.Errorf("a change costs %.0f allocations for each of 100 members, %.0f for each of 20: members pay for one another", many, few)
	}
}

// knownPeer is what a member knows of a cluster by what it was told.
type knownPeer struct {
	about     *pb.About
	services  map[string]*pb.Export
	connected bool
}

// hear gives what a member knows, of the clusters that it is told of now, and which are gone.
func (c *crowd) hear(t testing.TB, s *stream) (peers map[string]*knownPeer, gone []string) {
	t.Helper()
	return c.learn(t, s, c.f.updates(s))
}

// learn is [crowd.hear] of updates, as they come over the wire.
func (c *crowd) learn(t testing.TB, s *stream, updates []*pb.Update) (peers map[string]*knownPeer, gone []string) {
	t.Helper()
	peers = map[string]*knownPeer{}
	known := c.known[s]
	if known == nil {
		known = map[string]*knownPeer{}
		c.known[s] = known
	}
	for _, u := range updates {
		text, err := proto.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		var m pb.Update
		if err := proto.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		for _, name := range m.GetGonePeers() {
			gone = append(gone, name)
			delete(known, name)
		}
		for _, p := range m.GetPeers() {
			name, state := p.GetCluster(), p.GetState()
			was := known[name]
			if state.GetWhole() && !p.GetContinued() {
				was = &knownPeer{services: map[string]*pb.Export{}}
			}
			if was == nil {
				t.Fatalf("%s is told of what is different of %s, and knows nothing of it", s.cluster, name)
			}
			if !p.GetContinued() {
				was.connected = p.GetConnected()
			}
			if state.GetAbout() != nil {
				was.about = state.GetAbout()
			}
			for _, e := range state.GetServices() {
				was.services[e.GetNamespace()+"/"+e.GetName()] = e
			}
			for _, e := range state.GetGone() {
				delete(was.services, e.GetNamespace()+"/"+e.GetName())
			}
			known[name], peers[name] = was, was
		}
	}
	return peers, gone
}

func TestWhoMayKnowTheSameIsSentTheSameBytes(t *testing.T) {
	c := newCrowd(t, 3)
	c.change()
	var sent [][]byte
	for _, s := range c.streams[1:] {
		updates := c.f.updates(s)
		if len(updates) != 1 {
			t.Fatalf("%d updates for %s", len(updates), s.cluster)
		}
		if peers, _ := c.learn(t, s, updates); len(peers) != 1 || peers["cluster2"].services["shop/service000"].GetGroups()[0].GetReady() != c.ready {
			t.Errorf("%s is told %v", s.cluster, peers)
		}
		sent = append(sent, updates[0].ProtoReflect().GetUnknown())
	}
	if &sent[0][0] != &sent[1][0] {
		t.Error("the same was encoded twice")
	}
}

func TestOnlyWhatAMemberMayKnowIsSent(t *testing.T) {
	c := newCrowd(t, 3)
	// Of another namespace, in which nobody else has a part.
	e := c.f.peers["cluster2"]
	secret := export("elsewhere", "secret", 1)
	hidden := c.services(0).With([]*registry.Export{&secret}, nil)
	c.f.note(c.streams[0], State{About: About{Gateways: e.Gateways}, Services: hidden})
	if told := c.tell(); told != 0 {
		t.Errorf("%d members were told of what they may not know", told)
	}
	// From now on cluster3 may.
	c.f.SetObjects(append(c.objects, globalNamespace("two", "cluster[23]", "elsewhere")))
	if told := c.tell(); told != 3 {
		t.Errorf("%d of 3 members have the object", told)
	}
	two := globalNamespace("two", "cluster2", "elsewhere")
	two.Resource.(*v1alpha1.GlobalNamespace).Spec.Mappings = append(two.Resource.(*v1alpha1.GlobalNamespace).Spec.Mappings, v1alpha1.NamespaceMapping{Cluster: "cluster3", Namespace: "elsewhere"})
	c.f.SetObjects(append(c.objects, two))
	for _, s := range c.streams {
		want := map[string]int{"cluster3": 1}[s.cluster]
		if peers, gone := c.hear(t, s); len(peers) != want || len(gone) != 0 || want == 1 && len(peers["cluster2"].services) != servicesEach+1 {
			t.Errorf("%s is told of %d clusters, and of %v that they are gone", s.cluster, len(peers), gone)
		}
	}
	// And not any more.
	c.f.SetObjects(c.objects)
	peers, _ := c.hear(t, c.streams[1])
	if len(peers) != 1 || len(peers["cluster2"].services) != servicesEach {
		t.Errorf("told of %d clusters", len(peers))
	}
	// A cluster that is removed is gone for the others.
	c.f.SetObjects(slices.DeleteFunc(slices.Clone(c.objects), func(o *objects.Object) bool { return o.GetName() == "cluster2" }))
	if peers, gone := c.hear(t, c.streams[1]); len(peers) != 0 || !slices.Equal(gone, []string{"cluster2"}) {
		t.Errorf("of %d clusters, and of %v that they are gone", len(peers), gone)
	}
}

func TestLargePeersDoNotKeepTheOthersOff(t *testing.T) {
	c := newCrowd(t, 4)
	large := func(of, mebibytes int) {
		state := State{About: About{Version: "v"}}
		for i := range mebibytes {
			state.Services = state.Services.With([]*registry.Export{{Namespace: "shop", Name: fmt.Sprint(i), Identities: []string{strings.Repeat("x", 1<<20)}}}, nil)
		}
		c.f.note(c.streams[of], state)
	}
	large(0, maxPeerBytes>>20)
	large(1, 3)
	large(2, 1)
	services := func(peers map[string]*knownPeer) string {
		out := []string{}
		for _, name := range slices.Sorted(maps.Keys(peers)) {
			out = append(out, fmt.Sprintf("%s %s %d", name, peers[name].about.GetVersion(), len(peers[name].services)))
		}
		return strings.Join(out, ", ")
	}
	peers, _ := c.hear(t, c.streams[3])
	if got, want := services(peers), "cluster2 v 0, cluster3 v 3, cluster4 v 1"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	// Once there is room, it is told whole, though nothing of it changed.
	large(1, 0)
	large(2, 0)
	large(0, maxPeerBytes>>20-2)
	peers, _ = c.hear(t, c.streams[3])
	if got, want := services(peers), "cluster2 v 62, cluster3 v 0, cluster4 v 0"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	large(1, 4)
	peers, _ = c.hear(t, c.streams[3])
	if got, want := services(peers), "cluster2 v 0, cluster3 v 4"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	large(1, 0)
	peers, _ = c.hear(t, c.streams[3])
	if got, want := services(peers), "cluster2 v 62, cluster3 v 0"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// What is known of a cluster is written when that changes, and not when another's does.
func TestWhatChangedIsKept(t *testing.T) {
	c := newCrowd(t, 3)
	c.f.keepNow()
	// What is written whole is another file each time; the services' is changed.
	files := func() map[string]string {
		out := map[string]string{}
		all, err := os.ReadDir(clustersDir(c.f.config.Cluster))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range all {
			info, err := file.Info()
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(clustersDir(c.f.config.Cluster), file.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[file.Name()] = fmt.Sprintf("%d %s", info.Sys().(*syscall.Stat_t).Ino, text)
		}
		return out
	}
	before := files()
	c.change()
	c.f.keepNow()
	after := files()
	var differ []string
	for name := range after {
		if before[name] != after[name] {
			differ = append(differ, name)
		}
	}
	if len(before) != 6 || len(after) != 6 || !slices.Equal(differ, []string{"cluster2.services"}) {
		t.Errorf("%d files became %d, of which %v differ", len(before), len(after), differ)
	}
	c.f.SetObjects(slices.DeleteFunc(slices.Clone(c.objects), func(o *objects.Object) bool { return o.GetName() == "cluster2" }))
	c.f.keepNow()
	if _, there := files()["cluster2.json"]; there {
		t.Error("a removed cluster is kept")
	}
	// The next controller knows them.
	c.f.closeKept()
	next, err := Open(c.f.config)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(next.peers)); !slices.Equal(got, []string{"cluster3", "cluster4"}) || next.peers["cluster3"].Services.Len() != servicesEach {
		t.Errorf("%v are known", got)
	}
}

func TestAPrimaryDoesNotNameFiles(t *testing.T) {
	c := newCrowd(t, 1)
	victim := filepath.Join(dir(c.f.config.Cluster), "victim.json")
	if err := durable.WriteJSON(victim, kept{}, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.f.take(t.Context(), &session{heard: true}, &pb.Update{GonePeers: []string{"../victim"}}); err != nil {
		t.Fatal(err)
	}
	c.f.keepNow()
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}

// Both files of a cluster are needed, and each whole: what is left of it goes, until the cluster is heard of again.
func TestHalfOfWhatWasKeptIsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(about, services string) error
		whole bool
	}{
		"no services":      {func(_, services string) error { return os.Remove(services) }, false},
		"services alone":   {func(about, _ string) error { return os.Remove(about) }, false},
		"damaged services": {func(_, services string) error { return os.WriteFile(services, []byte("services"), 0o600) }, false},
		"damaged":          {func(about, _ string) error { return os.WriteFile(about, []byte("{"), 0o600) }, false},
		"an unfinished file beside them": {func(_, services string) error {
			return os.WriteFile(services+".new", nil, 0o600)
		}, true},
		"an unfinished file alone": {func(about, services string) error {
			return errors.Join(os.Remove(about), os.Rename(services, services+".new"))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 3)
			where := c.f.config.Cluster
			c.f.keepNow()
			c.f.closeKept()
			if err := test.spoil(keptClusterPath(where, "cluster2"), keptServicesPath(where, "cluster2")); err != nil {
				t.Fatal(err)
			}
			next, err := Open(c.f.config)
			if err != nil {
				t.Fatal(err)
			}
			defer next.closeKept()
			if got := next.peers["cluster2"]; (got != nil) != test.whole {
				t.Errorf("%+v is known", got)
			}
			if got := next.peers["cluster3"]; got == nil || got.Services.Len() != servicesEach {
				t.Errorf("of another cluster, %+v is known", got)
			}
			if left, err := filepath.Glob(filepath.Join(clustersDir(where), "cluster2.*")); err != nil || !test.whole && len(left) > 0 {
				t.Errorf("%v are left, %v", left, err)
			}
		})
	}
}

// A cluster of which one file cannot be written has the other one closed: each attempt opens a new one.
func TestFilesOfAFailedAttemptAreClosed(t *testing.T) {
	c := newCrowd(t, 3)
	about, services := keptClusterPath(c.f.config.Cluster, "cluster2"), keptServicesPath(c.f.config.Cluster, "cluster2")
	open := func() (n int) {
		mapped, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(mapped), services)
	}
	if err := os.MkdirAll(filepath.Join(about, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		c.change()
		c.f.keepNow()
	}
	if n := open(); n > 1 {
		t.Errorf("the file is mapped %d times", n)
	}
	if err := os.RemoveAll(about); err != nil {
		t.Fatal(err)
	}
	c.f.keepNow()
	if n := open(); n != 1 {
		t.Errorf("once it is kept, the file is mapped %d times", n)
	}
	c.f.closeKept()
	next, err := Open(c.f.config)
	if err != nil {
		t.Fatal(err)
	}
	defer next.closeKept()
	if got := next.peers["cluster2"]; got == nil || got.Services.Len() != servicesEach {
		t.Errorf("%+v is known", got)
	}
}

func BenchmarkChange(b *testing.B) {
	for _, members := range []int{20, 100} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			c := newCrowd(b, members)
			b.ReportAllocs()
			for b.Loop() {
				c.change()
				c.tell()
			}
		})
	}
}

// BenchmarkKeep is what is written of one service's change in a cluster with so many.
func BenchmarkKeep(b *testing.B) {
	for _, services := range []int{500, 5000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			c := newCrowd(b, 2)
			var all []registry.Export
			for i := range services {
				all = append(all, export("shop", fmt.Sprintf("service%04d", i), 1))
			}
			exports := registry.NewExports(all...)
			c.f.note(c.streams[0], State{Services: exports})
			c.f.keepNow()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				one := export("shop", "service0007", uint32(i%7))
				exports = exports.With([]*registry.Export{&one}, nil)
				c.f.note(c.streams[0], State{Services: exports})
				c.f.keepNow()
			}
		})
	}
}
