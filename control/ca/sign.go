package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"time"
)

// MaxRequestBytes bounds a certificate request.
const MaxRequestBytes = 16 << 10

// ErrRefused marks a request that the authority will not sign, whoever asks again.
var ErrRefused = errors.New("certificate request refused")

// label is an RFC 1123 label, which namespaces and service accounts are.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// Identity is a SPIFFE identity in Istio's form.
type Identity struct {
	TrustDomain    string
	Namespace      string
	ServiceAccount string
}

// URI gives spiffe://<trust domain>/ns/<namespace>/sa/<account>.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: i.TrustDomain, Path: "/ns/" + i.Namespace + "/sa/" + i.ServiceAccount}
}

// String is the URI as text.
func (i Identity) String() string { return i.URI().String() }

func (i Identity) check(trustDomain string) error {
	switch {
	case i.TrustDomain != trustDomain:
		return fmt.Errorf("%w: trust domain %q is not %q", ErrRefused, i.TrustDomain, trustDomain)
	case !label.MatchString(i.Namespace):
		return fmt.Errorf("%w: namespace %q is not a valid name", ErrRefused, i.Namespace)
	case !label.MatchString(i.ServiceAccount):
		return fmt.Errorf("%w: service account %q is not a valid name", ErrRefused, i.ServiceAccount)
	}
	return nil
}

// Sign issues a workload certificate for an identity that the caller has attested. The request (PEM) must prove
// possession of its key, and may name no other identity than that one; everything else in it is ignored. The lifetime
// is the wanted one (zero: [WorkloadLifetime]) but never longer than that default nor than the issuer's.
func (a *Authority) Sign(requestPEM []byte, identity Identity, lifetime time.Duration) (Certificate, error) {
	if err := identity.check(a.options.TrustDomain); err != nil {
		return Certificate{}, err
	}
	if len(requestPEM) > MaxRequestBytes {
		return Certificate{}, fmt.Errorf("%w: %d bytes is more than %d", ErrRefused, len(requestPEM), MaxRequestBytes)
	}
	block, rest := pem.Decode(requestPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) != 0 {
		return Certificate{}, fmt.Errorf("%w: not exactly one PEM block CERTIFICATE REQUEST", ErrRefused)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return Certificate{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := request.CheckSignature(); err != nil {
		return Certificate{}, fmt.Errorf("%w: it is not signed by its own key: %w", ErrRefused, err)
	}
	if err := acceptableKey(request.PublicKey); err != nil {
		return Certificate{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	uri := identity.URI()
	if len(request.DNSNames) != 0 || len(request.IPAddresses) != 0 || len(request.EmailAddresses) != 0 {
		return Certificate{}, fmt.Errorf("%w: it asks for names other than a SPIFFE identity", ErrRefused)
	}
	for _, asked := range request.URIs {
		if asked.String() != uri.String() {
			return Certificate{}, fmt.Errorf("%w: it asks for %s, the workload is %s", ErrRefused, asked, uri)
		}
	}
	issuer, roots, err := a.issuerNow()
	if err != nil {
		return Certificate{}, err
	}
	if lifetime <= 0 || lifetime > WorkloadLifetime {
		lifetime = WorkloadLifetime
	}
	now := a.options.Now()
	expires := earlier(now.Add(lifetime), issuer.certificate.NotAfter)
	if expires.Sub(now) < minimumLifetime && lifetime >= minimumLifetime {
		return Certificate{}, fmt.Errorf("intermediate %q expires on %s and could not be renewed",
			issuer.certificate.Subject.CommonName, issuer.certificate.NotAfter.Format(time.RFC3339))
	}
	serial, err := a.serial()
	if err != nil {
		return Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-backdate),
		NotAfter:              expires,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{uri},
	}
	der, err := x509.CreateCertificate(a.options.Random, template, issuer.certificate, request.PublicKey, issuer.key)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign certificate of %s: %w", identity, err)
	}
	return Certificate{
		Chain:   append(encode(der), encode(issuer.certificate.Raw)...),
		Roots:   roots,
		Expires: expires,
		Serial:  serial.Text(16),
		Issuer:  issuer.certificate.Subject.CommonName,
	}, nil
}

// NewRequest makes a P-256 key (PKCS#8 PEM) and a request (PEM) for an identity. A nil random means crypto/rand.
func NewRequest(identity Identity, random io.Reader) (keyPEM, requestPEM []byte, err error) {
	if random == nil {
		random = rand.Reader
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return nil, nil, fmt.Errorf("make key of %s: %w", identity, err)
	}
	der, err := x509.CreateCertificateRequest(random, &x509.CertificateRequest{URIs: []*url.URL{identity.URI()}}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate request of %s: %w", identity, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key of %s: %w", identity, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
