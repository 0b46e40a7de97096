package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"heddle.io/heddle/control/durable"
)

// Phase of a change of the mesh's root. The order is what keeps requests from being lost: who verifies learns of the next
// root before anybody shows a certificate of it, and forgets the previous one after nobody shows one any more.
type Phase string

// Phases, in their order.
const (
	// Trusting: the previous root signs, both are trusted. Only here can the change be taken back.
	Trusting Phase = "trust"
	// Signing: the next root signs, both are trusted.
	Signing Phase = "sign"
	// Retiring: the next root alone is trusted, which everybody is being told.
	Retiring Phase = "retire"
)

// order of a phase; 0 for none.
func (p Phase) order() int {
	switch p {
	case Trusting:
		return 1
	case Signing:
		return 2
	case Retiring:
		return 3
	}
	return 0
}

// Before says whether a phase comes before another one.
func (p Phase) Before(o Phase) bool { return p.order() < o.order() }

// Kinds of changes.
const (
	// KindRotate: the next root was made here and signs itself.
	KindRotate = "rotate"
	// KindInstall: the next root was made elsewhere.
	KindInstall = "install"
)

// Change of the mesh's root that is under way.
type Change struct {
	// ID is the SHA-256 of the next root's certificate, hexadecimal.
	ID string `json:"id"`
	// Kind, empty at members, which are not told.
	Kind  string `json:"kind,omitempty"`
	Phase Phase  `json:"phase"`
	// Began is when the change, Since when its phase began, by this cluster's clock.
	Began time.Time `json:"began"`
	Since time.Time `json:"since"`
	// Until is when the last certificate of the previous root ends that was signed for somebody who is not renewed by this
	// cluster's agent; zero when there is none.
	Until time.Time `json:"until,omitzero"`
	// Next and Previous roots, PEM.
	Next     string `json:"next"`
	Previous string `json:"previous"`
}

// changeFile is a change as it is kept: in one file, so that it is there whole or not at all. The next root's key and chain
// (PEM) are in it until they are in the files of the root.
type changeFile struct {
	Change
	Key   string `json:"key,omitempty"`
	Above string `json:"above,omitempty"`

	next, previous *x509.Certificate
}

// Errors of changes.
var (
	// ErrChanging: one change at a time.
	ErrChanging = errors.New("the mesh's root is being changed already")
	// ErrNoChange: there is none, or another one.
	ErrNoChange = errors.New("no such change of the mesh's root is under way")
	// ErrTooLate: the next root signs already.
	ErrTooLate = errors.New("the next root signs already, so that there is no way back")
)

func changePath(dir string) string { return filepath.Join(dir, "change.json") }

func loadChange(dir string) (*changeFile, error) {
	path := changePath(dir)
	c := &changeFile{}
	err := durable.ReadJSON(path, c)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		if err = c.parse(); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w; restore the file from a backup", err)
	}
	return c, nil
}

func (c *changeFile) parse() (err error) {
	if c.Phase.order() == 0 {
		return fmt.Errorf("no phase is called %q", c.Phase)
	}
	if c.next, err = ParseRoot([]byte(c.Next)); err != nil {
		return fmt.Errorf("next: %w", err)
	}
	if c.previous, err = ParseRoot([]byte(c.Previous)); err != nil {
		return fmt.Errorf("previous: %w", err)
	}
	if c.ID != ChangeID(c.next) {
		return errors.New("its name is not the next root's hash")
	}
	return nil
}

// ChangeID names the change to a root.
func ChangeID(next *x509.Certificate) string {
	sum := sha256.Sum256(next.Raw)
	return hex.EncodeToString(sum[:])
}

// setChange makes a change durable and takes it over; nil for none.
func (s *state) setChange(c *changeFile) error {
	if c == nil {
		if err := durable.Remove(changePath(s.options.Dir)); err != nil {
			return fmt.Errorf("forget the change of the root: %w", err)
		}
	} else if err := durable.WriteJSON(changePath(s.options.Dir), c, 0o600); err != nil {
		return fmt.Errorf("keep the change of the root: %w", err)
	}
	s.change = c
	return nil
}

// Change that is under way, and whether there is one.
func (a *Authority) Change() (Change, bool) {
	s := a.state()
	if s.change == nil {
		return Change{}, false
	}
	return s.change.Change, true
}

// rootPrefix begins the common name of roots that were made here.
const rootPrefix = "Heddle root"

// madeHere says whether a root is one that authorities like this one make for themselves.
func (s *state) madeHere() bool {
	c := s.root.certificate
	return s.root.key != nil && strings.HasPrefix(c.Subject.CommonName, rootPrefix) && selfSigned(c)
}

