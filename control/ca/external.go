package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// Bounds of an authority that comes from outside.
const (
	// MaxExternalBytes of each of its files.
	MaxExternalBytes = 64 << 10
	// maxChain is how many certificates may lead from it to its root.
	maxChain = 6
	// minimumExternal is the least rest of its life: enough to take another one into use.
	minimumExternal = 24 * time.Hour
)

// External is a certificate authority that was made elsewhere: a root, or an intermediate that may sign others, with the
// certificates that lead from it to its root. Make one with [NewExternal].
//
// Verifiers trust the authority itself, not the root above it: what else that root has signed is none of the mesh's business.
type External struct {
	certificate *x509.Certificate
	key         crypto.Signer
	// above is the chain from its issuer to the root, empty for a root.
	above []*x509.Certificate
}

// Certificate of the authority, PEM.
func (e External) Certificate() []byte { return encode(e.certificate.Raw) }

// NewExternal reads an authority and makes sure that it can do its work in a mesh: certificates (PEM) begin with its own,
// chain (PEM, may be empty) continues them up to the root. The error names what is wrong with which of them.
func NewExternal(options Options, certificates, chain, key []byte) (External, error) {
	e, err := parseExternal(certificates, chain)
	if err != nil {
		return External{}, err
	}
	if e.key, err = parseExternalKey(key); err != nil {
		return External{}, fmt.Errorf("the key: %w", err)
	}
	if !belongs(e.key, e.certificate) {
		return External{}, fmt.Errorf("the key does not match the certificate %s: it is another one's", named(e.certificate))
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if err := e.check(options); err != nil {
		return External{}, fmt.Errorf("the certificate %s %w", named(e.certificate), err)
	}
	return e, nil
}

// named is how messages name a certificate.
func named(c *x509.Certificate) string {
	if s := c.Subject.String(); s != "" {
		return fmt.Sprintf("%q", s)
	}
	return "with the serial number " + c.SerialNumber.Text(16)
}

func parseExternal(certificates, chain []byte) (External, error) {
	var all []*x509.Certificate
	for _, file := range [][]byte{certificates, chain} {
		if len(file) > MaxExternalBytes {
			return External{}, fmt.Errorf("%d bytes of certificates are more than %d", len(file), MaxExternalBytes)
		}
		for rest := file; len(bytes.TrimSpace(rest)) > 0; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return External{}, errors.New("the certificates are not PEM (-----BEGIN CERTIFICATE-----)")
			}
			if block.Type != "CERTIFICATE" {
				return External{}, fmt.Errorf("there is a %s among the certificates; give certificates only", block.Type)
			}
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return External{}, fmt.Errorf("certificate %d cannot be read: %w", len(all)+1, err)
			}
			// A root that is in both files is there once.
			if len(all) == 0 || !all[len(all)-1].Equal(c) {
				all = append(all, c)
			}
		}
	}
	switch {
	case len(all) == 0:
		return External{}, errors.New("there is no certificate")
	case len(all) > maxChain+1:
		return External{}, fmt.Errorf("%d certificates are more than %d", len(all), maxChain+1)
	}
	return External{certificate: all[0], above: all[1:]}, nil
}

// parseExternalKey reads a private key (PEM) in the forms that tools write: PKCS #8, SEC 1 and PKCS #1.
func parseExternalKey(text []byte) (crypto.Signer, error) {
	if len(text) > MaxExternalBytes {
		return nil, fmt.Errorf("%d bytes are more than %d", len(text), MaxExternalBytes)
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, errors.New("there is no private key in PEM")
		}
		switch {
		case block.Type == "EC PARAMETERS": // OpenSSL writes the curve before the key.
			continue
		case block.Type == "ENCRYPTED PRIVATE KEY", block.Headers["DEK-Info"] != "":
			return nil, errors.New("it is encrypted; decrypt it first, for example with `openssl pkey -in FILE -out FILE`, and keep the result from others")
		case block.Type == "EC PRIVATE KEY":
			return x509.ParseECPrivateKey(block.Bytes)
		case block.Type == "RSA PRIVATE KEY":
			return x509.ParsePKCS1PrivateKey(block.Bytes)
		case block.Type == "PRIVATE KEY":
			return parseKey(block.Bytes)
		}
		return nil, fmt.Errorf("a PEM block %q is no private key", block.Type)
	}
}

