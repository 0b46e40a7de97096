package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/peer"
)

// names that a thief asks for beside the two that there are.
var coveted = []string{"*", "", "spiffe://cluster.local/ns/pinnacle/sa/frontend", "kubernetes://shop-cert", "default-2", "file-cert:/var/lib/heddle/c/ca/root-key.pem~/etc/shadow", "../../frontend-0/agent.sock"}

// identities are those of the certificates among secrets. Whatever is neither the certificate nor the roots is told.
func identities(t *testing.T, all []*tlsv3.Secret) []string {
	t.Helper()
	var out []string
	for _, secret := range all {
		chain := secret.GetTlsCertificate().GetCertificateChain().GetInlineBytes()
		if chain == nil {
			if secret.Name != SecretRoots {
				t.Errorf("the socket gave %s", secret.Name)
			}
			continue
		}
		block, _ := pem.Decode(chain)
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for _, uri := range leaf.URIs {
			out = append(out, uri.String())
		}
		if secret.Name != SecretCertificate {
			t.Errorf("a certificate under the name %q", secret.Name)
		}
	}
	return out
}

// Who has stolen a proxy's socket is that workload and nobody else, whatever node it says it is and whatever it asks for, in
// both forms of discovery and over all services.
func TestAStolenSocketIsOneWorkload(t *testing.T) {
	credential, connection, controller := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	go credential.Run(ctx)
	<-credential.Ready()
	stub, _ := serveController(t, controller)
	liar := &corev3.Node{Id: "sidecar~10.0.0.9~frontend-0.pinnacle~pinnacle.svc.cluster.local", Cluster: "frontend.pinnacle"}

	delta, err := secretv3.NewSecretDiscoveryServiceClient(connection).DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: liar, TypeUrl: resource.SecretType, ResourceNamesSubscribe: append([]string{SecretCertificate, SecretRoots}, coveted...)}); err != nil {
		t.Fatal(err)
	}
	var all []*tlsv3.Secret
	for _, secret := range secrets(t, delta) {
		all = append(all, secret)
	}
	if got := identities(t, all); len(got) != 1 || got[0] != payments.String() {
		t.Errorf("the socket gave the identities %v", got)
	}

	whole, err := secretv3.NewSecretDiscoveryServiceClient(connection).StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := whole.Send(&discoveryv3.DiscoveryRequest{Node: liar, TypeUrl: resource.SecretType, ResourceNames: append([]string{SecretCertificate}, coveted...)}); err != nil {
		t.Fatal(err)
	}
	response, err := whole.Recv()
	if err != nil {
		t.Fatal(err)
	}
	all = nil
	for _, r := range response.Resources {
		secret := &tlsv3.Secret{}
		if err := r.UnmarshalTo(secret); err != nil {
			t.Fatal(err)
		}
		all = append(all, secret)
	}
	if got := identities(t, all); len(got) != 1 || got[0] != payments.String() {
		t.Errorf("the socket gave the identities %v", got)
	}

	// A stream that began honestly cannot change its mind.
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []*corev3.Node{nil, liar, liar} {
		if err := ads.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.ClusterType}); err != nil {
			t.Fatal(err)
		}
		if _, err := ads.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	stub.mu.Lock()
	defer stub.mu.Unlock()
	if len(stub.nodes) != 3 {
		t.Errorf("%d requests came to the controller", len(stub.nodes))
	}
	for i, node := range stub.nodes {
		if node != nil && node.Id != "sidecar~10.0.0.1~payments-0.pinnacle~pinnacle.svc.cluster.local" || node == nil && i == 0 || node.GetCluster() == liar.Cluster && node.GetId() == liar.Id {
			t.Errorf("request %d came to the controller as of %v", i, node)
		}
	}

	// What the agent can do for the controller, and what a proxy is asked by others, is not served here.
	answers, err := statusv3.NewClientStatusDiscoveryServiceClient(connection).FetchClientStatus(ctx, &statusv3.ClientStatusRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("%v %v", answers, err)
	}
	if err := connection.Invoke(ctx, "/v1/shutdown", &statusv3.ClientStatusRequest{}, &statusv3.ClientStatusResponse{}, grpc.WaitForReady(true)); status.Code(err) != codes.Unimplemented {
		t.Errorf("%v", err)
	}
}

