package ca

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"net/url"
)

// APIName is the DNS name by which remote callers know the API of this cluster: api.<issuer's name>. No other cluster's
// intermediate can issue it, while an address could be in a certificate of any of them.
func (a *Authority) APIName() string {
	s := a.state()
	return s.apiName(s.current)
}

func (s *state) apiName(current issuer) string {
	return "api." + s.options.issuer(MembershipOf(current.certificate)).Name(s.options.TrustDomain)
}

// API is the certificate of this cluster's API, with its addresses besides its name for clients that go by them. It is made
// anew at half its life, and after a change of the issuer; its key is never written.
func (a *Authority) API(addresses []netip.Addr) (*tls.Certificate, error) {
	s, err := a.issuerNow()
	if err != nil {
		return nil, err
	}
	of := x509.Certificate{DNSNames: []string{s.apiName(s.current)},
		URIs: []*url.URL{{Scheme: "spiffe", Host: s.options.TrustDomain, Path: "/cluster/" + s.options.Cluster + "/api"}}}
	for _, address := range addresses {
		of.IPAddresses = append(of.IPAddresses, net.IP(address.AsSlice()))
	}
	return a.api.get(s, of)
}
