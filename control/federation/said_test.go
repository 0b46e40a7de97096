package federation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// someExports changes what a cluster exports at random: mostly few services, sometimes all of them.
func someExports(random *rand.Rand, before *registry.Exports) *registry.Exports {
	var set []*registry.Export
	var gone []registry.ExportName
	n := 1 + random.IntN(3)
	if random.IntN(10) == 0 {
		n = 40
	}
	for range n {
		e := export([]string{"shop", "lab", "bank"}[random.IntN(3)], fmt.Sprintf("svc%d", random.IntN(30)), uint32(random.IntN(4)))
		if random.IntN(4) == 0 {
			gone = append(gone, e.Key())
		} else {
			set = append(set, &e)
		}
	}
	return before.With(set, gone)
}

// overWire gives a message as it comes over the wire.
func overWire(t testing.TB, m, into proto.Message) {
	t.Helper()
	text, err := proto.Marshal(m)
	if err == nil {
		err = proto.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Over many versions, what is different makes the same of what was known as all there is, at both ends.
func TestDifferencesComeToWhatThereIs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var own, sent, known State
	told := false
	whole, partly := 0, 0
	for round := range 2000 {
		switch random.IntN(12) {
		case 0: // The stream is another one.
			told = false
		case 1:
			own.About = About{Version: fmt.Sprint(round), Gateways: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:15443")}, Anchors: []string{"a", fmt.Sprint(round)}}
		case 2:
			own.Services = nil
		default:
			own.Services = someExports(random, own.Services)
		}
		if random.IntN(3) == 0 {
			continue // Nobody comes to say it.
		}
		last := &sent
		if !told {
			last = nil
		}
		m := own.since(last)
		if m == nil {
			if !known.equal(own) {
				t.Fatalf("round %d: there is nothing to say, and it is not known", round)
			}
			continue
		}
		if m.GetWhole() {
			whole++
		} else {
			partly++
		}
		var heard *pb.State
		for _, part := range parts(m) {
			got := &pb.State{}
			overWire(t, part, got)
			if heard == nil {
				heard = got
			} else {
				joined(heard, got)
			}
		}
		next, err := known.with(heard, told, "cluster.local", false)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		fresh, err := State{}.with(own.since(nil), false, "cluster.local", false)
		if err != nil || !next.equal(own) || !fresh.equal(own) {
			t.Fatalf("round %d: what is known is not what there is: %v", round, err)
		}
		for _, e := range next.Services.Sorted() {
			if was := known.Services.Get(e.Key()); was != nil && was.Equal(e) && was != e {
				t.Fatalf("round %d: %s was made anew, and says the same", round, e.Key())
			}
		}
		sent, known, told = own, next, true
	}
	if whole < 50 || partly < 500 {
		t.Errorf("%d were all there is, %d what was different", whole, partly)
	}
}

// Whatever changes at a primary, in whatever order members are told of it, and however often their streams begin anew: each knows what it
// would know if it were told all.
func TestMembersKnowWhatTheyWouldBeToldWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	c := newCrowd(t, 5)
	clusters := c.objects[2:]
	all := c.objects
	changeObjects := func() {
		all = slices.DeleteFunc(slices.Clone(clusters), func(o *objects.Object) bool {
			// One that has a stream stays.
			return random.IntN(20) == 0 && c.f.streams[o.GetName()] == nil
		})
		for i := range random.IntN(4) {
			o := globalNamespace(fmt.Sprintf("g%d", i), "*", []string{"shop", "lab", "*"}[random.IntN(3)])
			if spec := &o.Resource.(*v1alpha1.GlobalNamespace).Spec; random.IntN(3) > 0 {
				namespace := spec.Mappings[0].Namespace
				spec.Mappings = nil
				for n := range 1 + random.IntN(6) {
					spec.Mappings = append(spec.Mappings, v1alpha1.NamespaceMapping{Cluster: fmt.Sprintf("cluster%d", n+1), Namespace: namespace})
				}
			}
			all = append(all, o)
		}
		c.f.SetObjects(all)
	}
	for round := range 1500 {
		i := random.IntN(len(c.streams))
		s := c.streams[i]
		switch random.IntN(12) {
		case 0:
			changeObjects()
		case 1:
			c.f.SetOwn(registry.Locality{Zone: fmt.Sprint(random.IntN(3))}, someExports(random, c.f.own.Services))
		case 2, 3: // Its stream is another one.
			c.f.detach(s)
			if random.IntN(2) == 0 {
				for _, other := range c.streams {
					c.hear(t, other)
				}
			}
			fresh := newStream(peerOf{cluster: s.cluster})
			fresh.end = func(error) {}
			c.streams[i] = fresh
			c.f.attach(fresh, nil)
			delete(c.known, s)
		default:
			state := c.f.peers[s.cluster].State
			state.Services = someExports(random, state.Services)
			c.f.note(s, state)
		}
		for _, s := range c.streams {
			if random.IntN(3) == 0 {
				c.hear(t, s)
			}
		}
		if round%10 > 0 {
			continue
		}
		sharing := resolve.NewSharing(c.f.config.Settings, all)
		for _, s := range c.streams {
			c.hear(t, s)
			want := map[string]*entry{c.f.config.Cluster.Name: {State: c.f.told(), connected: true}}
			maps.Copy(want, c.f.peers)
			delete(want, s.cluster)
			known := c.known[s]
			if !slices.Equal(slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(want))) {
				t.Fatalf("round %d: %s knows of %v", round, s.cluster, slices.Sorted(maps.Keys(known)))
			}
			for name, e := range want {
				offer := sharing.Offer(e.Services, name, nil)
				may := offer.For(offer.Audience(s.cluster)).Sorted()
				got := known[name]
				if got.connected != e.connected || !proto.Equal(got.about, e.about()) || len(got.services) != len(may) {
					t.Fatalf("round %d: %s knows %d services of %s, and should know %d", round, s.cluster, len(got.services), name, len(may))
				}
				for _, m := range exportMessages(may) {
					if !proto.Equal(got.services[m.GetNamespace()+"/"+m.GetName()], m) {
						t.Fatalf("round %d: what %s knows of %s in %s is not so", round, s.cluster, m.GetName(), name)
					}
				}
			}
		}
	}
}

