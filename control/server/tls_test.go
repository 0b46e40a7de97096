package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/server/client"
)

// people is an authority that names users.
type people struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newPeople(t *testing.T) people {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "people"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if template, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return people{template, key}
}

// names signs a client certificate.
func (p people) names(t *testing.T, subject pkix.Name, usage x509.ExtKeyUsage) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage}}, p.certificate, key.Public(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// remote serves the world over TLS, and gives what makes its clients.
func (w *world) remote(t *testing.T, clients people) func(certificate *tls.Certificate, token string) *client.Client {
	t.Helper()
	file := filepath.Join(w.dir, "people.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: clients.certificate.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	w.server.config.Remote.ClientCA = file
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(w.ctx)
	served := make(chan error, 1)
	go func() { served <- w.server.serveTLS(ctx, listener, w.server.config.Remote) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return func(certificate *tls.Certificate, token string) *client.Client {
		config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.server.config.Authority.MeshPool(), ServerName: "api.c.clusters.cluster.local"}
		if certificate != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
		}
		return client.With(client.Options{URL: "https://" + w.address, TLS: config, Token: token})
	}
}

// of is the certificate of a workload by some authority.
func of(t *testing.T, authority *ca.Authority, namespace, account string) *tls.Certificate {
	t.Helper()
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: account}
	key, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := authority.Sign(request, identity, 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(signed.Chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

// memberOf is the authority of a cluster that joined the mesh.
func memberOf(t *testing.T, primary *ca.Authority, name string) *ca.Authority {
	t.Helper()
	key, request, err := ca.NewIntermediateRequest(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := ca.RequestKeyHash(request)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := primary.SignIntermediate(request, name, hash)
	if err != nil {
		t.Fatal(err)
	}
	options := ca.Options{Dir: filepath.Join(t.TempDir(), "ca"), Cluster: name, TrustDomain: "cluster.local", Member: true}
	if err := ca.CreateMember(options, ca.Issuer{Key: key, Certificate: issued.Certificate, Root: issued.Root}); err != nil {
		t.Fatal(err)
	}
	authority, err := ca.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func TestRemoteCallers(t *testing.T) {
	w := startAll(t)
	ctx := context.Background()
	if _, err := apply(t, w.client, shop+`---
apiVersion: heddle.io/v1alpha1
kind: AccessBinding
metadata: { name: remote }
spec:
  role: viewer
  namespaces: [shop]
  subjects: [{ kind: User, name: alice }, { kind: Group, name: operators }, { kind: ServiceAccount, namespace: ci, name: deployer }, { kind: User, name: "60001" }]
`, false); err != nil {
		t.Fatal(err)
	}
	clients, others := newPeople(t), newPeople(t)
	call := w.remote(t, clients)
	member := memberOf(t, w.server.config.Authority, "far")
	made, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "admin", Namespace: "*"})
	if err != nil {
		t.Fatal(err)
	}
	user := func(names ...string) *tls.Certificate {
		return clients.names(t, pkix.Name{CommonName: names[0], Organization: names[1:]}, x509.ExtKeyUsageClientAuth)
	}
	for what, c := range map[string]struct {
		certificate *tls.Certificate
		token       string
		want        int
		who         string
		parts       []string
	}{
		"nobody":                             {nil, "", 401, "", []string{"neither a token nor a client certificate"}},
		"a token":                            {nil, made.Token, 200, "token " + made.ID, nil},
		"a wrong token":                      {user("alice"), made.Token[:len(made.Token)-4] + "aaaa", 401, "", []string{"not known"}},
		"alice":                              {user("alice"), "", 200, "user alice", nil},
		"an operator":                        {user("carol", "operators"), "", 200, "user carol", nil},
		"carol":                              {user("carol"), "", 403, "", []string{"user carol may not", "heddle access grant viewer --user carol -n shop"}},
		"root by name":                       {user("root"), "", 403, "", []string{"user root may not", "no role"}},
		"the owner by number":                {user("60001"), "", 403, "", []string{"no role"}},
		"a group of the machine":             {user("x", "0", "root"), "", 403, "", nil},
		"without a name":                     {user(""), "", 401, "", []string{"names nobody"}},
		"of another authority":               {others.names(t, pkix.Name{CommonName: "alice"}, x509.ExtKeyUsageClientAuth), "", 401, "", []string{"does not count here"}},
		"a server's":                         {clients.names(t, pkix.Name{CommonName: "alice"}, x509.ExtKeyUsageServerAuth), "", 401, "", []string{"does not count here"}},
		"a workload":                         {of(t, w.server.config.Authority, "ci", "deployer"), "", 200, "serviceaccount ci/deployer", nil},
		"another workload":                   {of(t, w.server.config.Authority, "shop", "cart"), "", 403, "", []string{"serviceaccount shop/cart may not", "--service-account shop/cart"}},
		"a workload of that name, elsewhere": {of(t, member, "ci", "deployer"), "", 401, "", []string{"nobody whom this cluster knows"}},
	} {
		api := call(c.certificate, c.token)
		err := api.Do(ctx, "GET", "/api/v1/namespaces/shop/services", nil, nil)
		wants(t, what, err, c.want, c.parts...)
		if c.want == 200 {
			if who, err := api.WhoAmI(ctx); err != nil || who.Caller != c.who || !strings.HasPrefix(who.From, "127.0.0.1:") {
				t.Errorf("%s: %+v %v", what, who, err)
			}
		}
		// Nobody who is not on the machine is its agent.
		if _, err := api.Sign(ctx, ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}, nil); err == nil || !strings.Contains(err.Error(), "only the cluster's agent") && c.want != 401 {
			t.Errorf("%s had a certificate signed: %v", what, err)
		}
	}
	// A certificate that has ended counts no more, on connections that stand neither.
	alice := call(user("alice"), "")
	wants(t, "before", alice.Do(ctx, "GET", "/api/v1/namespaces/shop/services", nil, nil), 200)
	w.clock.ahead.Store(int64(61 * time.Minute))
	wants(t, "after", alice.Do(ctx, "GET", "/api/v1/namespaces/shop/services", nil, nil), 401, "does not count here")
}

// Who stands on the way cannot be taken for the cluster's API: not even another cluster of the mesh, which may sign any
// address.
func TestTheServerIsProved(t *testing.T) {
	w := startAll(t)
	_ = w.remote(t, newPeople(t))
	ctx := context.Background()
	far := client.With(client.Options{URL: "https://" + w.address, Token: "t",
		TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.server.config.Authority.MeshPool(), ServerName: "api.far.clusters.cluster.local"}})
	_, err := far.WhoAmI(ctx)
	wants(t, "another name", err, http.StatusServiceUnavailable, "another cluster, or none, answers there", "api.c.clusters.cluster.local", "--tls-server-name")
	foreign := newPeople(t)
	pool := x509.NewCertPool()
	pool.AddCert(foreign.certificate)
	_, err = client.With(client.Options{URL: "https://" + w.address, TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: "api.c.clusters.cluster.local"}}).WhoAmI(ctx)
	wants(t, "another root", err, http.StatusServiceUnavailable, "is not trusted", "--ca-file")
	// A member cannot make that certificate.
	member := memberOf(t, w.server.config.Authority, "far")
	if name := member.APIName(); !strings.HasSuffix(name, ".far.clusters.cluster.local") || !strings.HasPrefix(name, "api.") {
		t.Error(name)
	}
	certificate, err := member.API(nil)
	if err != nil {
		t.Fatal(err)
	}
	intermediates := x509.NewCertPool()
	for _, der := range certificate.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		intermediates.AddCert(c)
	}
	verify := func(name string) error {
		_, err := certificate.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: w.server.config.Authority.MeshPool(), Intermediates: intermediates})
		return err
	}
	if err := verify(member.APIName()); err != nil {
		t.Error(err)
	}
	if verify("api.c.clusters.cluster.local") == nil {
		t.Error("a member is taken for the primary")
	}
}

