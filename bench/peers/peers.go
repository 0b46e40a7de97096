// Package peers holds the configurations of the programs that are compared, and starts them.
package peers

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"heddle.io/heddle/bench/process"
)

//go:embed nginx.conf backend.conf haproxy.cfg envoy.yaml sidecar.yaml
var files embed.FS

// Multibuffer is heddle-proxy with the private key provider that signs eight at a time.
const Multibuffer = "heddle-multibuffer"

// Relay passes bytes on and reads none of them: what no proxy of HTTP/1.1 that waits with epoll, reads and writes can cost less than. Whoever
// wants it in a comparison names it.
const Relay = "relay"

// Names are the subjects of a comparison, in the order in which they take turns.
var Names = []string{"heddle", "nginx", "haproxy", "envoy"}

// NamesNew are those of a comparison of new TLS connections: heddle-proxy takes part with each private key provider.
var NamesNew = append([]string{"heddle", Multibuffer}, Names[1:]...)

// Binaries say where the programs are that Debian does not have.
type Binaries struct {
	// Heddle and Envoy are paths of heddle-proxy and of a stock Envoy.
	Heddle, Envoy string
	// Command is the path of heddle, the command line, with heddle-launch beside it.
	Command string
	// Relay is the path of what [Relay] is: proxy/crates/net/examples/relay.rs.
	Relay string
	// Under is what heddle-proxy is started by, such as a profiler with its arguments; nothing by default.
	Under []string
}

// Work says what the proxies have to do.
type Work struct {
	// TLS terminates with an "rsa" (2048 bits) or "ecdsa" (P-256) certificate; empty means plain.
	TLS string
	// HTTP2 speaks HTTP/2 to the client (over TLS) and HTTP/1.1 to the backend.
	HTTP2 bool
	// GRPC speaks HTTP/2 to the backend too, for calls of [GRPCMethod]. Needs HTTP2.
	GRPC bool
	// TCP passes bytes on without reading them. Only Envoy and heddle-proxy do so here.
	TCP bool
	// Mesh adds what a sidecar does to a request that comes in: a client certificate is asked for (the server's own will
	// do) and its name tested by a policy, the peer's metadata exchanged, Istio's metrics counted, an access log written.
	// Needs TLS, and only heddle-proxy has all of it.
	Mesh bool
	// Policies is how many DENY policies of each of three kinds a request is held against, none of which matches it: on a path,
	// on one with escapes, and on a host. Only Envoy and heddle-proxy have policies.
	Policies int
	// Routes is how many routes for other paths stand before the one that a request takes. Only Envoy and heddle-proxy have them.
	Routes int
	// Cookies has the proxy answer by itself, and hold the request's cookie against regular expressions before it does: the first
	// rules at the address that it serves, each of the others at the next port. Only Envoy and heddle-proxy have such rules.
	Cookies []CookieRules
	// Hyperscan finds the expressions, in heddle-proxy.
	Hyperscan bool
	// Workers of the proxy, on as many processors; zero means one. Only Envoy and heddle-proxy have more.
	Workers int
	// Balance is the listener's connection_balance_config; empty means none.
	Balance Balance
}

// CookieRules are one policy with [RuleCount] rules, each a regular expression on the cookie.
type CookieRules struct {
	// Action is ALLOW, where only a cookie that one of them matches is answered, or DENY, where none may; empty is no rule.
	Action string
	// Anywhere has an expression find its words within the cookie (".*" on both sides); else the cookie begins and ends with them.
	Anywhere bool
}

// RuleCount is how many rules there are on a cookie.
const RuleCount = 100

// Expressions of the rules, the n-th of which looks for "malform<n>" and for "req<n>" or "request<n>" after it.
func (r CookieRules) Expressions() []string {
	if r.Action == "" {
		return nil
	}
	around := ""
	if r.Anywhere {
		around = ".*"
	}
	expressions := make([]string, RuleCount)
	for i := range expressions {
		expressions[i] = fmt.Sprintf("%smalform%02d.+req(uest)?%02d%s", around, i, i, around)
	}
	return expressions
}

// Balance says which worker serves a connection. Only Envoy and heddle-proxy can be told.
type Balance string

