//go:build interop

// Package interop puts heddle-proxy between clients and servers of others that speak HTTP/2.
package interop

import (
	"embed"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/test/hostile/subject"
)

//go:embed peers/*
var peers embed.FS

// Ports of the listeners of heddle-proxy.
const (
	plainPort = 10001
	tlsPort   = 10002
)

// servers that heddle-proxy speaks HTTP/2 to (HTTP/1.1 to sockets), by the authority that leads there, with their ports.
var servers = map[string]int{"origin": 20001, "grpc": 20002, "envoy": 20003, "haproxy": 20004, "nginx": 20005, "nghttpd": 20006, "sockets": 20007, "heddle": plainPort}

// clients of heddle-proxy that are proxies themselves, with the ports on which they take requests.
var clients = map[string]int{"envoy": 21003, "haproxy": 21004, "nginx": 21005}

// link is a listener of a peer and where it leads.
type link struct{ From, To int }

// chain is everything, running.
type chain struct {
	proxy *subject.Proxy
	dir   string
}

// at is the address of a port of the chain's.
func (c *chain) at(port int) string { return net.JoinHostPort(c.proxy.Address, strconv.Itoa(port)) }

// start starts all peers and heddle-proxy between them.
func start(t *testing.T) *chain {
	t.Helper()
	folder, envoy := os.Getenv("HEDDLE_E2E_BIN"), os.Getenv("HEDDLE_TEST_ENVOY")
	if folder == "" || envoy == "" {
		t.Fatal("run this test by `make interop`, which builds heddle-proxy and sets HEDDLE_E2E_BIN and HEDDLE_TEST_ENVOY")
	}
	c := &chain{dir: t.TempDir(), proxy: &subject.Proxy{}}
	c.proxy.Address = subject.Address()
	startOrigin(t, c.at(servers["origin"]))
	startGRPC(t, c.at(servers["grpc"]))
	startSockets(t, c.at(servers["sockets"]))
	for name, argv := range map[string][]string{
		"envoy":   {envoy, "-c", c.file("envoy.yaml"), "--concurrency", "1", "-l", "warn", "--disable-hot-restart"},
		"haproxy": {"haproxy", "-db", "-f", c.file("haproxy.cfg")},
		"nginx":   {"nginx", "-p", c.dir, "-e", c.file("nginx.error.log"), "-c", c.file("nginx.conf")},
		"nghttpd": {"nghttpd", "--no-tls", "-a", c.proxy.Address, "-d", c.dir, strconv.Itoa(servers["nghttpd"])},
	} {
		c.peer(t, name, argv)
	}
	// nghttpd knows files only.
	if err := os.WriteFile(c.file("file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	// The rest of the template is the subject's.
	configuration, err := template.New("heddle.yaml").Delims("[[", "]]").ParseFS(peers, "peers/heddle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := configuration.Execute(&text, servers); err != nil {
		t.Fatal(err)
	}
	c.proxy, err = subject.Start(subject.Settings{
		Name: "heddle", Binary: filepath.Join(folder, "heddle-proxy"), Address: c.proxy.Address, Dir: c.dir,
		Configuration: text.String(),
		Listeners:     []subject.Listener{{Name: "plain", Port: plainPort}, {Name: "tls", Port: tlsPort, TLS: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.proxy.Stop)
	return c
}

func (c *chain) file(name string) string { return filepath.Join(c.dir, name) }

// peer starts one, with its configuration if it has one.
func (c *chain) peer(t *testing.T, name string, argv []string) {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Fatalf("%v; `make packages` installs it", err)
	}
	links := map[string]link{"server": {servers[name], servers["origin"]}, "client": {clients[name], plainPort}}
	for _, file := range []string{"envoy.yaml", "haproxy.cfg", "nginx.conf"} {
		if strings.HasPrefix(file, name) {
			c.render(t, file, map[string]any{"Address": c.proxy.Address, "Dir": c.dir, "Links": links})
		}
	}
	p, err := process.Start(name, process.Place{}, argv...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := p.WaitReady(c.at(servers[name])); err != nil {
		t.Fatal(err)
	}
}

func (c *chain) render(t *testing.T, name string, values any) {
	t.Helper()
	parsed, err := template.ParseFS(peers, "peers/"+name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(c.file(name))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := parsed.Execute(out, values); err != nil {
		t.Fatal(err)
	}
}
