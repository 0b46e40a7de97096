//go:build interop

package interop

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"heddle.io/heddle/control/keyprovider"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/test/hostile/subject"
)

const (
	rotationPort = 10003
	// sdsPort stands in peers/rotation.yaml.
	sdsPort = 20010
	// rotations of the certificate while clients connect.
	rotations = 12
	// goClients connect one after the other, each without a pause.
	goClients = 12
)

// rotation is heddle-proxy and who gives it certificates.
type rotation struct {
	proxy   *subject.Proxy
	secrets *cache.LinearCache

	mu sync.Mutex
	// shown are the serial numbers of certificates that clients were shown, changed closes with each that is new.
	shown   map[int64]int
	changed chan struct{}
}

// Each client that begins a handshake ends it, while keys are replaced by SDS and operations wait for each other in batches:
// Go, OpenSSL and GnuTLS, TLS 1.2 and 1.3, PKCS #1 v1.5, PSS, and RSA key exchange.
func TestCertificatesRotateUnderHandshakes(t *testing.T) {
	r := &rotation{secrets: cache.NewLinearCache(resource.SecretType), shown: map[int64]int{}, changed: make(chan struct{})}
	r.publish(t, 1)
	r.start(t)
	address := net.JoinHostPort(r.proxy.Address, strconv.Itoa(rotationPort))

	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range goClients {
		configs := []*tls.Config{
			{MinVersion: tls.VersionTLS13},
			{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}},
			{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}}, //nolint:gosec // A decryption.
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				if err := r.dial(address, configs[i%len(configs)]); err != nil {
					t.Errorf("Go client %d: %v", i%len(configs), err)
					return
				}
			}
		})
	}
	programs := [][]string{
		{"openssl", "s_client", "-connect", address, "-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256", "-sigalgs", "RSA+SHA256"},
		{"openssl", "s_client", "-connect", address, "-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256", "-sigalgs", "RSA-PSS+SHA384:ECDSA+SHA256"},
		{"openssl", "s_client", "-connect", address, "-tls1_2", "-cipher", "AES128-GCM-SHA256"},
		{"openssl", "s_client", "-connect", address, "-tls1_3", "-sigalgs", "RSA-PSS+SHA512:ECDSA+SHA256"},
		{"gnutls-cli", "--insecure", "--port", strconv.Itoa(rotationPort), "--priority", "NORMAL:-VERS-ALL:+VERS-TLS1.3", r.proxy.Address},
		{"gnutls-cli", "--insecure", "--port", strconv.Itoa(rotationPort), "--priority",
			"NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+ECDHE-RSA:-SIGN-ALL:+SIGN-RSA-SHA256:+SIGN-ECDSA-SHA256", r.proxy.Address},
	}
	for serial := int64(2); serial <= rotations; serial++ {
		r.publish(t, serial)
		if serial%2 == 0 {
			argv := programs[int(serial/2-1)%len(programs)]
			clients.Go(func() { program(t, argv) })
		}
		r.await(t, serial)
	}
	cancel()
	clients.Wait()

	vector := metric(t, r.proxy, `heddle_multibuffer_operations_total{path="vector"}`)
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err != nil || strings.Contains(string(cpu), "avx512ifma") && vector == 0 {
		t.Errorf("%v operations were done in lanes, %v", vector, err)
	}
	if n := metric(t, r.proxy, "heddle_multibuffer_verify_failures_total"); n != 0 {
		t.Errorf("%v results did not verify", n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%v operations in lanes; by certificate: %v", vector, r.shown)
}

// start starts the server of secrets and heddle-proxy.
func (r *rotation) start(t *testing.T) {
	t.Helper()
	folder := os.Getenv("HEDDLE_E2E_BIN")
	if folder == "" {
		t.Fatal("run this test by `make interop`, which builds heddle-proxy and sets HEDDLE_E2E_BIN")
	}
	address := subject.Address()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(sdsPort)))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, serverv3.NewServer(t.Context(), r.secrets, nil))
	go func() { _ = server.Serve(listener) }() // Ends with Stop.
	t.Cleanup(server.Stop)
	configuration, err := peers.ReadFile("peers/rotation.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r.proxy, err = subject.Start(subject.Settings{
		Name: "heddle", Binary: filepath.Join(folder, "heddle-proxy"), Address: address, Dir: t.TempDir(),
		Configuration: string(configuration), Listeners: []subject.Listener{{Name: "edge", Port: rotationPort, TLS: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.proxy.Stop)
}

// publish gives the proxy another key with a certificate of that serial number.
func (r *rotation) publish(t *testing.T, serial int64) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"edge.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	provider, err := keyprovider.Of(&objects.KeyProvider{Name: objects.CryptoMb, PollDelay: 5 * time.Millisecond, Fallback: true}, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	if err := r.secrets.UpdateResource("edge", &tlsv3.Secret{Name: "edge", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: chain}},
		PrivateKeyProvider: provider,
	}}}); err != nil {
		t.Fatal(err)
	}
}

// dial asks for one answer over a connection of its own. That the server has the certificate's key, crypto/tls has verified.
func (r *rotation) dial(address string, config *tls.Config) error {
	config = config.Clone()
	config.InsecureSkipVerify, config.ServerName = true, "edge.example" //nolint:gosec // Which certificate it is, is what is asked.
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: bound}, "tcp", address, config)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(bound)); err != nil {
		return err
	}
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: edge.example\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(connection)
	if err != nil || !strings.HasSuffix(string(answer), "served") {
		return fmt.Errorf("answered %q, %w", answer, err)
	}
	serial := connection.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown[serial]++; r.shown[serial] == 1 {
		close(r.changed)
		r.changed = make(chan struct{})
	}
	return nil
}

// await waits until a client was shown a certificate.
func (r *rotation) await(t *testing.T, serial int64) {
	t.Helper()
	late := time.After(bound)
	for {
		r.mu.Lock()
		shown, changed := r.shown[serial] > 0, r.changed
		r.mu.Unlock()
		if shown {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("nobody was shown certificate %d", serial)
		}
	}
}

// program runs a client that connects and leaves.
func program(t *testing.T, argv []string) {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	printed, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", argv, err, printed)
	}
}

// metric reads a counter of a proxy's.
func metric(t *testing.T, proxy *subject.Proxy, name string) float64 {
	t.Helper()
	text, err := proxy.Admin("/stats/prometheus", bound)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("the proxy has no %s", name)
	return 0
}
