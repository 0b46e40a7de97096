package ca

import (
	"crypto/x509"
	"encoding/pem"
	"time"
)

// Description of an authority, without a secret.
type Description struct {
	// Root that signs, and all Trusted ones, it first.
	Root    RootDescription
	Trusted []RootDescription
	// Elsewhere says that the root was not made here.
	Elsewhere bool
	// Above is the subject of the root that signs itself above it; empty when it is that itself, and at members.
	Above string
	// Requested says that there is a request whose certificate has not been installed.
	Requested bool
}

// RootDescription of a root.
type RootDescription struct {
	Subject string
	// Hash is the SHA-256 of its public key, hexadecimal: what a join token pins.
	Hash    string
	Expires time.Time
}

func describe(c *x509.Certificate) RootDescription {
	return RootDescription{Subject: c.Subject.String(), Hash: KeyHash(c), Expires: c.NotAfter}
}

// Describe tells what this cluster's certificates hang on.
func (a *Authority) Describe() Description {
	s := a.state()
	d := Description{Root: describe(s.root.certificate), Elsewhere: s.root.key != nil && !s.madeHere()}
	if n := len(s.root.above); n > 0 {
		d.Above = s.root.above[n-1].Subject.String()
	}
	for rest := s.roots(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			d.Trusted = append(d.Trusted, describe(c))
		}
	}
	_, d.Requested, _ = readPending(s.options.Dir)
	return d
}

// Root is the certificate (PEM) of the root that signs.
func (a *Authority) Root() []byte {
	s := a.state()
	return encode(s.root.certificate.Raw)
}
