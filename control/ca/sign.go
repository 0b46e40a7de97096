package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
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

// Namespaces are RFC 1123 labels, service accounts RFC 1123 subdomains.
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

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
	case !subdomain.MatchString(i.ServiceAccount):
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
	request, err := parseRequest(requestPEM)
	if err != nil {
		return Certificate{}, err
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
	s, err := a.issuerNow()
	if err != nil {
		return Certificate{}, err
	}
	issuer := s.current
	if lifetime <= 0 || lifetime > WorkloadLifetime {
		lifetime = WorkloadLifetime
	}
	own := a.options.issuer(MembershipOf(issuer.certificate))
	names := []string{own.Name(a.options.TrustDomain), own.Account(a.options.TrustDomain, identity.Namespace, identity.ServiceAccount)}
	der, template, err := s.leaf(issuer, x509.Certificate{URIs: []*url.URL{uri}, DNSNames: names}, request.PublicKey, lifetime)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign certificate of %s: %w", identity, err)
	}
	return Certificate{
		Chain:   append(encode(der), chainAbove(issuer, s.root)...),
		Roots:   s.roots(),
		Expires: template.NotAfter,
		Serial:  template.SerialNumber.Text(16),
		Issuer:  issuer.certificate.Subject.CommonName,
	}, nil
}

// chainAbove is what follows a leaf in its chain, PEM.
func chainAbove(issuer, root issuer) []byte {
	chain := encode(issuer.certificate.Raw)
	if len(root.above) > 0 {
		chain = append(chain, encode(root.certificate.Raw)...)
		// Who does not have the root above would not trust it for being shown.
		for _, c := range root.above[:len(root.above)-1] {
			chain = append(chain, encode(c.Raw)...)
		}
	}
	return chain
}

// Generation is the [Certificate.Generation] of what would be signed now.
func (a *Authority) Generation() (string, error) {
	s, err := a.issuerNow()
	if err != nil {
		return "", err
	}
	return generation(chainAbove(s.current, s.root), s.roots()), nil
}

// Generation tells certificates of different intermediates or with different roots apart, and is the same for all workloads:
// SHA-256 (hexadecimal) of the chain above the leaf and of the roots.
func (c Certificate) Generation() string {
	_, above := pem.Decode(c.Chain)
	return generation(above, c.Roots)
}

func generation(above, roots []byte) string {
	one, other := sha256.Sum256(above), sha256.Sum256(roots)
	sum := sha256.Sum256(append(one[:], other[:]...))
	return hex.EncodeToString(sum[:])
}

// SignOutside is [Authority.Sign] for somebody who renews by themselves: a change of the mesh's root waits until the last such
// certificate of the previous root has ended.
func (a *Authority) SignOutside(requestPEM []byte, identity Identity, lifetime time.Duration) (Certificate, error) {
	if lifetime <= 0 || lifetime > WorkloadLifetime {
		lifetime = WorkloadLifetime
	}
	// Noted before: the root may change in between.
	if err := a.noteOutside(a.options.Now().Add(lifetime)); err != nil {
		return Certificate{}, err
	}
	return a.Sign(requestPEM, identity, lifetime)
}

// leaf issues an end entity's certificate with the names of a template. It ends with its issuer at the latest.
func (s *state) leaf(issuer issuer, of x509.Certificate, key crypto.PublicKey, lifetime time.Duration) ([]byte, *x509.Certificate, error) {
	now := s.options.Now()
	expires := earlier(now.Add(lifetime), issuer.certificate.NotAfter)
	if expires.Sub(now) < minimumLifetime && lifetime >= minimumLifetime {
		remedy := ""
		if MembershipOf(issuer.certificate) != "" {
			remedy = "; let the primary be reached again before, or join with a new token after that"
		}
		return nil, nil, fmt.Errorf("intermediate %q ends on %s and could not be renewed%s",
			issuer.certificate.Subject.CommonName, issuer.certificate.NotAfter.Format(time.RFC3339), remedy)
	}
	serial, err := s.serial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-backdate),
		NotAfter:              expires,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  of.URIs,
		DNSNames:              of.DNSNames,
		IPAddresses:           of.IPAddresses,
	}
	der, err := x509.CreateCertificate(s.options.Random, template, issuer.certificate, key, issuer.key)
	return der, template, err
}

// parseRequest reads a certificate request (PEM) that proves the possession of an acceptable key.
func parseRequest(requestPEM []byte) (*x509.CertificateRequest, error) {
	if len(requestPEM) > MaxRequestBytes {
		return nil, fmt.Errorf("%w: %d bytes is more than %d", ErrRefused, len(requestPEM), MaxRequestBytes)
	}
	block, rest := pem.Decode(requestPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) != 0 {
		return nil, fmt.Errorf("%w: not exactly one PEM block CERTIFICATE REQUEST", ErrRefused)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: it is not signed by its own key: %w", ErrRefused, err)
	}
	if err := acceptableKey(request.PublicKey); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return request, nil
}

// KeyType is the kind of key that a workload's certificate is for.
type KeyType string

// Kinds of keys.
const (
	// ECDSAP256 is the default.
	ECDSAP256 KeyType = "ecdsa-p256"
	RSA2048   KeyType = "rsa-2048"
)

// ParseKeyType reads a kind of key; empty is the default.
func ParseKeyType(text string) (KeyType, error) {
	switch t := KeyType(text); t {
	case "":
		return ECDSAP256, nil
	case ECDSAP256, RSA2048:
		return t, nil
	}
	return "", fmt.Errorf("no kind of key is called %q; use %s or %s", text, ECDSAP256, RSA2048)
}

func (t KeyType) generate(random io.Reader) (crypto.Signer, error) {
	if t == RSA2048 {
		return rsa.GenerateKey(random, 2048)
	}
	return ecdsa.GenerateKey(elliptic.P256(), random)
}

// NewRequest makes a key (PKCS#8 PEM) and a request (PEM) for an identity. A nil random means crypto/rand.
func NewRequest(identity Identity, kind KeyType, random io.Reader) (keyPEM, requestPEM []byte, err error) {
	keyPEM, requestPEM, err = newRequest(&x509.CertificateRequest{URIs: []*url.URL{identity.URI()}}, kind, random)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate request of %s: %w", identity, err)
	}
	return keyPEM, requestPEM, nil
}

func newRequest(template *x509.CertificateRequest, kind KeyType, random io.Reader) (keyPEM, requestPEM []byte, err error) {
	if random == nil {
		random = rand.Reader
	}
	key, err := kind.generate(random)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(random, template, key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign request: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
