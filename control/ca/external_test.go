package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// company is an authority outside of the mesh.
type company struct {
	key  crypto.Signer
	cert *x509.Certificate
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// authorityTemplate is what is right, for a test to spoil.
func authorityTemplate(name string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: start.Add(-time.Hour), NotAfter: start.Add(365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
}

// issue signs a template; nil signs itself.
func issue(t *testing.T, by *company, template *x509.Certificate, key crypto.Signer) company {
	t.Helper()
	parent := company{key: key, cert: template}
	if by != nil {
		parent = *by
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return company{key: key, cert: c}
}

func keyPEM(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func meshOptions(dir string, c *clock) Options {
	return Options{Dir: dir, Cluster: "cluster1", TrustDomain: "cluster.local", Now: c.Now}
}

// Every authority that cannot work is refused, and the error says why.
func TestExternalAuthoritiesThatCannotWork(t *testing.T) {
	c := &clock{start}
	options := meshOptions("", c)
	key := ecKey(t)
	root := issue(t, nil, authorityTemplate("Corporate root"), ecKey(t))
	intermediate := func(change func(*x509.Certificate)) []byte {
		template := authorityTemplate("Mesh authority")
		if change != nil {
			change(template)
		}
		return append(encode(issue(t, &root, template, key).cert.Raw), encode(root.cert.Raw)...)
	}
	uris := func(text string) []*url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return []*url.URL{u}
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	self := issue(t, nil, authorityTemplate("Own root"), key)
	strangers := issue(t, nil, authorityTemplate("Corporate root"), ecKey(t))
	narrow := authorityTemplate("Narrow root")
	narrow.PermittedDNSDomainsCritical, narrow.PermittedDNSDomains = true, []string{"example.com"}
	narrowRoot := issue(t, nil, narrow, ecKey(t))
	short := authorityTemplate("Short root")
	short.MaxPathLen = 1
	shortRoot := issue(t, nil, short, ecKey(t))
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})
	for _, test := range []struct {
		name         string
		certs, chain []byte
		key          []byte
		want         string
	}{
		{"no certificate", nil, nil, keyPEM(t, key), "there is no certificate"},
		{"no PEM", []byte("hello"), nil, keyPEM(t, key), "not PEM"},
		{"a key among certificates", append(encode(self.cert.Raw), keyPEM(t, key)...), nil, keyPEM(t, key), "PRIVATE KEY among the certificates"},
		{"too much", bytes.Repeat([]byte(" "), MaxExternalBytes+1), nil, nil, "more than"},
		{"too many", bytes.Repeat(append(encode(self.cert.Raw), encode(root.cert.Raw)...), 5), nil, keyPEM(t, key), "are more than"},
		{"no key", encode(self.cert.Raw), nil, encode(self.cert.Raw), "no private key"},
		{"an encrypted key", encode(self.cert.Raw), nil, encrypted, "encrypted"},
		{"another key", encode(self.cert.Raw), nil, keyPEM(t, ecKey(t)), "does not match"},
		{"a kind of key", encode(issue(t, nil, authorityTemplate("Edwards"), edwards).cert.Raw), nil, keyPEM(t, edwards), "key type"},
		{"no authority", intermediate(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }), nil, keyPEM(t, key), "CA:TRUE"},
		{"no right to sign", intermediate(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }), nil, keyPEM(t, key), "keyCertSign"},
		{"path length 0", intermediate(func(c *x509.Certificate) { c.MaxPathLenZero = true }), nil, keyPEM(t, key), "path length is 0"},
		{"path length of its issuer", append(encode(issue(t, &shortRoot, authorityTemplate("Mesh authority"), key).cert.Raw), encode(shortRoot.cert.Raw)...), nil, keyPEM(t, key), "too many intermediates"},
		{"expired", intermediate(func(c *x509.Certificate) { c.NotAfter = start.Add(-time.Second) }), nil, keyPEM(t, key), "expired on"},
		{"about to expire", intermediate(func(c *x509.Certificate) { c.NotAfter = start.Add(time.Hour) }), nil, keyPEM(t, key), "must be left"},
		{"not valid yet", intermediate(func(c *x509.Certificate) { c.NotBefore = start.Add(time.Second) }), nil, keyPEM(t, key), "not valid before"},
		{"a critical extension", intermediate(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}
		}), nil, keyPEM(t, key), "critical extension 1.2.3.4"},
		{"another trust domain", intermediate(func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org") }), nil, keyPEM(t, key), "trust domain example.org"},
		{"names that are not permitted", intermediate(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"corp.example.com"} }), nil, keyPEM(t, key), "does not allow what the mesh has to sign"},
		{"names of one cluster only", intermediate(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"cluster1.clusters.cluster.local"} }), nil, keyPEM(t, key), "does not allow"},
		{"names that are excluded", intermediate(func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"federation.clusters.cluster.local"} }), nil, keyPEM(t, key), "does not allow"},
		{"identities that are not permitted", intermediate(func(c *x509.Certificate) { c.PermittedURIDomains = []string{"example.org"} }), nil, keyPEM(t, key), "does not allow"},
		{"names that the root does not permit", append(encode(issue(t, &narrowRoot, authorityTemplate("Mesh authority"), key).cert.Raw), encode(narrowRoot.cert.Raw)...), nil, keyPEM(t, key), "up to \"CN=Narrow root\""},
		{"servers only", intermediate(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), nil, keyPEM(t, key), "does not allow"},
		{"no chain", encode(issue(t, &root, authorityTemplate("Mesh authority"), key).cert.Raw), nil, keyPEM(t, key), "add the chain"},
		{"a chain of somebody else of the same name", encode(issue(t, &root, authorityTemplate("Mesh authority"), key).cert.Raw), encode(strangers.cert.Raw), keyPEM(t, key), "not signed by the next"},
		{"a root and more", encode(self.cert.Raw), encode(root.cert.Raw), keyPEM(t, key), "followed by others"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := NewExternal(options, test.certs, test.chain, test.key); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	// Constraints that fit are no reason to refuse it, and addresses are not the mesh's.
	fitting := intermediate(func(c *x509.Certificate) {
		c.PermittedDNSDomainsCritical, c.PermittedDNSDomains, c.PermittedURIDomains = true, []string{"clusters.cluster.local"}, []string{"cluster.local"}
		c.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4(192, 0, 2, 0).To4(), Mask: net.CIDRMask(24, 32)}}
		c.MaxPathLen, c.URIs = 1, uris("spiffe://cluster.local")
	})
	if _, err := NewExternal(options, fitting, nil, keyPEM(t, key)); err != nil {
		t.Error(err)
	}
}

