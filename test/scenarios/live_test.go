package scenarios

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/push"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// lively are scenarios whose proxies are run: sidecars and gateways, alone and among several clusters, of either family.
var lively = []string{"boutique", "global-subsets", "eastwest-gateway-receiver", "global-ipv6"}

// TestEnvoyRuns has a stock Envoy, in a network namespace of its own, take a scenario's configuration over the
// incremental protocol, acknowledge all of it, and take a change of every cluster without one of them being stuck.
func TestEnvoyRuns(t *testing.T) {
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if envoy == "" {
		t.Skip("HEDDLE_TEST_ENVOY names no Envoy to ask; `make test-go` sets it")
	}
	if err := exec.Command("unshare", "-n", "true").Run(); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	type proxy struct {
		s    *scenario
		node translate.Node
	}
	var proxies []proxy
	for _, name := range lively {
		s := load(t, name)
		for _, node := range s.nodes {
			proxies = append(proxies, proxy{s, node})
		}
	}
	for _, p := range proxies {
		s, node := p.s, p.node
		t.Run(s.name+"/"+node.Name, func(t *testing.T) {
			node.Heddle = false
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			changed := make(chan struct{}, 1)
			log := slog.New(slog.DiscardHandler)
			dependencies, err := registry.OpenDependencies(filepath.Join(dir, "dependencies.db"), time.Now)
			if err != nil {
				t.Fatal(err)
			}
			pusher := push.New(log, prometheus.NewRegistry(), dependencies, func(source xds.Source) *xds.Server {
				return xds.New(ctx, log, time.Now, prometheus.NewRegistry(), source, func() {
					select {
					case changed <- struct{}{}:
					default:
					}
				})
			})
			server := pusher.Server()
			pusher.Update(push.Update{Clients: s.mesh, Servers: s.mesh, Revision: 1})
			agent := server.GRPC()
			secretservice.RegisterSecretDiscoveryServiceServer(agent, serverv3.NewServer(ctx, secrets(t, node), nil))
			socket := filepath.Join(dir, "agent.sock")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				// Serve ends with an error when the test stops it.
				_ = agent.Serve(listener)
			}()
			defer agent.Stop()
			admin := start(t, envoy, dir, socket, node)

			synced(t, server, changed, 1)
			ready(t, admin)
			// Removing the rule for mutual TLS everywhere changes every cluster and no endpoint.
			before := *s.mesh
			before.Destinations = nil
			pusher.Update(push.Update{Clients: &before, Servers: &before, Revision: 2})
			synced(t, server, changed, 2)
			// So does having it back and removing it in quick succession.
			revision := int64(3)
			for ; revision <= 101; revision++ {
				mesh := s.mesh
				if revision%2 == 0 {
					mesh = &before
				}
				pusher.Update(push.Update{Clients: mesh, Servers: mesh, Revision: revision})
				// Each push meets the proxy in another state of the one before, which it has not answered, answered in part or
				// taken: that is what this is about.
				answers(t, server, changed, int(revision%7))
			}
			synced(t, server, changed, revision-1)
			if waiting := server.Unsettled(); len(waiting) > 0 {
				t.Errorf("%q acknowledged everything and are waited for", waiting)
			}
			eventually(t, 5*time.Second, func() string {
				if warming := get(t, admin, "/config_dump?resource=dynamic_warming_clusters"); strings.Contains(warming, "version_info") {
					return fmt.Sprintf("clusters are stuck: %.2000s", warming)
				}
				return ""
			})
		})
	}
}

// start runs Envoy with its administration interface on a unix socket.
func start(t *testing.T, envoy, dir, socket string, node translate.Node) *http.Client {
	t.Helper()
	text, err := translate.Bootstrap(translate.BootstrapParams{Node: node, Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	adminSocket := filepath.Join(dir, "admin.sock")
	tcp := "admin:\n  address:\n    socket_address:\n      address: 127.0.0.1\n      port_value: 15000\n"
	pipe := fmt.Sprintf("admin:\n  address:\n    pipe:\n      path: %s\n", adminSocket)
	if !strings.Contains(string(text), tcp) {
		t.Fatalf("the bootstrap has no admin address to replace:\n%s", text)
	}
	file := filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), tcp, pipe, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("unshare", "-n", "sh", "-c",
		`ip link set lo up && exec "$@"`, "sh", envoy, "-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// How it ended is in its state.
		_ = command.Wait()
	}()
	t.Cleanup(func() {
		select {
		case <-ended:
			t.Errorf("Envoy ended by itself: %s", command.ProcessState)
		default:
		}
		// It is ours and may be killed at once.
		_ = command.Process.Kill()
		<-ended
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s", text)
		}
	})
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", adminSocket)
		},
	}}
}

func get(t *testing.T, admin *http.Client, path string) string {
	t.Helper()
	r, err := admin.Get("http://admin" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func ready(t *testing.T, admin *http.Client) {
	t.Helper()
	eventually(t, 20*time.Second, func() string {
		if strings.TrimSpace(get(t, admin, "/ready")) != "LIVE" {
			return "Envoy is not ready: " + get(t, admin, "/init_dump")
		}
		return ""
	})
}

// eventually asks again until there is no complaint, and fails the test after the limit.
func eventually(t *testing.T, limit time.Duration, complaint func() string) {
	t.Helper()
	deadline, again := time.After(limit), time.NewTicker(50*time.Millisecond)
	defer again.Stop()
	for {
		found := complaint()
		if found == "" {
			return
		}
		select {
		case <-deadline:
			t.Fatal(found)
		case <-again.C:
		}
	}
}

// answers waits until the only proxy has answered so often, or has nothing left to answer.
func answers(t *testing.T, server *xds.Server, changed <-chan struct{}, times int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for ; times > 0 && !server.Nodes()[0].Synced; times-- {
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no answer: %+v", server.Nodes())
		}
	}
}

// synced waits until the only proxy runs the revision.
func synced(t *testing.T, server *xds.Server, changed <-chan struct{}, revision int64) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		nodes := server.Nodes()
		if len(nodes) == 1 && nodes[0].Synced && nodes[0].Revision == revision && sent(nodes[0]) {
			return
		}
		for _, n := range nodes {
			for _, kind := range n.Types {
				if kind.State == xds.Refused {
					t.Fatalf("%s was refused: %s", kind.Type, kind.Reason)
				}
			}
		}
		select {
		case <-changed:
		case <-deadline:
			text, err := json.MarshalIndent(nodes, "", " ")
			t.Fatalf("not synced: %s %v", text, err)
		}
	}
}

func sent(n xds.NodeStatus) bool {
	for _, kind := range n.Types[:2] {
		if kind.State != xds.Synced {
			return false
		}
	}
	return true
}

// secrets are what the agent serves: a certificate for the node and the roots.
func secrets(t *testing.T, node translate.Node) cache.Cache {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/" + node.Namespace + "/sa/" + node.Account}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := inlineBytes(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	c := cache.NewLinearCache(resource.SecretType, cache.WithInitialResources(map[string]types.Resource{
		"default": &tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: cert,
			PrivateKey:       inlineBytes(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
		}}},
		"ROOTCA": &tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: cert},
		}},
	}))
	return c
}

func inlineBytes(data []byte) *core.DataSource {
	return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: data}}
}
