package ca

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// formerIssuer is who a cluster was as an issuer before it joined a mesh, or joined it anew.
type formerIssuer struct {
	cluster.Issuer
	// Until is when none of its certificates lives any more.
	Until time.Time `json:"until"`
}

func formerPath(dir string) string { return filepath.Join(dir, "former-issuers.json") }

func loadFormer(dir string) ([]formerIssuer, error) {
	all, err := loadList(formerPath(dir), func(*formerIssuer) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("%w; restore the file from a backup, or remove it when the cluster has not joined a mesh within the last hours", err)
	}
	return all, nil
}

// issuer is this cluster as a member that joined with that key.
func (o Options) issuer(membership string) cluster.Issuer {
	return cluster.Issuer{Cluster: o.Cluster, Membership: membership}
}

// Issuers are who this cluster's own certificates are of, sorted: the issuer that signs now, one that is expected to, and
// those before it until their last certificate has expired. Verifiers of this cluster accept all of them. Those of other
// clusters need only the first: who is not in the mesh's list is none of its clusters, and a cluster that joins anew is
// not there under its former membership.
func (a *Authority) Issuers() []cluster.Issuer {
	s := a.state()
	out := []cluster.Issuer{s.options.issuer(MembershipOf(s.current.certificate))}
	if s.expected != nil {
		out = append(out, *s.expected)
	}
	now := s.options.Now()
	for _, f := range s.former {
		if now.Before(f.Until) {
			out = append(out, f.Issuer)
		}
	}
	slices.SortFunc(out, cluster.Issuer.Compare)
	return slices.Compact(out)
}

// Expect says that an intermediate (PEM) is about to be installed, so that verifiers know the names of its certificates
// before the first is shown. It is forgotten with the process.
func (a *Authority) Expect(intermediatePEM []byte) error {
	certificate, err := parseCertificate(intermediatePEM)
	if err != nil {
		return fmt.Errorf("intermediate from the primary: %w", err)
	}
	next := a.options.issuer(MembershipOf(certificate))
	return a.update(func(s *state) error {
		s.expected, s.expectedAnchor = &next, certificate
		return nil
	})
}

// leave keeps the current issuer among the former ones, if the next is another.
func (s *state) leave(next string, grace time.Duration) error {
	now := s.options.Now()
	former, err := leaving(*s.options, s.former, MembershipOf(s.current.certificate), next, now.Add(grace))
	if err == nil {
		s.former = former
	}
	return err
}

// leaving writes the list of former issuers with one more.
func leaving(options Options, former []formerIssuer, before, next string, until time.Time) ([]formerIssuer, error) {
	if before == next {
		return former, nil
	}
	leaver := options.issuer(before)
	kept := slices.DeleteFunc(slices.Clone(former), func(f formerIssuer) bool {
		return f.Issuer == leaver || !options.Now().Before(f.Until)
	})
	kept = append(kept, formerIssuer{Issuer: leaver, Until: until.UTC()})
	content, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode former issuers: %w", err)
	}
	return kept, durable.Write(formerPath(options.Dir), append(bytes.TrimSpace(content), '\n'), 0o644)
}

// leaveFor keeps the issuer of a cluster that does not run among the former ones: its workloads may run all the same.
func leaveFor(options Options, next string) error {
	before, err := readMember(options.Dir)
	if err != nil {
		return nil //nolint:nilerr // There was none, or it is broken, for which joining again is the remedy.
	}
	certificate, err := parseCertificate(before.Certificate)
	if err != nil {
		return nil //nolint:nilerr // As above.
	}
	former, err := loadFormer(options.Dir)
	if err != nil {
		return err
	}
	if _, err = leaving(options, former, MembershipOf(certificate), next, options.Now().Add(WorkloadLifetime)); err != nil {
		return err
	}
	signed, err := loadFormerIntermediates(options.Dir)
	if err != nil {
		return err
	}
	_, err = retiring(options, signed, certificate, formerGrace)
	return err
}
