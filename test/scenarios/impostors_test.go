package scenarios

import (
	"bytes"
	"context"
	"crypto"
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
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/translate"
)

// thief has a real member's intermediate and its key, and issues what it likes.
type thief struct {
	issuer cluster.Issuer
	chain  []byte
	parent *x509.Certificate
	key    crypto.Signer
}

// joined has the primary make a cluster a member.
func joined(t *testing.T, primary *ca.Authority, name string) thief {
	t.Helper()
	key, request, err := ca.NewIntermediateRequest(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	membership, err := ca.RequestKeyHash(request)
	if err != nil {
		t.Fatal(err)
	}
	return signed(t, primary, name, membership, key, request)
}

// replaced is an intermediate of the same membership, for another key: one from before a renewal, or one that is not
// announced yet.
func (f thief) replaced(t *testing.T, primary *ca.Authority) thief {
	t.Helper()
	key, request, err := ca.NewIntermediateRequest(f.issuer.Cluster, nil)
	if err != nil {
		t.Fatal(err)
	}
	return signed(t, primary, f.issuer.Cluster, f.issuer.Membership, key, request)
}

// again is another intermediate for the same key.
func (f thief) again(t *testing.T, primary *ca.Authority) thief {
	t.Helper()
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, f.key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(f.key)
	if err != nil {
		t.Fatal(err)
	}
	return signed(t, primary, f.issuer.Cluster, f.issuer.Membership, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
}

func signed(t *testing.T, primary *ca.Authority, name, membership string, key, request []byte) thief {
	t.Helper()
	issued, err := primary.SignIntermediate(request, name, membership)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(issued.Certificate)
	parent, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode(key)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return thief{issuer: cluster.Issuer{Cluster: name, Membership: membership}, chain: issued.Certificate, parent: parent, key: parsed.(crypto.Signer)}
}

// forged is what a certificate says.
type forged struct {
	uris, dns, emails []string
	commonName        string
}

func (f thief) issue(t *testing.T, names forged) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: names.commonName}, DNSNames: names.dns, EmailAddresses: names.emails,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, text := range names.uris {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, f.parent, key.Public(), f.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, f.parent.Raw}, PrivateKey: key}
}

