//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"heddle.io/heddle/test/e2e/harness"
)

// page is a workload that needs no others to be ready.
const page = `apiVersion: v1
kind: Namespace
metadata: { name: pinnacle }
---
apiVersion: v1
kind: Service
metadata: { name: page, namespace: pinnacle }
spec: { selector: { app: page }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: page, namespace: pinnacle, labels: { app: page } }
spec:
  command: [boutique, frontend]
  env: [{ name: AD_SERVICE_ADDR, value: "a:1" }, { name: CART_SERVICE_ADDR, value: "a:1" }, { name: CHECKOUT_SERVICE_ADDR, value: "a:1" },
    { name: CURRENCY_SERVICE_ADDR, value: "a:1" }, { name: PRODUCT_CATALOG_SERVICE_ADDR, value: "a:1" }, { name: RECOMMENDATION_SERVICE_ADDR, value: "a:1" }, { name: SHIPPING_SERVICE_ADDR, value: "a:1" }]
  ports: [{ name: http, port: 8080 }]
  readiness: { http: { port: 8080, path: /healthz } }
`

// request makes a key and a certificate request, PEM.
func request(t *testing.T, template *x509.CertificateRequest) (key, csr string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// verifiedBy holds a chain (leaf first) against one root, as somebody outside of the mesh does who knows only that.
func verifiedBy(root string, chain []*x509.Certificate) error {
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool()}
	o.Roots.AppendCertsFromPEM([]byte(root))
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(o)
	return err
}

// A cluster below a company's certificate authority, with RSA keys: wrong files leave nothing behind; proxies, a stock Envoy too,
// accept each other by the mesh's authority; programs with Istio's certificate client get certificates that the company's root
// vouches for.
func TestUpWithACompanysAuthority(t *testing.T) {
	const name = "e2e-company"
	c := harness.Cluster(name)
	company := harness.NewCorporate(t)
	key, csr := request(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "Mesh authority"}})
	otherKey, _ := request(t, &x509.CertificateRequest{})
	keyFile := harness.WriteFile(t, key)
	if err := os.Chmod(keyFile, 0o600); err != nil {
		t.Fatal(err)
	}
	otherFile := harness.WriteFile(t, otherKey)
	if err := os.Chmod(otherFile, 0o600); err != nil {
		t.Fatal(err)
	}
	good := harness.WriteFile(t, company.Sign(t, csr, 1)+company.Root())
	up := func(cert, key string) (string, error) {
		return heddle("up", "--name", name, "--isolated", "--ca-cert", cert, "--ca-key", key, "--workload-key-type", "rsa-2048")
	}
	for _, wrong := range []struct{ cert, key, want string }{
		{good, otherFile, "does not match"},
		{harness.WriteFile(t, company.Sign(t, csr, 0)+company.Root()), keyFile, "path length is 0"},
		{harness.WriteFile(t, company.Sign(t, csr, 1)), keyFile, "add the chain"},
		{keyFile, keyFile, "PRIVATE KEY among the certificates"},
	} {
		if out, err := up(wrong.cert, wrong.key); err == nil || !strings.Contains(out, wrong.want) {
			t.Errorf("want %q: %v\n%s", wrong.want, err, out)
		}
		for _, dir := range []string{"/var/lib/heddle/" + name, "/run/heddle/" + name} {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is there: %v", dir, err)
			}
		}
	}
	t.Cleanup(func() { must(t, "down", "--name", name) })
	if out, err := up(good, keyFile); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The same again is a repair.
	if out, err := up(good, keyFile); err != nil || !strings.Contains(out, "already running") {
		t.Errorf("%v\n%s", err, out)
	}
	c.Must(t, "apply", "-f", harness.WriteFile(t, page), "--cluster", name)
	ready := func() error {
		for _, r := range c.Replicas(t) {
			if r.Workload == "page" && r.Ready {
				return nil
			}
		}
		return errors.New("it is not")
	}
	harness.Eventually(t, 60*time.Second, "the page is ready", ready)
	sidecar := func() string { return net.JoinHostPort(c.ReplicaOf(t, "page").State.Address, "8080") }
	caller := c.Stolen(t, harness.ShopSpace, "default")
	state, err := harness.Meets(caller, "heddle-"+name, sidecar())
	if err != nil {
		t.Fatal(err)
	}
	if _, isRSA := state.PeerCertificates[0].PublicKey.(*rsa.PublicKey); !isRSA {
		t.Errorf("the sidecar's key is a %T", state.PeerCertificates[0].PublicKey)
	}
	if err := verifiedBy(company.Root(), state.PeerCertificates); err != nil {
		t.Errorf("the company's root does not vouch for the sidecar: %v", err)
	}
	// Somebody else with a certificate of the company, for the very names of a workload, is nobody in the mesh.
	leaf, err := x509.ParseCertificate(caller.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.Shows(company.Impostor(t, leaf), "heddle-"+name, sidecar()); err == nil {
		t.Error("what else the company has signed is accepted")
	} else {
		t.Logf("an impostor below the same company: %v", err)
	}
	issued(t, filepath.Join("/run/heddle", name, "workloads", harness.ShopSpace, c.ReplicaOf(t, "page").State.Name, "agent.sock"), company.Root())
	// A stock Envoy takes the mesh's authority as an anchor, too.
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("HEDDLE_TEST_ENVOY: %v; make test-e2e sets it", err)
	}
	c.SetProxy(t, "page", envoy)
	harness.Eventually(t, 60*time.Second, "the page behind Envoy", func() error {
		if err := ready(); err != nil {
			return err
		}
		program, err := c.ReplicaOf(t, "page").ProxyProgram()
		if err != nil {
			return err
		}
		if !strings.HasSuffix(program, "/envoy") {
			return fmt.Errorf("the proxy is %s", program)
		}
		return harness.Shows(caller, "heddle-"+name, sidecar())
	})
}

// issued gets a certificate by Istio's API, with Istio's own client, over a workload's socket.
func issued(t *testing.T, socket, root string) {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	uri := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/" + harness.ShopSpace + "/sa/default"}
	key, csr := request(t, &x509.CertificateRequest{URIs: []*url.URL{uri}})
	answer, err := securityv1alpha1.NewIstioCertificateServiceClient(connection).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: csr, ValidityDuration: 300})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(strings.Join(answer.GetCertChain(), "")), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	var chain []*x509.Certificate
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	if got := chain[0].URIs[0].String(); got != uri.String() {
		t.Errorf("it is for %s", got)
	}
	if err := verifiedBy(root, chain); err != nil {
		t.Errorf("the company's root does not vouch for it: %v", err)
	}
	_, foreign := request(t, &x509.CertificateRequest{URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/bank/sa/teller"}}})
	if _, err := securityv1alpha1.NewIstioCertificateServiceClient(connection).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: foreign}); err == nil {
		t.Error("another identity was signed")
	}
}