// A proxy that was taken over holds what so many messages take of the agent's memory, on however many connections, and nothing
// by their heads; what it gives back is there for its successor.
func TestAHostileProxyHoldsABoundedPartOfTheAgent(t *testing.T) {
	credential, s, first, _ := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go credential.Run(ctx)
	<-credential.Ready()
	// open opens a stream that stays, once it has an answer.
	open := func(ctx context.Context, c *grpc.ClientConn) error {
		stream, err := secretv3.NewSecretDiscoveryServiceClient(c).StreamSecrets(ctx)
		if err != nil {
			return err
		}
		// What became of it, the answer says.
		_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "any"}, TypeUrl: resource.SecretType, ResourceNames: []string{SecretRoots}})
		_, err = stream.Recv()
		return err
	}
	if err := open(metadata.AppendToOutgoingContext(ctx, "filler", strings.Repeat("a", 4*maxHead)), first); err == nil {
		t.Errorf("a head of %d bytes was taken", 4*maxHead)
	}
	connections := []*grpc.ClientConn{first}
	for range 3 {
		c, err := grpc.NewClient(first.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		connections = append(connections, c)
	}
	held, release := context.WithCancel(ctx)
	defer release()
	for i := range maxStreams {
		if err := open(held, connections[i%len(connections)]); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	for _, c := range connections {
		if err := open(held, c); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one more than %d streams: %v", maxStreams, err)
		}
	}
	if n := s.refusals.streams.Load(); n != uint64(len(connections)) {
		t.Errorf("%d streams were counted as refused", n)
	}
	release()
	for {
		err := open(ctx, first)
		if err == nil {
			break
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("after they were given back: %v", err)
		}
	}
}

// A controller waits for the answers to what is on its way over a stream, for all proxies together: one with many streams that
// answers nothing would hold up the others.
func TestAHostileProxyHasTwoConfigurationStreams(t *testing.T) {
	_, s, connection, controller := listen(t)
	serveController(t, controller)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ask := func(ctx context.Context) error {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType})
		_, err = stream.Recv()
		return err
	}
	held, release := context.WithCancel(ctx)
	defer release()
	for i := range maxConfigStreams {
		if err := ask(held); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	if err := ask(ctx); status.Code(err) != codes.ResourceExhausted || s.refusals.configStreams.Load() != 1 {
		t.Errorf("one more: %v, %d were counted as refused", err, s.refusals.configStreams.Load())
	}
	release()
	for {
		err := ask(ctx)
		if err == nil {
			break
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("after they were given back: %v", err)
		}
	}
}

// So it is while the controller is away, for whom the streams wait; which are none that it has.
func TestAHostileProxyHasTwoConfigurationStreamsThatWait(t *testing.T) {
	_, s, connection, controller := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	api := discoveryv3.NewAggregatedDiscoveryServiceClient(connection)
	held, release := context.WithCancel(ctx)
	defer release()
	// Which of them come first is not theirs to choose.
	refused := make(chan error, maxStreams)
	const asked = 10
	for i := range asked {
		var stream grpc.ClientStream
		var err error
		if i%2 == 0 {
			stream, err = api.DeltaAggregatedResources(held)
		} else {
			stream, err = api.StreamAggregatedResources(held)
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() { refused <- stream.RecvMsg(new(discoveryv3.DiscoveryResponse)) }()
	}
	for range asked - maxConfigStreams {
		if err := <-refused; status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("one more: %v", err)
		}
	}
	if n := s.refusals.configStreams.Load(); n != asked-maxConfigStreams {
		t.Errorf("%d were counted as refused", n)
	}
	if connected, _ := s.Connected(); connected {
		t.Error("a stream that waits is one to the controller")
	}
	release()
	for range maxConfigStreams {
		if err := <-refused; status.Code(err) != codes.Canceled {
			t.Errorf("one that waited: %v", err)
		}
	}
	serveController(t, controller)
	for {
		stream, err := api.DeltaAggregatedResources(ctx)
		if err == nil {
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType})
			_, err = stream.Recv()
		}
		if err == nil {
			break
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("after they were given back: %v", err)
		}
	}
}

