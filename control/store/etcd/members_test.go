package etcd

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/storetest"
)

// memberEnvironment holds a member's configuration in a process that is one.
const memberEnvironment = "HEDDLE_TEST_ETCD_MEMBER"

// memberConfig is what a member's process needs.
type memberConfig struct {
	Name, Dir, Client, Peer, Initial, CA, Cert, Key string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(memberEnvironment); text != "" {
		runMember(text)
		return
	}
	if os.Getenv(writerEnvironment) != "" {
		runWriter()
		return
	}
	os.Exit(m.Run())
}

func runMember(text string) {
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
	config.TickMs, config.ElectionMs = 20, 200
	config.ListenClientUrls, config.AdvertiseClientUrls = parse(c.Client), parse(c.Client)
	config.ListenPeerUrls, config.AdvertisePeerUrls = parse(c.Peer), parse(c.Peer)
	config.InitialCluster = c.Initial
	config.ClientTLSInfo = transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: true}
	config.PeerTLSInfo = config.ClientTLSInfo
	member, err := embed.StartEtcd(config)
	fail(err)
	fmt.Println("started")
	fail(<-member.Err())
}

// members is a cluster of three, each a process of its own.
type members struct {
	t        *testing.T
	configs  []memberConfig
	running  []*exec.Cmd
	External External
}

func startMembers(t *testing.T) *members {
	t.Helper()
	dir := t.TempDir()
	m := &members{t: t, running: make([]*exec.Cmd, 3)}
	ca, cert, key := certificates(t, dir)
	var initial, endpoints []string
	for n := range 3 {
		c := memberConfig{Name: fmt.Sprintf("m%d", n), Dir: filepath.Join(dir, fmt.Sprintf("m%d", n)), Client: "https://" + freePort(t), Peer: "https://" + freePort(t), CA: ca, Cert: cert, Key: key}
		m.configs = append(m.configs, c)
		initial, endpoints = append(initial, c.Name+"="+c.Peer), append(endpoints, c.Client)
	}
	for n := range m.configs {
		m.configs[n].Initial = strings.Join(initial, ",")
		m.start(n)
	}
	t.Cleanup(func() {
		for n := range m.running {
			m.kill(n)
		}
	})
	m.External = External{Endpoints: endpoints, CACert: ca, Cert: cert, Key: key, Cluster: "c"}
	return m
}

