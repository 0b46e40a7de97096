//go:build e2e

package harness

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os/exec"
	"testing"
	"time"

	"heddle.io/heddle/control/agent/network"
)

// Stolen has a certificate of a workload signed whose key is the test's: what somebody has who got at a workload's key.
func (c Cluster) Stolen(t *testing.T, namespace, account string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/" + namespace + "/sa/" + account}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, key)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]string{"namespace": namespace, "serviceAccount": account,
		"request": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("curl", "-sS", "--fail-with-body", "--max-time", "30", "--unix-socket", "/run/heddle/"+string(c)+"/api.sock",
		"--data-binary", string(body), "http://heddle/heddle/v1/certificates").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var issued struct{ Chain string }
	if err := json.Unmarshal(out, &issued); err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{PrivateKey: key}
	for rest := []byte(issued.Chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return pair
		}
		pair.Certificate = append(pair.Certificate, block.Bytes)
	}
}

// Shows connects to a sidecar with a certificate, from this machine or from inside of a named network namespace, sends a request
// and returns the error with which that was refused, nil when there was an answer.
func Shows(pair tls.Certificate, netns, address string) error {
	_, err := Meets(pair, netns, address)
	return err
}

// Meets is [Shows], and tells whom it met.
func Meets(pair tls.Certificate, netns, address string) (tls.ConnectionState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if netns != "" {
		dial = func(ctx context.Context, protocol, address string) (net.Conn, error) {
			return network.Dial(ctx, netns, protocol, address)
		}
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	//nolint:gosec // It is the server's verdict that is asked for.
	conn := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"istio"}, InsecureSkipVerify: true})
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return tls.ConnectionState{}, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return tls.ConnectionState{}, err
	}
	_, err = conn.Read(make([]byte, 1))
	return conn.ConnectionState(), err
}

// Corporate is a certificate authority outside of the mesh.
type Corporate struct {
	key  crypto.Signer
	root *x509.Certificate
}

// NewCorporate makes one.
func NewCorporate(t *testing.T) Corporate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Corporate root"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(5 * 365 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return Corporate{key: key, root: root}
}

// Root is its certificate, PEM.
func (c Corporate) Root() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.root.Raw}))
}

// Sign makes an intermediate (PEM) of a request (PEM), for a path of that length below it.
func (c Corporate) Sign(t *testing.T, requestPEM string, pathLen int) string {
	t.Helper()
	block, _ := pem.Decode([]byte(requestPEM))
	if block == nil {
		t.Fatalf("no request in %q", requestPEM)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: request.Subject, URIs: request.URIs,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		MaxPathLen: pathLen, MaxPathLenZero: pathLen == 0, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}, c.root, request.PublicKey, c.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Impostor makes a certificate with the names of another one, by another intermediate of the company.
func (c Corporate) Impostor(t *testing.T, of *x509.Certificate) tls.Certificate {
	t.Helper()
	intermediateKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "Another department"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	intermediate, err := x509.CreateCertificate(rand.Reader, template, c.root, intermediateKey.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := x509.ParseCertificate(intermediate)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(4), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		URIs: of.URIs, DNSNames: of.DNSNames, KeyUsage: of.KeyUsage, ExtKeyUsage: of.ExtKeyUsage}, parent, key.Public(), intermediateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf, intermediate, c.root.Raw}, PrivateKey: key}
}
