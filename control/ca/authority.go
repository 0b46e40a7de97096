// Package ca is the mesh's certificate authority: one root per mesh, an intermediate per cluster, and short-lived
// workload certificates that carry a SPIFFE identity (DESIGN §7, §11).
//
// An intermediate can sign any identity of the trust domain, because X.509 name constraints cannot limit SPIFFE paths.
// The issuing cluster is therefore readable from the intermediate's common name.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Lifetimes of DESIGN §11. No certificate outlives its issuer.
const (
	RootLifetime         = 10 * 365 * 24 * time.Hour
	IntermediateLifetime = 90 * 24 * time.Hour
	WorkloadLifetime     = time.Hour
	// backdate allows for clocks that are slightly behind the issuer's.
	backdate = 2 * time.Minute
	// minimumLifetime is the shortest rest of an issuer's life with which a certificate is still worth issuing.
	minimumLifetime = time.Minute
)

// Options of an authority.
type Options struct {
	// Dir holds root.pem, root-key.pem, intermediate.pem and intermediate-key.pem; keys have mode 0600.
	Dir string
	// Cluster is written in the intermediate's common name.
	Cluster string
	// TrustDomain of all identities, for example "cluster.local".
	TrustDomain string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Random is the source of keys and serial numbers; nil means crypto/rand.
	Random io.Reader
}

// Authority signs workload certificates with a cluster's intermediate. It is safe for concurrent use.
type Authority struct {
	options Options

	mu      sync.Mutex
	root    issuer
	current issuer
}

type issuer struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// Certificate is an issued certificate.
type Certificate struct {
	// Chain is the leaf and the intermediate, PEM.
	Chain []byte
	// Roots is what verifiers trust, PEM.
	Roots []byte
	// Expires is the leaf's end of life.
	Expires time.Time
	// Serial number of the leaf, hexadecimal.
	Serial string
	// Issuer is the intermediate's common name.
	Issuer string
}

// Open loads the authority of a cluster, and creates root and intermediate where there are none. A half-written pair,
// which a crash or a full disk can leave, is told apart from a missing one: a root is never replaced silently.
func Open(options Options) (*Authority, error) {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Random == nil {
		options.Random = rand.Reader
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate authority: create directory %s: %w", options.Dir, err)
	}
	a := &Authority{options: options}
	root, err := load(options.Dir, "root")
	if errors.Is(err, errNeverMade) {
		root, err = a.createRoot()
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if now := options.Now(); now.After(root.certificate.NotAfter) {
		return nil, fmt.Errorf("certificate authority: root certificate %s expired on %s; the mesh needs a new root",
			filepath.Join(options.Dir, "root.pem"), root.certificate.NotAfter.Format(time.RFC3339))
	}
	a.root = root
	current, err := load(options.Dir, "intermediate")
	switch {
	case errors.Is(err, errNeverMade):
		current, err = a.createIntermediate()
	case err == nil && a.stale(current.certificate):
		current, err = a.createIntermediate()
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if err := current.certificate.CheckSignatureFrom(root.certificate); err != nil {
		return nil, fmt.Errorf("certificate authority: %s is not signed by %s: %w; restore the pair that belongs together",
			filepath.Join(options.Dir, "intermediate.pem"), filepath.Join(options.Dir, "root.pem"), err)
	}
	a.current = current
	return a, nil
}

// stale says that less than a third of the intermediate's life is left, so that workload certificates are never cut
// short by it.
func (a *Authority) stale(c *x509.Certificate) bool {
	left := c.NotAfter.Sub(a.options.Now())
	return left < c.NotAfter.Sub(c.NotBefore)/3
}

func (a *Authority) createRoot() (issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.options.Random)
	if err != nil {
		return issuer{}, fmt.Errorf("make root key: %w", err)
	}
	now := a.options.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Heddle root", Organization: []string{a.options.TrustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(RootLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: a.options.TrustDomain}},
	}
	return a.create("root", template, nil, key)
}

func (a *Authority) createIntermediate() (issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.options.Random)
	if err != nil {
		return issuer{}, fmt.Errorf("make intermediate key: %w", err)
	}
	now := a.options.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Heddle intermediate " + a.options.Cluster, Organization: []string{a.options.TrustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              earlier(now.Add(IntermediateLifetime), a.root.certificate.NotAfter),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: a.options.TrustDomain}},
	}
	return a.create("intermediate", template, &a.root, key)
}

