package ca

import (
	"crypto/x509"
	"time"

	"heddle.io/heddle/control/cluster"
)

// state is all that an authority is at one moment. It is not changed once it is published: who asks for it waits neither for
// the disk nor for the audit log, to which a change of it is written before.
type state struct {
	options *Options
	root    issuer
	current issuer
	// trusted are roots beside the current one, while this cluster joins a mesh.
	trusted []trustedRoot
	// change of the mesh's root that is under way, or nil.
	change *changeFile
	// outside is until when certificates live that the agent does not renew, or did.
	outside time.Time
	// expected is who this cluster is about to become as an issuer, and former who it was lately.
	expected *cluster.Issuer
	former   []formerIssuer
	// next intermediate, which is announced; the one that is expected to be installed; and those that signed before.
	next                *nextFile
	expectedAnchor      *x509.Certificate
	formerIntermediates []formerIntermediate
	// known is what was found out about these.
	known *known
}

// state of the authority now.
func (a *Authority) state() *state { return a.published.Load() }

// update changes the state, by do, and publishes what became of it: also when do fails, for then what it had done is durable.
func (a *Authority) update(do func(s *state) error) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.updateLocked(do)
}

// updateLocked is update for who holds writing.
func (a *Authority) updateLocked(do func(s *state) error) error {
	s := *a.state()
	err := do(&s)
	s.known = &known{}
	a.published.Store(&s)
	return err
}