// Balances. Envoy has ByLoad for a device of Intel's alone.
const (
	ByCount Balance = "exact_balance"
	ByLoad  Balance = "extend_balance"
)

// Target of the requests. One that policies look at has escapes and path parameters, so that it has several readings.
func (w Work) Target() string {
	if w.GRPC {
		return GRPCMethod
	}
	if w.Policies > 0 {
		return "/shop/%C3%A9t%C3%A9;v=1/cart;x=2/items"
	}
	return "/"
}

// AdminPort of a subject that has one, by the port that it serves.
func AdminPort(port int) int { return port + 1000 }

// settings fill the configuration templates.
type settings struct {
	Dir, Address, Host, Backend, BackendHost, Body, Certificate, Key, Bundle string
	Port, BackendPort, AdminPort                                             int
	HTTP2, GRPC, TCP, Mesh, Multibuffer, IstioMetrics, AccessLog             bool
	Policies, Routes                                                         int
	Hyperscan                                                                bool
	Listeners                                                                []listener
	Balance                                                                  Balance
}

// Outbound are the settings of a sidecar's outbound listener, which lets everybody out.
func (s settings) Outbound() settings {
	s.Policies = 0
	return s
}

// listener is a port that a proxy serves.
type listener struct {
	Port        int
	Cookies     *CookieRules
	Expressions []string
}

// listeners are those of work, from the port on.
func listeners(port int, work Work) []listener {
	if len(work.Cookies) == 0 {
		return []listener{{Port: port}}
	}
	var all []listener
	for i, rules := range work.Cookies {
		all = append(all, listener{Port: port + i, Cookies: &rules, Expressions: rules.Expressions()})
	}
	return all
}

// Sizes of the files that a backend serves after [WriteSizes], by path.
var Sizes = map[string]int64{"/sizes/1k": 1 << 10, "/sizes/10k": 10 << 10, "/sizes/100k": 100 << 10, "/sizes/1m": 1 << 20}

// WriteSizes writes the files of [Sizes] for a [Backend] of that directory.
func WriteSizes(dir string) error {
	// Its workers may be another user's.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for path, size := range Sizes {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Backend starts the server behind the proxies: nginx answering so many bytes.
func Backend(at process.Place, dir, address string, size int) (*process.Process, error) {
	if at.Netns == "" {
		if other, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			other.Close()
			return nil, fmt.Errorf("somebody listens on %s already, and would answer in place of the backend: end what is left of another run", address)
		}
	}
	config, err := write(dir, "backend.conf", backendSettings(dir, address, size))
	if err != nil {
		return nil, err
	}
	p, err := process.Start("backend", at, "nginx", "-p", dir, "-e", filepath.Join(dir, "backend.error.log"), "-c", config)
	if err != nil {
		return nil, err
	}
	return ready(p, address)
}

func backendSettings(dir, address string, size int) settings {
	return settings{Dir: dir, Backend: address, Body: strings.Repeat("x", size)}
}

// BackendConfig is the configuration of nginx that [Backend] starts it with, for who starts it by other means; nginx writes below dir.
func BackendConfig(dir, address string, size int) ([]byte, error) {
	return render("backend.conf", backendSettings(dir, address, size))
}

// BackendSize is what the backend of a comparison of proxies answers, in bytes.
const BackendSize = 64

