package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// ErrNoRoot says that only the mesh's primary can do it.
var ErrNoRoot = errors.New("this cluster has no root of its own")

// Intermediate is what the primary issues to a member.
type Intermediate struct {
	// Certificate and the Root that signed it, PEM.
	Certificate, Root []byte
	// Expires is its end of life.
	Expires time.Time
}

// Issuer is a member's intermediate with its key: what [Authority.Install] takes and member.pem holds.
type Issuer struct {
	// Key (PKCS#8), Certificate and Root, PEM.
	Key, Certificate, Root []byte
}

// NewIntermediateRequest makes a P-256 key (PKCS#8 PEM) and a request (PEM) for a cluster's intermediate. A nil random
// means crypto/rand.
func NewIntermediateRequest(name string, random io.Reader) (keyPEM, requestPEM []byte, err error) {
	keyPEM, requestPEM, err = newRequest(intermediateRequest(name), ECDSAP256, random)
	if err != nil {
		return nil, nil, fmt.Errorf("request for the intermediate of %s: %w", name, err)
	}
	return keyPEM, requestPEM, nil
}

func intermediateRequest(name string) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: intermediatePrefix + name}}
}

// RequestKeyHash is the SHA-256 of the public key (SubjectPublicKeyInfo, hexadecimal) of a request (PEM), once the request
// has proven to hold it.
func RequestKeyHash(requestPEM []byte) (string, error) {
	request, err := parseRequest(requestPEM)
	if err != nil {
		return "", err
	}
	return KeyHash(&x509.Certificate{RawSubjectPublicKeyInfo: request.RawSubjectPublicKeyInfo}), nil
}

