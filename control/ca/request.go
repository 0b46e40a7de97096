package ca

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"heddle.io/heddle/control/durable"
)

// Object identifiers of the extensions that a request for an authority asks for, RFC 5280, section 4.2.1.
var (
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
)

// pending is a request that was made to be signed elsewhere. Its key never leaves the directory.
type pending struct {
	// Key and Request, PEM.
	Key     string `json:"key"`
	Request string `json:"request"`
}

func pendingPath(dir string) string { return filepath.Join(dir, "request.json") }

func readPending(dir string) (pending, bool, error) {
	var p pending
	err := durable.ReadJSON(pendingPath(dir), &p)
	if errors.Is(err, os.ErrNotExist) {
		return pending{}, false, nil
	}
	if err != nil {
		return pending{}, false, fmt.Errorf("%w; ask for another request with --new", err)
	}
	return p, true, nil
}

// Request is the request (PEM) for the mesh's authority, to be signed elsewhere: the one that was made before, unless there
// is none or another is wanted. Its key is made here, stays here, and is durable when this returns.
func (a *Authority) Request(another bool) ([]byte, error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.state().root.key == nil {
		return nil, ErrNoRoot
	}
	if !another {
		p, found, err := readPending(a.options.Dir)
		if err != nil {
			return nil, err
		}
		if found {
			return []byte(p.Request), nil
		}
	}
	p, err := newAuthorityRequest(*a.options)
	if err != nil {
		return nil, err
	}
	if err := durable.WriteJSON(pendingPath(a.options.Dir), p, 0o600); err != nil {
		return nil, fmt.Errorf("keep the request's key: %w", err)
	}
	return []byte(p.Request), nil
}

func newAuthorityRequest(o Options) (pending, error) {
	constraints, err := asn1.Marshal(struct {
		CA      bool
		PathLen int
	}{true, 1})
	if err != nil {
		return pending{}, fmt.Errorf("encode basic constraints: %w", err)
	}
	// keyCertSign and cRLSign are bits 5 and 6, counted from the first.
	usage, err := asn1.Marshal(asn1.BitString{Bytes: []byte{0x06}, BitLength: 7})
	if err != nil {
		return pending{}, fmt.Errorf("encode key usage: %w", err)
	}
	key, request, err := newRequest(&x509.CertificateRequest{
		Subject:         pkix.Name{CommonName: "Heddle authority of " + o.Cluster, Organization: []string{o.TrustDomain}},
		URIs:            []*url.URL{{Scheme: "spiffe", Host: o.TrustDomain}},
		ExtraExtensions: []pkix.Extension{{Id: oidBasicConstraints, Critical: true, Value: constraints}, {Id: oidKeyUsage, Critical: true, Value: usage}},
	}, ECDSAP256, o.Random)
	if err != nil {
		return pending{}, fmt.Errorf("request for the mesh's authority: %w", err)
	}
	return pending{Key: string(key), Request: string(request)}, nil
}

// Requested makes an authority of the certificates that somebody signed for [Authority.Request].
func (a *Authority) Requested(certificates, chain []byte) (External, error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	p, found, err := readPending(a.options.Dir)
	if err != nil {
		return External{}, err
	}
	if !found {
		return External{}, errors.New("there is no request that it could be the answer to; `heddle ca csr` makes one")
	}
	e, err := parseExternal(certificates, chain)
	if err != nil {
		return External{}, err
	}
	block, _ := pem.Decode([]byte(p.Key))
	if block == nil {
		return External{}, fmt.Errorf("%s holds no key; ask for another request with --new", pendingPath(a.options.Dir))
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return External{}, fmt.Errorf("%s: %w", pendingPath(a.options.Dir), err)
	}
	if !belongs(key, e.certificate) {
		return External{}, fmt.Errorf("the certificate %s is for another key than the last request's (`heddle ca csr` prints it again)", named(e.certificate))
	}
	return NewExternal(*a.options, certificates, chain, []byte(p.Key))
}

// forgetRequest removes the request whose certificate is in use.
func (s *state) forgetRequest(public any) error {
	p, found, err := readPending(s.options.Dir)
	if err != nil || !found {
		return err
	}
	block, _ := pem.Decode([]byte(p.Request))
	if block == nil {
		return nil
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil //nolint:nilerr // What cannot be read is not what is in use.
	}
	used, err := x509.MarshalPKIXPublicKey(public)
	if err != nil || !bytes.Equal(used, request.RawSubjectPublicKeyInfo) {
		return err
	}
	return durable.Remove(pendingPath(s.options.Dir))
}