// Start starts one subject with its workers on that processor and those after it, in front of backend.
func Start(name, dir string, at process.Place, work Work, address, backend string, binaries Binaries) (*process.Process, error) {
	if name == Relay {
		return startRelay(at, work, address, backend, binaries.Relay)
	}
	s := settings{Dir: dir, Address: address, Backend: backend, Body: strings.Repeat("x", BackendSize), HTTP2: work.HTTP2, GRPC: work.GRPC, TCP: work.TCP, Mesh: work.Mesh,
		Policies: work.Policies, Routes: work.Routes, Hyperscan: work.Hyperscan, Balance: work.Balance}
	var err error
	if s.Host, s.Port, err = split(address); err != nil {
		return nil, err
	}
	if work.Mesh && (name != "heddle" || work.TLS == "") {
		return nil, fmt.Errorf("%s with TLS %q: a sidecar's work is heddle's alone, with TLS", name, work.TLS)
	}
	if work.GRPC && !work.HTTP2 {
		return nil, fmt.Errorf("%s: gRPC needs HTTP/2", name)
	}
	if s.BackendHost, s.BackendPort, err = split(backend); err != nil {
		return nil, err
	}
	s.AdminPort = AdminPort(s.Port)
	s.Listeners = listeners(s.Port, work)
	if s.Multibuffer = name == Multibuffer; s.Multibuffer && work.TLS == "" {
		return nil, fmt.Errorf("%s without TLS: want rsa or ecdsa", name)
	}
	if work.TLS != "" {
		if s.Certificate, s.Key, s.Bundle, err = certificate(dir, work.TLS); err != nil {
			return nil, err
		}
	}
	template := map[string]string{"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "envoy": "envoy.yaml", "heddle": "envoy.yaml", Multibuffer: "envoy.yaml"}[name]
	if template == "" {
		return nil, fmt.Errorf("unknown subject %q: want one of %v or %s", name, NamesNew, Relay)
	}
	workers := max(1, work.Workers)
	if template != "envoy.yaml" && (workers > 1 || work.Balance != "" || work.TCP) {
		return nil, fmt.Errorf("%s with %d workers, balance %q, TCP alone %t: only Envoy and heddle-proxy can", name, workers, work.Balance, work.TCP)
	}
	config, err := write(dir, template, s)
	if err != nil {
		return nil, err
	}
	heddle := append(slices.Clone(binaries.Under), binaries.Heddle, "-c", config, "--concurrency", strconv.Itoa(workers), "-l", "warn")
	argv := map[string][]string{
		"nginx":   {"nginx", "-p", dir, "-e", filepath.Join(dir, "nginx.error.log"), "-c", config},
		"haproxy": {"haproxy", "-db", "-f", config},
		"envoy":   {binaries.Envoy, "-c", config, "--concurrency", strconv.Itoa(workers), "-l", "warn", "--disable-hot-restart"},
		"heddle":  heddle, Multibuffer: heddle,
	}[name]
	at.CPUs = workers
	p, err := process.Start(name, at, argv...)
	if err != nil {
		return nil, err
	}
	return ready(p, address)
}

func startRelay(at process.Place, work Work, address, backend, binary string) (*process.Process, error) {
	// Whatever else there is to do, it can't.
	if !reflect.ValueOf(work).IsZero() {
		return nil, fmt.Errorf("%s reads nothing: it takes part where plain HTTP/1.1 is passed on", Relay)
	}
	p, err := process.Start(Relay, at, binary, address, backend)
	if err != nil {
		return nil, err
	}
	return ready(p, address)
}

func ready(p *process.Process, address string) (*process.Process, error) {
	if err := p.WaitReady(address); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

func split(address string) (string, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.Atoi(port)
	return host, n, err
}

// render gives a configuration.
func render(name string, s settings) ([]byte, error) {
	t, err := template.ParseFS(files, name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, s)
	return out.Bytes(), err
}

// write gives the path of a configuration, in dir.
func write(dir, name string, s settings) (string, error) {
	config, err := render(name, s)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, config, 0o600)
}

// certificate makes a self-signed certificate once per directory and kind.
func certificate(dir, kind string) (cert, key, bundle string, err error) {
	cert, key, bundle = filepath.Join(dir, kind+".crt"), filepath.Join(dir, kind+".key"), filepath.Join(dir, kind+".pem")
	if _, err := os.Stat(bundle); err == nil {
		return cert, key, bundle, nil
	}
	var private crypto.Signer
	switch kind {
	case "rsa":
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	case "ecdsa":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		err = fmt.Errorf("unknown certificate kind %q: want rsa or ecdsa", kind)
	}
	if err != nil {
		return "", "", "", err
	}
	now := time.Now()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return "", "", "", err
	}
	leaf := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/web"}}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, private.Public(), private)
	if err != nil {
		return "", "", "", err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", "", err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	for path, data := range map[string][]byte{cert: certPEM, key: keyPEM, bundle: append(bytes.Clone(certPEM), keyPEM...)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return "", "", "", err
		}
	}
	return cert, key, bundle, nil
}
