// Package etcdtest runs a cluster of three etcd members for tests, each a process of its own that can be killed. The processes
// are the test's own program, whose TestMain calls [RunMember] first.
package etcdtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"heddle.io/heddle/control/cluster"
)

// memberEnvironment holds a member's configuration in a process that is one.
const memberEnvironment = "HEDDLE_TEST_ETCD_MEMBER"

// memberConfig is what a member's process needs.
type memberConfig struct {
	Name, Dir, Client, Peer, Initial, CA, Cert, Key string
}

// RunMember is a member, in a process that was started as one, and says whether that is so; it returns when the member ends.
func RunMember() bool {
	text := os.Getenv(memberEnvironment)
	if text == "" {
		return false
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var c memberConfig
	fail(json.Unmarshal([]byte(text), &c))
	parse := func(text string) []url.URL {
		u, err := url.Parse(text)
		fail(err)
		return []url.URL{*u}
	}
	config := embed.NewConfig()
	config.Name, config.Dir, config.LogLevel, config.LogOutputs = c.Name, c.Dir, "fatal", []string{"/dev/null"}
	config.TickMs, config.ElectionMs = 50, 500
	config.ListenClientUrls, config.AdvertiseClientUrls = parse(c.Client), parse(c.Client)
	config.ListenPeerUrls, config.AdvertisePeerUrls = parse(c.Peer), parse(c.Peer)
	config.InitialCluster = c.Initial
	config.ClientTLSInfo = transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: true}
	config.PeerTLSInfo = config.ClientTLSInfo
	member, err := embed.StartEtcd(config)
	fail(err)
	fmt.Println("started")
	fail(<-member.Err())
	return true
}

// Members is a cluster of three.
type Members struct {
	// Etcd is how a Heddle cluster reaches them.
	Etcd cluster.Etcd

	t         *testing.T
	endpoints []string
	configs   []memberConfig
	running   []*exec.Cmd
}

// Start starts the members; they are killed when the test ends.
func Start(t *testing.T) *Members {
	t.Helper()
	dir := t.TempDir()
	m := &Members{t: t, running: make([]*exec.Cmd, 3)}
	ca, cert, key := Certificates(t, dir)
	var initial []string
	for n := range m.running {
		c := memberConfig{Name: fmt.Sprintf("m%d", n), Dir: filepath.Join(dir, fmt.Sprintf("m%d", n)), Client: "https://" + freePort(t), Peer: "https://" + freePort(t), CA: ca, Cert: cert, Key: key}
		m.configs = append(m.configs, c)
		initial, m.endpoints = append(initial, c.Name+"="+c.Peer), append(m.endpoints, c.Client)
	}
	t.Cleanup(func() {
		for n := range m.running {
			m.Kill(n)
		}
	})
	for n := range m.configs {
		m.configs[n].Initial = strings.Join(initial, ",")
		m.Restart(n)
	}
	m.Etcd = cluster.Etcd{Endpoints: strings.Join(m.endpoints, ","), CACert: ca, Cert: cert, Key: key}
	return m
}

// Restart starts a member, the first one being 0, that does not run.
func (m *Members) Restart(n int) {
	m.t.Helper()
	text, err := json.Marshal(m.configs[n])
	if err != nil {
		m.t.Fatal(err)
	}
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), memberEnvironment+"="+string(text))
	var errs bytes.Buffer
	process.Stderr = &errs
	if err := process.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.running[n] = process
}

// Kill ends a member without a word.
func (m *Members) Kill(n int) {
	if m.running[n] == nil {
		return
	}
	if err := m.running[n].Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.t.Error(err)
	}
	// It says that it was killed.
	_ = m.running[n].Wait()
	m.running[n] = nil
}

// Client is a client of the members, for looking at what a cluster keeps there.
func (m *Members) Client(t *testing.T) *clientv3.Client {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(m.Etcd.Cert, m.Etcd.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(m.Etcd.CACert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client, err := clientv3.New(clientv3.Config{Endpoints: m.endpoints, TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Certificates writes an authority's and one certificate that serves as the members' and the client's.
func Certificates(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sign := func(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) []byte {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	make := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	rootKey, leafKey := make(), make()
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca = write("ca.pem", "CERTIFICATE", sign(authority, authority, rootKey, rootKey))
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "heddle"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	cert = write("leaf.pem", "CERTIFICATE", sign(leaf, authority, leafKey, rootKey))
	der, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	return ca, cert, write("leaf.key", "EC PRIVATE KEY", der)
}
