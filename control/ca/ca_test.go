package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var cart = Identity{TrustDomain: "cluster.local", Namespace: "pinnacle", ServiceAccount: "cartservice"}

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func open(t *testing.T, dir string, c *clock) *Authority {
	t.Helper()
	a, err := Open(Options{Dir: dir, Cluster: "cluster1", TrustDomain: "cluster.local", Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leaf(t *testing.T, c Certificate, now time.Time) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(c.Chain)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Roots)
	intermediates.AppendCertsFromPEM(rest)
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Fatal(err)
	}
	return certificate
}

func TestSignIssuesVerifiableIdentity(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	a := open(t, t.TempDir(), c)
	_, request, err := NewRequest(cart, ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.Sign(request, cart, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := leaf(t, issued, c.now)
	if len(l.URIs) != 1 || l.URIs[0].String() != "spiffe://cluster.local/ns/pinnacle/sa/cartservice" {
		t.Fatalf("URIs %v", l.URIs)
	}
	if got := l.NotAfter.Sub(c.now); got != WorkloadLifetime {
		t.Fatalf("lifetime %s", got)
	}
	if !strings.Contains(issued.Issuer, "cluster1") {
		t.Fatalf("issuer %q does not name the cluster", issued.Issuer)
	}
}

func TestAuthorityIsKept(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	dir := t.TempDir()
	first := open(t, dir, c).RootHash()
	if second := open(t, dir, c).RootHash(); first != second {
		t.Fatal("a second start made another root")
	}
	for _, name := range []string{"root-key.pem", "intermediate-key.pem"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Fatalf("%s has mode %s", name, info.Mode())
		}
	}
}

func TestNothingOutlivesItsIssuer(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	a := open(t, t.TempDir(), c)
	end := a.state().root.certificate.NotAfter
	c.now = end.Add(-30 * time.Minute)
	_, request, _ := NewRequest(cart, ECDSAP256, nil)
	issued, err := a.Sign(request, cart, 0)
	if err != nil {
		t.Fatal(err)
	}
	if l := leaf(t, issued, c.now); l.NotAfter.After(end) {
		t.Fatalf("leaf ends %s, root %s", l.NotAfter, end)
	}
}

func TestIntermediateIsRenewed(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	a := open(t, t.TempDir(), c)
	before := a.state().current.certificate.SerialNumber
	c.now = c.now.Add(IntermediateLifetime * 3 / 4)
	_, request, _ := NewRequest(cart, ECDSAP256, nil)
	issued, err := a.Sign(request, cart, 0)
	if err != nil {
		t.Fatal(err)
	}
	leaf(t, issued, c.now)
	if a.state().current.certificate.SerialNumber.Cmp(before) == 0 {
		t.Fatal("intermediate was not renewed")
	}
}

func request(t *testing.T, template *x509.CertificateRequest, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestSignRefuses(t *testing.T) {
	a := open(t, t.TempDir(), &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)})
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	weak, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Setenv("GODEBUG", "rsa1024min=0")
		short, _ = rsa.GenerateKey(rand.Reader, 1024)
	}
	other := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/pinnacle/sa/paymentservice"}
	good := request(t, &x509.CertificateRequest{}, p256)
	broken := append([]byte(nil), good...)
	broken[len(broken)/2] ^= 1
	cases := []struct {
		name     string
		request  []byte
		identity Identity
	}{
		{"another identity", request(t, &x509.CertificateRequest{URIs: []*url.URL{other}}, p256), cart},
		{"a DNS name", request(t, &x509.CertificateRequest{DNSNames: []string{"cart"}}, p256), cart},
		{"a weak curve", request(t, &x509.CertificateRequest{}, weak), cart},
		{"a short RSA key", request(t, &x509.CertificateRequest{}, short), cart},
		{"a broken signature", broken, cart},
		{"no PEM", []byte("hello"), cart},
		{"two blocks", append(good, good...), cart},
		{"too long", append(good, make([]byte, MaxRequestBytes)...), cart},
		{"a foreign trust domain", good, Identity{"evil.example", "a", "b"}},
		{"a path in the account", good, Identity{"cluster.local", "a", "b/../c"}},
		{"no namespace", good, Identity{"cluster.local", "", "b"}},
	}
	for _, c := range cases {
		if _, err := a.Sign(c.request, c.identity, 0); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A crash between the two files of a renewal leaves the new key beside the old certificate.
func TestOpenAfterAnInterruptedRenewal(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	dir, other := t.TempDir(), t.TempDir()
	root := open(t, dir, c).RootHash()
	open(t, other, c)
	key, err := os.ReadFile(filepath.Join(other, "intermediate-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "intermediate-key.pem"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	a := open(t, dir, c)
	if _, err := a.Controller(); err != nil || a.RootHash() != root {
		t.Errorf("%v, root %s, want %s", err, a.RootHash(), root)
	}
	open(t, dir, c)
}

func TestOpenNamesWhatIsBroken(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	for _, test := range []struct {
		name, want string
		spoil      func(dir string) error
	}{
		{"missing key", "root-key.pem", func(d string) error { return os.Remove(filepath.Join(d, "root-key.pem")) }},
		{"garbage", "no PEM certificate", func(d string) error { return os.WriteFile(filepath.Join(d, "root.pem"), []byte("x"), 0o600) }},
		{"foreign key", "belongs together", func(d string) error {
			b, err := os.ReadFile(filepath.Join(d, "intermediate-key.pem"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(d, "root-key.pem"), b, 0o600)
		}},
	} {
		dir := t.TempDir()
		open(t, dir, c)
		if err := test.spoil(dir); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Options{Dir: dir, Cluster: "cluster1", TrustDomain: "cluster.local", Now: c.Now})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// What the authority makes for the cluster itself is told of before it is used, and not used when that cannot be.
func TestOwnCertificatesAreRecorded(t *testing.T) {
	var told []string
	var refuse error
	options := Options{Dir: filepath.Join(t.TempDir(), "ca"), Cluster: "c", TrustDomain: "cluster.local",
		Record: func(name, serial string, expires time.Time) error {
			if serial == "" || expires.Before(time.Now()) {
				t.Errorf("%s: %q %s", name, serial, expires)
			}
			told = append(told, name)
			return refuse
		}}
	a, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	refuse = errors.New("the disk is full")
	if _, err := a.Controller(); !errors.Is(err, refuse) {
		t.Error(err)
	}
	if _, err := a.API(nil); !errors.Is(err, refuse) {
		t.Error(err)
	}
	refuse = nil
	for range 2 {
		if _, err := a.Controller(); err != nil {
			t.Error(err)
		}
		if _, err := a.API(nil); err != nil {
			t.Error(err)
		}
	}
	// The second intermediate is the next one.
	want := []string{told[0], "Heddle intermediate c", "Heddle intermediate c", "spiffe://cluster.local/cluster/c/controller", "spiffe://cluster.local/cluster/c/api",
		"spiffe://cluster.local/cluster/c/controller", "spiffe://cluster.local/cluster/c/api"}
	if !slices.Equal(told, want) || !strings.HasPrefix(told[0], "Heddle root ") {
		t.Errorf("%q", told)
	}
	refuse = errors.New("the disk is full")
	options.Dir = filepath.Join(t.TempDir(), "ca")
	if _, err := Open(options); !errors.Is(err, refuse) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(options.Dir, "root-key.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key of a root that was refused is there: %v", err)
	}
}
