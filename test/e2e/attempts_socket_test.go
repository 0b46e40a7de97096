//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// ownIdentity is that of the attacker's workload.
const ownIdentity = "spiffe://cluster.local/ns/attacked/sa/default"

// impersonate asks the attacker's own socket of the agent for the certificates of the shop's frontend and of its gateway. The
// attempt fails when it is given its own one alone.
func impersonate(at targets) error {
	connection, err := grpc.NewClient("unix://"+at.OwnSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(connection).StreamSecrets(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resource.SecretType,
		Node:          &corev3.Node{Id: "sidecar~10.0.0.9~frontend-0.pinnacle~pinnacle.svc.cluster.local", Cluster: "frontend.pinnacle"},
		ResourceNames: []string{"default", "ROOTCA", "*", "spiffe://cluster.local/ns/pinnacle/sa/frontend", "kubernetes://shop-cert"}}); err != nil {
		return err
	}
	response, err := stream.Recv()
	if err != nil {
		return err
	}
	own := 0
	for _, r := range response.Resources {
		secret := &tlsv3.Secret{}
		if err := r.UnmarshalTo(secret); err != nil {
			return err
		}
		block, _ := pem.Decode(secret.GetTlsCertificate().GetCertificateChain().GetInlineBytes())
		if block == nil {
			continue
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != ownIdentity {
			return nil // Somebody else's.
		}
		own++
	}
	return fmt.Errorf("%w: %d certificates, each its own", errNothing, own)
}
