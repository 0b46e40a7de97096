package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// Clients take a server's certificate only from intermediates that they were told of: the anchors of the clusters that the
// service lives in. So a cluster announces its next intermediate long before that signs anything, and takes it into use when
// everybody has had the time to hear of it. An anchor is compared by name and key; it may have been signed by the root before.

// AnnounceTime is how long a cluster announces an intermediate at the least before that signs: longer than a change takes to
// every proxy of a mesh whose controllers are connected. Who is not hears of it later, and has until the next renewal, which
// is two thirds of [IntermediateLifetime] away.
const AnnounceTime = 30 * time.Second

// maxAnchors is how many intermediates of one cluster are anchors at once: the one that signs, the next one, and those before
// whose certificates still live.
const maxAnchors = 8

// UnannouncedError says that the next intermediate may not sign yet.
type UnannouncedError struct {
	// Left is how long it has to be announced still.
	Left time.Duration
}

// Error implements error.
func (e *UnannouncedError) Error() string {
	return fmt.Sprintf("the next intermediate is being announced to the mesh; it can sign in %s", e.Left.Round(time.Second))
}

// nextFile is the next intermediate as it is kept, PEM.
type nextFile struct {
	Key         string `json:"key"`
	Certificate string `json:"certificate"`
	// Since is when it was announced first.
	Since time.Time `json:"since"`

	issuer issuer
}

// formerIntermediate has signed certificates that may live still.
type formerIntermediate struct {
	Certificate string    `json:"certificate"`
	Until       time.Time `json:"until"`

	parsed *x509.Certificate
}

func nextPath(dir string) string          { return filepath.Join(dir, "next-intermediate.json") }
func intermediatesPath(dir string) string { return filepath.Join(dir, "former-intermediates.json") }

// loadNext reads the next intermediate; nil for none. One that was announced later than now, before the clock was set back, counts as
// announced from now on: else it could not sign for as long as the clock was ahead.
func loadNext(dir string, now time.Time) (*nextFile, error) {
	n := &nextFile{}
	err := durable.ReadJSON(nextPath(dir), n)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = n.parse()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file: another intermediate is announced then", nextPath(dir), err)
	}
	if n.Since.After(now) {
		n.Since = now
	}
	return n, nil
}

func (n *nextFile) parse() (err error) {
	if n.issuer.certificate, err = parseCertificate([]byte(n.Certificate)); err != nil {
		return err
	}
	block, _ := pem.Decode([]byte(n.Key))
	if block == nil {
		return errors.New("it holds no PEM key")
	}
	if n.issuer.key, err = parseKey(block.Bytes); err != nil {
		return err
	}
	if !belongs(n.issuer.key, n.issuer.certificate) {
		return errMismatched
	}
	return nil
}

