package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
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
	a.mu.Lock()
	defer a.mu.Unlock()
	issuer, _, err := a.issuerLocked()
	if err != nil {
		return nil, err
	}
	if c := a.controller; c != nil && bytes.Equal(c.Certificate[1], issuer.certificate.Raw) &&
		a.options.Now().Before(c.Leaf.NotBefore.Add(c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)/2)) {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.options.Random)
	if err != nil {
		return nil, fmt.Errorf("make the controller's key: %w", err)
	}
	names := a.names()
	if a.root.key == nil {
		names = []string{a.options.issuer(MembershipOf(issuer.certificate)).Name(a.options.TrustDomain)}
	}
	der, _, err := a.leaf(issuer, x509.Certificate{URIs: []*url.URL{ControllerURI(a.options.TrustDomain, a.options.Cluster)}, DNSNames: names}, key.Public(), WorkloadLifetime)
	if err != nil {
		return nil, fmt.Errorf("sign the controller's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the controller's certificate: %w", err)
	}
	if err := a.record(leaf.URIs[0].String(), leaf); err != nil {
		return nil, fmt.Errorf("the controller's certificate: %w", err)
	}
	a.controller = &tls.Certificate{Certificate: [][]byte{der, issuer.certificate.Raw, a.root.certificate.Raw}, PrivateKey: key, Leaf: leaf}
	return a.controller, nil
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