// honest is what an authority issues to a workload, as Go's TLS and as a proxy's secret take it.
func honest(t *testing.T, a *ca.Authority, account string) (tls.Certificate, *tlsv3.TlsCertificate) {
	t.Helper()
	id := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: account}
	key, request, err := ca.NewRequest(id, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.Sign(request, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(issued.Chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair, &tlsv3.TlsCertificate{CertificateChain: inlineBytes(issued.Chain), PrivateKey: inlineBytes(key)}
}

const impostorsWorld = `apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: shop }
spec: { selector: { app: web }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: web, namespace: shop, labels: { app: web } }
spec: { serviceAccount: web, command: [serve], ports: [{ name: http, port: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: boutique }
spec: { domain: acme.demo, mappings: [{ cluster: "*", namespace: shop }] }
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: by-cluster, namespace: shop }
spec:
  rules:
  - to: [{ operation: { paths: [/any, /not-two] } }]
  - to: [{ operation: { paths: [/one] } }]
    when: [{ key: source.cluster, values: [cluster1] }]
  - to: [{ operation: { paths: [/two] } }]
    when: [{ key: source.cluster, values: ["*2"] }]
  - to: [{ operation: { paths: [/no-two] } }]
    when: [{ key: source.cluster, notValues: [cluster2] }]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: not-two, namespace: shop }
spec:
  action: DENY
  rules:
  - to: [{ operation: { paths: [/not-two] } }]
    when: [{ key: source.cluster, values: [cluster2] }]
`

// meshWith is the mesh of cluster1 with another cluster of that authority, which offers the service "far".
func meshWith(t *testing.T, primary *ca.Authority, other thief) (*model.Mesh, translate.Node) {
	t.Helper()
	text := fmt.Sprintf(`# nodes: shop/web-0
%s---
apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: cluster1 }
spec: { primary: true }
---
apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: %s }
spec: { key: %s }
`, impostorsWorld, other.issuer.Cluster, other.issuer.Membership)
	objs, errs := objects.Decode(bytes.NewReader([]byte(text)), "in.yaml", "")
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	settings := model.DefaultSettings("cluster1")
	var writes []store.Write
	for _, o := range objs {
		writes = append(writes, store.Write{Key: o.Key(), Object: o})
	}
	existing := []*objects.Object{namespace("default"), namespace(settings.RootNamespace)}
	writes, errs = resolve.Check(settings, existing, writes)
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	objs = resolve.Merge(existing, writes)
	replicas := instances(objs, settings, nil)
	peers := []registry.Peer{{Cluster: other.issuer.Cluster, Reachable: true, Anchors: []string{string(other.chain)}, Services: registry.NewExports(registry.Export{
		Namespace: "shop", Name: "far", Identities: []string{"spiffe://cluster.local/ns/shop/sa/far"},
		Ports: []registry.ExportPort{{Name: "http", Number: 80, Protocol: "HTTP"}}, Groups: []registry.ExportGroup{{Ready: 1}},
	})}}
	mesh, _ := resolve.Mesh(settings, objs, resolve.Runtime{Instances: replicas, Peers: peers, Anchors: primary.Anchors(), Addresses: addresses(settings, objs, peers)})
	return mesh, nodes(t, text, settings, replicas)[0]
}

// ports that the proxy of the test listens on, and those of the servers that it dials.
type ports struct{ inbound, toNear, toFar, near, far uint16 }

func free(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func at(port uint16) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// still takes what the agent would serve from the bootstrap's own secrets.
func still(t *testing.T, socket *core.TransportSocket) *core.TransportSocket {
	t.Helper()
	message, err := socket.GetTypedConfig().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	common := message.(interface {
		proto.Message
		GetCommonTlsContext() *tlsv3.CommonTlsContext
	}).GetCommonTlsContext()
	for _, c := range common.TlsCertificateSdsSecretConfigs {
		c.SdsConfig = nil
	}
	common.GetCombinedValidationContext().ValidationContextSdsSecretConfig.SdsConfig = nil
	return &core.TransportSocket{Name: socket.Name, ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: pack(t, message)}}
}

// guarded is a bootstrap with the TLS contexts and the policies of a sidecar: what is sent to it on one port is answered
// with 200 unless it is refused, and what is sent on the others is passed on.
func guarded(t *testing.T, mesh *model.Mesh, node translate.Node, p ports, own *tlsv3.TlsCertificate, roots []byte) *bootstrapv3.Bootstrap {
	t.Helper()
	r, err := translate.Proxy(mesh, node)
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{Node: &core.Node{Id: node.ID(), Cluster: "test"}, StaticResources: &bootstrapv3.Bootstrap_StaticResources{Secrets: []*tlsv3.Secret{
		{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: own}},
		{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inlineBytes(roots)}}},
	}}}
	b.StaticResources.Secrets = append(b.StaticResources.Secrets, r.Secrets...)
	listen := func(name string, port uint16, chain *listenerv3.FilterChain) {
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, &listenerv3.Listener{Name: name, Address: at(port), FilterChains: []*listenerv3.FilterChain{chain}})
	}
	for _, l := range r.Listeners {
		for _, c := range l.FilterChains {
			if l.Name != "virtualInbound" || c.GetFilterChainMatch().GetDestinationPort().GetValue() != 8080 {
				continue
			}
			manager := &hcmv3.HttpConnectionManager{}
			if err := c.Filters[len(c.Filters)-1].GetTypedConfig().UnmarshalTo(manager); err != nil {
				t.Fatal(err)
			}
			manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{
				Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
					Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
					Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
				}},
			}}}}
			listen("inbound", p.inbound, &listenerv3.FilterChain{TransportSocket: still(t, c.TransportSocket), Filters: []*listenerv3.Filter{{
				Name: c.Filters[0].Name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, manager)},
			}}})
		}
	}
	for _, c := range r.Clusters {
		own, server := p.toNear, p.near
		switch c.Name {
		case "outbound|80||web.shop.svc.cluster.local":
		case "outbound|80||far.shop.svc.cluster.local":
			own, server = p.toFar, p.far
		default:
			continue
		}
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, &clusterv3.Cluster{
			Name: c.Name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, ConnectTimeout: c.ConnectTimeout,
			TransportSocket: still(t, c.TransportSocketMatches[0].TransportSocket),
			LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: c.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at(server)}},
			}}}}},
		})
		listen(c.Name, own, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &tcpv3.TcpProxy{
				StatPrefix: "out", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: c.Name},
			})},
		}}})
	}
	if len(b.StaticResources.Listeners) != 3 {
		t.Fatalf("%d listeners: the sidecar has not what this test is about", len(b.StaticResources.Listeners))
	}
	return b
}

