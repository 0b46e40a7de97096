package federation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
)

// raw opens a connection to a node's federation port, with a certificate or without.
func raw(t *testing.T, n *node, certificate *tls.Certificate) (pb.FederationClient, net.Conn) {
	t.Helper()
	conn, err := connect(context.Background(), n.link.dial, human, n.address, "cluster.local", certificate, func([]*x509.Certificate) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	rpc, err := overConn(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rpc.Close(); conn.Close() })
	return pb.NewFederationClient(rpc), conn
}

func certificateOf(t *testing.T, n *node) *tls.Certificate {
	t.Helper()
	c, err := n.authority.Controller()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// saying opens a stream that says these things, and gives how it ended.
func saying(t *testing.T, api pb.FederationClient, messages ...*pb.FromMember) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	call, err := api.Sync(ctx)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := call.Send(m); err != nil {
			break // Why is heard below.
		}
	}
	for {
		if _, err := call.Recv(); err != nil {
			return err
		}
	}
}

func begin(protocol uint32) *pb.FromMember {
	return &pb.FromMember{Message: &pb.FromMember_Begin{Begin: &pb.Begin{Protocol: protocol, Version: "test"}}}
}

// stating says all of a state, as the first of a stream.
func stating(s *pb.State) *pb.FromMember {
	s.Whole, s.Count = true, uint32(len(s.GetServices()))
	return reporting(&pb.Report{Revision: 1, State: s})
}

func reporting(r *pb.Report) *pb.FromMember {
	return &pb.FromMember{Message: &pb.FromMember_Report{Report: r}}
}

func TestStrangersAndImpostorsAreKeptOut(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	stranger, _ := raw(t, p, nil)
	if err := saying(t, stranger, begin(newestProtocol)); reasonOf(err) != pb.Refusal_INVALID {
		t.Errorf("a stranger's stream: %v", err)
	}
	if _, err := stranger.Renew(context.Background(), &pb.RenewRequest{}); reasonOf(err) != pb.Refusal_INVALID {
		t.Errorf("a stranger's renewal: %v", err)
	}
	// A workload of a member has a good certificate, and is no controller.
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	key, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.authority.Sign(request, identity, 0)
	if err != nil {
		t.Fatal(err)
	}
	workload, err := tls.X509KeyPair(issued.Chain, key)
	if err != nil {
		t.Fatal(err)
	}
	inside, _ := raw(t, p, &workload)
	if err := saying(t, inside, begin(newestProtocol)); reasonOf(err) != pb.Refusal_INVALID {
		t.Errorf("a workload's stream: %v", err)
	}
	// Another mesh's controller does not even get a connection.
	other := newNode(t, "cluster2", newLink(), &clock{})
	foreign, _ := raw(t, p, certificateOf(t, other))
	if _, err := foreign.Hello(context.Background(), &pb.HelloRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a foreign controller's hello: %v", err)
	}
	// The primary's own certificate is not a member's.
	own, _ := raw(t, p, certificateOf(t, p))
	if err := saying(t, own, begin(newestProtocol)); reasonOf(err) != pb.Refusal_INVALID && reasonOf(err) != pb.Refusal_REMOVED {
		t.Errorf("the primary's own stream: %v", err)
	}
	// The member may have said where it is before it was stopped; nobody else was heard.
	for _, known := range p.f.Peers() {
		if known.Cluster != "cluster2" || known.Services.Len() != 0 {
			t.Errorf("%+v", known)
		}
	}
}