// Clusters that change what they export at random, and whose connections end at any time, agree in the end.
func TestClustersAgreeThroughBrokenConnections(t *testing.T) {
	l := newLink()
	p := newNode(t, "cluster1", l, &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	all := []*node{p, p.joinMember("cluster2"), p.joinMember("cluster3"), p.joinMember("cluster4")}
	random := rand.New(rand.NewPCG(5, 6))
	own := map[*node]*registry.Exports{}
	// So many that a whole state has several parts, and a connection may end between them.
	var many []registry.Export
	for i := range 3000 {
		many = append(many, export("shop", fmt.Sprintf("more%d", i), 1))
	}
	for range 6 {
		for range 12 {
			n := all[random.IntN(len(all))]
			switch own[n] = someExports(random, own[n]); random.IntN(12) {
			case 0:
				own[n] = own[n].With(registry.NewExports(many...).Sorted(), nil)
			case 1:
				own[n] = nil
			}
			n.f.SetOwn(registry.Locality{}, own[n])
			if random.IntN(4) == 0 {
				l.closeAll(p.address)
			}
		}
		if n := all[1+random.IntN(3)]; random.IntN(3) == 0 {
			n.restart()
			n.f.SetOwn(registry.Locality{}, own[n])
		}
		for _, to := range all {
			for _, from := range all {
				if from == to {
					continue
				}
				var want []*registry.Export
				for _, e := range own[from].Sorted() {
					if e.Namespace == "shop" {
						want = append(want, e)
					}
				}
				may := (*registry.Exports)(nil).With(want, nil)
				eventually(t, to.name+" knows what "+from.name+" exports to it", func() bool { return to.peer(from.name).Services.Equal(may) })
			}
		}
	}
	if n := p.f.counters.snapshot()[countStatesRefused]; n != 0 {
		t.Errorf("%d states were refused", n)
	}
	for _, n := range all[1:] {
		if n := n.f.counters.snapshot()[countUpdatesRefused]; n != 0 {
			t.Errorf("%d updates were refused", n)
		}
	}
}

// twoServices are what a stream began with, before it says what cannot be.
func twoServices() *registry.Exports {
	return registry.NewExports(export("shop", "ads", 1), export("shop", "cart", 1))
}

// wrongDifferences to two services: each is to be refused, and to change nothing, though much of it is good.
func wrongDifferences() map[string]*pb.State {
	good := registry.NewExports(export("shop", "cart", 7))
	name := func(names ...string) (out []*pb.ExportName) {
		for _, n := range names {
			out = append(out, &pb.ExportName{Namespace: "shop", Name: n})
		}
		return out
	}
	with := func(count uint32, gone []*pb.ExportName, services ...*pb.Export) *pb.State {
		return &pb.State{Services: append(exportMessages(good.Sorted()), services...), Gone: gone, Count: count}
	}
	bad := export("shop", "more", 1)
	bad.Identities = []string{"spiffe://evil.example/ns/shop/sa/x"}
	var many []registry.Export
	for i := range maxServices {
		many = append(many, export("shop", fmt.Sprintf("more%d", i), 1))
	}
	large := make([]*pb.Export, 0, 40)
	for i := range 40 {
		e := export("shop", fmt.Sprintf("large%d", i), 1)
		e.Identities = slices.Repeat([]string{"spiffe://cluster.local/" + strings.Repeat("x", 900)}, maxIdentities)
		large = append(large, exportMessages([]*registry.Export{&e})...)
	}
	return map[string]*pb.State{
		"one is gone that was not there":     with(2, name("nobody")),
		"one is gone twice":                  with(1, name("ads", "ads")),
		"one is gone and there":              with(1, name("cart")),
		"one is there twice":                 with(2, nil, exportMessages(good.Sorted())...),
		"fewer than it says":                 with(3, nil),
		"more than it says":                  with(1, nil),
		"a foreign identity":                 with(3, nil, exportMessages([]*registry.Export{&bad})...),
		"a gateway that is none":             {About: &pb.About{Gateways: []string{"x"}}, Count: 2},
		"all there is, and one that is gone": {Whole: true, Gone: name("ads"), Services: exportMessages(good.Sorted()), Count: 1},
		"too many that are gone":             with(2, name(slices.Repeat([]string{"ads"}, maxServices+1)...)),
		"more services than are taken":       {Services: exportMessages(registry.NewExports(many...).Sorted()), Count: maxServices + 2},
		"more bytes than are taken":          {Services: large, Count: 42},
	}
}

func TestWrongDifferencesChangeNothing(t *testing.T) {
	known := State{About: About{Version: "v"}, Services: twoServices()}
	for name, m := range wrongDifferences() {
		if next, err := known.with(m, true, "cluster.local", false); err == nil || next.Services != known.Services || !next.equal(known) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := known.with(&pb.State{Count: 2}, false, "cluster.local", false); err == nil {
		t.Error("what is different is taken, of nothing")
	}
	if next, err := known.with(&pb.State{Count: 1, Gone: []*pb.ExportName{{Namespace: "shop", Name: "ads"}}}, true, "cluster.local", false); err != nil || next.Services.Len() != 1 {
		t.Errorf("one that is gone: %v", err)
	}
}

// A member that lies in what it says is different ends its stream with it, and the others know what they knew; when it comes back and
// says all there is, that counts.
func TestMembersDifferencesAreChecked(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	a, b := p.joinMember("cluster2"), p.joinMember("cluster3")
	a.stop()
	api, _ := raw(t, p, certificateOf(t, a))
	first := func() *pb.FromMember { return stating(&pb.State{Services: exportMessages(twoServices().Sorted())}) }
	different := &pb.State{Services: exportMessages(registry.NewExports(export("shop", "cart", 7)).Sorted()), Count: 2}
	report := func(revision uint64, more bool, m *pb.State) *pb.FromMember {
		return reporting(&pb.Report{Revision: revision, State: m, More: more})
	}
	cases := map[string][]*pb.FromMember{
		"what is different, of nothing":        {report(1, false, different)},
		"no revision":                          {first(), report(0, false, different)},
		"one that was there":                   {first(), first()},
		"one that was left out":                {first(), report(3, false, different)},
		"a part of another one":                {first(), report(2, true, different), report(3, false, &pb.State{})},
		"one that grows without end, at last":  {first()},
		"a part that is taken back in between": {first(), report(2, true, different), report(2, true, different), report(2, false, different)},
	}
	for i := range maxServices/1000 + 1 {
		m := &pb.State{Count: uint32(2 + 1000*(i+1))}
		for j := range 1000 {
			e := export("shop", fmt.Sprintf("more%d", 1000*i+j), 1)
			m.Services = append(m.Services, exportMessages([]*registry.Export{&e})...)
		}
		cases["one that grows without end, at last"] = append(cases["one that grows without end, at last"], report(uint64(i+2), false, m))
	}
	for name, m := range wrongDifferences() {
		cases[name] = []*pb.FromMember{first()}
		// In parts that fit into a message.
		all := parts(proto.Clone(m).(*pb.State))
		for i, part := range all {
			cases[name] = append(cases[name], report(2, i < len(all)-1, part))
		}
	}
	for name, said := range cases {
		err := saying(t, api, append([]*pb.FromMember{begin(newestProtocol)}, said...)...)
		if reasonOf(err) != pb.Refusal_INVALID || !strings.Contains(err.Error(), "state cannot be taken") {
			t.Errorf("%s: %v", name, err)
		}
		if strings.HasPrefix(name, "one that grows") {
			continue // All but the last of it is good.
		}
		for _, n := range []*node{p, b} {
			if e := n.peer("cluster2").Services.Get(registry.ExportName{Namespace: "shop", Name: "cart"}); e != nil && e.Groups[0].Ready != 1 {
				t.Errorf("%s: something of it got through", name)
			}
		}
	}
	if n := p.f.counters.snapshot()[countStatesRefused]; n != uint64(len(cases)) {
		t.Errorf("%d states were refused", n)
	}
	a.start()
	t.Cleanup(a.stop)
	a.f.SetOwn(registry.Locality{}, registry.NewExports(export("shop", "cart", 9)))
	eventually(t, "what is true counts", func() bool {
		s := b.peer("cluster2").Services
		return s.Len() == 1 && s.Sorted()[0].Groups[0].Ready == 9
	})
}

// So it is with a primary, whose members go on with what they know.
func TestPrimarysDifferencesAreChecked(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	whole := func() *pb.Update {
		m := State{Services: twoServices()}.since(nil)
		return &pb.Update{Full: true, Peers: []*pb.Peer{{Cluster: "x", State: m}}}
	}
	about := func(name string, m *pb.State) *pb.Update {
		return &pb.Update{Peers: []*pb.Peer{{Cluster: name, State: m}}}
	}
	different := &pb.State{Services: exportMessages(registry.NewExports(export("shop", "cart", 7)).Sorted()), Count: 2}
	revised := func(revision uint64, u *pb.Update) *pb.Update {
		u.Revision = revision
		return u
	}
	cases := map[string][]*pb.Update{
		"of a cluster that it has not told of":    {whole(), about("y", different)},
		"of a cluster that is gone":               {whole(), {GonePeers: []string{"x"}}, about("x", different)},
		"whether one is connected, of nothing":    {whole(), about("y", nil)},
		"an update that was there":                {whole(), revised(1, about("x", different))},
		"an update that was left out":             {whole(), revised(3, about("x", different))},
		"a part of another update":                {whole(), revised(2, &pb.Update{More: true}), revised(3, about("x", different))},
		"a full one with what is different":       {whole(), {Full: true, Peers: []*pb.Peer{{Cluster: "x", State: different}}}},
		"good of one cluster, and bad of another": {whole(), {Peers: []*pb.Peer{{Cluster: "x", State: different}, {Cluster: "y", State: different}}}},
	}
	for name, m := range wrongDifferences() {
		cases[name] = []*pb.Update{whole()}
		u := &pb.Update{}
		for i, part := range parts(proto.Clone(m).(*pb.State)) {
			u.Peers = append(u.Peers, &pb.Peer{Cluster: "x", State: part, Continued: i > 0})
		}
		// Longer than a message, it comes in parts.
		for i, piece := range u.Peers {
			cases[name] = append(cases[name], &pb.Update{Peers: []*pb.Peer{piece}, More: i < len(u.Peers)-1, Revision: 2})
		}
	}
	f := &falsePrimary{}
	serveFalse(t, p, f)
	for name, updates := range cases {
		f.updates = updates
		a.restart()
		eventually(t, name+" is refused", func() bool { return a.f.counters.snapshot()[countUpdatesRefused] > 0 })
		gone := name == "of a cluster that is gone"
		if got := a.peer("x").Services; !gone && !got.Equal(twoServices()) || gone && got.Len() > 0 || len(a.peer("y").Cluster) > 0 {
			t.Errorf("%s changed something: %+v", name, a.f.Peers())
		}
	}
}