// Connections of one address are bounded, also those that never shake hands, and others get theirs.
func TestConnectionsOfOneAddressAreBounded(t *testing.T) {
	w := startAll(t)
	call := w.remote(t, newPeople(t))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	var last net.Conn
	for range 3 * maxPerCaller {
		conn, err := dialer.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		last = conn
	}
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the last one was let in: %v", err)
	}
	wants(t, "from another address", call(nil, "").Do(context.Background(), "GET", "/heddle/v1/status", nil, nil), 401)
	if got := w.server.counters(); got["connectionsRefused"] != 2*maxPerCaller || got["requestsUnauthenticated"] != 1 {
		t.Errorf("%v", got)
	}
}

func TestLongHeadsAreRefused(t *testing.T) {
	w := startAll(t)
	_ = w.remote(t, newPeople(t))
	conn, err := tls.Dial("tcp", w.address, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.server.config.Authority.MeshPool(), ServerName: "api.c.clusters.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Reading while writing: the answer comes before the head has ended.
	go func() {
		_, _ = fmt.Fprintf(conn, "GET /heddle/v1/status HTTP/1.1\r\nHost: x\r\nX-Long: ")
		_, _ = conn.Write(bytes.Repeat([]byte("x"), 128<<10))
	}()
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 431" {
		t.Errorf("%q %v", answer, err)
	}
}

// A web page cannot act by the client certificate of who looks at it.
func TestWebPagesChangeNothing(t *testing.T) {
	w := startAll(t)
	clients := newPeople(t)
	_ = w.remote(t, clients)
	alice := clients.names(t, pkix.Name{CommonName: "alice"}, x509.ExtKeyUsageClientAuth)
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.server.config.Authority.MeshPool(), ServerName: "api.c.clusters.cluster.local",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return alice, nil }}}}
	for _, header := range []string{"Origin: https://page.example", "Sec-Fetch-Site: cross-site"} {
		request, err := http.NewRequest(http.MethodPost, "https://"+w.address+"/heddle/v1/apply", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
		response, err := browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden || !strings.Contains(string(text), "web pages") {
			t.Errorf("%s: %s %s", header, response.Status, text)
		}
	}
}
