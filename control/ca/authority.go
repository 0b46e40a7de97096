// Package ca is the mesh's certificate authority: one root per mesh, at the primary; an intermediate per cluster; and
// short-lived workload certificates that carry a SPIFFE identity.
//
// An intermediate can sign any identity of the trust domain, because X.509 name constraints cannot limit SPIFFE paths.
// So that verifiers, policies and telemetry can tell the issuing cluster all the same, every certificate also carries DNS
// names ([cluster.Issuer]) that the intermediates of other clusters are constrained not to issue (RFC 5280 §4.2.1.10).
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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// Lifetimes. No certificate outlives its issuer.
const (
	RootLifetime         = 10 * 365 * 24 * time.Hour
	IntermediateLifetime = 90 * 24 * time.Hour
	WorkloadLifetime     = time.Hour
	// backdate allows for clocks that are slightly behind the issuer's.
	backdate = 2 * time.Minute
	// formerGrace is how long certificates of an intermediate live at the most once another one signs.
	formerGrace = WorkloadLifetime + backdate
	// minimumLifetime is the shortest rest of an issuer's life with which a certificate is still worth issuing.
	minimumLifetime = time.Minute
)

// Options of an authority.
type Options struct {
	// Dir holds root.pem, root-key.pem, root-chain.pem (of a root that was made elsewhere), intermediate.pem and
	// intermediate-key.pem; on a member, member.pem instead; trusted-roots.json while there are more roots than one,
	// change.json while the mesh changes its root; next-intermediate.json, which is announced, and former-intermediates.json,
	// whose certificates may live still; and request.json after [Authority.Request]. Keys have mode 0600.
	Dir string
	// Cluster that the certificates are issued in.
	Cluster string
	// TrustDomain of all identities, for example "cluster.local".
	TrustDomain string
	// Member says that the cluster belongs to another's mesh: its intermediate comes from there, and no root is made.
	Member bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Announce is how long the next intermediate is announced before it signs, [AnnounceTime] where others have to hear of it;
	// 0 for not at all.
	Announce time.Duration
	// Record is told of each certificate that the authority makes for the cluster itself (root, intermediate, controller,
	// API), before it is used; its error refuses the certificate. nil means nobody is told. Whoever has others signed knows
	// for whom, and records it.
	Record func(name, serial string, expires time.Time) error
	// Random is the source of keys and serial numbers; nil means crypto/rand.
	Random io.Reader
}

// Authority signs workload certificates with a cluster's intermediate. It is safe for concurrent use.
type Authority struct {
	options *Options
	// renewing is held while a new intermediate is made or asked for.
	renewing sync.Mutex
	// writing is held by who changes the state, over the disk and the audit log. Who only asks does not take it.
	writing   sync.Mutex
	published atomic.Pointer[state]
	// controller and api are the certificates of this cluster's own controller and API.
	controller, api ownCertificate
}

// issuer is a certificate that signs others. A member's root has no key.
type issuer struct {
	certificate *x509.Certificate
	key         crypto.Signer
	// above leads from the issuer of a root that was made elsewhere to the root that signs itself.
	above []*x509.Certificate
}

// Certificate is an issued certificate.
type Certificate struct {
	// Chain is the leaf and the intermediate, PEM; and what leads to a root that was made elsewhere, for verifiers outside of
	// the mesh that know that one only.
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
	if options.Record == nil {
		options.Record = func(string, string, time.Time) error { return nil }
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate authority: create directory %s: %w", options.Dir, err)
	}
	s := &state{options: &options, known: &known{}}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	a := &Authority{options: &options, controller: ownCertificate{what: "the controller's"}, api: ownCertificate{what: "the API's"}}
	a.published.Store(s)
	return a, nil
}

// open reads what is on the disk, and makes what is missing.
func (s *state) open() (err error) {
	dir := s.options.Dir
	if s.trusted, err = loadTrusted(dir); err != nil {
		return err
	}
	if s.former, err = loadFormer(dir); err != nil {
		return err
	}
	if s.next, err = loadNext(dir, s.options.Now().UTC()); err != nil {
		return err
	}
	if s.formerIntermediates, err = loadFormerIntermediates(dir); err != nil {
		return err
	}
	if s.change, err = loadChange(dir); err != nil {
		return err
	}
	if s.outside, err = loadOutside(dir); err != nil {
		return err
	}
	if s.options.Member {
		err = s.openMember()
	} else {
		err = s.openOwn()
	}
	if err == nil {
		err = s.spent()
	}
	if err == nil && !s.options.Member && !s.prepared() {
		err = s.prepareOwn()
	}
	return err
}

