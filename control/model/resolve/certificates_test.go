package resolve

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func ecdsaKey(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A proxy refuses all that it is told together with a certificate that it cannot use.
func TestCertificatesAreTakenWholeOrNot(t *testing.T) {
	good := certificateOf(t, ecdsaKey(t, elliptic.P256())).Resource.(*corev1.Secret).Data["tls.crt"]
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
	for name, of := range map[string]struct {
		key  crypto.Signer
		good bool
	}{"RSA-1024": {small, false}, "P-256": {ecdsaKey(t, elliptic.P256()), true}, "P-224": {ecdsaKey(t, elliptic.P224()), false}} {
		if c, problem := readCredential(certificateOf(t, of.key), false); (c != nil) != of.good || (problem == "") != of.good {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