// newRoot makes a root that signs itself. Its name ends with a part of its key's hash: verifiers that look for an issuer by
// its name alone must find the one that signed.
func (s *state) newRoot() (issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), s.options.Random)
	if err != nil {
		return issuer{}, fmt.Errorf("make root key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return issuer{}, fmt.Errorf("encode root key: %w", err)
	}
	hash := sha256.Sum256(public)
	now := s.options.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: rootPrefix + " " + hex.EncodeToString(hash[:4]), Organization: []string{s.options.TrustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(RootLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: s.options.TrustDomain}},
	}
	certificate, err := s.sign(template, issuer{certificate: template, key: key}, key.Public())
	if err != nil {
		return issuer{}, fmt.Errorf("root certificate: %w", err)
	}
	if err := s.record(certificate.Subject.CommonName, certificate); err != nil {
		return issuer{}, fmt.Errorf("root certificate: %w", err)
	}
	return issuer{certificate: certificate, key: key}, nil
}

// ErrExternal says that the root was made elsewhere, and so must the next one be.
var ErrExternal = errors.New("the mesh's root was made elsewhere")

// BeginRotation makes the mesh's next root and has it trusted beside the current one. It is durable when it returns. The
// errors are [ErrNoRoot], [ErrExternal], [ErrChanging] or of the disk.
func (a *Authority) BeginRotation() (Change, error) {
	return a.beginChange(KindRotate, func(s *state) (issuer, error) {
		if !s.madeHere() {
			return issuer{}, ErrExternal
		}
		return s.newRoot()
	})
}

// BeginInstall does the same with an authority that was made elsewhere.
func (a *Authority) BeginInstall(e External) (Change, error) {
	return a.beginChange(KindInstall, func(s *state) (issuer, error) {
		if s.root.certificate.Equal(e.certificate) {
			return issuer{}, errors.New("it is the mesh's root already")
		}
		return e.issuer(), distinct(e.certificate, s.root.certificate)
	})
}

func (a *Authority) beginChange(kind string, nextRoot func(*state) (issuer, error)) (c Change, err error) {
	err = a.update(func(s *state) error {
		switch {
		case s.root.key == nil:
			return ErrNoRoot
		case s.change != nil:
			return ErrChanging
		}
		next, err := nextRoot(s)
		if err == nil {
			c, err = s.begin(kind, next)
		}
		return err
	})
	return c, err
}

// distinct refuses two roots that verifiers cannot tell apart: of one name and key identifier, with different keys.
func distinct(next, current *x509.Certificate) error {
	if string(next.RawSubject) == string(current.RawSubject) && string(next.SubjectKeyId) == string(current.SubjectKeyId) && KeyHash(next) != KeyHash(current) {
		return fmt.Errorf("the certificate %s has the name and the key identifier of the current root, and another key: verifiers could not tell them apart", named(next))
	}
	return nil
}

func (s *state) begin(kind string, next issuer) (Change, error) {
	der, err := x509.MarshalPKCS8PrivateKey(next.key)
	if err != nil {
		return Change{}, fmt.Errorf("encode the next root's key: %w", err)
	}
	// Whoever had the root's key had that of the next intermediate beside it. A fresh one is announced while both are trusted.
	if err := s.prepareOwn(); err != nil {
		return Change{}, err
	}
	now := s.options.Now().UTC()
	c := &changeFile{
		Change: Change{ID: ChangeID(next.certificate), Kind: kind, Phase: Trusting, Began: now, Since: now,
			Next: string(encode(next.certificate.Raw)), Previous: string(encode(s.root.certificate.Raw))},
		Key:  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		next: next.certificate, previous: s.root.certificate,
	}
	for _, up := range next.above {
		c.Above += string(encode(up.Raw))
	}
	if err := s.setChange(c); err != nil {
		return Change{}, err
	}
	return c.Change, nil
}

// Advance brings the change with that name into its next phase. Into [Signing], a cluster with a root of its own signs with
// the next root when it returns. It is durable, and goes on where it was interrupted when the authority is opened.
func (a *Authority) Advance(id string, to Phase) error {
	return a.update(func(s *state) error {
		if s.change == nil || s.change.ID != id {
			return ErrNoChange
		}
		if to.order() != s.change.Phase.order()+1 {
			return fmt.Errorf("the change is in the phase %s, %s is not the next one", s.change.Phase, to)
		}
		if to == Retiring && (!s.root.certificate.Equal(s.change.next) || s.change.Key != "") {
			return errors.New("the next root does not sign here yet")
		}
		c := *s.change
		c.Phase, c.Since = to, s.options.Now().UTC()
		if to == Signing {
			c.Until = s.outside.UTC()
		}
		if err := s.setChange(&c); err != nil {
			return err
		}
		if to == Signing && s.root.key != nil {
			return s.adopt()
		}
		return nil
	})
}

// Complete takes the next root of a change into use where [Authority.Advance] could not, for want of room on the disk for
// example.
func (a *Authority) Complete(id string) error {
	return a.update(func(s *state) error {
		if s.change == nil || s.change.ID != id || s.change.Phase == Trusting || s.change.Key == "" {
			return nil
		}
		return s.adopt()
	})
}