// run starts a proxy and returns when it listens.
func run(t *testing.T, binary string, b *bootstrapv3.Bootstrap) {
	t.Helper()
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-c", file, "--concurrency", "1"}
	if filepath.Base(binary) == "envoy" {
		args = append(args, "--disable-hot-restart", "--log-level", "warning")
	}
	var log bytes.Buffer
	command := exec.Command(binary, args...)
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("%s", log.Bytes())
		}
	})
	for _, l := range b.StaticResources.Listeners {
		eventually(t, 30*time.Second, func() string {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.Address.GetSocketAddress().GetPortValue()))
			if err != nil {
				return err.Error()
			}
			c.Close()
			return ""
		})
	}
}

// stranger is what a caller whose certificate is not accepted gets.
const stranger = 0

// asked is the status of a request with a certificate, or stranger.
func asked(t *testing.T, port uint16, certificate tls.Certificate, path string) int {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	visitor := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	response, err := visitor.Get(fmt.Sprintf("https://127.0.0.1:%d%s", port, path))
	if err != nil {
		if os.IsTimeout(err) {
			t.Fatal(err)
		}
		return stranger
	}
	response.Body.Close()
	return response.StatusCode
}

// greeting is what a server says once the proxy accepts it.
const greeting = "hello"

// accepted says whether the proxy passes bytes of a server with this certificate on.
func accepted(t *testing.T, through, server uint16, certificate tls.Certificate) bool {
	t.Helper()
	l, err := tls.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", server), &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"istio"}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// A refusal ends it before, which is what the other side tells.
			_, _ = io.WriteString(c, greeting)
			c.Close()
		}
	}()
	defer func() {
		l.Close()
		<-done
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", through))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(c)
	if err != nil && os.IsTimeout(err) {
		t.Fatal(err)
	}
	return string(said) == greeting
}

// TestImpostors has the authority of a member, and that of one that was removed, issue whatever they can, and shows it to
// proxies as a caller and as a server: a certificate counts as of the cluster that issued it, and as no other's.
func TestImpostors(t *testing.T) {
	binaries := map[string]string{}
	if envoy := os.Getenv("HEDDLE_TEST_ENVOY"); envoy != "" {
		binaries["envoy"] = envoy
	}
	if folder := os.Getenv("HEDDLE_E2E_BIN"); folder != "" {
		binaries["heddle"] = filepath.Join(folder, "heddle-proxy")
	}
	if len(binaries) == 0 {
		t.Skip("HEDDLE_TEST_ENVOY and HEDDLE_E2E_BIN name no proxy; `make test-go` sets the first")
	}
	dir := t.TempDir()
	primary, err := ca.Open(ca.Options{Dir: dir, Cluster: "cluster1", TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	removed, member := joined(t, primary, "cluster2"), joined(t, primary, "cluster2")
	own, secret := honest(t, primary, "web")
	for name, binary := range binaries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mesh, node := meshWith(t, primary, member)
			node.Heddle = name == "heddle"
			p := ports{free(t), free(t), free(t), free(t), free(t)}
			run(t, binary, guarded(t, mesh, node, p, secret, primary.Roots()))
			callers(t, p, own, member, removed)
			servers(t, p, own, member, removed)
			authorities(t, p, dir, primary, member)
		})
	}
}

