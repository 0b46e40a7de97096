// Package subject starts heddle-proxy and a stock Envoy in the same configuration and watches what they use.
package subject

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	_ "embed" // the configuration
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"text/template"
	"time"
)

//go:embed envoy.yaml
var configuration string

// AdminPort is the admin interface's, on the subject's address.
const AdminPort = 9901

// Binaries by subject's name.
type Binaries map[string]string

// Kinds of listeners, as a case's `on` names them.
var Kinds = []string{"plain", "policy", "tokens", "rejecting", "dropping", "http10", "upstream2", "upgrades"}

// Listener of the configuration.
type Listener struct {
	// Name is unique.
	Name string
	// Kind is one of [Kinds], or, for floods and tests of their own, "policies": a thousand DENY rules, or "buffered": bodies are
	// waited for.
	Kind string
	Port int
	// Upstream is the host and port of the only endpoint.
	Upstream string
	// Upstream2 speaks HTTP/2 to it.
	Upstream2 bool
	// TLS terminates.
	TLS bool
}

// Policy is whether the DENY rules are in force.
func (l Listener) Policy() bool { return l.Kind == "policy" }

// Policies are as many DENY rules as a large mesh may have for one workload, all on one field, none of which matches an
// honest request.
func (l Listener) Policies() int {
	if l.Kind == "policies" {
		return 1000
	}
	return 0
}

// Tokens is whether tokens are verified, and passed on.
func (l Listener) Tokens() bool { return l.Kind == "tokens" }

// Underscores is what is done to fields with underscores in their names; empty for nothing.
func (l Listener) Underscores() string {
	return map[string]string{"rejecting": "REJECT_REQUEST", "dropping": "DROP_HEADER"}[l.Kind]
}

// HTTP10 is whether HTTP/1.0 is accepted.
func (l Listener) HTTP10() bool { return l.Kind == "http10" }

// Buffered is whether a filter waits for the body of a request, up to 1 MiB.
func (l Listener) Buffered() bool { return l.Kind == "buffered" }

// Upgrades is whether WebSocket is let through, by extended CONNECT as well.
func (l Listener) Upgrades() bool { return l.Kind == "upgrades" }

// UpstreamHost for the configuration.
func (l Listener) UpstreamHost() string { host, _, _ := net.SplitHostPort(l.Upstream); return host }

// UpstreamPort for the configuration.
func (l Listener) UpstreamPort() string { _, port, _ := net.SplitHostPort(l.Upstream); return port }

// Settings of a run.
type Settings struct {
	// Name is heddle or envoy.
	Name string
	// Binary is its path.
	Binary string
	// Address of all its listeners, in 127/8.
	Address string
	// Dir for its files.
	Dir       string
	Listeners []Listener
	// Configuration is a template of its bootstrap over these settings; empty means the one beside this file.
	Configuration string
	// OpenFiles is its limit on descriptors; 0 leaves it alone.
	OpenFiles int
	// Certificate and Key are filled in by Start.
	Certificate, Key string
	// AdminPort is filled in by Start.
	AdminPort int
}

// Proxy is a running subject.
type Proxy struct {
	Settings
	cmd  *exec.Cmd
	log  *log
	done chan struct{}
	// ended is how it ended; read after done.
	ended error
}

// log counts everything and keeps the first MiB.
type log struct {
	bytes atomic.Int64
	file  *os.File
}

func (l *log) Write(p []byte) (int, error) {
	// Enough to see why, and no disk is filled.
	if l.bytes.Add(int64(len(p))) < 1<<20 {
		if _, err := l.file.Write(p); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Address for a subject: its own in 127/8, so that ports are fixed and meet nobody's.
func Address() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // Never fails.
	return fmt.Sprintf("127.%d.%d.%d", 1+b[0]%250, b[1], 1+b[2]%250)
}

// Start starts it with one worker and waits until it is ready.
func Start(s Settings) (*Proxy, error) {
	s.AdminPort = AdminPort
	var err error
	if s.Certificate, s.Key, err = certificate(s.Dir); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if s.Configuration == "" {
		s.Configuration = configuration
	}
	t, err := template.New("envoy.yaml").Parse(s.Configuration)
	if err != nil {
		return nil, err
	}
	if err := t.Execute(&text, s); err != nil {
		return nil, err
	}
	file := filepath.Join(s.Dir, s.Name+".yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return nil, err
	}
	p := &Proxy{Settings: s, log: &log{}, done: make(chan struct{})}
	if p.log.file, err = os.Create(filepath.Join(s.Dir, s.Name+".log")); err != nil {
		return nil, err
	}
	argv := []string{s.Binary, "-c", file, "--concurrency", "1", "-l", "info", "--drain-time-s", "1"}
	if s.Name == "envoy" {
		// Access logs are read while it runs.
		argv = append(argv, "--disable-hot-restart", "--file-flush-interval-msec", "20")
	}
	if s.OpenFiles > 0 {
		argv = append([]string{"prlimit", "--nofile=" + strconv.Itoa(s.OpenFiles)}, argv...)
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.ended = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.wait(20 * time.Second); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// wait polls /ready and then every listener.
func (p *Proxy) wait(bound time.Duration) error {
	deadline := time.Now().Add(bound)
	for {
		err := p.Ready(time.Second)
		if err == nil {
			for _, l := range p.Listeners {
				conn, dialErr := net.DialTimeout("tcp", p.At(l), time.Second)
				if dialErr != nil {
					err = dialErr
					break
				}
				_ = conn.Close()
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %w\n%s", p.Name, p.ended, p.Log())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %v: %w\n%s", p.Name, bound, err, p.Log())
		}
	}
}

// At is the address of one of its listeners.
func (p *Proxy) At(l Listener) string { return net.JoinHostPort(p.Address, strconv.Itoa(l.Port)) }

// Ready asks the admin interface on a new connection.
func (p *Proxy) Ready(bound time.Duration) error {
	text, err := p.Admin("/ready", bound)
	if err == nil && !strings.Contains(text, "LIVE") {
		err = fmt.Errorf("/ready says %q", text)
	}
	return err
}

// Admin asks the admin interface on a new connection.
func (p *Proxy) Admin(path string, bound time.Duration) (string, error) {
	client := http.Client{Timeout: bound, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("http://%s:%d%s", p.Address, AdminPort, path))
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, answer.Status)
	}
	return string(text), err
}

// Alive is nil while it runs.
func (p *Proxy) Alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %w\n%s", p.Name, errors.Join(p.ended, errors.New("it must not")), p.Log())
	default:
		return nil
	}
}

// LogBytes that it has written so far.
func (p *Proxy) LogBytes() int64 { return p.log.bytes.Load() }

// Log is the end of what was kept of its log, as much as fits in a message.
func (p *Proxy) Log() string {
	text, err := os.ReadFile(p.log.file.Name())
	if err != nil {
		return err.Error()
	}
	if len(text) > 4096 {
		text = text[len(text)-4096:]
	}
	return string(text)
}

// RSS is its resident memory in bytes.
func (p *Proxy) RSS() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	words := strings.Fields(string(text))
	if len(words) < 2 {
		return 0, fmt.Errorf("statm says %q", text)
	}
	pages, err := strconv.ParseInt(words[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// Stop ends it.
func (p *Proxy) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(3 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	_ = p.log.file.Close()
}

// certificate makes a self-signed one.
func certificate(dir string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"host"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return "", "", err
	}
	return cert, key, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)
}