// create signs a CA certificate and writes it. The key goes first: a certificate without its key is an error that
// needs a person, a key without certificate is only a creation that did not finish.
func (a *Authority) create(name string, template *x509.Certificate, parent *issuer, key *ecdsa.PrivateKey) (issuer, error) {
	serial, err := a.serial()
	if err != nil {
		return issuer{}, err
	}
	template.SerialNumber = serial
	signer := issuer{certificate: template, key: key}
	if parent != nil {
		signer = *parent
	}
	der, err := x509.CreateCertificate(a.options.Random, template, signer.certificate, key.Public(), signer.key)
	if err != nil {
		return issuer{}, fmt.Errorf("sign %s certificate: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return issuer{}, fmt.Errorf("read back %s certificate: %w", name, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return issuer{}, fmt.Errorf("encode %s key: %w", name, err)
	}
	dir := a.options.Dir
	if err := writeFile(filepath.Join(dir, name+"-key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return issuer{}, err
	}
	if err := writeFile(filepath.Join(dir, name+".pem"), encode(der), 0o644); err != nil {
		return issuer{}, err
	}
	return issuer{certificate: certificate, key: key}, nil
}

// errNeverMade: there is no certificate. A certificate without its key is another error.
var errNeverMade = errors.New("no certificate yet")

// load reads a certificate and its key, or says errNeverMade.
func load(dir, name string) (issuer, error) {
	path := filepath.Join(dir, name+".pem")
	certPEM, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return issuer{}, errNeverMade
	}
	if err != nil {
		return issuer{}, err
	}
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return issuer{}, fmt.Errorf("%s holds no PEM certificate; restore it from a backup, or start the mesh anew with `heddle down`", path)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return issuer{}, fmt.Errorf("%s: %w", path, err)
	}
	keyPath := filepath.Join(dir, name+"-key.pem")
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return issuer{}, fmt.Errorf("%s exists but its key cannot be read (%w); restore it from a backup", path, err)
	}
	block, _ = pem.Decode(keyPEM)
	if block == nil {
		return issuer{}, fmt.Errorf("%s holds no PEM key; restore it from a backup", keyPath)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return issuer{}, fmt.Errorf("%s: %w", keyPath, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return issuer{}, fmt.Errorf("%s: a key of type %T cannot sign", keyPath, parsed)
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(certificate.PublicKey) {
		return issuer{}, fmt.Errorf("%s is not the key of %s; restore the pair that belongs together", keyPath, path)
	}
	return issuer{certificate: certificate, key: key}, nil
}

// writeFile replaces a file atomically and durably.
func writeFile(path string, content []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new")
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (a *Authority) serial() (*big.Int, error) {
	// 127 bits: unpredictable, positive and within the 20 octets of RFC 5280 §4.1.2.2.
	b := make([]byte, 16)
	if _, err := io.ReadFull(a.options.Random, b); err != nil {
		return nil, fmt.Errorf("read random serial number: %w", err)
	}
	b[0] &= 0x7f
	b[0] |= 0x40
	return new(big.Int).SetBytes(b), nil
}

// Roots returns the trusted root certificates, PEM.
func (a *Authority) Roots() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return encode(a.root.certificate.Raw)
}

// RootHash is the SHA-256 of the root's public key (SubjectPublicKeyInfo), hexadecimal: what a join token pins.
func (a *Authority) RootHash() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := sha256.Sum256(a.root.certificate.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// issuerNow returns the intermediate, renewed when a third of its life is left.
func (a *Authority) issuerNow() (issuer, []byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stale(a.current.certificate) {
		renewed, err := a.createIntermediate()
		if err != nil {
			if a.current.certificate.NotAfter.Sub(a.options.Now()) < WorkloadLifetime {
				return issuer{}, nil, fmt.Errorf("renew intermediate: %w", err)
			}
		} else {
			a.current = renewed
		}
	}
	return a.current, encode(a.root.certificate.Raw), nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// acceptableKey refuses keys that are too weak to stand for an identity.
func acceptableKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256(), elliptic.P384():
			return nil
		}
		return fmt.Errorf("curve %s is not accepted; use P-256 or P-384", k.Curve.Params().Name)
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < 2048 || bits > 4096 {
			return fmt.Errorf("RSA key of %d bits is not accepted; use 2048 to 4096", bits)
		}
		return nil
	}
	return fmt.Errorf("key type %T is not accepted; use ECDSA or RSA", key)
}
