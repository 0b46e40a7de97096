package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// ErrNoCertificate says that the credential has none yet.
var ErrNoCertificate = errors.New("it has no certificate yet")

// Pair gives the certificate in use with its key, and the roots that its owner trusts. Both stay on this host.
func (c *Credential) Pair() (tls.Certificate, *x509.CertPool, error) {
	resources := c.secrets.GetResources()
	own, hasOwn := resources[SecretCertificate].(*tlsv3.Secret)
	roots, hasRoots := resources[SecretRoots].(*tlsv3.Secret)
	if !hasOwn || !hasRoots {
		return tls.Certificate{}, nil, ErrNoCertificate
	}
	pair, err := tls.X509KeyPair(own.GetTlsCertificate().GetCertificateChain().GetInlineBytes(), own.GetTlsCertificate().GetPrivateKey().GetInlineBytes())
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("certificate of %s: %w", c.Identity, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots.GetValidationContext().GetTrustedCa().GetInlineBytes()) {
		return tls.Certificate{}, nil, fmt.Errorf("roots of %s: no certificate in them", c.Identity)
	}
	return pair, pool, nil
}
