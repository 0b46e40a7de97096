package identity

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/control/ca"
)

var payments = ca.Identity{TrustDomain: "cluster.local", Namespace: "pinnacle", ServiceAccount: "payments"}

// authority is a signer in this process.
type authority struct{ *ca.Authority }

func (a authority) Sign(_ context.Context, identity ca.Identity, request []byte) (ca.Certificate, error) {
	return a.Authority.Sign(request, identity, 0)
}

func (a authority) SignOutside(_ context.Context, identity ca.Identity, request []byte, lifetime time.Duration) (ca.Certificate, error) {
	return a.Authority.SignOutside(request, identity, lifetime)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// controllerStub answers ADS with the node id that it was told.
type controllerStub struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu    sync.Mutex
	nodes []*corev3.Node
	// reasons are why it was refused.
	reasons []string
}

func (c *controllerStub) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		request, err := s.Recv()
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.nodes = append(c.nodes, request.Node)
		if request.ErrorDetail != nil {
			c.reasons = append(c.reasons, request.ErrorDetail.String())
		}
		c.mu.Unlock()
		if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: request.TypeUrl, Nonce: "1"}); err != nil {
			return err
		}
	}
}

func serveController(t *testing.T, path string) (*controllerStub, *grpc.Server) {
	t.Helper()
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stub, server := &controllerStub{}, grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, stub)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return stub, server
}

func socket(t *testing.T) (*Credential, *grpc.ClientConn, string) {
	t.Helper()
	credential, _, connection, controller := listen(t)
	return credential, connection, controller
}

func listen(t *testing.T) (*Credential, *Socket, *grpc.ClientConn, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("giving a socket to the proxy's user needs root")
	}
	dir := t.TempDir()
	a, err := ca.Open(ca.Options{Dir: filepath.Join(dir, "ca"), Cluster: "c", TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	credential := NewCredential(payments, ca.ECDSAP256, authority{a}, quiet())
	path, controller := filepath.Join(dir, "agent.sock"), filepath.Join(dir, "xds.sock")
	s, err := Listen(Config{Path: path, Netns: "/proc/self/ns/net", Credential: credential,
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~payments-0.pinnacle~pinnacle.svc.cluster.local"}, Controller: controller, Refusals: new(Refusals), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return credential, s, connection, controller
}

func TestSecretsAreServedAndRotated(t *testing.T) {
	credential, connection, _ := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(connection).DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: resource.SecretType,
		ResourceNamesSubscribe: []string{SecretCertificate, SecretRoots}}); err != nil {
		t.Fatal(err)
	}
	go credential.Run(ctx)
	first := secrets(t, stream)
	if len(first[SecretRoots].GetValidationContext().GetTrustedCa().GetInlineBytes()) == 0 {
		t.Fatal("no roots")
	}
	renewed := make(chan error, 1)
	go func() { renewed <- credential.Renew(ctx) }()
	second := secrets(t, stream)
	if err := <-renewed; err != nil {
		t.Fatal(err)
	}
	old, fresh := first[SecretCertificate].GetTlsCertificate(), second[SecretCertificate].GetTlsCertificate()
	if string(old.GetPrivateKey().GetInlineBytes()) == string(fresh.GetPrivateKey().GetInlineBytes()) {
		t.Fatal("the key was not replaced")
	}
	if got := credential.Validity(); got.Renewals != 2 || got.Serial == "" || got.Problem != "" {
		t.Fatalf("%+v", got)
	}
}

// secrets reads until the certificate came.
func secrets(t *testing.T, stream secretv3.SecretDiscoveryService_DeltaSecretsClient) map[string]*tlsv3.Secret {
	t.Helper()
	got := map[string]*tlsv3.Secret{}
	for got[SecretCertificate] == nil {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range response.Resources {
			secret := &tlsv3.Secret{}
			if err := r.Resource.UnmarshalTo(secret); err != nil {
				t.Fatal(err)
			}
			got[secret.Name] = secret
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.SecretType, ResponseNonce: response.Nonce}); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestStateOfTheWorldSecrets(t *testing.T) {
	credential, connection, _ := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go credential.Run(ctx)
	<-credential.Ready()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(connection).StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: resource.SecretType, ResourceNames: []string{SecretRoots}}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil || len(response.Resources) != 1 {
		t.Fatalf("%v %v", response, err)
	}
}

func TestConfigurationComesUnderTheAttestedIdentity(t *testing.T) {
	_, connection, controller := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(connection)
	ask := func() error {
		stream, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "sidecar~6.6.6.6~evil.other~x", UserAgentName: "envoy"}, TypeUrl: resource.ClusterType}); err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	// The stream is held until there is a controller.
	answered := make(chan error, 1)
	go func() { answered <- ask() }()
	stub, server := serveController(t, controller)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	stub.mu.Lock()
	node := stub.nodes[0]
	stub.mu.Unlock()
	if node.Id != "sidecar~10.0.0.1~payments-0.pinnacle~pinnacle.svc.cluster.local" || node.UserAgentName != "envoy" {
		t.Fatalf("%v", node)
	}
	// A controller that is replaced is found again.
	server.Stop()
	go func() {
		err := ask()
		// A stream that began on the connection to the old one ends with it, and the proxy asks again.
		for status.Code(err) == codes.Unavailable && ctx.Err() == nil {
			err = ask()
		}
		answered <- err
	}()
	serveController(t, controller)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
}