// Keys as openssl writes them: SEC 1 with the curve before it, PKCS #1, PKCS #8.
func TestFormsOfKeys(t *testing.T) {
	ec, err := x509.MarshalECPrivateKey(ecKey(t))
	if err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}})
	for name, text := range map[string][]byte{
		"SEC 1":   append(curve, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: ec})...),
		"PKCS #1": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"PKCS #8": keyPEM(t, key),
	} {
		if _, err := parseExternalKey(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A mesh below a company's intermediate: its workloads are verified by the intermediate alone, by outsiders with the company's
// root, and what else the company signs is nobody in the mesh. OpenSSL sees it the same way.
func TestMeshBelowACompanysIntermediate(t *testing.T) {
	c := &clock{start}
	root := issue(t, nil, authorityTemplate("Corporate root"), ecKey(t))
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	mesh := issue(t, &root, authorityTemplate("Mesh authority"), key)
	dir := filepath.Join(t.TempDir(), "ca")
	e, err := NewExternal(meshOptions(dir, c), encode(mesh.cert.Raw), encode(root.cert.Raw), keyPEM(t, key))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Provide(meshOptions(dir, c), e); err != nil {
			t.Fatal(err)
		}
	}
	other, err := NewExternal(meshOptions(dir, c), encode(root.cert.Raw), nil, keyPEM(t, root.key))
	if err != nil {
		t.Fatal(err)
	}
	if err := Provide(meshOptions(dir, c), other); err == nil {
		t.Error("another root took its place")
	}
	if info, err := os.Stat(filepath.Join(dir, "root-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	a := open(t, dir, c)
	issued := sign(t, a)
	if !bytes.Equal(issued.Roots, encode(mesh.cert.Raw)) {
		t.Error("the mesh trusts something else than its authority")
	}
	leaf(t, issued, c.now)
	if n := bytes.Count(issued.Chain, []byte("BEGIN")); n != 3 {
		t.Errorf("%d certificates are shown", n)
	}
	block, rest := pem.Decode(issued.Chain)
	own := pem.EncodeToMemory(block)
	if out, err := opensslVerify(t, encode(root.cert.Raw), rest, own); err != nil {
		t.Errorf("openssl with the company's root: %v\n%s", err, out)
	}
	// Another intermediate of the company makes a certificate of the very same names.
	foreign := issue(t, &root, authorityTemplate("Mesh authority"), ecKey(t))
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	forged := issue(t, &foreign, &x509.Certificate{SerialNumber: big.NewInt(3), NotBefore: parsed.NotBefore, NotAfter: parsed.NotAfter, URIs: parsed.URIs, DNSNames: parsed.DNSNames,
		ExtKeyUsage: parsed.ExtKeyUsage, KeyUsage: parsed.KeyUsage}, ecKey(t))
	if err := verifyBelow(forged.cert, mesh.cert, []*x509.Certificate{foreign.cert, root.cert}, c.now); err == nil {
		t.Error("another intermediate of the company speaks for the mesh")
	}
	if d := a.Describe(); !d.Elsewhere || d.Above != "CN=Corporate root" || d.Root.Subject != "CN=Mesh authority" {
		t.Errorf("%+v", d)
	}
	if _, err := a.BeginRotation(); err == nil {
		t.Error("a company's authority is rotated here")
	}
	// Its members hang on it too.
	member := filepath.Join(t.TempDir(), "ca")
	join(t, a, "cluster2", member, c)
	leaf(t, sign(t, openMemberOf(t, member, "cluster2", c)), c.now)
}
