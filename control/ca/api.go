package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
)

// APIName is the DNS name by which remote callers know the API of this cluster: api.<issuer's name>. No other cluster's
// intermediate can issue it, while an address could be in a certificate of any of them.
func (a *Authority) APIName() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.apiName(a.current)
}

func (a *Authority) apiName(current issuer) string {
	return "api." + a.options.issuer(MembershipOf(current.certificate)).Name(a.options.TrustDomain)
}

// API is the certificate of this cluster's API, with its addresses besides its name for clients that go by them. It is made
// anew at half its life, and after a change of the issuer; its key is never written.
func (a *Authority) API(addresses []netip.Addr) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	issuer, _, err := a.issuerLocked()
	if err != nil {
		return nil, err
	}
	if c := a.api; c != nil && bytes.Equal(c.Certificate[1], issuer.certificate.Raw) &&
		a.options.Now().Before(c.Leaf.NotBefore.Add(c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)/2)) {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.options.Random)
	if err != nil {
		return nil, fmt.Errorf("make the API's key: %w", err)
	}
	of := x509.Certificate{DNSNames: []string{a.apiName(issuer)},
		URIs: []*url.URL{{Scheme: "spiffe", Host: a.options.TrustDomain, Path: "/cluster/" + a.options.Cluster + "/api"}}}
	for _, address := range addresses {
		of.IPAddresses = append(of.IPAddresses, net.IP(address.AsSlice()))
	}
	der, _, err := a.leaf(issuer, of, key.Public(), WorkloadLifetime)
	if err != nil {
		return nil, fmt.Errorf("sign the API's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the API's certificate: %w", err)
	}
	if err := a.record(leaf.URIs[0].String(), leaf); err != nil {
		return nil, fmt.Errorf("the API's certificate: %w", err)
	}
	a.api = &tls.Certificate{Certificate: [][]byte{der, issuer.certificate.Raw}, PrivateKey: key, Leaf: leaf}
	return a.api, nil
}
