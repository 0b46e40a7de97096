//go:build instructions

package instructions

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
)

const (
	backendAddress = "127.0.0.1:19500"
	port           = 19501
	// tolerance by which a count may differ from what is kept. Other processors choose other loops of the C library and
	// of BoringSSL.
	tolerance = 0.03
	// stopBound is how long the proxy may take to end, which includes writing its profile.
	stopBound = time.Minute
)

// path of a request through the proxy.
type path struct {
	name string
	work peers.Work
	// requests of the longer of two runs; the shorter one has a fifth of them. Their difference has no start in it.
	requests int
	// send sends so many requests; nil is over eight connections that are kept.
	send func(p path, dir, address string, requests int) error
}

var paths = []path{
	{name: "http1", requests: 5000},
	{name: "https", work: peers.Work{TLS: "ecdsa"}, requests: 5000},
	{name: "h2", work: peers.Work{TLS: "ecdsa", HTTP2: true}, requests: 10000, send: overHTTP2},
	{name: "tls-ecdsa-new", work: peers.Work{TLS: "ecdsa"}, requests: 250, send: overNewConnections},
	{name: "mesh", work: peers.Work{TLS: "ecdsa", Mesh: true}, requests: 5000},
}

// TestInstructions counts each path and compares it with what is kept.
func TestInstructions(t *testing.T) {
	proxy, kept := os.Getenv("HEDDLE_INSTRUCTIONS_PROXY"), os.Getenv("HEDDLE_INSTRUCTIONS_KEPT")
	if proxy == "" || kept == "" {
		t.Fatal("run this test by `make instructions`, which builds heddle-proxy and says which column of counts.yaml is its")
	}
	all := read(t)
	passed := 0
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			got := p.perRequest(t, proxy)
			want := all[p.name][kept]
			fmt.Printf("%-14s %8.0f instructions per request, kept %8.0f (%+.1f %%)\n", p.name, got, want, 100*(got/want-1))
			if os.Getenv("HEDDLE_INSTRUCTIONS_UPDATE") != "" {
				all[p.name][kept] = math.Round(got)
				return
			}
			switch {
			case got > want*(1+tolerance):
				t.Errorf("%s costs %.0f instructions per request, %.0f are kept: find out what they buy, then say so in the commit with `make instructions UPDATE=1`", p.name, got, want)
			case got < want*(1-tolerance):
				t.Errorf("%s costs %.0f instructions per request, %.0f are kept: keep what was won with `make instructions UPDATE=1`", p.name, got, want)
			default:
				passed++
			}
		})
	}
	if os.Getenv("HEDDLE_INSTRUCTIONS_UPDATE") != "" {
		write(t, all)
		return
	}
	fmt.Printf("%d passed, %d failed\n", passed, len(paths)-passed)
}

// perRequest is the difference of a longer and a shorter run, per request.
func (p path) perRequest(t *testing.T, proxy string) float64 {
	t.Helper()
	few := p.requests / 5
	short, long := p.total(t, proxy, few), p.total(t, proxy, p.requests)
	return float64(long-short) / float64(p.requests-few)
}

// total instructions of a proxy's life in which it serves so many requests.
func (p path) total(t *testing.T, proxy string, requests int) int64 {
	t.Helper()
	dir := t.TempDir()
	backend, err := peers.Backend(process.Place{CPU: 1}, dir, backendAddress, peers.BackendSize)
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Stop()
	out := filepath.Join(dir, "callgrind.out")
	if profiles := os.Getenv("HEDDLE_INSTRUCTIONS_PROFILES"); profiles != "" {
		// One of each run: what both have is the start's.
		out = filepath.Join(profiles, fmt.Sprintf("callgrind.out.%s.%d", p.name, requests))
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	subject, err := peers.Start("heddle", dir, process.Place{CPU: 0}, p.work, address, backendAddress, peers.Binaries{Heddle: proxy,
		Under: []string{"valgrind", "--tool=callgrind", "--callgrind-out-file=" + out}})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Stop()
	send := p.send
	if send == nil {
		send = overKeptConnections
	}
	if err := send(p, dir, address, requests); err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/quitquitquit", peers.AdminPort(port)), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close() // What it says does not matter: the end is waited for.
	if err := subject.WaitEnd(stopBound); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^totals: (\d+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("callgrind wrote no totals:\n%.500s", text)
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// overKeptConnections takes turns on eight connections, so that what is ready together is always the same: one request.
func overKeptConnections(p path, dir, address string, requests int) error {
	const connections = 8
	var kept [connections]*bufio.ReadWriter
	for i := range kept {
		conn, err := p.dial(dir, address)
		if err != nil {
			return err
		}
		defer conn.Close()
		kept[i] = bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	}
	for i := range requests {
		if err := ask(kept[i%connections], address, ""); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// overNewConnections opens one for each request.
func overNewConnections(p path, dir, address string, requests int) error {
	for i := range requests {
		conn, err := p.dial(dir, address)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		err = ask(bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), address, "Connection: close\r\n")
		if err = errors.Join(err, conn.Close()); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// overHTTP2 keeps 32 streams busy on each of 8 connections.
func overHTTP2(_ path, _, address string, requests int) error {
	got, err := load.H2load(process.Place{CPU: 1}, "https://"+address+"/", 8, 32, requests)
	if err == nil && got.Requests != int64(requests) {
		err = fmt.Errorf("%d of %d requests were answered", got.Requests, requests)
	}
	return err
}

// dial connects as a client of this path does.
func (p path) dial(dir, address string) (net.Conn, error) {
	if p.work.TLS == "" {
		return net.DialTimeout("tcp", address, 10*time.Second)
	}
	// The proxy's certificate is its own authority; whose it is does not matter here.
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}
	if p.work.Mesh {
		own, err := tls.LoadX509KeyPair(filepath.Join(dir, p.work.TLS+".crt"), filepath.Join(dir, p.work.TLS+".key"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", address, config)
}

// ask sends a request such as a browser's, and reads its answer.
func ask(conn *bufio.ReadWriter, host, more string) error {
	request := "GET /products/1?currency=EUR HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\n" +
		"Accept-Encoding: gzip\r\nAccept-Language: en\r\nCookie: session=7b0b5f4c\r\n" + more + "\r\n"
	if _, err := conn.WriteString(request); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	answer, err := http.ReadResponse(conn.Reader, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", answer.Status)
	}
	return nil
}

// counts by path and column.
type counts map[string]map[string]float64

func read(t *testing.T) counts {
	t.Helper()
	text, err := os.ReadFile("counts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := counts{}
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatalf("counts.yaml: %v", err)
	}
	for _, p := range paths {
		if all[p.name] == nil {
			all[p.name] = map[string]float64{}
		}
	}
	return all
}

func write(t *testing.T, all counts) {
	t.Helper()
	var out strings.Builder
	out.WriteString("# Instructions per request in heddle-proxy, by `make instructions` (dev: the profile of tests) and `make instructions\n")
	out.WriteString("# RELEASE=1` (release: what `make build` gives). UPDATE=1 writes this file.\n")
	for _, p := range paths {
		fmt.Fprintf(&out, "%s:\n", p.name)
		for _, column := range slices.Sorted(maps.Keys(all[p.name])) {
			fmt.Fprintf(&out, "  %s: %.0f\n", column, all[p.name][column])
		}
	}
	if err := os.WriteFile("counts.yaml", []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