func loadFormerIntermediates(dir string) ([]formerIntermediate, error) {
	all, err := loadList(intermediatesPath(dir), func(f *formerIntermediate) (err error) {
		f.parsed, err = parseCertificate([]byte(f.Certificate))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w; remove the file when the intermediate was not renewed within the last hours", err)
	}
	return all, nil
}

// Anchors are the certificates (PEM) by which this cluster's own clients know what it issued: those of [Authority.Announced],
// one that is about to be installed, and those of a mesh that it left or is about to leave, as long as its workloads may show
// certificates of them.
func (a *Authority) Anchors() []string {
	return a.state().anchors(func(anchor) bool { return true })
}

// Announced are the certificates (PEM) by which clients of other clusters know what this one issued: the intermediate that
// signs, the next one, and those before whose certificates may live still.
func (a *Authority) Announced() []string {
	return a.state().anchors(func(one anchor) bool { return one.ofMesh })
}

// anchor is an intermediate by which clients may know what this cluster issued.
type anchor struct {
	// certificate, PEM.
	certificate string
	// until is when its last certificate ends; zero for one that signs, or will.
	until time.Time
	// ofMesh says that a root of the mesh has signed it for this cluster as the member that it is.
	ofMesh bool
}

// known are the anchors of a state, found once: each stream to another cluster asks whenever it wakes, and a signature takes a
// tenth of a millisecond to verify. There are as many as the state has intermediates.
type known struct {
	once    sync.Once
	anchors []anchor
}

// anchors that are wanted, the one that signs first. The state is published.
func (s *state) anchors(wanted func(anchor) bool) []string {
	s.known.once.Do(func() { s.known.anchors = s.findAnchors() })
	now := s.options.Now()
	var out []string
	for _, one := range s.known.anchors {
		if len(out) < maxAnchors && (one.until.IsZero() || now.Before(one.until)) && wanted(one) {
			out = append(out, one.certificate)
		}
	}
	return out
}

func (s *state) findAnchors() (all []anchor) {
	add := func(c *x509.Certificate, until time.Time) {
		one := anchor{certificate: string(encode(c.Raw)), until: until}
		if slices.ContainsFunc(all, func(o anchor) bool { return o.certificate == one.certificate }) {
			return
		}
		one.ofMesh = MembershipOf(c) == MembershipOf(s.current.certificate) && s.signedByMesh(c)
		all = append(all, one)
	}
	add(s.current.certificate, time.Time{})
	if s.expectedAnchor != nil {
		add(s.expectedAnchor, time.Time{})
	}
	if s.next != nil && MembershipOf(s.next.issuer.certificate) == MembershipOf(s.current.certificate) {
		add(s.next.issuer.certificate, time.Time{})
	}
	// The latest are shown the most.
	for _, f := range slices.Backward(s.formerIntermediates) {
		add(f.parsed, f.Until)
	}
	return all
}

// signedByMesh says whether a root of the mesh has signed a certificate.
func (s *state) signedByMesh(c *x509.Certificate) bool {
	return slices.ContainsFunc(s.mesh(), func(root *x509.Certificate) bool { return c.CheckSignatureFrom(root) == nil })
}

// CheckAnchor makes sure that a certificate (PEM) may be an anchor of an issuer: one of the roots (PEM) signed it, and it may
// issue that issuer's names only. mesh says that the issuer is the primary, which also answers as the mesh's federation.
func CheckAnchor(anchorPEM string, of cluster.Issuer, trustDomain string, primary bool, roots []byte) error {
	c, err := parseCertificate([]byte(anchorPEM))
	if err != nil {
		return fmt.Errorf("anchor of %s: %w", of.Cluster, err)
	}
	names := []string{of.Name(trustDomain)}
	if primary {
		names = append(names, cluster.FederationName(trustDomain))
	}
	switch {
	case !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0 || !c.MaxPathLenZero:
		return fmt.Errorf("anchor of %s: it is no intermediate", of.Cluster)
	case !constrained(c, names):
		return fmt.Errorf("anchor of %s: it may issue %q, not %q", of.Cluster, c.PermittedDNSDomains, names)
	case MembershipOf(c) != of.Membership:
		return fmt.Errorf("anchor of %s: it is of another membership", of.Cluster)
	}
	for block, rest := pem.Decode(roots); block != nil; block, rest = pem.Decode(rest) {
		if root, err := x509.ParseCertificate(block.Bytes); err == nil && c.CheckSignatureFrom(root) == nil {
			return nil
		}
	}
	return fmt.Errorf("anchor of %s: no root of the mesh has signed it", of.Cluster)
}

// Prepared says whether there is a next intermediate, which is announced.
func (a *Authority) Prepared() bool {
	s := a.state()
	return s.prepared()
}

// prepared is [Authority.Prepared]. One that an authority before signed is good for its key, and no anchor elsewhere once
// that is retired.
func (s *state) prepared() bool {
	if s.next == nil || MembershipOf(s.next.issuer.certificate) != MembershipOf(s.current.certificate) {
		return false
	}
	return s.options.Now().Before(s.next.issuer.certificate.NotAfter) && s.signedByMesh(s.next.issuer.certificate)
}

// Prepare makes sure that there is a next intermediate; obtain is as for [Authority.Renew]. It is durable when it returns.
func (a *Authority) Prepare(ctx context.Context, obtain func(ctx context.Context, requestPEM []byte) (Intermediate, error)) error {
	a.renewing.Lock()
	defer a.renewing.Unlock()
	return a.prepare(ctx, obtain)
}

func (a *Authority) prepare(ctx context.Context, obtain func(ctx context.Context, requestPEM []byte) (Intermediate, error)) error {
	switch s := a.state(); {
	case s.prepared():
		return nil
	case s.root.key != nil:
		return a.update(func(s *state) error {
			if s.prepared() {
				return nil
			}
			return s.prepareOwn()
		})
	}
	key, request, err := NewIntermediateRequest(a.options.Cluster, a.options.Random)
	if err != nil {
		return err
	}
	obtained, err := obtain(ctx, request)
	if err != nil {
		return fmt.Errorf("next intermediate: %w", err)
	}
	member := Issuer{Key: key, Certificate: obtained.Certificate, Root: obtained.Root}
	root, _, err := checkMember(*a.options, member)
	if err != nil {
		return fmt.Errorf("next intermediate from the primary: %w", err)
	}
	return a.update(func(s *state) error {
		if !s.announced(root) {
			return errors.New("next intermediate from the primary: its root has not been announced")
		}
		return s.setNext(&nextFile{Key: string(key), Certificate: string(obtained.Certificate)})
	})
}

// prepareOwn makes the next intermediate of a cluster with a root of its own.
func (s *state) prepareOwn() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), s.options.Random)
	if err != nil {
		return fmt.Errorf("make the key of the next intermediate: %w", err)
	}
	certificate, err := s.sign(s.intermediateTemplate(s.options.Cluster, s.names()), s.root, key.Public())
	if err == nil {
		err = s.record(certificate.Subject.CommonName, certificate)
	}
	if err != nil {
		return fmt.Errorf("next intermediate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key of the next intermediate: %w", err)
	}
	return s.setNext(&nextFile{Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), Certificate: string(encode(certificate.Raw))})
}