func callers(t *testing.T, p ports, own tls.Certificate, member, removed thief) {
	t.Helper()
	const one, td = "cluster1.clusters.cluster.local", "cluster.local"
	caller := "spiffe://cluster.local/ns/shop/sa/web"
	two, account := member.issuer.Name(td), member.issuer.Account(td, "shop", "web")
	check := func(what string, certificate tls.Certificate, want map[string]int) {
		t.Helper()
		for path, status := range want {
			if got := asked(t, p.inbound, certificate, path); got != status {
				t.Errorf("%s: %s answers %d, want %d", what, path, got, status)
			}
		}
	}
	check("of the primary", own, map[string]int{"/any": 200, "/one": 200, "/two": 403, "/no-two": 200, "/not-two": 200})
	asTwo := map[string]int{"/any": 200, "/one": 403, "/two": 200, "/no-two": 403, "/not-two": 403}
	out := map[string]int{"/any": stranger, "/one": stranger, "/not-two": stranger}
	for what, names := range map[string]forged{
		"of the member":                    {uris: []string{caller}, dns: []string{two, account}},
		"a URI that reads as the name":     {uris: []string{one}, dns: []string{two}},
		"such a URI beside its own":        {uris: []string{caller, one}, dns: []string{two}},
		"a subject that reads as the name": {uris: []string{caller}, dns: []string{two}, commonName: one},
		"no URI and such a subject":        {dns: []string{two}, commonName: one},
		"URI, subject and e-mail":          {uris: []string{one}, dns: []string{two}, emails: []string{"a@" + one}, commonName: one},
		"the URI of an account there":      {uris: []string{"web.shop." + one}, dns: []string{two}},
	} {
		check(what, member.issue(t, names), asTwo)
	}
	for what, names := range map[string]forged{
		"the other's DNS name":            {uris: []string{caller}, dns: []string{one}},
		"the other's DNS name beside it":  {uris: []string{caller}, dns: []string{two, one}},
		"the other's below its own":       {uris: []string{caller}, dns: []string{one + "." + two}},
		"a wildcard":                      {uris: []string{caller}, dns: []string{"*.clusters.cluster.local"}},
		"only a URI":                      {uris: []string{one}},
		"only a subject":                  {commonName: one},
		"the name without the membership": {uris: []string{caller}, dns: []string{"cluster2.clusters.cluster.local"}},
		"an account of its own only":      {uris: []string{caller}, dns: []string{account}},
	} {
		check(what, member.issue(t, names), out)
	}
	before := removed.issuer.Name(td)
	for what, names := range map[string]forged{
		"removed, as it was":                     {uris: []string{caller}, dns: []string{before}},
		"removed, as who has its name now":       {uris: []string{caller}, dns: []string{two}},
		"removed, as both":                       {uris: []string{caller}, dns: []string{before, two}},
		"removed, a URI as who has its name now": {uris: []string{caller, two}, dns: []string{before}},
	} {
		check(what, removed.issue(t, names), out)
	}
}

