// Package keyprovider writes for proxies who does the operations with a private key.
package keyprovider

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"fmt"

	cryptombv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/cryptomb/v3alpha"
	qatv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/qat/v3alpha"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"heddle.io/heddle/control/objects"
)

// For is whom a proxy that is heddle-proxy, or is not, can be told of: an Envoy built without contrib extensions refuses a
// secret that names a provider, fallback or not, so that where fallback is allowed, proxies of others get the key alone.
func For(p *objects.KeyProvider, heddle bool) *objects.KeyProvider {
	if p != nil && p.Fallback && !heddle {
		return nil
	}
	return p
}

// Takes says whether a provider, nil for none, uses the key of a certificate, both in PEM: RSA keys, and CryptoMb also ECDSA
// keys of P-256. The proxy's TLS library uses the others.
func Takes(p *objects.KeyProvider, chain, key []byte) bool {
	if p == nil {
		return false
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return false
	}
	switch k := pair.PrivateKey.(type) {
	case *rsa.PrivateKey:
		return true
	case *ecdsa.PrivateKey:
		return p.Name == objects.CryptoMb && k.Curve == elliptic.P256()
	}
	return false
}

// Of is what a proxy is told of who uses a key that the provider takes, in PEM; nil for its TLS library. The key is also to stand in
// private_key of the certificate, which Envoy takes when the provider is unavailable and fallback is allowed.
func Of(p *objects.KeyProvider, key []byte) (*tlsv3.PrivateKeyProvider, error) {
	if p == nil {
		return nil, nil
	}
	method, err := anypb.New(method(p, &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: key}}))
	if err != nil {
		return nil, fmt.Errorf("configure private key provider %s: %w", p.Name, err)
	}
	return &tlsv3.PrivateKeyProvider{
		ProviderName: p.Name,
		ConfigType:   &tlsv3.PrivateKeyProvider_TypedConfig{TypedConfig: method},
		Fallback:     p.Fallback,
	}, nil
}

// method is a provider's message in Envoy's API.
func method(p *objects.KeyProvider, key *corev3.DataSource) proto.Message {
	if p.Name == objects.QAT {
		return &qatv3.QatPrivateKeyMethodConfig{PollDelay: durationpb.New(p.PollDelay), PrivateKey: key}
	}
	return &cryptombv3.CryptoMbPrivateKeyMethodConfig{PollDelay: durationpb.New(p.PollDelay), PrivateKey: key}
}