// setNext makes the next intermediate durable and takes it over; nil for none.
func (s *state) setNext(n *nextFile) error {
	if n == nil {
		if err := durable.Remove(nextPath(s.options.Dir)); err != nil {
			return fmt.Errorf("forget the next intermediate: %w", err)
		}
	} else {
		n.Since = s.options.Now().UTC()
		if err := n.parse(); err != nil {
			return fmt.Errorf("next intermediate: %w", err)
		}
		if err := durable.WriteJSON(nextPath(s.options.Dir), n, 0o600); err != nil {
			return fmt.Errorf("keep the next intermediate: %w", err)
		}
	}
	s.next = n
	return nil
}

// ripe says whether the next intermediate has been announced for long enough; the error is an [*UnannouncedError].
func (s *state) ripe() error {
	if s.next == nil {
		return &UnannouncedError{Left: s.options.Announce} // Somebody else has just used it up.
	}
	if left := s.next.Since.Add(s.options.Announce).Sub(s.options.Now()); left > 0 {
		return &UnannouncedError{Left: left}
	}
	return nil
}

// spent forgets the next intermediate whose key signs now: a crash in between leaves it.
func (s *state) spent() error {
	if s.next == nil || !belongs(s.next.issuer.key, s.current.certificate) {
		return nil
	}
	return s.setNext(nil)
}

// retire keeps the intermediate that signs now as an anchor until its last certificate has expired. It is durable when it
// returns.
func (s *state) retire(grace time.Duration) error {
	if s.current.certificate == nil {
		return nil
	}
	all, err := retiring(*s.options, s.formerIntermediates, s.current.certificate, grace)
	if err == nil {
		s.formerIntermediates = all
	}
	return err
}

// retiring writes the list of former intermediates with one more.
func retiring(options Options, all []formerIntermediate, leaver *x509.Certificate, grace time.Duration) ([]formerIntermediate, error) {
	now := options.Now()
	kept := slices.DeleteFunc(slices.Clone(all), func(f formerIntermediate) bool {
		return f.parsed.Equal(leaver) || !now.Before(f.Until)
	})
	kept = append(kept, formerIntermediate{Certificate: string(encode(leaver.Raw)), Until: now.Add(grace).UTC(), parsed: leaver})
	if over := len(kept) - maxAnchors; over > 0 {
		kept = kept[over:]
	}
	return kept, durable.WriteJSON(intermediatesPath(options.Dir), kept, 0o644)
}

// requestFor asks for an intermediate of a key that there is.
func requestFor(name string, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, intermediateRequest(name), key)
	if err != nil {
		return nil, fmt.Errorf("request for the intermediate of %s: %w", name, err)
	}
	return bytes.TrimSpace(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}