// adopt makes the next root of a change the one that signs. It may run again after a crash at any point.
func (s *state) adopt() error {
	c := *s.change
	e, err := parseExternal([]byte(c.Next), []byte(c.Above))
	if err != nil {
		return fmt.Errorf("next root: %w", err)
	}
	if e.key, err = parseExternalKey([]byte(c.Key)); err != nil {
		return fmt.Errorf("next root's key: %w", err)
	}
	if err := writeRoot(s.options.Dir, e.issuer()); err != nil {
		return err
	}
	s.root = e.issuer()
	current, err := load(s.options.Dir, "intermediate")
	if err != nil || current.certificate.CheckSignatureFrom(s.root.certificate) != nil {
		if err == nil && s.current.certificate == nil {
			s.current = current
		}
		current, err = s.createIntermediate()
	}
	if err != nil {
		return err
	}
	s.current = current
	if err := s.spent(); err != nil {
		return err
	}
	if err := s.prepareOwn(); err != nil {
		return err
	}
	if err := s.forgetRequest(s.root.certificate.PublicKey); err != nil {
		return err
	}
	// The key has its place now; there is one copy of it.
	c.Key, c.Above = "", ""
	return s.setChange(&c)
}

// Finish ends a change in its last phase: the next root is the mesh's root.
func (a *Authority) Finish(id string) error {
	return a.update(func(s *state) error {
		if s.change == nil || s.change.ID != id {
			return ErrNoChange
		}
		if s.change.Phase != Retiring {
			return fmt.Errorf("the change is in the phase %s, not in its last one", s.change.Phase)
		}
		return s.setChange(nil)
	})
}

// Abort takes a change back whose next root does not sign yet, and destroys that root's key.
func (a *Authority) Abort(id string) error {
	return a.update(func(s *state) error {
		if s.change == nil || s.change.ID != id {
			return ErrNoChange
		}
		if s.change.Phase != Trusting || !s.root.certificate.Equal(s.change.previous) {
			return ErrTooLate
		}
		return s.setChange(nil)
	})
}

// Follow begins the change of the mesh's root that a member's primary tells of. What is begun here ends by
// [Authority.Advance] and [Authority.Finish], or [Authority.Abort].
func (a *Authority) Follow(next, previous []byte) (Change, error) {
	c := &changeFile{Change: Change{Phase: Trusting, Next: string(next), Previous: string(previous)}}
	root, err := ParseRoot(next)
	if err != nil {
		return Change{}, fmt.Errorf("next: %w", err)
	}
	c.ID = ChangeID(root)
	if err := c.parse(); err != nil {
		return Change{}, err
	}
	now := a.options.Now().UTC()
	if err := checkAuthority(root, a.options.TrustDomain, now); err != nil {
		return Change{}, fmt.Errorf("the next root %s %w", named(root), err)
	}
	if err := distinct(root, c.previous); err != nil {
		return Change{}, err
	}
	c.Began, c.Since = now, now
	if err := a.update(func(s *state) error {
		switch {
		case s.root.key != nil:
			return errors.New("this cluster has a root of its own")
		case s.change != nil:
			return ErrChanging
		case !s.root.certificate.Equal(c.previous):
			return errors.New("the root before is not the one of this cluster's intermediate")
		}
		return s.setChange(c)
	}); err != nil {
		return Change{}, err
	}
	return c.Change, nil
}

// announced says whether a root is one that this cluster's proxies have been told to trust.
func (s *state) announced(root *x509.Certificate) bool {
	return root.Equal(s.root.certificate) || s.change != nil && s.change.Phase != Retiring && (root.Equal(s.change.next) || root.Equal(s.change.previous))
}

// outsideMargin is the part of its life by which the end of the last certificate for outsiders is noted later than necessary,
// so that not each signing writes to the disk.
const outsideMargin = 12

func outsidePath(dir string) string { return filepath.Join(dir, "outside.json") }

// noteOutside makes durable until when certificates live that this cluster's agent does not renew.
func (a *Authority) noteOutside(expires time.Time) error {
	if !expires.After(a.state().outside) {
		return nil
	}
	return a.update(func(s *state) error {
		if !expires.After(s.outside) {
			return nil
		}
		until := expires.Add(expires.Sub(s.options.Now()) / outsideMargin).UTC()
		if err := durable.WriteJSON(outsidePath(s.options.Dir), until, 0o600); err != nil {
			return fmt.Errorf("note how long the certificate lives: %w", err)
		}
		s.outside = until
		return nil
	})
}

func loadOutside(dir string) (time.Time, error) {
	var until time.Time
	err := durable.ReadJSON(outsidePath(dir), &until)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return until, fmt.Errorf("%s: %w; remove the file when no certificate was signed for others within the last hour", outsidePath(dir), err)
	}
	return until, nil
}
