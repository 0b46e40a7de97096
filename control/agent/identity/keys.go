package identity

import (
	"fmt"
	"reflect"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/keyprovider"
	"heddle.io/heddle/control/objects"
)

// UseKeysBy has a provider do the proxy's operations with keys that it takes; nil leaves them to its TLS library. The
// certificate in use is published anew with it: neither it nor the proxy is replaced.
func (c *Credential) UseKeysBy(p *objects.KeyProvider) error {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	if reflect.DeepEqual(c.provider, p) {
		return nil
	}
	c.provider = p
	secret, ok := c.secrets.GetResources()[SecretCertificate].(*tlsv3.Secret)
	if !ok {
		return nil // The first one will name it.
	}
	// Streams may be reading the one that is published.
	secret = proto.CloneOf(secret)
	certificate := secret.GetTlsCertificate()
	provider, err := c.providerOf(certificate.GetCertificateChain().GetInlineBytes(), certificate.GetPrivateKey().GetInlineBytes())
	if err != nil {
		return err
	}
	certificate.PrivateKeyProvider = provider
	if err := c.secrets.UpdateResource(SecretCertificate, secret); err != nil {
		return fmt.Errorf("publish who uses the key: %w", err)
	}
	return nil
}

// KeysUsedBy is the provider that [Credential.UseKeysBy] was given last, nil for none.
func (c *Credential) KeysUsedBy() *objects.KeyProvider {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	return c.provider
}

// providerOf is what the proxy is told of who uses the key.
func (c *Credential) providerOf(chain, key []byte) (*tlsv3.PrivateKeyProvider, error) {
	if !keyprovider.Takes(c.provider, chain, key) {
		return nil, nil
	}
	return keyprovider.Of(c.provider, key)
}
