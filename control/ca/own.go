package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"sync/atomic"
)

// ownCertificate is one that the authority makes for the cluster itself. It is made anew at half its life, and after a change
// of the issuer; its key is never written.
type ownCertificate struct {
	// what it is, for errors.
	what string
	// making is held while another one is made, which the audit log hears of before.
	making sync.Mutex
	made   atomic.Pointer[tls.Certificate]
}

// get gives the certificate with the names of a template. While another one is made, the one before goes on, as long as it is
// good. above follows it in the chain.
func (o *ownCertificate) get(s *state, of x509.Certificate, above ...[]byte) (*tls.Certificate, error) {
	made := o.made.Load()
	if o.fresh(s, made) {
		return made, nil
	}
	if good := o.of(s, made) && s.options.Now().Before(made.Leaf.NotAfter); !good {
		o.making.Lock()
	} else if !o.making.TryLock() {
		return made, nil
	}
	defer o.making.Unlock()
	if made = o.made.Load(); o.fresh(s, made) {
		return made, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), s.options.Random)
	if err != nil {
		return nil, fmt.Errorf("make %s key: %w", o.what, err)
	}
	der, _, err := s.leaf(s.current, of, key.Public(), WorkloadLifetime)
	if err != nil {
		return nil, fmt.Errorf("sign %s certificate: %w", o.what, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back %s certificate: %w", o.what, err)
	}
	if err := s.record(leaf.URIs[0].String(), leaf); err != nil {
		return nil, fmt.Errorf("%s certificate: %w", o.what, err)
	}
	made = &tls.Certificate{Certificate: append([][]byte{der, s.current.certificate.Raw}, above...), PrivateKey: key, Leaf: leaf}
	o.made.Store(made)
	return made, nil
}

// of says whether a certificate is one that the issuer of now has signed.
func (o *ownCertificate) of(s *state, made *tls.Certificate) bool {
	return made != nil && bytes.Equal(made.Certificate[1], s.current.certificate.Raw)
}

// fresh says whether it need not be made anew.
func (o *ownCertificate) fresh(s *state, made *tls.Certificate) bool {
	return o.of(s, made) && s.options.Now().Before(made.Leaf.NotBefore.Add(made.Leaf.NotAfter.Sub(made.Leaf.NotBefore)/2))
}