func TestMembersWordsAreChecked(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	api, _ := raw(t, p, certificateOf(t, a))
	port := []*pb.Port{{Number: 80, Protocol: "HTTP"}}
	good := &pb.Export{Namespace: "shop", Name: "cart", Ports: port}
	with := func(change func(*pb.Export)) *pb.State {
		e := &pb.Export{Namespace: "shop", Name: "cart", Ports: port}
		change(e)
		return &pb.State{Services: []*pb.Export{e}}
	}
	many := func(n int) *pb.State {
		s := &pb.State{}
		for range n {
			s.Services = append(s.Services, good)
		}
		return s
	}
	about := func(a *pb.About) *pb.State { return &pb.State{About: a} }
	cases := map[string]*pb.State{
		"a gateway that is a name":  about(&pb.About{Gateways: []string{"evil.example:15443"}}),
		"a gateway without address": about(&pb.About{Gateways: []string{"0.0.0.0:15443"}}),
		"a gateway for all":         about(&pb.About{Gateways: []string{"224.0.0.1:15443"}}),
		"a gateway on a link":       about(&pb.About{Gateways: []string{"169.254.1.1:15443"}}),
		"a gateway with a zone":     about(&pb.About{Gateways: []string{"[fd00::1%eth0]:15443"}}),
		"a gateway that is mapped":  about(&pb.About{Gateways: []string{"[::ffff:10.0.0.1]:15443"}}),
		"a gateway without port":    about(&pb.About{Gateways: []string{"10.0.0.1:0"}}),
		"too many gateways":         about(&pb.About{Gateways: strings.Split(strings.Repeat("10.0.0.1:1,", maxGateways)+"10.0.0.1:1", ",")}),
		"a long locality":           about(&pb.About{Locality: &pb.Locality{Zone: strings.Repeat("x", maxText+1)}}),
		"a service twice":           many(2),
		"a name with a path":        with(func(e *pb.Export) { e.Name = "../cart" }),
		"no namespace":              with(func(e *pb.Export) { e.Namespace = "" }),
		"port zero":                 with(func(e *pb.Export) { e.Ports = []*pb.Port{{Protocol: "HTTP"}} }),
		"a port out of range":       with(func(e *pb.Export) { e.Ports = []*pb.Port{{Number: 70000, Protocol: "HTTP"}} }),
		"a protocol that is none":   with(func(e *pb.Export) { e.Ports = []*pb.Port{{Number: 80, Protocol: "UDP"}} }),
		"too many ports":            with(func(e *pb.Export) { e.Ports = make([]*pb.Port, maxPorts+1) }),
		"a foreign identity":        with(func(e *pb.Export) { e.Identities = []string{"spiffe://evil.example/ns/a/sa/b"} }),
		"a long identity":           with(func(e *pb.Export) { e.Identities = []string{"spiffe://cluster.local/" + strings.Repeat("x", maxText)} }),
		"too many identities":       with(func(e *pb.Export) { e.Identities = make([]string, maxIdentities+1) }),
		"too many groups":           with(func(e *pb.Export) { e.Groups = make([]*pb.Group, maxGroups+1) }),
		"a label that is long": with(func(e *pb.Export) {
			e.Groups = []*pb.Group{{Labels: map[string]string{"a": strings.Repeat("x", maxText+1)}}}
		}),
		// What an administrator's terminal would obey.
		"a locality that clears the screen": about(&pb.About{Locality: &pb.Locality{Region: "eu\x1b[2J"}}),
		"a zone of two lines":               about(&pb.About{Locality: &pb.Locality{Zone: "a\nb"}}),
		"a port that rings":                 with(func(e *pb.Export) { e.Ports = []*pb.Port{{Name: "http\a", Number: 80, Protocol: "HTTP"}} }),
		"a label that begins a sequence":    with(func(e *pb.Export) { e.Groups = []*pb.Group{{Labels: map[string]string{"a": "\u009b2J"}}} }),
		"a label's name without an end":     with(func(e *pb.Export) { e.Groups = []*pb.Group{{Labels: map[string]string{"a\x00": "b"}}} }),
		"an identity that reads backwards":  with(func(e *pb.Export) { e.Identities = []string{"spiffe://cluster.local/ns/a/sa/\u202ex"} }),
	}
	for name, state := range cases {
		err := saying(t, api, begin(newestProtocol), stating(state))
		if reasonOf(err) != pb.Refusal_INVALID || !strings.Contains(err.Error(), "state cannot be taken") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := p.f.counters.snapshot()[countStatesRefused]; n != uint64(len(cases)) {
		t.Errorf("%d states were refused", n)
	}
	// Parts without end, and one part that is too long.
	endless := []*pb.FromMember{begin(newestProtocol)}
	for range maxServices/1000 + 1 {
		endless = append(endless, reporting(&pb.Report{Revision: 1, State: many(1000), More: true}))
	}
	if err := saying(t, api, endless...); reasonOf(err) != pb.Refusal_INVALID {
		t.Errorf("parts without end: %v", err)
	}
	long := with(func(e *pb.Export) { e.Identities = []string{strings.Repeat("x", maxFromMember)} })
	if err := saying(t, api, begin(newestProtocol), stating(long)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that is too long: %v", err)
	}
	// Few services, each of them large.
	heavy := []*pb.FromMember{begin(newestProtocol)}
	for range maxStateBytes/partBytes + 1 {
		s := with(func(e *pb.Export) {
			e.Identities = slices.Repeat([]string{"spiffe://cluster.local/" + strings.Repeat("x", 1000)}, maxIdentities)
		})
		heavy = append(heavy, reporting(&pb.Report{Revision: 1, State: s, More: true}))
	}
	if err := saying(t, api, heavy...); reasonOf(err) != pb.Refusal_INVALID || !strings.Contains(err.Error(), "state cannot be taken") {
		t.Errorf("a state that is too large: %v", err)
	}
	// How a stream begins.
	for name, first := range map[string]*pb.FromMember{"a state": stating(&pb.State{}), "nothing": {}} {
		if err := saying(t, api, first); reasonOf(err) != pb.Refusal_INVALID {
			t.Errorf("a stream that begins with %s: %v", name, err)
		}
	}
	for _, protocol := range []uint32{0, newestProtocol + 1} {
		if err := saying(t, api, begin(protocol)); reasonOf(err) != pb.Refusal_UNSUPPORTED || !strings.Contains(err.Error(), "versions do not fit") {
			t.Errorf("protocol %d: %v", protocol, err)
		}
	}
	if p.peer("cluster2").Services.Len() != 0 {
		t.Error("something of it got through")
	}
}

func TestSilentMemberIsLetGo(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	api, _ := raw(t, p, certificateOf(t, a))
	if err := saying(t, api, begin(newestProtocol)); err == nil {
		t.Error("a silent stream ended well")
	}
	if n := p.f.counters.snapshot()[countStreamsSilent]; n != 1 {
		t.Errorf("%d streams were silent", n)
	}
}

func TestRemovalDoesNotWaitForTheRemoved(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.put(globalNamespace("boutique", "*", "shop"))
	a := p.joinMember("cluster2")
	eventually(t, "the Cluster is known", func() bool { return p.status("cluster2").Connected })
	a.stop()
	// It goes on talking and never listens, so that it can be told nothing.
	api, _ := raw(t, p, certificateOf(t, a))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	call, err := api.Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(call.Send(begin(newestProtocol)), call.Send(stating(&pb.State{Services: exportMessages(registry.NewExports(export("shop", "cart", 1)).Sorted())}))); err != nil {
		t.Fatal(err)
	}
	talked := make(chan struct{})
	go func() {
		defer close(talked)
		for wait(ctx, testPace.Alive, nil) && call.Send(&pb.FromMember{Message: &pb.FromMember_Alive{Alive: &pb.Alive{}}}) == nil {
		}
	}()
	eventually(t, "its services are known", func() bool { return p.peer("cluster2").Services.Len() == 1 })
	var large []registry.Export
	for i := range maxServices {
		large = append(large, export("shop", fmt.Sprintf("svc%d", i), 1))
	}
	p.f.SetOwn(registry.Locality{}, registry.NewExports(large...))
	p.remove(clusterKey("cluster2"))
	eventually(t, "it is forgotten", func() bool { return len(p.f.Peers()) == 0 })
	<-talked
}

func TestConnectionsAreBounded(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	first, _ := raw(t, p, nil)
	// What HTTP/2 says by itself to begin with has come when this is answered.
	if _, err := first.Hello(context.Background(), &pb.HelloRequest{}); err != nil {
		t.Fatal(err)
	}
	for range maxStrangers {
		api, _ := raw(t, p, nil)
		if _, err := api.Hello(context.Background(), &pb.HelloRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	// Who said nothing since lost its place to one that came later.
	if _, err := first.Hello(context.Background(), &pb.HelloRequest{}); err == nil {
		t.Error("the first stranger is still heard")
	}
	if n := p.f.counters.snapshot()[countConnectionsRefused]; n == 0 {
		t.Error("no connection was ended")
	}
	// All places are taken, and a cluster can join all the same.
	if _, err := joinAs(t, p, "x", p.address, p.token()); err != nil {
		t.Error(err)
	}
	// Members are not in strangers' bounds.
	a.restart()
	eventually(t, "the member is connected", func() bool { return a.f.Status().Connected })
	a.stop()
	before := p.f.counters.snapshot()[countConnectionsRefused]
	for range 2 * maxPerMember {
		conn, err := connect(context.Background(), p.link.dial, human, p.address, "cluster.local", certificateOf(t, a), func([]*x509.Certificate) error { return nil })
		if err == nil {
			defer conn.Close()
		}
	}
	eventually(t, "a member's are bounded too", func() bool { return p.f.counters.snapshot()[countConnectionsRefused] >= before+maxPerMember })
}

// silentStrangers hold connections without a word.
func silentStrangers(t *testing.T, n *node, count int) {
	t.Helper()
	for range count {
		conn, err := net.Dial("tcp", n.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
}

// A stranger who holds hundreds of connections without a word keeps nobody out: neither a member that comes back, from the
// same address, nor a cluster that joins.
func TestSilentStrangersKeepNobodyOut(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	silentStrangers(t, p, 300)
	// Those who come after these have a place that none of them takes.
	eventually(t, "the silent are accepted", func() bool { return p.f.counters.snapshot()[countConnections] >= 300 })
	for range 2 * maxStrangers {
		raw(t, p, nil)
	}
	eventually(t, "all are accepted", func() bool { return p.f.counters.snapshot()[countConnections] >= 300+2*maxStrangers })
	failed := p.f.counters.snapshot()[countHandshakesFailed]
	began := time.Now()
	a.start()
	t.Cleanup(a.stop)
	eventually(t, "the member is connected", func() bool { return a.f.Status().Connected })
	if took := time.Since(began); took > handshakeTimeout/2 {
		t.Errorf("it took %s", took)
	}
	if n := a.f.counters.snapshot()[countAttemptsFailed]; n != 0 {
		t.Errorf("%d attempts of the member failed", n)
	}
	if _, err := joinAs(t, p, "cluster3", p.address, p.token()); err != nil {
		t.Error(err)
	}
	// It was not for want of strangers.
	if n := p.f.counters.snapshot()[countHandshakesFailed]; n > failed+2*maxHandshakes {
		t.Errorf("%d handshakes ended: the strangers had gone by themselves", n-failed)
	}
}

// A stranger that goes on connecting, as fast as it can, takes places from itself only.
func TestAFloodFromOneAddressTakesItsOwnPlaces(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	ctx, cancel := context.WithCancel(context.Background())
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	flood.Go(func() {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
		var held []net.Conn
		for ctx.Err() == nil {
			conn, err := dialer.DialContext(ctx, "tcp", p.address)
			if err != nil {
				continue
			}
			if held = append(held, conn); len(held) > 4*maxHandshakes {
				held[0].Close()
				held = held[1:]
			}
		}
		for _, conn := range held {
			conn.Close()
		}
	})
	eventually(t, "the flood has begun", func() bool { return p.f.counters.snapshot()[countConnections] > 4*maxHandshakes })
	a.start()
	t.Cleanup(a.stop)
	eventually(t, "the member is connected", func() bool { return a.f.Status().Connected })
}

// falsePrimary has the certificate of a primary, and says what a test says.
type falsePrimary struct {
	pb.UnimplementedFederationServer
	hello   *pb.HelloResponse
	join    func(*pb.JoinRequest) (*pb.JoinResponse, error)
	updates []*pb.Update
}

func (p *falsePrimary) Hello(context.Context, *pb.HelloRequest) (*pb.HelloResponse, error) {
	return p.hello, nil
}

func (p *falsePrimary) Join(_ context.Context, r *pb.JoinRequest) (*pb.JoinResponse, error) {
	return p.join(r)
}

func (p *falsePrimary) Sync(call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary]) error {
	for i, u := range p.updates {
		if u.Revision == 0 {
			u.Revision = uint64(i + 1)
		}
		if err := call.Send(&pb.FromPrimary{Message: &pb.FromPrimary_Update{Update: u}}); err != nil {
			return err
		}
	}
	<-call.Context().Done()
	return nil
}

// serveFalse puts a false primary in a true one's place.
func serveFalse(t *testing.T, p *node, f *falsePrimary) {
	t.Helper()
	p.stop()
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(p.f.tlsConfig())), grpc.MaxSendMsgSize(64<<20))
	pb.RegisterFederationServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func TestPrimarysWordsAreChecked(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	peer := func(name string) *pb.Peer { return &pb.Peer{Cluster: name, State: &pb.State{Whole: true}} }
	tooMany := &pb.Update{Full: true}
	for range maxPieces + 1 {
		tooMany.Peers = append(tooMany.Peers, peer("x"))
	}
	f := &falsePrimary{}
	serveFalse(t, p, f)
	for name, test := range map[string]struct {
		update *pb.Update
		want   string
	}{
		"a change before all":   {&pb.Update{Peers: []*pb.Peer{peer("x")}}, "not a full one"},
		"a strange name":        {&pb.Update{Full: true, Peers: []*pb.Peer{peer("../x")}}, "not one of a cluster"},
		"a strange gateway":     {&pb.Update{Full: true, Peers: []*pb.Peer{{Cluster: "x", State: &pb.State{Whole: true, About: &pb.About{Gateways: []string{"x"}}}}}}, "not the address of a gateway"},
		"pieces out of order":   {&pb.Update{Full: true, Peers: []*pb.Peer{{Cluster: "x", Continued: true, State: &pb.State{}}}}, "not in order"},
		"a cluster twice":       {&pb.Update{Full: true, Peers: []*pb.Peer{peer("x"), peer("x")}}, "not in order"},
		"too many peers":        {tooMany, "at most"},
		"a message without end": {&pb.Update{Full: true, Objects: [][]byte{make([]byte, maxFromPrimary+1)}}, "larger than max"},
	} {
		f.updates = []*pb.Update{test.update}
		a.restart()
		eventually(t, name+" is refused", func() bool { return strings.Contains(a.f.Status().Problem, test.want) })
		if a.f.Status().Connected || len(a.f.Peers()) != 1 || !a.has(clusterKey("cluster1")) {
			t.Errorf("%s changed something: %+v", name, a.f.Peers())
		}
	}
	// Objects that are not for it to replicate are passed over; what is good of the update counts.
	policy, errs := objects.Decode(strings.NewReader("apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: evil, namespace: shop }\n"), "x", "shop")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	text, err := replicaText(policy[0])
	if err != nil {
		t.Fatal(err)
	}
	strange, err := replicaText(globalNamespace("a/b", "*", "shop"))
	if err != nil {
		t.Fatal(err)
	}
	own := clusterObject("cluster2", clusterSpec())
	own.Origin.Cluster = "cluster1"
	ownText, err := replicaText(own)
	if err != nil {
		t.Fatal(err)
	}
	f.updates = []*pb.Update{{Full: true, Objects: [][]byte{text, []byte("{"), strange, ownText}, GoneObjects: []*pb.ObjectKey{{Kind: "ServiceAccount", Name: "x"}}, Peers: []*pb.Peer{peer("cluster9")}}}
	a.restart()
	eventually(t, "the rest is taken", func() bool { return a.peer("cluster9").Cluster != "" })
	if a.has(policy[0].Key()) || a.f.counters.snapshot()[countReplicaFailures] != 3 {
		t.Errorf("an object was taken that is not for the primary to replicate: %v", a.f.counters.snapshot())
	}
}

// Each update is within its bounds, and so must be what they come to.
func TestWhatAPrimarySaysDoesNotAddUp(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	eventually(t, "connected", func() bool { return a.f.Status().Connected })
	peers := func(prefix string, n int) []*pb.Peer {
		out := make([]*pb.Peer, n)
		for i := range out {
			out[i] = &pb.Peer{Cluster: fmt.Sprintf("%s%d", prefix, i), State: &pb.State{Whole: true}}
		}
		return out
	}
	f := &falsePrimary{}
	serveFalse(t, p, f)
	for name, test := range map[string]struct {
		updates []*pb.Update
		want    string
	}{
		"clusters":                {[]*pb.Update{{Full: true, Peers: peers("x", maxClusters-8)}, {Peers: peers("y", 9)}}, "clusters with"},
		"clusters at once":        {[]*pb.Update{{Full: true, Peers: peers("x", maxClusters+1)}}, "clusters with"},
		"pieces without an end":   {[]*pb.Update{{Full: true, Revision: 1, More: true, Peers: peers("x", maxPieces)}, {Revision: 1, More: true, Peers: peers("y", 1)}}, "pieces about clusters"},
		"goodbyes without an end": {[]*pb.Update{{Full: true, Revision: 1, More: true, GonePeers: make([]string, maxPieces+1)}}, "pieces about clusters"},
	} {
		f.updates = test.updates
		a.restart()
		eventually(t, name+" are refused", func() bool { return strings.Contains(a.f.Status().Problem, test.want) })
		if n := len(a.f.Peers()); n > maxClusters {
			t.Errorf("%s: %d clusters are known", name, n)
		}
	}
}

func TestObjectsAreCountedWithThoseThatAreThere(t *testing.T) {
	key := func(name string) objects.Key { return globalNamespace(name, "*", "shop").Key() }
	there := globalNamespace("a", "*", "shop")
	existing := map[objects.Key]*objects.Object{key("a"): there, key("b"): there}
	for want, writes := range map[int][]store.Write{
		1: {{Key: key("a")}},
		2: {{Key: key("a"), Object: there}},
		3: {{Key: key("c"), Object: there}, {Key: key("d"), Object: there}, {Key: key("b")}},
	} {
		if got := objectsAfter(existing, writes); got != want {
			t.Errorf("%d objects after %+v, want %d", got, writes, want)
		}
	}
}

func TestServicesOfAllClustersAreBounded(t *testing.T) {
	var all []*registry.Export
	for i := range 1000 {
		all = append(all, &registry.Export{Namespace: "shop", Name: fmt.Sprintf("service%d", i), Identities: []string{strings.Repeat("x", 8000)}})
	}
	large := (*registry.Exports)(nil).Replaced(all)
	f := &Federation{peers: map[string]*entry{}}
	most := maxUpdateBytes / large.Size()
	for i := range most {
		f.peers[fmt.Sprintf("x%d", i)] = &entry{State: State{Services: large}}
	}
	told := map[string]toldPeer{"y": {State: State{Services: large}}}
	if err := f.roomFor(told, &pb.Update{}); err == nil || !strings.Contains(err.Error(), "MiB of services") {
		t.Errorf("%v, with %d clusters of %d bytes and another one", err, most, large.Size())
	}
	for _, u := range []*pb.Update{{GonePeers: []string{"x1"}}, {Full: true}} {
		if err := f.roomFor(told, u); err != nil {
			t.Error(err)
		}
	}
}

func TestPrimaryOfAnotherVersion(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	f := &falsePrimary{}
	serveFalse(t, p, f)
	hello := func() *pb.HelloResponse {
		return &pb.HelloResponse{Oldest: oldestProtocol, Newest: newestProtocol, Cluster: "cluster1", Primary: "cluster1", TrustDomain: "cluster.local", Time: time.Now().UnixNano()}
	}
	for _, test := range []struct {
		name, want string
		change     func(*pb.HelloResponse)
	}{
		{"newer", "versions do not fit together", func(h *pb.HelloResponse) { h.Oldest, h.Newest, h.Version = 7, 8, "v9" }},
		{"older", "versions do not fit together", func(h *pb.HelloResponse) { h.Oldest, h.Newest = 0, 0 }},
		{"another trust domain", "trust domains differ", func(h *pb.HelloResponse) { h.TrustDomain = "other.example" }},
		{"its clock in our past", "clocks are apart", func(h *pb.HelloResponse) { h.Time = 0 }},
	} {
		f.hello = hello()
		test.change(f.hello)
		c, err := joinAs(t, p, "x", p.address, token)
		failsWith(t, err, test.want)
		nothingLeft(t, c)
	}
	// Answers that are of no use.
	f.hello = hello()
	stranger, err := ca.Open(ca.Options{Dir: t.TempDir(), Cluster: "cluster1", TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	for name, issue := range map[string]func(*pb.JoinRequest) (ca.Intermediate, error){
		"for another key": func(*pb.JoinRequest) (ca.Intermediate, error) {
			_, request, err := ca.NewIntermediateRequest("x", nil)
			if err != nil {
				return ca.Intermediate{}, err
			}
			return p.authority.SignIntermediate(request, "x", someHash)
		},
		"for another cluster": func(r *pb.JoinRequest) (ca.Intermediate, error) {
			return p.authority.SignIntermediate(r.GetRequest(), "y", someHash)
		},
		"of another root": func(r *pb.JoinRequest) (ca.Intermediate, error) {
			return stranger.SignIntermediate(r.GetRequest(), "x", someHash)
		},
		"empty": func(*pb.JoinRequest) (ca.Intermediate, error) { return ca.Intermediate{}, nil },
	} {
		f.join = func(r *pb.JoinRequest) (*pb.JoinResponse, error) {
			i, err := issue(r)
			return &pb.JoinResponse{Primary: "cluster1", Issued: message(i)}, err
		}
		c, err := joinAs(t, p, "x", p.address, token)
		failsWith(t, err, "answer is of no use")
		nothingLeft(t, c)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	f.join = func(*pb.JoinRequest) (*pb.JoinResponse, error) {
		return nil, status.Error(codes.Unavailable, "x\x1b[31m")
	}
	c, err := joinAs(t, p, "x", p.address, token)
	if strings.Contains(asProblem(t, err, "its answer was lost").Error(), "\x1b") {
		t.Error("control characters of a peer reach the terminal")
	}
	if !exists(joiningPath(c)) {
		t.Error("the key is gone")
	}
}

func TestListenerThatIsLostIsOpenedAgain(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	p.stop()
	var opened []net.Listener
	failures := 2
	p.f.config.Listen = func() (net.Listener, error) {
		if failures > 0 {
			failures--
			return nil, errors.New("cannot assign requested address")
		}
		l, err := net.Listen("tcp", p.address)
		if err == nil && len(opened) == 0 {
			opened = append(opened, l)
			l.Close()
		}
		return l, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.f.listenLoop(ctx) }()
	eventually(t, "it listens", func() bool {
		conn, err := net.Dial("tcp", p.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	cancel()
	<-done
}

func TestLoopbackGatewaysAreForNeighbours(t *testing.T) {
	for _, address := range []string{"127.0.0.1:15443", "[::1]:15443"} {
		m := &pb.About{Gateways: []string{address}}
		if _, err := readAbout(m, false); err == nil {
			t.Errorf("%s is taken from afar", address)
		}
		if _, err := readAbout(m, true); err != nil {
			t.Error(err)
		}
	}
}

func TestStatesThatChangeTooOften(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	a := p.joinMember("cluster2")
	a.stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var call pb.Federation_SyncClient
	open := func() {
		t.Helper()
		api, _ := raw(t, p, certificateOf(t, a))
		var err error
		if call, err = api.Sync(ctx); err == nil {
			err = call.Send(begin(newestProtocol))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	open()
	zone, sent, revision := "", 0, uint64(0)
	state := func() {
		t.Helper()
		// A pause of a busy machine is silence to the primary, and ends the stream: then there is another.
		revision++
		m := &pb.State{Whole: true, About: &pb.About{Locality: &pb.Locality{Zone: zone}}}
		if call.Send(reporting(&pb.Report{Revision: revision, State: m})) != nil {
			open()
			revision = 0
		}
	}
	eventually(t, "many are read", func() bool {
		for range statesBurst {
			zone = fmt.Sprint("zone-", sent)
			sent++
			state()
		}
		return p.f.counters.snapshot()[countStatesReceived] >= 20*statesBurst
	})
	if p.f.counters.snapshot()[countStatesSkipped] == 0 {
		t.Error("none was passed over")
	}
	eventually(t, "the last one counts", func() bool {
		state()
		return p.peer("cluster2").Locality.Zone == zone
	})
}

func TestOwnExportsAreBounded(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	many := func(n, bytes int) *registry.Exports {
		all := make([]registry.Export, n)
		for i := range all {
			all[i].Name = fmt.Sprintf("%05d", i) + strings.Repeat("x", bytes)
		}
		return registry.NewExports(all...)
	}
	p.f.SetOwn(registry.Locality{}, many(maxServices+1, 0))
	if n := p.f.own.Services.Len(); n != maxServices {
		t.Errorf("%d services are exported", n)
	}
	p.f.SetOwn(registry.Locality{}, many(10, 1<<20))
	size := 0
	for _, part := range parts(p.f.own.since(nil)) {
		size += proto.Size(part)
	}
	if n := p.f.own.Services.Len(); n != 7 || size > maxStateBytes {
		t.Errorf("%d services of %d bytes are exported", n, size)
	}
}