// check makes sure that the certificate may sign the mesh's intermediates, now and for a while.
func (e External) check(options Options) error {
	if err := checkAuthority(e.certificate, options.TrustDomain, options.Now()); err != nil {
		return err
	}
	if err := e.checkChain(options.Now()); err != nil {
		return err
	}
	return e.try(options)
}

// checkAuthority says what is wrong with the certificate of an authority that signs intermediates.
func checkAuthority(c *x509.Certificate, trustDomain string, now time.Time) error {
	left := c.NotAfter.Sub(now)
	switch {
	case !c.BasicConstraintsValid || !c.IsCA:
		return errors.New("is not one of a certificate authority: its basic constraints do not say CA:TRUE")
	case c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("may not sign certificates: its key usage lacks keyCertSign")
	case c.MaxPathLen == 0 && c.MaxPathLenZero:
		return errors.New("may not have intermediates below it: its path length is 0, and each cluster has an intermediate; have it signed with pathlen:1 or without a limit")
	case now.Before(c.NotBefore):
		return fmt.Errorf("is not valid before %s, and it is %s; check the clocks", c.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case left <= 0:
		return fmt.Errorf("expired on %s", c.NotAfter.Format(time.RFC3339))
	case left < minimumExternal:
		return fmt.Errorf("expires on %s already; at least %s must be left", c.NotAfter.Format(time.RFC3339), minimumExternal)
	case len(c.SubjectKeyId) == 0:
		// RFC 5280, section 4.2.1.2, demands it. Without it, verifiers that know two authorities of one name try one only.
		return errors.New("has no subject key identifier, by which it is told from others of the same name")
	case len(c.UnhandledCriticalExtensions) > 0:
		return fmt.Errorf("has the critical extension %s, which verifiers do not know and would refuse", c.UnhandledCriticalExtensions[0])
	case weak(c.SignatureAlgorithm):
		return fmt.Errorf("is signed with %s, which is not secure", c.SignatureAlgorithm)
	}
	if err := acceptableKey(c.PublicKey); err != nil {
		return fmt.Errorf("is for a key that cannot be used: %w", err)
	}
	for _, uri := range c.URIs {
		if strings.EqualFold(uri.Scheme, "spiffe") && uri.Host != trustDomain {
			return fmt.Errorf("is for the trust domain %s, this mesh's is %s", uri.Host, trustDomain)
		}
	}
	return nil
}

func weak(a x509.SignatureAlgorithm) bool {
	switch a {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.DSAWithSHA256, x509.ECDSAWithSHA1, x509.UnknownSignatureAlgorithm:
		return true
	}
	return false
}

func selfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(c) == nil
}

// checkChain makes sure that each certificate is signed by the next, up to a root.
func (e External) checkChain(now time.Time) error {
	if selfSigned(e.certificate) {
		if len(e.above) > 0 {
			return errors.New("signs itself, and is followed by others; give the root alone")
		}
		return nil
	}
	if len(e.above) == 0 {
		return fmt.Errorf("is signed by %q, which is not there; add the chain up to the root", e.certificate.Issuer)
	}
	last := e.above[len(e.above)-1]
	if !selfSigned(last) {
		return fmt.Errorf("has a chain that ends at %s, which is no root; add the certificates up to one that signs itself", named(last))
	}
	for i, c := range append([]*x509.Certificate{e.certificate}, e.above[:len(e.above)-1]...) {
		if err := c.CheckSignatureFrom(e.above[i]); err != nil {
			return fmt.Errorf("has a chain that is not in order: %s is not signed by the next one, %s: %w", named(c), named(e.above[i]), err)
		}
		if weak(c.SignatureAlgorithm) {
			return fmt.Errorf("has a chain in which %s is signed with %s, which is not secure", named(c), c.SignatureAlgorithm)
		}
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(last)
	for _, c := range e.above {
		intermediates.AddCert(c)
	}
	if _, err := e.certificate.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return fmt.Errorf("cannot be verified by its chain: %w", err)
	}
	return nil
}

