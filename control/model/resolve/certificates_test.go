package resolve

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
)

// A proxy refuses all that is told with a certificate or key that it cannot use.
func TestCertificatesAreTakenWholeOrNot(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	block := func(kind, text string) []byte {
		return []byte("-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n")
	}
	for name, of := range map[string]struct {
		text []byte
		good bool
	}{
		"one": {good, true}, "two, and remarks between": {bytes.Join([][]byte{good, good}, []byte("# the next\n")), true},
		"nothing": {nil, false}, "no PEM": {[]byte("certificate"), false}, "no base64": {append(block("CERTIFICATE", "?"), good...), false},
		"no certificate after a good one": {append(bytes.Clone(good), block("CERTIFICATE", "AAAA")...), false},
		"cut off after a good one":        {append(bytes.Clone(good), good[:len(good)/2]...), false},
		"a key":                           {append(bytes.Clone(good), block("PRIVATE KEY", "AAAA")...), false},
	} {
		if err := certificates(of.text); (err == nil) != of.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysThatProxiesDoNotServe(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	odd, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		key  crypto.PublicKey
		good bool
	}{{small.Public(), false}, {good.Public(), true}, {odd.Public(), false}, {nil, false}} {
		if why := unservable(of.key); (why == "") != of.good {
			t.Errorf("%T: %q", of.key, why)
		}
	}
}
