package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"heddle.io/heddle/control/durable"
)

// trustedRoot is a root that is trusted beside the current one while a mesh changes its root: the next one, until it
// becomes current, or the one before, until nobody shows a certificate of it any more.
type trustedRoot struct {
	// Certificate, PEM.
	Certificate string `json:"certificate"`
	// Until is when it is dropped at the latest; zero means that it stays until it becomes the current one.
	Until time.Time `json:"until,omitzero"`
	// Outside is when the last of its certificates ends that this cluster's agent does not renew; zero when there is none.
	Outside time.Time `json:"outside,omitzero"`
	// Dropped says that nobody is told to trust it any more, and that somebody may not have heard of that.
	Dropped bool `json:"dropped,omitempty"`

	parsed *x509.Certificate
}

func trustedPath(dir string) string { return filepath.Join(dir, "trusted-roots.json") }

func loadTrusted(dir string) ([]trustedRoot, error) {
	all, err := loadList(trustedPath(dir), func(r *trustedRoot) (err error) {
		r.parsed, err = parseCertificate([]byte(r.Certificate))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w; restore the file from a backup", err)
	}
	return all, nil
}

// setTrusted writes and takes over the list.
func (s *state) setTrusted(all []trustedRoot) error {
	path := trustedPath(s.options.Dir)
	if len(all) == 0 {
		if err := durable.Remove(path); err != nil {
			return fmt.Errorf("forget earlier roots: %w", err)
		}
	} else if err := durable.WriteJSON(path, all, 0o644); err != nil {
		return err
	}
	s.trusted = all
	return nil
}

// Trust adds a root (PEM) to what verifiers are told to trust, until it becomes the current one. It is durable when it
// returns.
func (a *Authority) Trust(rootPEM []byte) error {
	root, err := ParseRoot(rootPEM)
	if err != nil {
		return err
	}
	return a.update(func(s *state) error {
		return s.setTrusted(append(s.without(root), trustedRoot{Certificate: string(encode(root.Raw)), parsed: root}))
	})
}

// without gives the trusted roots that are still in time, less one.
func (s *state) without(root *x509.Certificate) []trustedRoot {
	now := s.options.Now()
	return slices.DeleteFunc(slices.Clone(s.trusted), func(t trustedRoot) bool {
		return t.parsed.Equal(root) || !t.Until.IsZero() && now.After(t.Until)
	})
}

// FormerRoots are those that a cluster goes on to trust after it joined a mesh, for the certificates that it has of them.
type FormerRoots struct {
	// Outside is when the last of these certificates ends that the agent does not renew; zero when there is none.
	Outside time.Time
	// Dropped says that they are trusted no more, and that somebody may not have heard of that.
	Dropped bool
}

// formerRoot says whether a root is one of [FormerRoots].
func (s *state) formerRoot(t trustedRoot) bool {
	return !t.Until.IsZero() && !t.parsed.Equal(s.root.certificate) && !s.changes(t.parsed)
}

// FormerRoots says whether there are any, until they end by themselves.
func (a *Authority) FormerRoots() (FormerRoots, bool) {
	s := a.state()
	all, some := FormerRoots{Dropped: true}, false
	now := s.options.Now()
	for _, t := range s.trusted {
		if s.formerRoot(t) && now.Before(t.Until) {
			some, all.Dropped = true, all.Dropped && t.Dropped
			if t.Outside.After(all.Outside) {
				all.Outside = t.Outside
			}
		}
	}
	return all, some
}

// DropFormerRoots takes the former roots out of what verifiers are told to trust. They are kept until
// [Authority.ForgetFormerRoots], so that it is known after a crash that verifiers have to be told. It is durable when it
// returns.
func (a *Authority) DropFormerRoots() error {
	return a.update(func(s *state) error {
		all := slices.Clone(s.trusted)
		for i, t := range all {
			all[i].Dropped = t.Dropped || s.formerRoot(t)
		}
		return s.setTrusted(all)
	})
}

// ForgetFormerRoots forgets those that were dropped: verifiers have been told.
func (a *Authority) ForgetFormerRoots() error {
	return a.update(func(s *state) error {
		return s.setTrusted(slices.DeleteFunc(slices.Clone(s.trusted), func(t trustedRoot) bool { return t.Dropped }))
	})
}

// Roots returns the trusted root certificates, PEM, the current one first.
func (a *Authority) Roots() []byte {
	s := a.state()
	return s.roots()
}

// MeshPool is, for Go's verifier, what controllers and the API trust: the mesh's root, while it changes both of them, and none
// that this cluster left, or is about to take, by joining. Those are for workloads, whose certificates are of them; a mesh that
// was left could be the primary here by its root.
func (a *Authority) MeshPool() *x509.CertPool {
	s := a.state()
	pool := x509.NewCertPool()
	for _, root := range s.mesh() {
		pool.AddCert(root)
	}
	return pool
}

// mesh are the roots of the mesh, the current one first.
func (s *state) mesh() []*x509.Certificate {
	all := []*x509.Certificate{s.root.certificate}
	if c := s.change; c != nil && c.Phase != Retiring {
		for _, other := range []*x509.Certificate{c.next, c.previous} {
			if !other.Equal(s.root.certificate) {
				all = append(all, other)
			}
		}
	}
	return all
}

func (s *state) roots() []byte {
	var b bytes.Buffer
	for _, root := range s.mesh() {
		b.Write(encode(root.Raw))
	}
	now := s.options.Now()
	for _, t := range s.trusted {
		if !t.Dropped && !t.parsed.Equal(s.root.certificate) && !s.changes(t.parsed) && (t.Until.IsZero() || !now.After(t.Until)) {
			b.Write(encode(t.parsed.Raw))
		}
	}
	return b.Bytes()
}

// changes says whether a change under way decides about a root.
func (s *state) changes(root *x509.Certificate) bool {
	return s.change != nil && (root.Equal(s.change.next) || root.Equal(s.change.previous))
}

// parseCertificate reads exactly one PEM certificate.
func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) != 0 {
		return nil, errors.New("not exactly one PEM block CERTIFICATE")
	}
	return x509.ParseCertificate(block.Bytes)
}

// ParseRoot reads exactly one PEM certificate, which may sign intermediates. It need not sign itself: what a mesh trusts may
// have been signed by somebody above, whom it does not trust.
func ParseRoot(text []byte) (*x509.Certificate, error) {
	root, err := parseCertificate(text)
	switch {
	case err != nil:
	case !root.BasicConstraintsValid || !root.IsCA || root.KeyUsage&x509.KeyUsageCertSign == 0:
		err = errors.New("it may not sign certificates")
	case root.MaxPathLen == 0 && root.MaxPathLenZero:
		err = errors.New("it may not sign intermediates: its path length is 0")
	case bytes.Equal(root.RawSubject, root.RawIssuer):
		err = root.CheckSignatureFrom(root)
	}
	if err != nil {
		return nil, fmt.Errorf("root certificate: %w", err)
	}
	return root, nil
}
