package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestAHostileProxyAsksForFewSecrets: what a stream of secrets may name and say is so little that the agent can keep it for as long as
// the stream lives, which it does.
func TestAHostileProxyAsksForFewSecrets(t *testing.T) {
	credential, s, connection, _ := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go credential.Run(ctx)
	<-credential.Ready()
	api := secretv3.NewSecretDiscoveryServiceClient(connection)
	many := func(round, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint(round, ".", i))
		}
		return names
	}
	long := []string{strings.Repeat("a", maxSecretName+1)}
	// delta sends requests until the stream ends, and gives the end.
	delta := func(request func(i int) *discoveryv3.DeltaDiscoveryRequest) func() error {
		return func() error {
			stream, err := api.DeltaSecrets(ctx)
			if err != nil {
				return err
			}
			for i := range maxSecretNames + 1 {
				// What became of it, the answer says.
				_ = stream.Send(request(i))
			}
			return end(stream)
		}
	}
	whole := func(request func(i int) *discoveryv3.DiscoveryRequest) func() error {
		return func() error {
			stream, err := api.StreamSecrets(ctx)
			if err != nil {
				return err
			}
			nonce := ""
			for i := range maxSecretNames + 1 {
				r := request(i)
				r.ResponseNonce = nonce
				_ = stream.Send(r)
				answer, err := stream.Recv()
				if err != nil {
					return err
				}
				nonce = answer.GetNonce()
			}
			return nil
		}
	}
	for name, attack := range map[string]struct {
		run  func() error
		want codes.Code
	}{
		"many names at once": {delta(func(int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(0, maxSecretNames+1)}
		}), codes.ResourceExhausted},
		"one after the other": {delta(func(i int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(i, 1)}
		}), codes.ResourceExhausted},
		"names that are given back": {delta(func(i int) *discoveryv3.DeltaDiscoveryRequest {
			names := many(i, 1)
			return &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: append(names, "*"), ResourceNamesUnsubscribe: names}
		}), codes.ResourceExhausted},
		"names that were never asked for": {delta(func(i int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: many(i, 1)}
		}), codes.ResourceExhausted},
		"what it says it has": {delta(func(int) *discoveryv3.DeltaDiscoveryRequest {
			known := map[string]string{}
			for _, name := range many(0, maxSecretNames+1) {
				known[name] = "1"
			}
			return &discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: known}
		}), codes.ResourceExhausted},
		"a long name": {delta(func(int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: long}
		}), codes.ResourceExhausted},
		"another type": {delta(func(i int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: fmt.Sprint(resource.SecretType, i)}
		}), codes.InvalidArgument},
		"a large message": {delta(func(int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: strings.Repeat("a", maxSecretRequest)}}
		}), codes.ResourceExhausted},
		"many names in the state of the world": {whole(func(int) *discoveryv3.DiscoveryRequest {
			return &discoveryv3.DiscoveryRequest{ResourceNames: many(0, maxSecretNames+1)}
		}), codes.ResourceExhausted},
		"one after the other in the state of the world": {whole(func(i int) *discoveryv3.DiscoveryRequest {
			return &discoveryv3.DiscoveryRequest{ResourceNames: append(many(i, 1), []string{SecretRoots, SecretCertificate}[i%2])}
		}), codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			before := s.refusals.names.Load() + s.refusals.messages.Load()
			if err := attack.run(); status.Code(err) != attack.want {
				t.Errorf("the stream ended with %v", err)
			}
			if n := s.refusals.names.Load() + s.refusals.messages.Load() - before; n != 1 {
				t.Errorf("%d were counted as refused", n)
			}
		})
	}

	// One who asks for secrets that there may be in time is served what there is.
	stream, err := api.DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: "any", UserAgentName: strings.Repeat("a", maxNode)}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.SecretType,
		ResourceNamesSubscribe: slices.Concat(many(0, maxSecretNames-2), []string{SecretRoots, SecretCertificate})}); err != nil {
		t.Fatal(err)
	}
	secrets(t, stream)
}

// end reads until a stream does, and gives why.
func end(stream grpc.ClientStream) error {
	for {
		if err := stream.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse)); err != nil {
			return err
		}
	}
}