func (m *members) start(n int) {
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

// kill ends a member without a word.
func (m *members) kill(n int) {
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

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// certificates writes an authority's and one certificate that serves as the members' and the client's.
func certificates(t *testing.T, dir string) (ca, cert, key string) {
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

func openMembers(t *testing.T, m *members) *Store {
	t.Helper()
	// The members elect a leader first.
	for started := time.Now(); ; {
		s, err := OpenExternal(t.Context(), openKeys(t, t.TempDir()), m.External)
		if err == nil {
			return s
		}
		if time.Since(started) > 30*time.Second {
			t.Fatal(err)
		}
	}
}

func TestThreeMembersKeepTheContract(t *testing.T) {
	m := startMembers(t)
	s := openMembers(t, m)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	storetest.Run(t, subject(s))
}

// What was acknowledged while members were killed, one after the other, is there; batches are whole; the cache ends as the
// store is.
func TestMembersAreKilledUnderWrites(t *testing.T) {
	m := startMembers(t)
	s := openMembers(t, m)
	c, err := cache.Open(t.Context(), cache.Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() { c.Run(ctx) })
	var written, failed atomic.Int64
	progress := make(chan struct{}, 1)
	var writer sync.WaitGroup
	acknowledged := map[int]bool{}
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			label := fmt.Sprint(n)
			err := c.Apply(t.Context(), []store.Write{put(labelled(t, fmt.Sprintf("left-%d", n), label)), put(labelled(t, fmt.Sprintf("right-%d", n), label))})
			if err != nil {
				failed.Add(1)
				continue
			}
			acknowledged[n] = true
			written.Add(1)
			offer(progress)
		}
	})
	// wait until so many more are written.
	wait := func(more int64) {
		t.Helper()
		limit := time.NewTimer(60 * time.Second)
		defer limit.Stop()
		for until := written.Load() + more; written.Load() < until; {
			select {
			case <-progress:
			case <-limit.C:
				t.Fatalf("%d batches were written, %d failed; no more are", written.Load(), failed.Load())
			}
		}
	}
	wait(20)
	for n := range 3 {
		m.kill(n)
		wait(20)
		m.start(n)
		wait(20)
	}
	stop()
	writer.Wait()
	followed.Wait()
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, _, err := c.List(t.Context(), objects.ServiceAccount, "")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, o := range all {
		there[o.GetName()] = true
	}
	for n := range acknowledged {
		if !there[fmt.Sprintf("left-%d", n)] || !there[fmt.Sprintf("right-%d", n)] {
			t.Errorf("batch %d was acknowledged and is lost", n)
		}
	}
	for name := range there {
		side, n, _ := strings.Cut(name, "-")
		other := map[string]string{"left": "right", "right": "left"}[side]
		if !there[other+"-"+n] {
			t.Errorf("half of a batch: %s", name)
		}
	}
	t.Logf("%d batches written, %d reported as failed, while each member was killed once", written.Load(), failed.Load())
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The clusters that share members see nothing of each other, and who shows no certificate sees nothing at all.
func TestMembersAreShared(t *testing.T) {
	m := startMembers(t)
	s := openMembers(t, m)
	other := m.External
	other.Cluster = "d"
	o, err := OpenExternal(t.Context(), openKeys(t, t.TempDir()), other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), put(account(t, "a"))); err != nil {
		t.Fatal(err)
	}
	if all, _, err := o.List(t.Context(), objects.ServiceAccount, ""); err != nil || len(all) != 0 {
		t.Errorf("another cluster's: %v, %v", all, err)
	}
	// Keys are kept for a store elsewhere, whoever uses their file after it.
	write(t, s, secret(t, "one"))
	file := filepath.Dir(s.keys.File())
	own := open(t, file)
	write(t, own, secret(t, "own"))
	for range 2 {
		if status, err := own.RotateSecrets(t.Context(), true); err != nil || len(status.Keys) != 2 || status.Rotating || status.Keys[1].Secrets != 1 {
			t.Errorf("%+v %v", status, err)
		}
	}
	back, err := OpenExternal(t.Context(), openKeys(t, file), m.External)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := back.Get(t.Context(), secret(t, "one").Key()); err != nil || o.Unreadable != "" {
		t.Errorf("%s %v", o.Unreadable, err)
	}
	// Its own rotation forgets them, and nothing else does.
	if status, err := back.RotateSecrets(t.Context(), true); err != nil || len(status.Keys) != 1 || status.Keys[0].Secrets != 1 || len(status.Keys[0].Stores) != 1 {
		t.Errorf("%+v %v", status, err)
	}
	for _, s := range []*Store{s, o, back} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	stranger := m.External
	_, stranger.Cert, stranger.Key = certificates(t, t.TempDir())
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if s, err := OpenExternal(short, openKeys(t, t.TempDir()), stranger); err == nil {
		t.Errorf("opened with a stranger's certificate; closing: %v", s.Close())
	}
}

func labelled(t *testing.T, name, label string) *objects.Object {
	t.Helper()
	return storetest.Account(t, name, label)
}

// subject has the suite of tests run on an open store.
func subject(s *Store) storetest.Subject {
	return storetest.Subject{
		Open: func(t *testing.T) store.Store {
			// The next test finds it empty.
			for _, prefix := range []string{objectsPrefix, recordsPrefix} {
				if _, err := s.client.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			}
			return shared{s}
		},
		Forget: func(t *testing.T) {
			got, err := s.client.Get(t.Context(), formatKey)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.Compact(t.Context(), got.Header.Revision); err != nil {
				t.Fatal(err)
			}
		},
	}
}
