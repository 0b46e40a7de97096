//go:build e2e

package mesh

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/test/e2e/harness"
)

// stolen is the member's intermediate with its key, as it lies on the member's disk.
func stolen(t *testing.T) (cluster.Issuer, *x509.Certificate, crypto.Signer) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(cluster.DefaultDataRoot, string(member), "ca", "member.pem"))
	if err != nil {
		t.Fatal(err)
	}
	keyBlock, rest := pem.Decode(content)
	block, _ := pem.Decode(rest)
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	intermediate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Issuer{Cluster: string(member), Membership: ca.MembershipOf(intermediate)}, intermediate, key.(crypto.Signer)
}

// A thief of the member's authority calls a service of the primary's cluster, straight through its gateway, with
// certificates that say in every way they can that they are of that cluster. A policy that lets in nobody else refuses
// them; without it they are the member's, which may call.
func TestImpostorsOfAnotherCluster(t *testing.T) {
	issuer, intermediate, key := stolen(t)
	const one, td = "cluster1.clusters.cluster.local", cluster.Domain
	frontend := "spiffe://cluster.local/ns/pinnacle/sa/frontend"
	address := net.JoinHostPort(primary.Address(t).String(), fmt.Sprint(cluster.PortEastWest))
	call := func(uris, dns []string, subject string) (int, error) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return 0, err
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			Subject: pkix.Name{CommonName: subject}, DNSNames: dns, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		for _, text := range uris {
			uri, err := url.Parse(text)
			if err != nil {
				return 0, err
			}
			template.URIs = append(template.URIs, uri)
		}
		der, err := x509.CreateCertificate(rand.Reader, template, intermediate, own.Public(), key)
		if err != nil {
			return 0, err
		}
		transport := &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
			ServerName: "outbound_.9555_._.adservice.pinnacle.svc.cluster.local", InsecureSkipVerify: true,
			Certificates: []tls.Certificate{{Certificate: [][]byte{der, intermediate.Raw}, PrivateKey: own}},
		}}
		response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("https://" + address + "/")
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		return response.StatusCode, nil
	}
	honest := func() (int, error) { return call([]string{frontend}, []string{issuer.Name(td)}, "") }
	// The positive control: nothing but the policy refuses it.
	if status, err := honest(); err != nil || status == http.StatusForbidden {
		t.Fatalf("the member's own certificate: %d, %v", status, err)
	}
	primary.Must(t, "apply", "-f", harness.WriteFile(t, `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: only-from-here, namespace: pinnacle, labels: { heddle.io/cluster: cluster1 } }
spec:
  selector: { matchLabels: { app: adservice } }
  action: DENY
  rules: [{ when: [{ key: source.cluster, notValues: [cluster1] }] }]
`))
	t.Cleanup(func() {
		primary.Must(t, "delete", "authorizationpolicy", "only-from-here", "-n", harness.ShopSpace)
		checked(t)
	})
	harness.Eventually(t, 20*time.Second, "the policy is in force", func() error {
		status, err := honest()
		if err == nil && status != http.StatusForbidden {
			err = fmt.Errorf("the answer is %d", status)
		}
		return err
	})
	for what, names := range map[string]struct {
		uris, dns []string
		subject   string
	}{
		"a URI":                        {[]string{one}, []string{issuer.Name(td)}, ""},
		"a URI beside its own":         {[]string{frontend, one}, []string{issuer.Name(td)}, ""},
		"the subject":                  {[]string{frontend}, []string{issuer.Name(td)}, one},
		"URI and subject":              {[]string{one}, []string{issuer.Name(td)}, one},
		"no URI but a subject":         {nil, []string{issuer.Name(td)}, one},
		"its account's name beside it": {[]string{one}, []string{issuer.Account(td, "pinnacle", "frontend"), issuer.Name(td)}, one},
	} {
		if status, err := call(names.uris, names.dns, names.subject); err != nil || status != http.StatusForbidden {
			t.Errorf("%s that reads as the other cluster's: %d, %v", what, status, err)
		}
	}
	for what, dns := range map[string][]string{
		"the other's name":           {one},
		"both names":                 {issuer.Name(td), one},
		"the name without its key":   {"cluster2.clusters.cluster.local"},
		"a wildcard":                 {"*.clusters.cluster.local"},
		"an account of the other's":  {issuer.Name(td), "frontend.pinnacle." + one},
		"the federation's":           {issuer.Name(td), cluster.FederationName(td)},
		"none":                       nil,
		"its account's name, alone":  {issuer.Account(td, "pinnacle", "frontend")},
		"what is below its own name": {one + "." + issuer.Name(td)},
	} {
		if status, err := call([]string{frontend}, dns, one); err == nil {
			t.Errorf("DNS names with %s: the handshake succeeds, and %d", what, status)
		}
	}
}