type broken struct{ calls chan struct{} }

func (b broken) Sign(context.Context, ca.Identity, []byte) (ca.Certificate, error) {
	b.calls <- struct{}{}
	return ca.Certificate{}, io.ErrUnexpectedEOF
}

func (b broken) SignOutside(ctx context.Context, identity ca.Identity, request []byte, _ time.Duration) (ca.Certificate, error) {
	return b.Sign(ctx, identity, request)
}

func TestRenewalBacksOff(t *testing.T) {
	b := broken{make(chan struct{}, 16)}
	c := NewCredential(payments, ca.ECDSAP256, b, quiet())
	waits, clock := make(chan time.Duration, 16), make(chan time.Time)
	c.after = func(d time.Duration) <-chan time.Time { waits <- d; return clock }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go c.Run(ctx)
	want := firstRetry
	for range 10 {
		<-b.calls
		if got := <-waits; got != want {
			t.Fatalf("pause %s, want %s", got, want)
		}
		want = min(2*want, lastRetry)
		clock <- time.Now()
	}
	if c.Validity().Problem == "" {
		t.Fatal("the failure is not told")
	}
}

func TestWhoeverAsksForARenewalHearsOfItsEnd(t *testing.T) {
	b := broken{make(chan struct{}, 16)}
	c := NewCredential(payments, ca.ECDSAP256, b, quiet())
	c.after = func(time.Duration) <-chan time.Time { return nil }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go c.Run(ctx)
	if err := c.Renew(ctx); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("the signer's error is lost: %v", err)
	}
	if len(b.calls) != 2 {
		t.Fatalf("%d calls of the signer, want the first one and the one asked for", len(b.calls))
	}
	// Nobody runs the credential any more: the caller is not kept waiting for ever.
	cancel()
	short, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	idle := NewCredential(payments, ca.ECDSAP256, b, quiet())
	if err := idle.Renew(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// A certificate is renewed only when the proxy says that it runs with it.
func TestRenewalWaitsForTheProxy(t *testing.T) {
	credential, connection, _ := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := secretv3.NewSecretDiscoveryServiceClient(connection)
	go credential.Run(ctx)
	<-credential.Ready()
	// Both kinds of streams, one secret each, as Envoy subscribes.
	incremental, err := client.DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := client.StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send := errors.Join(
		incremental.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: resource.SecretType, ResourceNamesSubscribe: []string{SecretCertificate}}),
		whole.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: resource.SecretType, ResourceNames: []string{SecretRoots}}))
	if send != nil {
		t.Fatal(send)
	}
	accept := func(reason *statusv1.Status) {
		t.Helper()
		response, err := incremental.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := incremental.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.SecretType, ResponseNonce: response.Nonce, ErrorDetail: reason}); err != nil {
			t.Fatal(err)
		}
	}
	acceptRoots := func() {
		t.Helper()
		response, err := whole.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := whole.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resource.SecretType, ResourceNames: []string{SecretRoots}, VersionInfo: response.VersionInfo, ResponseNonce: response.Nonce}); err != nil {
			t.Fatal(err)
		}
	}
	accept(nil)
	acceptRoots()
	renew := func() <-chan error {
		done := make(chan error, 1)
		go func() { done <- credential.Renew(ctx) }()
		return done
	}
	done := renew()
	response, err := incremental.Recv()
	if err != nil {
		t.Fatal(err)
	}
	acceptRoots()
	select {
	case err := <-done:
		t.Fatalf("over before the proxy answered: %v", err)
	default:
	}
	if err := incremental.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.SecretType, ResponseNonce: response.Nonce}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// A refusal is told.
	done = renew()
	accept(&statusv1.Status{Message: "no such curve"})
	acceptRoots()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no such curve") {
		t.Fatal(err)
	}
	// A proxy that went away is not waited for.
	done = renew()
	if err := errors.Join(incremental.CloseSend(), whole.CloseSend()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