// openOwn loads or makes a root and its intermediate.
func (s *state) openOwn() error {
	dir := s.options.Dir
	if s.change != nil && s.change.Phase != Trusting && s.change.Key != "" {
		// It ended in the middle of taking the next root into use.
		return s.adopt()
	}
	root, err := load(dir, "root")
	if errors.Is(err, errNeverMade) {
		root, err = s.createRoot()
	}
	if err != nil {
		return err
	}
	if !selfSigned(root.certificate) {
		if root.above, err = loadAbove(dir); err != nil {
			return err
		}
	}
	if now := s.options.Now(); now.After(root.certificate.NotAfter) {
		return fmt.Errorf("root certificate %s expired on %s; the mesh needs a new root",
			filepath.Join(dir, "root.pem"), root.certificate.NotAfter.Format(time.RFC3339))
	}
	s.root = root
	current, err := load(dir, "intermediate")
	switch {
	case errors.Is(err, errNeverMade), errors.Is(err, errMismatched):
		// The second is what a renewal leaves that ended between its two files. The root can always make another one.
		current, err = s.createIntermediate()
	case err == nil && !constrained(current.certificate, s.names()):
		// It was made for other names.
		s.current = current
		current, err = s.createIntermediate()
	}
	if err != nil {
		return err
	}
	if err := current.certificate.CheckSignatureFrom(root.certificate); err != nil {
		return fmt.Errorf("%s is not signed by %s: %w; restore the pair that belongs together",
			filepath.Join(dir, "intermediate.pem"), filepath.Join(dir, "root.pem"), err)
	}
	s.current = current
	return nil
}

// names are the DNS names that the cluster's own intermediate may issue. Only the holder of the root may answer as the
// mesh's federation endpoint: no member's intermediate has that name.
func (s *state) names() []string {
	return []string{s.options.issuer("").Name(s.options.TrustDomain), cluster.FederationName(s.options.TrustDomain)}
}

// stale says that less than a third of the intermediate's life is left, so that workload certificates are never cut
// short by it.
func (s *state) stale(c *x509.Certificate) bool {
	left := c.NotAfter.Sub(s.options.Now())
	return left < c.NotAfter.Sub(c.NotBefore)/3
}

func (s *state) createRoot() (issuer, error) {
	root, err := s.newRoot()
	if err != nil {
		return issuer{}, err
	}
	return root, writeRoot(s.options.Dir, root)
}

// createIntermediate makes the intermediate of a cluster with a root of its own, for the key that was announced if there is one.
func (s *state) createIntermediate() (issuer, error) {
	if err := s.retire(formerGrace); err != nil {
		return issuer{}, err
	}
	var key crypto.Signer
	if s.next != nil && MembershipOf(s.next.issuer.certificate) == "" {
		key = s.next.issuer.key
	} else {
		made, err := ecdsa.GenerateKey(elliptic.P256(), s.options.Random)
		if err != nil {
			return issuer{}, fmt.Errorf("make intermediate key: %w", err)
		}
		key = made
	}
	return s.create("intermediate", s.intermediateTemplate(s.options.Cluster, s.names()), s.root, key)
}

// renewOwn takes the next intermediate of a cluster with a root of its own into use, and announces another one.
func (s *state) renewOwn() error {
	renewed, err := s.createIntermediate()
	if err != nil {
		return fmt.Errorf("renew intermediate: %w", err)
	}
	s.current = renewed
	if err := s.spent(); err != nil {
		return err
	}
	return s.prepareOwn()
}

// intermediateTemplate is the intermediate of a cluster that may issue these DNS names.
func (s *state) intermediateTemplate(cluster string, names []string) *x509.Certificate {
	now := s.options.Now()
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: intermediatePrefix + cluster, Organization: []string{s.options.TrustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              earlier(now.Add(IntermediateLifetime), s.root.certificate.NotAfter),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: s.options.TrustDomain}},
		// RFC 5280 demands that the extension is critical: who does not understand it must not trust the certificate.
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         names,
	}
}

