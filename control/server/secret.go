package server

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

// redactSecret gives a secret without what must not be shown.
func redactSecret(m proto.Message) proto.Message {
	secret, ok := proto.Clone(m).(*tlsv3.Secret)
	if !ok {
		return &tlsv3.Secret{}
	}
	if certificate := secret.GetTlsCertificate(); certificate != nil {
		certificate.PrivateKey = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "[redacted]"}}
		certificate.Password = nil
		if provider := certificate.GetPrivateKeyProvider(); provider != nil {
			// Its configuration holds the key as well.
			certificate.PrivateKeyProvider = &tlsv3.PrivateKeyProvider{ProviderName: provider.GetProviderName(), Fallback: provider.GetFallback()}
		}
	}
	if secret.GetGenericSecret() != nil || secret.GetSessionTicketKeys() != nil {
		return &tlsv3.Secret{Name: secret.Name}
	}
	return secret
}