// try signs what the mesh will need, and verifies it as proxies and controllers do: by the authority alone, and by its whole
// chain. That finds what would refuse these certificates later, above all name constraints that do not fit.
func (e External) try(options Options) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("cannot be tried: %w", err)
	}
	options.Random, options.Record = rand.Reader, func(string, string, time.Time) error { return nil }
	trial := &state{options: &options, root: e.issuer()}
	other := cluster.Issuer{Cluster: "other", Membership: strings.Repeat("0", 64)}
	workload := Identity{TrustDomain: options.TrustDomain, Namespace: "namespace", ServiceAccount: "account"}.URI()
	own := trial.names()
	for _, of := range []struct {
		cluster string
		names   []string
		uri     *url.URL
	}{
		{options.Cluster, own, workload},
		{options.Cluster, own, ControllerURI(options.TrustDomain, options.Cluster)},
		{other.Cluster, []string{other.Name(options.TrustDomain)}, workload},
	} {
		intermediate, err := trial.sign(trial.intermediateTemplate(of.cluster, of.names), e.issuer(), key.Public())
		if err != nil {
			return fmt.Errorf("cannot sign an intermediate: %w", err)
		}
		der, _, err := trial.leaf(issuer{certificate: intermediate, key: key}, x509.Certificate{URIs: []*url.URL{of.uri}, DNSNames: of.names}, key.Public(), WorkloadLifetime)
		if err != nil {
			return fmt.Errorf("cannot have certificates signed below it: %w", err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("cannot have certificates signed below it: %w", err)
		}
		for _, anchor := range append([]*x509.Certificate{e.certificate}, e.above...) {
			if err := verifyBelow(leaf, anchor, append([]*x509.Certificate{intermediate, e.certificate}, e.above...), options.Now()); err != nil {
				return fmt.Errorf("does not allow what the mesh has to sign (identities of spiffe://%s, DNS names below clusters.%s), by itself or by its chain up to %s: %w",
					options.TrustDomain, options.TrustDomain, named(anchor), err)
			}
		}
	}
	return nil
}

func verifyBelow(leaf, anchor *x509.Certificate, between []*x509.Certificate, now time.Time) error {
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now}
	o.Roots.AddCert(anchor)
	for _, c := range between {
		o.Intermediates.AddCert(c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		o.KeyUsages = []x509.ExtKeyUsage{usage}
		if _, err := leaf.Verify(o); err != nil {
			return err
		}
	}
	return nil
}

func (e External) issuer() issuer { return issuer(e) }

// CheckProvided says why [Provide] would refuse: the cluster has another root already.
func CheckProvided(options Options, e External) error {
	_, err := provided(options, e)
	return err
}

func provided(options Options, e External) (already bool, err error) {
	path := filepath.Join(options.Dir, "root.pem")
	present, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a root: %w", err)
	}
	if c, err := parseCertificate(present); err != nil || !c.Equal(e.certificate) {
		return false, fmt.Errorf("it has another root already, in %s", path)
	}
	return true, nil
}

// Provide writes the root of a cluster that has not run yet. One that has this very root already is left alone, one with
// another is refused: a running mesh changes its root by [Authority.BeginInstall].
func Provide(options Options, e External) error {
	if already, err := provided(options, e); already || err != nil {
		return err
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return fmt.Errorf("certificate authority: create directory %s: %w", options.Dir, err)
	}
	return writeRoot(options.Dir, e.issuer())
}

// writeRoot writes a root with its key and what is above it. The certificate goes last: without it there is no root.
func writeRoot(dir string, root issuer) error {
	der, err := x509.MarshalPKCS8PrivateKey(root.key)
	if err != nil {
		return fmt.Errorf("encode root key: %w", err)
	}
	var above []byte
	for _, c := range root.above {
		above = append(above, encode(c.Raw)...)
	}
	if err := durable.Write(filepath.Join(dir, "root-key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	if err := durable.Write(filepath.Join(dir, "root-chain.pem"), above, 0o644); err != nil {
		return err
	}
	return durable.Write(filepath.Join(dir, "root.pem"), encode(root.certificate.Raw), 0o644)
}

// loadAbove reads what is above a root that was made elsewhere; nothing for one that signs itself.
func loadAbove(dir string) ([]*x509.Certificate, error) {
	path := filepath.Join(dir, "root-chain.pem")
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(content) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	chain, err := parseExternal(content, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore it from a backup", path, err)
	}
	return append([]*x509.Certificate{chain.certificate}, chain.above...), nil
}
