package resolve

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

const httpsGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: shop, namespace: istio-system }
spec: { selector: { istio: ingressgateway }, servers: [{ port: { number: 443, name: https, protocol: HTTPS }, hosts: [shop.example.com], tls: { mode: SIMPLE, credentialName: shop-cert } }] }
`

// certificateOf is the Secret of the gateway's certificate with this key.
func certificateOf(t testing.TB, key crypto.Signer) *objects.Object {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"shop.example.com"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &objects.Object{Kind: objects.Secret, Version: "1", Resource: &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: "shop-cert", Namespace: "istio-system"},
		Data: map[string][]byte{"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}}}
}

// The mesh's default of who uses keys holds for gateways' certificates as soon as it is there, and no longer than it is.
func TestKeyProviderOfACertificateFollowsTheMesh(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	decoded, errs := objects.Decode(strings.NewReader(httpsGateway+`---
apiVersion: v1
kind: ConfigMap
metadata: { name: istio, namespace: istio-system }
data: { mesh: "defaultConfig: { privateKeyProvider: { cryptomb: { pollDelay: 0.01s } } }" }
`), "test.yaml", "")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	gateway, config := decoded[0], decoded[1]
	of := func(o *objects.Object) map[objects.Key]*objects.Object {
		return map[objects.Key]*objects.Object{o.Key(): o}
	}
	secret := certificateOf(t, rsaKey)
	m := New(model.DefaultSettings("c"))
	m.Update(Change{Objects: of(gateway)})
	without := m.Update(Change{Objects: of(secret)})
	for _, step := range []struct {
		name   string
		change map[objects.Key]*objects.Object
		want   bool
	}{
		{"without a default", nil, false},
		{"with one", of(config), true},
		{"an ECDSA key", of(certificateOf(t, ecdsaKey)), true},
		{"a key that it does not take", of(certificateOf(t, otherKey)), false},
		{"an RSA key again", of(secret), true},
		{"the default is gone", map[objects.Key]*objects.Object{config.Key(): nil}, false},
	} {
		mesh := m.Update(Change{Objects: step.change})
		c := mesh.Credential("istio-system", "shop-cert")
		if c == nil || (c.KeyProvider != nil) != step.want || step.want && c.KeyProvider.PollDelay != 10*time.Millisecond {
			t.Fatalf("%s: %+v", step.name, c)
		}
		if step.name == "with one" && len(model.Differ(without, mesh).Credentials) == 0 {
			t.Error("nobody is told of the change")
		}
	}
}

// A certificate that cannot be decrypted any more is still the gateway's, and one that is gone is not.
func TestCertificateThatCannotBeReadAnyMoreStays(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret := certificateOf(t, key)
	decoded, errs := objects.Decode(strings.NewReader(httpsGateway), "test.yaml", "")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	gateway := decoded[0]
	m := New(model.DefaultSettings("c"))
	mesh := m.Update(Change{Objects: map[objects.Key]*objects.Object{gateway.Key(): gateway, secret.Key(): secret}})
	had := mesh.Credential("istio-system", "shop-cert")
	if had == nil {
		t.Fatal("no certificate to begin with")
	}
	closed := objects.Unknown(objects.Secret, secret.Key(), "its key is away")
	for range 2 {
		mesh = m.Update(Change{Objects: map[objects.Key]*objects.Object{secret.Key(): closed}})
		if mesh.Credential("istio-system", "shop-cert") != had {
			t.Error("the certificate is gone")
		}
	}
	found := m.Report().Unresolved(gateway.Key())
	if len(found) != 1 || !strings.Contains(found[0].String(), "its key is away") || !strings.Contains(found[0].String(), "goes on with the certificate") {
		t.Errorf("%v", found)
	}
	if mesh = New(model.DefaultSettings("c")).Update(Change{Objects: map[objects.Key]*objects.Object{gateway.Key(): gateway, secret.Key(): closed}}); mesh.Credential("istio-system", "shop-cert") != nil {
		t.Error("a certificate from nowhere")
	}
	if mesh = m.Update(Change{Objects: map[objects.Key]*objects.Object{secret.Key(): nil}}); mesh.Credential("istio-system", "shop-cert") != nil {
		t.Error("the certificate of a Secret that was deleted")
	}
}

// What is tried and not made leaves a gateway's certificate as it was, also one that cannot be read any more, or not yet.
func TestATrialLeavesCertificates(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, other := certificateOf(t, key), certificateOf(t, key)
	decoded, errs := objects.Decode(strings.NewReader(httpsGateway), "test.yaml", "")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	gateway := decoded[0]
	closed := objects.Unknown(objects.Secret, secret.Key(), "its key is away")
	for name, now := range map[string]*objects.Object{"as it is": nil, "closed now": closed, "closed since ever": closed} {
		m := New(model.DefaultSettings("c"))
		m.Update(Change{Objects: map[objects.Key]*objects.Object{gateway.Key(): gateway}})
		if name != "closed since ever" {
			m.Update(Change{Objects: map[objects.Key]*objects.Object{secret.Key(): secret}})
		}
		if now != nil {
			m.Update(Change{Objects: map[objects.Key]*objects.Object{now.Key(): now}})
		}
		had := m.Mesh().Credential("istio-system", "shop-cert")
		for what, trial := range map[string][]store.Write{
			"another":          {{Key: other.Key(), Object: other}},
			"none":             {{Key: secret.Key()}},
			"without gateway":  {{Key: gateway.Key()}},
			"neither of them":  {{Key: gateway.Key()}, {Key: secret.Key()}},
			"another, no gate": {{Key: gateway.Key()}, {Key: other.Key(), Object: other}},
		} {
			if _, _, errs := m.Admit(trial); len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := m.Mesh().Credential("istio-system", "shop-cert"); got != had {
				t.Errorf("%s, after %s was tried, the gateway has %p instead of %p", name, what, got, had)
			}
		}
	}
}