// What a proxy sends before its handler reads it takes as much of the agent's memory as the windows say, however fast it sends:
// a window that grows by what a peer was seen to send would be the peer's to choose.
func TestWindowsOfAHostileProxyDoNotGrow(t *testing.T) {
	_, connection, controller := socket(t)
	serveController(t, controller)
	peer, err := net.Dial("unix", strings.TrimPrefix(connection.Target(), "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	_ = peer.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(peer, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(peer, peer)
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "agent"},
		{":path", discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if err := errors.Join(framer.WriteSettings(), framer.WriteSettingsAck(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})); err != nil {
		t.Fatal(err)
	}
	// The beginning of one message of a mebibyte, as much as the stream's window lets through.
	const message = 1 << 20
	data := append([]byte{0, 0, 0x10, 0, 0}, make([]byte, message)...)
	stream, connectionCredit, sent := 65535, 65535, 0
	for range 10_000 {
		for n := min(stream, connectionCredit, len(data), 16<<10); n > 0; n = min(stream, connectionCredit, len(data), 16<<10) {
			if err := framer.WriteData(1, false, data[:n]); err != nil {
				t.Fatal(err)
			}
			data, stream, connectionCredit, sent = data[n:], stream-n, connectionCredit-n, sent+n
		}
		if len(data) == 0 {
			break
		}
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if size, ok := f.Value(http2.SettingInitialWindowSize); ok {
				if size != window {
					t.Fatalf("after %d bytes, streams have windows of %d bytes, want %d", sent, size, window)
				}
				stream += int(size) - 65535
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				connectionCredit += int(f.Increment)
			} else {
				stream += int(f.Increment)
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			t.Fatalf("after %d bytes: %v", sent, f)
		case *http2.PingFrame:
			// How a window that grows measures: answered, as a peer would.
			if f.IsAck() {
				break
			}
			if err := framer.WritePing(true, f.Data); err != nil {
				t.Fatal(err)
			}
		}
		if connectionCredit > connectionWindow {
			t.Fatalf("after %d bytes, the connection may send %d more, want %d at most", sent, connectionCredit, connectionWindow)
		}
	}
	if len(data) > 0 {
		t.Errorf("%d bytes were taken, %d are left", sent, len(data))
	}
}

// What a hostile proxy says neither fills logs nor writes on terminals.
func TestWordsOfAHostileProxyAreClipped(t *testing.T) {
	_, connection, controller := socket(t)
	stub, _ := serveController(t, controller)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const cruel = "\x1b[2Jline\n"
	node := &corev3.Node{UserAgentName: strings.Repeat(cruel, 1<<10)}
	for range 2 {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.ClusterType, ErrorDetail: &rpcstatus.Status{Message: strings.Repeat(cruel, 1<<16)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	stub.mu.Lock()
	defer stub.mu.Unlock()
	words := slices.Concat(stub.reasons, []string{stub.nodes[0].UserAgentName})
	if len(words) != 3 {
		t.Fatalf("%d words", len(words))
	}
	for _, said := range words {
		if len(said) > 2*maxReason || strings.ContainsAny(said, "\x1b\u202e") || strings.Contains(said, `\x1b`) || strings.Contains(said, `\033`) {
			t.Errorf("the controller hears %d bytes: %.60q", len(said), said)
		}
	}
	if agent := stub.nodes[0].UserAgentName; len([]rune(agent)) > maxAgent+1 || strings.Contains(agent, "\n") {
		t.Errorf("the controller hears of a program %q", agent)
	}
}

// A node that says too much of itself is not passed on to the controller, which keeps it.
func TestANodeThatSaysTooMuchIsOneThatSaysNothing(t *testing.T) {
	r := &relay{node: &corev3.Node{Id: "attested"}}
	said := &corev3.Node{Id: "any", UserAgentName: "envoy", ClientFeatures: []string{"a"}, Extensions: []*corev3.Extension{{Name: "b"}}}
	if got := r.identify(said); got.Id != "attested" || got.UserAgentName != "envoy" || len(got.ClientFeatures) != 1 || len(got.Extensions) != 1 {
		t.Errorf("got %v", got)
	}
	said.Extensions[0].Name = strings.Repeat("b", maxNode)
	if got := r.identify(said); got.Id != "attested" || got.UserAgentName != "" || len(got.ClientFeatures)+len(got.Extensions) != 0 {
		t.Errorf("%d bytes are passed on", proto.Size(got))
	}
}

// A name that no resource has does not get to the controller, which would keep it.
func TestLongNamesOfAHostileProxyStayWithTheAgent(t *testing.T) {
	_, s, connection, controller := listen(t)
	stub, _ := serveController(t, controller)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	api := discoveryv3.NewAggregatedDiscoveryServiceClient(connection)
	long := strings.Repeat("a", peer.MaxName+1)
	for _, request := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{"a", long}},
		{TypeUrl: resource.EndpointType, ResourceNamesUnsubscribe: []string{long}},
		{TypeUrl: resource.ClusterType, InitialResourceVersions: map[string]string{long: "1"}},
		{TypeUrl: long},
	} {
		stream, err := api.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%v", err)
		}
	}
	stream, err := api.StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resource.SecretType, ResourceNames: []string{long}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("in the state of the world: %v", err)
	}
	if n := s.refusals.names.Load(); n != 5 {
		t.Errorf("%d were counted as refused", n)
	}
	stub.mu.Lock()
	defer stub.mu.Unlock()
	if len(stub.nodes) != 0 {
		t.Errorf("%d requests came to the controller", len(stub.nodes))
	}
}
