package identity

import (
	"fmt"

	cryptombv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/cryptomb/v3alpha"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
)

// Keys says which keys a workload's certificates are for, and who uses them.
type Keys struct {
	Kind ca.KeyType
	// Provider does the proxy's operations with RSA keys; nil leaves them to its TLS library. Other keys are always the
	// library's: there is nothing to gain.
	Provider *objects.KeyProvider
}

// provider is what the proxy is told of who uses the key. The key itself stands beside it in private_key, which Envoy takes
// when the provider is unavailable and fallback is allowed.
func (k Keys) provider(key []byte) (*tlsv3.PrivateKeyProvider, error) {
	if k.Provider == nil || k.Kind != ca.RSA2048 {
		return nil, nil
	}
	method, err := anypb.New(&cryptombv3.CryptoMbPrivateKeyMethodConfig{
		PollDelay: durationpb.New(k.Provider.PollDelay), PrivateKey: inline(key),
	})
	if err != nil {
		return nil, fmt.Errorf("configure private key provider cryptomb: %w", err)
	}
	return &tlsv3.PrivateKeyProvider{
		ProviderName: "cryptomb",
		ConfigType:   &tlsv3.PrivateKeyProvider_TypedConfig{TypedConfig: method},
		Fallback:     k.Provider.Fallback,
	}, nil
}