// SignIntermediate issues the intermediate of another cluster of the mesh: it may issue certificates with that cluster's
// DNS names and none with another's. Of the request (PEM), only the key counts. membership is the hash of the key that the
// cluster joined with. It is written into the certificate, see [MembershipOf], and is part of the names, so that a cluster
// that joins later under the same name is another issuer.
func (a *Authority) SignIntermediate(requestPEM []byte, name, membership string) (Intermediate, error) {
	if _, err := cluster.New(name); err != nil {
		return Intermediate{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if name == a.options.Cluster || cluster.CertificateName(a.options.TrustDomain, name) == cluster.FederationName(a.options.TrustDomain) {
		return Intermediate{}, fmt.Errorf("%w: the name %q is the mesh's own", ErrRefused, name)
	}
	if raw, err := hex.DecodeString(membership); err != nil || len(raw) != 32 {
		return Intermediate{}, fmt.Errorf("%w: membership %q is not a key's hash", ErrRefused, membership)
	}
	request, err := parseRequest(requestPEM)
	if err != nil {
		return Intermediate{}, err
	}
	s := a.state()
	if s.root.key == nil {
		return Intermediate{}, ErrNoRoot
	}
	if bytes.Equal(request.RawSubjectPublicKeyInfo, s.root.certificate.RawSubjectPublicKeyInfo) {
		return Intermediate{}, fmt.Errorf("%w: the key is the root's", ErrRefused)
	}
	own := cluster.Issuer{Cluster: name, Membership: membership}
	template := s.intermediateTemplate(name, []string{own.Name(a.options.TrustDomain)})
	template.Subject.SerialNumber = membership
	certificate, err := s.sign(template, s.root, request.PublicKey)
	if err != nil {
		return Intermediate{}, fmt.Errorf("intermediate of %s: %w", name, err)
	}
	return Intermediate{Certificate: encode(certificate.Raw), Root: encode(s.root.certificate.Raw), Expires: template.NotAfter}, nil
}

// MembershipOf reads what [Authority.SignIntermediate] wrote, from a member's intermediate.
func MembershipOf(intermediate *x509.Certificate) string { return intermediate.Subject.SerialNumber }

// RenewAt is when the intermediate should be replaced: after two thirds of its life, and at once when it may issue more
// names than it should.
func (a *Authority) RenewAt() time.Time {
	s := a.state()
	c := s.current.certificate
	if s.options.early(c) {
		return c.NotBefore
	}
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

// Renew replaces the intermediate by one for the key of the next one, which was announced; where it was not, for long enough,
// the error is an [*UnannouncedError], and it is announced now. With a root of its own the authority makes it, and obtain is
// not called; a member has obtain get it from its primary. The old one stays in use until the new one has been checked and
// written. Another next one is announced by [Authority.Prepare].
func (a *Authority) Renew(ctx context.Context, obtain func(ctx context.Context, requestPEM []byte) (Intermediate, error)) error {
	a.renewing.Lock()
	defer a.renewing.Unlock()
	if err := a.prepare(ctx, obtain); err != nil {
		return err
	}
	if a.state().root.key != nil {
		return a.update(func(s *state) error {
			if err := s.ripe(); err != nil {
				return err
			}
			return s.renewOwn()
		})
	}
	s := a.state()
	if err := s.ripe(); err != nil {
		return err
	}
	next := s.next
	// Signed anew: it may be of the root before, and has been alive since it was announced.
	request, err := requestFor(a.options.Cluster, next.issuer.key)
	if err != nil {
		return err
	}
	obtained, err := obtain(ctx, request)
	if err != nil {
		return fmt.Errorf("renew intermediate: %w", err)
	}
	return a.Install(Issuer{Key: []byte(next.Key), Certificate: obtained.Certificate, Root: obtained.Root}, WorkloadLifetime)
}

// Install makes an intermediate that the primary of a mesh issued the one that is used from now on; the cluster is a
// member then. When its root is another than the current one, that stays trusted for the grace, which must cover the lives
// of the certificates that are out, or until [Authority.DropFormerRoots]; when the cluster joined anew, so do its former
// names, see [Authority.Issuers]. It is durable when it returns, and whole or not at all.
func (a *Authority) Install(member Issuer, grace time.Duration) error {
	root, current, err := checkMember(*a.options, member)
	if err != nil {
		return fmt.Errorf("intermediate from the primary: %w", err)
	}
	return a.update(func(s *state) error { return s.install(member, root, current, grace) })
}

// install is [Authority.Install] of an intermediate that was checked.
func (s *state) install(member Issuer, root *x509.Certificate, current issuer, grace time.Duration) error {
	if MembershipOf(current.certificate) == MembershipOf(s.current.certificate) && !s.announced(root) {
		return errors.New("intermediate from the primary: its root has not been announced, so that this cluster's proxies do not trust it")
	}
	if err := s.leave(MembershipOf(current.certificate), grace); err != nil {
		return err
	}
	if err := s.retire(max(grace, formerGrace)); err != nil {
		return err
	}
	trusted := s.without(root)
	if previous := s.root.certificate; !previous.Equal(root) && !s.changes(previous) {
		left := trustedRoot{Certificate: string(encode(previous.Raw)), Until: s.options.Now().Add(grace).UTC(), parsed: previous}
		if s.outside.After(s.options.Now()) {
			left.Outside = s.outside
		}
		trusted = append(trusted, left)
	}
	// First the trust: whatever happens in between, both roots are.
	if len(trusted) > 0 {
		next := trustedRoot{Certificate: string(encode(root.Raw)), parsed: root}
		if err := s.setTrusted(append(trusted, next)); err != nil {
			return err
		}
	}
	if err := writeMember(s.options.Dir, member); err != nil {
		return err
	}
	s.root, s.current, s.expected, s.expectedAnchor = issuer{certificate: root}, current, nil, nil
	if s.next != nil && (!s.prepared() || belongs(s.next.issuer.key, current.certificate)) {
		// Its key signs now, or it is of a mesh that was left.
		if err := s.setNext(nil); err != nil {
			return err
		}
	}
	return s.setTrusted(trusted)
}

// CheckMember makes sure that an intermediate can do its work in a cluster, as [Authority.Install] does.
func CheckMember(options Options, member Issuer) error {
	_, _, err := checkMember(options, member)
	return err
}

// CreateMember writes the authority of a cluster that does not run, so that [Open] finds it with Options.Member.
func CreateMember(options Options, member Issuer) error {
	if options.Now == nil {
		options.Now = time.Now
	}
	_, next, err := checkMember(options, member)
	if err != nil {
		return fmt.Errorf("intermediate from the primary: %w", err)
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return fmt.Errorf("certificate authority: create directory %s: %w", options.Dir, err)
	}
	if err := leaveFor(options, MembershipOf(next.certificate)); err != nil {
		return err
	}
	return writeMember(options.Dir, member)
}

func memberPath(dir string) string { return filepath.Join(dir, "member.pem") }

// writeMember writes key, intermediate and root as one file, so that they always belong together.
func writeMember(dir string, member Issuer) error {
	return durable.Write(memberPath(dir), bytes.Join([][]byte{member.Key, member.Certificate, member.Root}, nil), 0o600)
}

// readMember reads what writeMember wrote.
func readMember(dir string) (Issuer, error) {
	path := memberPath(dir)
	content, err := os.ReadFile(path)
	if err != nil {
		return Issuer{}, fmt.Errorf("the cluster is a member of a mesh, and its intermediate cannot be read: %w; restore the file from a backup, or join again", err)
	}
	var parts [3][]byte
	for i := range parts {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			return Issuer{}, fmt.Errorf("%s does not hold key, intermediate and root; restore it from a backup, or join again", path)
		}
		parts[i] = pem.EncodeToMemory(block)
	}
	return Issuer{Key: parts[0], Certificate: parts[1], Root: parts[2]}, nil
}

// MemberExpires is the end of life of the intermediate of a member that does not run. dir is the one of [Options].
func MemberExpires(dir string) (time.Time, error) {
	member, err := readMember(dir)
	if err != nil {
		return time.Time{}, err
	}
	certificate, err := parseCertificate(member.Certificate)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", memberPath(dir), err)
	}
	return certificate.NotAfter, nil
}

// openMember loads what writeMember wrote.
func (s *state) openMember() error {
	member, err := readMember(s.options.Dir)
	if err != nil {
		return err
	}
	root, current, err := checkMember(*s.options, member)
	if err != nil {
		return fmt.Errorf("%s: %w", memberPath(s.options.Dir), err)
	}
	s.root, s.current = issuer{certificate: root}, current
	return nil
}

// ownName is what a member's intermediate must be constrained to.
func (o Options) ownName(intermediate *x509.Certificate) string {
	return o.issuer(MembershipOf(intermediate)).Name(o.TrustDomain)
}

// early says whether a member's intermediate is from before memberships were in names: it may issue the names that it
// should, and those of every cluster that had or will have the same name too.
func (o Options) early(intermediate *x509.Certificate) bool {
	loose := cluster.CertificateName(o.TrustDomain, o.Cluster)
	return o.ownName(intermediate) != loose && constrained(intermediate, []string{loose})
}

// checkMember reads a member's intermediate and makes sure that it can do its work. One that expired while the cluster
// was off is let pass: signing says so, and the cluster can join again.
func checkMember(options Options, member Issuer) (root *x509.Certificate, current issuer, err error) {
	if root, err = ParseRoot(member.Root); err != nil {
		return nil, issuer{}, err
	}
	if current.certificate, err = parseCertificate(member.Certificate); err != nil {
		return nil, issuer{}, fmt.Errorf("intermediate certificate: %w", err)
	}
	block, rest := pem.Decode(member.Key)
	if block == nil || len(bytes.TrimSpace(rest)) != 0 {
		return nil, issuer{}, errors.New("not exactly one PEM key")
	}
	if current.key, err = parseKey(block.Bytes); err != nil {
		return nil, issuer{}, fmt.Errorf("intermediate key: %w", err)
	}
	own := options.ownName(current.certificate)
	switch c := current.certificate; {
	case !belongs(current.key, c):
		return nil, issuer{}, errors.New("the key is not the intermediate's")
	case !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, issuer{}, errors.New("the intermediate may not sign certificates")
	case !constrained(c, []string{own}) && !options.early(c):
		return nil, issuer{}, fmt.Errorf("the intermediate may issue %q, this cluster needs %s", c.PermittedDNSDomains, own)
	default:
		if err := c.CheckSignatureFrom(root); err != nil {
			return nil, issuer{}, fmt.Errorf("the intermediate is not signed by the root: %w", err)
		}
	}
	return root, current, nil
}
