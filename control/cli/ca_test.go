package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
)

// authorityFiles writes a root of its own and its key.
func authorityFiles(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// An authority that cannot be the cluster's is refused before anything is made.
func TestAuthorityOfANewCluster(t *testing.T) {
	cert, key := authorityFiles(t, "Mesh root")
	otherCert, otherKey := authorityFiles(t, "Other root")
	c := cluster.Cluster{Name: "c1", DataRoot: t.TempDir(), RunRoot: t.TempDir()}
	try := func(cert, key string, member bool) (*bringing, error) {
		b := &bringing{session: &session{now: func() time.Time { return noon }}, cluster: c, flags: upFlags(t, "--ca-cert "+cert+" --ca-key "+key), member: member,
			membership: federation.Membership{Primary: "c0"}}
		return b, b.checkAuthority()
	}
	open := filepath.Join(t.TempDir(), "open.pem")
	content, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, cert, key string
		member          bool
		want            string
	}{
		{"no certificate", "/does/not/exist", key, false, "--ca-cert /does/not/exist"},
		{"no key", cert, "/does/not/exist", false, "--ca-key /does/not/exist"},
		{"a key that others can read", cert, open, false, "chmod 600"},
		{"another key", cert, otherKey, false, "does not match"},
		{"a member", cert, key, true, "member of the mesh of c0"},
	} {
		if _, err := try(test.cert, test.key, test.member); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if _, err := os.Stat(c.Data()); !os.IsNotExist(err) {
		t.Errorf("something was made: %v", err)
	}
	b, err := try(cert, key, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Provide(b.authority(), *b.external); err != nil {
		t.Fatal(err)
	}
	if _, err := try(cert, key, false); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if _, err := try(otherCert, otherKey, false); err == nil || !strings.Contains(err.Error(), "heddle ca install") {
		t.Errorf("another one: %v", err)
	}
	if info, err := os.Stat(filepath.Join(federation.AuthorityDir(c), "root-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}
