package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// issuer issues certificates of one mesh.
type issuer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pool        *x509.CertPool
}

func newIssuer(t *testing.T, permitted ...string) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "issuer"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, PermittedDNSDomains: permitted, PermittedDNSDomainsCritical: len(permitted) > 0}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return issuer{certificate, key, pool}
}

func (i issuer) issue(t *testing.T, identity, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := url.Parse(identity)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs: []*url.URL{uri}, DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, i.certificate, key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// connected are the ends of a connection, which has room for what both say at the same time.
func connected(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if near, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// A handshake is good when both sides prove an identity of the mesh, and only then.
func TestMeet(t *testing.T) {
	const client, server, name = "spiffe://d/ns/a/sa/client", "spiffe://d/ns/a/sa/server", "far.clusters.d"
	mesh, foreign, constrained := newIssuer(t), newIssuer(t), newIssuer(t, "near.clusters.d")
	for label, c := range map[string]struct {
		own, theirs issuer
		trusted     *x509.CertPool // by the client
		accepted    *x509.CertPool // by the server
		version     uint16         // the least that the server takes
		want        string
	}{
		"both accept":                  {own: mesh, theirs: mesh, trusted: mesh.pool, accepted: mesh.pool, version: tls.VersionTLS12},
		"server of another mesh":       {own: mesh, theirs: foreign, trusted: mesh.pool, accepted: mesh.pool, version: tls.VersionTLS12, want: "unknown authority"},
		"name that its issuer may not": {own: mesh, theirs: constrained, trusted: constrained.pool, accepted: mesh.pool, version: tls.VersionTLS12, want: "not permitted"},
		"refused":                      {own: foreign, theirs: mesh, trusted: mesh.pool, accepted: mesh.pool, version: tls.VersionTLS12, want: "refused the certificate: remote error"},
		// Such a server says nothing of the certificate in its handshake.
		"TLS 1.3 alone": {own: mesh, theirs: mesh, trusted: mesh.pool, accepted: mesh.pool, version: tls.VersionTLS13, want: "protocol version not supported"},
	} {
		t.Run(label, func(t *testing.T) {
			near, far := connected(t)
			asked := make(chan string, 1)
			go func() {
				defer far.Close()
				accepting := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{c.theirs.issue(t, server, name)}, ClientAuth: tls.RequireAndVerifyClientCert,
					ClientCAs: c.accepted, MinVersion: c.version, NextProtos: []string{"istio"}})
				// The other side tells how it ended.
				_ = accepting.Handshake()
				asked <- accepting.ConnectionState().ServerName
				// Silence, until the other side has heard it.
				_, _ = accepting.Read(make([]byte, 1))
			}()
			result, err := meet(t.Context(), near, c.own.issue(t, client, "near.clusters.d"), c.trusted, "outbound_.80_._.cart.shop.svc.cluster.local")
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Identities) != 1 || result.Identities[0] != server || len(result.Names) != 1 || result.Names[0] != name || result.Issuer != "issuer" {
				t.Errorf("%+v", result)
			}
			if got := <-asked; got != "outbound_.80_._.cart.shop.svc.cluster.local" {
				t.Errorf("SNI %q", got)
			}
		})
	}
}

// A refusal can be lost in the reset that follows it: a connection that breaks is not accepted.
func TestMeetIsCutOff(t *testing.T) {
	mesh := newIssuer(t)
	near, far := connected(t)
	go func() {
		defer far.Close()
		accepting := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{mesh.issue(t, "spiffe://d/y", "y")}, ClientAuth: tls.RequireAnyClientCert,
			MinVersion: tls.VersionTLS12, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error {
				return far.Close()
			}})
		_ = accepting.Handshake()
	}()
	if _, err := meet(t.Context(), near, mesh.issue(t, "spiffe://d/x", "x"), mesh.pool, "x"); err == nil || !strings.Contains(err.Error(), "broke when the server had the certificate") {
		t.Errorf("%v", err)
	}
}

func TestMeetGivesUp(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	mesh := newIssuer(t)
	if _, err := meet(ctx, near, mesh.issue(t, "spiffe://d/x", "x"), mesh.pool, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		reply func(*dns.Msg) *dns.Msg
		want  string
		fails string
	}{
		"addresses": {func(q *dns.Msg) *dns.Msg {
			r := new(dns.Msg).SetReply(q)
			for _, text := range []string{"a.b. 5 IN CNAME c.d.", "c.d. 5 IN A 10.0.0.1", "c.d. 5 IN AAAA fd00::1"} {
				record, err := dns.NewRR(text)
				if err != nil {
					t.Error(err)
				}
				r.Answer = append(r.Answer, record)
			}
			return r
		}, "10.0.0.1 fd00::1", ""},
		"none":    {func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetReply(q) }, "", ""},
		"unknown": {func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeNameError) }, "", "NXDOMAIN"},
		"another": {func(q *dns.Msg) *dns.Msg { r := new(dns.Msg).SetReply(q); r.Id++; return r }, "", "another question"},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			go func() {
				buffer := make([]byte, 512)
				n, from, err := server.ReadFrom(buffer)
				if err != nil {
					return
				}
				question := new(dns.Msg)
				if question.Unpack(buffer[:n]) != nil || question.Question[0].Name != "a.b." {
					return
				}
				if packed, err := c.reply(question).Pack(); err == nil {
					_, _ = server.WriteTo(packed, from)
				}
			}()
			connection, err := net.Dial("udp", server.LocalAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			got, err := ask(ctx, connection, "a.b", dns.TypeA)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v, want %q", err, c.fails)
				}
				return
			}
			if err != nil || strings.TrimSpace(join(got)) != c.want {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func join(addresses []netip.Addr) string {
	var b strings.Builder
	for _, a := range addresses {
		b.WriteString(a.String() + " ")
	}
	return b.String()
}
