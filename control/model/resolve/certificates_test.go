package resolve

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func ecdsaKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
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

// What an object has is not written to: other goroutines read it. What it comes to is worked out once, and forgotten with it.
func TestCertificatesAreReadOnce(t *testing.T) {
	secret := certificateOf(t, ecdsaKey(t, elliptic.P256()))
	data := secret.Resource.(*corev1.Secret).Data
	data["tls.crt"] = bytes.ReplaceAll(data["tls.crt"], []byte("\n"), []byte("\r\n"))
	data["ca.crt"] = append(bytes.Clone(data["tls.crt"]), "  \r\n"...)
	before := map[string][]byte{}
	for name, text := range data {
		before[name] = bytes.Clone(text)
	}
	m := New(model.DefaultSettings("one"))
	m.Update(Change{Objects: map[objects.Key]*objects.Object{secret.Key(): secret}})
	plain, problem := m.credentialOf(secret, false)
	if plain == nil {
		t.Fatal(problem)
	}
	verifying, _ := m.credentialOf(secret, true)
	again, _ := m.credentialOf(secret, false)
	if again != plain || verifying == plain || plain.Authorities != nil || !bytes.HasSuffix(verifying.Authorities, []byte("-----END CERTIFICATE-----\n")) {
		t.Errorf("%p, then %p; %p has %q", plain, again, verifying, verifying.Authorities)
	}
	if pem := m.authoritiesOf(secret); !bytes.Equal(pem, verifying.Authorities) {
		t.Errorf("%q", pem)
	}
	for name, text := range data {
		if !bytes.Equal(text, before[name]) {
			t.Errorf("%s was written to", name)
		}
	}
	m.Update(Change{Objects: map[objects.Key]*objects.Object{secret.Key(): nil}})
	if len(m.readables) != 0 {
		t.Errorf("%d are kept of objects that are gone", len(m.readables))
	}
}

// BenchmarkAuthorities is a change of the bundle that so many policies name.
func BenchmarkAuthorities(b *testing.B) {
	ca := certificateOf(b, ecdsaKey(b, elliptic.P256())).Resource.(*corev1.Secret).Data["tls.crt"]
	bundle := func(i int) *objects.Object {
		return decoded(b, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, namespace: ns-0, labels: {version: v%d}}\ndata:\n  ca.crt: %q\n", i, bytes.Repeat(ca, 100)))
	}
	for _, n := range []int{10, 1000} {
		m := New(model.DefaultSettings("one"))
		change := Change{Objects: map[objects.Key]*objects.Object{}}
		for i := range n {
			for _, text := range []string{
				"apiVersion: v1\nkind: Service\nmetadata: {name: s-%d, namespace: ns-0}\nspec: {selector: {app: s}, clusterIP: 10.112.%d.%d, ports: [{port: 80}]}\n",
				"apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: p-%d, namespace: ns-0}\nspec: {targetRefs: [{group: '', kind: Service, name: s-%[1]d}], validation: {hostname: s.example.com, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}\n",
			} {
				args := []any{i, i / 250, 1 + i%250}
				if !strings.Contains(text, "clusterIP") {
					args = args[:1]
				}
				o := decoded(b, fmt.Sprintf(text, args...))
				change.Objects[o.Key()] = o
			}
		}
		first := bundle(0)
		change.Objects[first.Key()] = first
		m.Update(change)
		i := 0
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				i++
				o := bundle(i)
				m.Update(Change{Objects: map[objects.Key]*objects.Object{o.Key(): o}})
			}
		})
	}
}

func decoded(t testing.TB, text string) *objects.Object {
	t.Helper()
	all, errs := objects.Decode(strings.NewReader(text), "test.yaml", "")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return all[0]
}
