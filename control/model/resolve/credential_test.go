package resolve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
)

const httpsGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: shop, namespace: istio-system }
spec: { selector: { istio: ingressgateway }, servers: [{ port: { number: 443, name: https, protocol: HTTPS }, hosts: [shop.example.com], tls: { mode: SIMPLE, credentialName: shop-cert } }] }
`

// A certificate that cannot be decrypted any more is still the gateway's, and one that is gone is not.
func TestCertificateThatCannotBeReadAnyMoreStays(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"shop.example.com"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := &objects.Object{Kind: objects.Secret, Version: "1", Resource: &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: "shop-cert", Namespace: "istio-system"},
		Data: map[string][]byte{"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}}}
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