// intermediatePrefix and the cluster's name make an intermediate's common name.
const intermediatePrefix = "Heddle intermediate "

// constrained says whether a certificate may issue exactly these DNS names.
func constrained(c *x509.Certificate, names []string) bool {
	return c.PermittedDNSDomainsCritical && slices.Equal(c.PermittedDNSDomains, names)
}

// sign issues the certificate of an authority.
func (s *state) sign(template *x509.Certificate, parent issuer, public crypto.PublicKey) (*x509.Certificate, error) {
	var err error
	if template.SerialNumber, err = s.serial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(s.options.Random, template, parent.certificate, public, parent.key)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back: %w", err)
	}
	return certificate, nil
}

// create signs a CA certificate and writes it. The key goes first: a certificate without its key is an error that
// needs a person, a key without certificate is only a creation that did not finish.
func (s *state) create(name string, template *x509.Certificate, parent issuer, key crypto.Signer) (issuer, error) {
	certificate, err := s.sign(template, parent, key.Public())
	if err != nil {
		return issuer{}, fmt.Errorf("%s certificate: %w", name, err)
	}
	if err := s.record(certificate.Subject.CommonName, certificate); err != nil {
		return issuer{}, fmt.Errorf("%s certificate: %w", name, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return issuer{}, fmt.Errorf("encode %s key: %w", name, err)
	}
	dir := s.options.Dir
	if err := durable.Write(filepath.Join(dir, name+"-key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return issuer{}, err
	}
	if err := durable.Write(filepath.Join(dir, name+".pem"), encode(certificate.Raw), 0o644); err != nil {
		return issuer{}, err
	}
	return issuer{certificate: certificate, key: key}, nil
}

// record tells of a certificate of the cluster's own.
func (s *state) record(name string, c *x509.Certificate) error {
	return s.options.Record(name, c.SerialNumber.Text(16), c.NotAfter)
}

func (s *state) serial() (*big.Int, error) {
	// 127 bits: unpredictable, positive and within the 20 octets of RFC 5280 §4.1.2.2.
	b := make([]byte, 16)
	if _, err := io.ReadFull(s.options.Random, b); err != nil {
		return nil, fmt.Errorf("read random serial number: %w", err)
	}
	b[0] &= 0x7f
	b[0] |= 0x40
	return new(big.Int).SetBytes(b), nil
}

// RootHash is the SHA-256 of the root's public key (SubjectPublicKeyInfo), hexadecimal: what a join token pins.
func (a *Authority) RootHash() string {
	s := a.state()
	return KeyHash(s.root.certificate)
}

// KeyHash is the SHA-256 of a certificate's public key (SubjectPublicKeyInfo), hexadecimal.
func KeyHash(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Issuer describes the intermediate in use: its common name and its end of life.
func (a *Authority) Issuer() (name string, expires time.Time) {
	s := a.state()
	return s.current.certificate.Subject.CommonName, s.current.certificate.NotAfter
}

// issuerNow returns the state whose intermediate signs now. With a root of its own, the authority renews the intermediate when
// a third of its life is left; a member's comes from its primary, see [Authority.Renew]. Who comes while that is being done
// goes on with the one that there is, until near its end.
func (a *Authority) issuerNow() (*state, error) {
	s := a.state()
	if s.root.key == nil || !s.stale(s.current.certificate) {
		return s, nil
	}
	if s.ends() {
		a.writing.Lock()
	} else if !a.writing.TryLock() {
		return s, nil
	}
	defer a.writing.Unlock()
	err := a.updateLocked((*state).renewStale)
	if s = a.state(); err != nil && s.ends() {
		return nil, err
	}
	return s, nil
}

// ends says that nothing that the intermediate signs is good for much longer.
func (s *state) ends() bool {
	return s.current.certificate.NotAfter.Sub(s.options.Now()) < WorkloadLifetime
}

// renewStale renews the intermediate once its successor has been announced, which it does first.
func (s *state) renewStale() error {
	if !s.stale(s.current.certificate) {
		return nil // By somebody else, meanwhile.
	}
	var err error
	if !s.prepared() {
		err = s.prepareOwn()
	}
	if err == nil {
		err = s.ripe()
	}
	if unannounced := (*UnannouncedError)(nil); err == nil || s.ends() && errors.As(err, &unannounced) {
		err = s.renewOwn()
	}
	return err
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
