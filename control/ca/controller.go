package ca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"heddle.io/heddle/control/cluster"
)

// ControllerURI is the identity of a cluster's controller: spiffe://<trust domain>/cluster/<name>/controller. No workload
// can have it, because theirs begin with /ns/.
func ControllerURI(trustDomain, name string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: trustDomain, Path: "/cluster/" + name + "/controller"}
}

// Controller is the certificate of this cluster's own controller, for server and client: leaf, intermediate and root. It
// is made anew at half its life, and after a change of the issuer; its key is never written. With a root of its own, the
// cluster also has the name of the mesh's federation endpoint, which no member can issue.
func (a *Authority) Controller() (*tls.Certificate, error) {
	s, err := a.issuerNow()
	if err != nil {
		return nil, err
	}
	names := s.names()
	if s.root.key == nil {
		names = []string{s.options.issuer(MembershipOf(s.current.certificate)).Name(s.options.TrustDomain)}
	}
	of := x509.Certificate{DNSNames: names, URIs: []*url.URL{ControllerURI(s.options.TrustDomain, s.options.Cluster)}}
	return a.controller.get(s, of, s.root.certificate.Raw)
}

// ControllerOf gives the cluster whose controller a certificate names, and as what it joined. The chain must have been
// verified, by which the DNS name is known to be of the intermediate's cluster; the identity alone proves nothing.
func ControllerOf(leaf, intermediate *x509.Certificate, trustDomain string) (cluster.Issuer, error) {
	if len(leaf.URIs) != 1 {
		return cluster.Issuer{}, errors.New("the certificate has no single SPIFFE identity")
	}
	uri := leaf.URIs[0]
	name, isController := strings.CutSuffix(strings.TrimPrefix(uri.Path, "/cluster/"), "/controller")
	if _, err := cluster.New(name); err != nil || !isController || uri.String() != ControllerURI(trustDomain, name).String() {
		return cluster.Issuer{}, fmt.Errorf("%s is not the identity of a controller of %s", uri, trustDomain)
	}
	if of := (cluster.Issuer{Cluster: name, Membership: MembershipOf(intermediate)}); of.Issued(trustDomain, leaf.DNSNames) {
		return of, nil
	}
	return cluster.Issuer{}, fmt.Errorf("the certificate of %s was not issued in that cluster: its names are %q", uri, leaf.DNSNames)
}

// IsPrimary says whether a verified controller certificate is of a cluster that holds the mesh's root.
func IsPrimary(leaf *x509.Certificate, trustDomain string) bool {
	for _, dns := range leaf.DNSNames {
		if dns == cluster.FederationName(trustDomain) {
			return true
		}
	}
	return false
}