func servers(t *testing.T, p ports, own tls.Certificate, member, removed thief) {
	t.Helper()
	const here, td = "web.shop.cluster1.clusters.cluster.local", "cluster.local"
	near, far := "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/shop/sa/far"
	two, there := member.issuer.Name(td), member.issuer.Account(td, "shop", "far")
	check := func(what string, through, server uint16, certificate tls.Certificate, want bool) {
		t.Helper()
		if got := accepted(t, through, server, certificate); got != want {
			t.Errorf("%s: accepted is %v", what, got)
		}
	}
	check("the service of the primary", p.toNear, p.near, own, true)
	check("the service of the member", p.toFar, p.far, member.issue(t, forged{uris: []string{far}, dns: []string{two, there}}), true)
	check("the primary for a service that it does not have", p.toFar, p.far, own, false)
	// The service lives in cluster1 only: its identity proves nothing when another cluster issued it.
	for what, names := range map[string]forged{
		"the identity":               {uris: []string{near}, dns: []string{two, member.issuer.Account(td, "shop", "web")}},
		"the identity and its name":  {uris: []string{near}, dns: []string{two, here}},
		"its name only":              {uris: []string{near}, dns: []string{here}},
		"a URI as its name":          {uris: []string{near, here}, dns: []string{two}},
		"a subject as its name":      {uris: []string{near}, dns: []string{two}, commonName: here},
		"a wildcard":                 {uris: []string{near}, dns: []string{two, "*.shop.cluster1.clusters.cluster.local"}},
		"the service that it has":    {uris: []string{far}, dns: []string{two, there}},
		"the primary's cluster name": {uris: []string{near}, dns: []string{"cluster1.clusters.cluster.local"}},
	} {
		check("the member, "+what, p.toNear, p.near, member.issue(t, names), false)
	}
	for what, names := range map[string]forged{
		"another account":     {uris: []string{far}, dns: []string{two, member.issuer.Account(td, "shop", "web")}},
		"another namespace":   {uris: []string{far}, dns: []string{two, member.issuer.Account(td, "bank", "far")}},
		"no account":          {uris: []string{far}, dns: []string{two}},
		"a URI as the name":   {uris: []string{far, there}, dns: []string{two}},
		"without the member":  {uris: []string{far}, dns: []string{"far.shop.cluster2.clusters.cluster.local"}},
		"with too many names": {uris: []string{far}, dns: []string{there, here}},
	} {
		check("the member, "+what, p.toFar, p.far, member.issue(t, names), false)
	}
	for what, names := range map[string]forged{
		"as it was":                     {uris: []string{far}, dns: []string{removed.issuer.Name(td), removed.issuer.Account(td, "shop", "far")}},
		"as who has its name now":       {uris: []string{far}, dns: []string{there}},
		"a URI as who has its name now": {uris: []string{far, there}, dns: []string{removed.issuer.Name(td)}},
	} {
		check("the removed one, "+what, p.toFar, p.far, removed.issue(t, names), false)
	}
}

// authorities shows certificates with all the names that they should have, of intermediates that signed for the same cluster
// and of the root itself: names do not tell those apart, anchors do.
func authorities(t *testing.T, p ports, dir string, primary *ca.Authority, member thief) {
	t.Helper()
	const td = "cluster.local"
	near, far := "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/shop/sa/far"
	names := forged{uris: []string{far}, dns: []string{member.issuer.Name(td), member.issuer.Account(td, "shop", "far")}}
	check := func(what string, through, server uint16, certificate tls.Certificate, want bool) {
		t.Helper()
		if got := accepted(t, through, server, certificate); got != want {
			t.Errorf("%s: accepted is %v", what, got)
		}
	}
	check("an intermediate of the membership that is no anchor", p.toFar, p.far, member.replaced(t, primary).issue(t, names), false)
	// A renewal announces the key; the certificate may be another one by then.
	check("another certificate of an anchor's key", p.toFar, p.far, member.again(t, primary).issue(t, names), true)
	for what, parent := range rootsOf(t, dir, primary) {
		here := cluster.Issuer{Cluster: "cluster1"}
		check("the root itself, as the primary, "+what, p.toNear, p.near, parent.issue(t, forged{uris: []string{near}, dns: []string{here.Name(td), here.Account(td, "shop", "web")}}), false)
		check("the root itself, as the member, "+what, p.toFar, p.far, parent.issue(t, names), false)
	}
}

// rootsOf is who holds the root's key: it signs by the root, or by an intermediate that it makes for the purpose.
func rootsOf(t *testing.T, dir string, primary *ca.Authority) map[string]thief {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(dir, "root-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode(primary.Root())
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	byRoot := thief{parent: root, key: parsed.(crypto.Signer)}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// With the name of the real one, and no constraint.
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "Heddle intermediate cluster1", Organization: []string{"cluster.local"}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign}, root, own.Public(), byRoot.key)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]thief{"by itself": byRoot, "by an intermediate of its own": {parent: parent, key: own}}
}
