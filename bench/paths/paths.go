// Package paths are the ways through heddle-proxy that matter, each with its client (of HTTP/2 and gRPC: 256 requests at a time): their
// instructions are counted by test/instructions, and the compiler is shown them by `make build PGO=1`. A new path is a line in
// [All], with what it needs of [peers.Work], and a client of its own where none fits.
package paths

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
)

const (
	backendAddress = "127.0.0.1:19500"
	port           = 19501
	// browserTarget is what a browser asks for.
	browserTarget = "/products/1?currency=EUR"
	// stopBound is how long the proxy may take to end, which includes writing its profile.
	stopBound = time.Minute
)

// others is where clients and servers run, beside the proxy where there is room.
var others = process.Place{CPU: min(1, runtime.NumCPU()-1)}

// Path of a request through the proxy.
type Path struct {
	Name string
	Work peers.Work
	// Cookie of each request; empty is a session's.
	Cookie string
	// Requests of the longer run; what it takes more than one with a fifth of them is what they cost.
	Requests int
	// send sends so many requests; nil is over eight connections that are kept.
	send func(p Path, dir, address string, requests int) error
}

// All paths.
var All = []Path{
	{Name: "http1", Requests: 5000},
	{Name: "https", Work: peers.Work{TLS: "ecdsa"}, Requests: 5000},
	{Name: "h2", Work: peers.Work{TLS: "ecdsa", HTTP2: true}, Requests: 10000, send: overHTTP2},
	{Name: "grpc", Work: peers.Work{TLS: "ecdsa", HTTP2: true, GRPC: true}, Requests: 10000, send: overGRPC},
	{Name: "tls-ecdsa-new", Work: peers.Work{TLS: "ecdsa"}, Requests: 250, send: overNewConnections},
	{Name: "mesh", Work: peers.Work{TLS: "ecdsa", Mesh: true}, Requests: 5000},
	{Name: "rules", Work: peers.Work{Cookies: []peers.CookieRules{{Action: "DENY", Anywhere: true}}}, Requests: 5000},
	{Name: "rules-4k", Work: peers.Work{Cookies: []peers.CookieRules{{Action: "DENY", Anywhere: true}}}, Cookie: firstWords(4096), Requests: 1000},
	{Name: "policies", Work: peers.Work{Policies: 10}, Requests: 5000},
	{Name: "routes", Work: peers.Work{Routes: 1000}, Requests: 5000},
	{Name: "tcp", Work: peers.Work{TCP: true}, Requests: 5000},
}

// firstWords is a cookie of about so many bytes with what the rules look for first, and never with what they look for behind it.
func firstWords(length int) string {
	var words strings.Builder
	for i := 0; words.Len() < length; i++ {
		// Every rule's, in no order.
		fmt.Fprintf(&words, "malform%02d", i*37%peers.RuleCount)
	}
	return words.String()
}

// Run starts a proxy in front of a backend, sends so many requests, and has it end by itself. dir takes its files.
func (p Path) Run(dir string, requests int, binaries peers.Binaries) error {
	stop, err := p.startBackend(dir)
	if err != nil {
		return err
	}
	defer stop()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	proxy, err := peers.Start("heddle", dir, process.Place{CPU: 0}, p.Work, address, backendAddress, binaries)
	if err != nil {
		return err
	}
	defer proxy.Stop()
	send := p.send
	if send == nil {
		send = overKeptConnections
	}
	if err := send(p, dir, address, requests); err != nil {
		return err
	}
	answer, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/quitquitquit", peers.AdminPort(port)), "", nil)
	if err != nil {
		return err
	}
	_ = answer.Body.Close() // What it says does not matter: the end is waited for.
	return proxy.WaitEnd(stopBound)
}

// startBackend starts what the proxy passes requests on to, and says how to end it.
func (p Path) startBackend(dir string) (func(), error) {
	if p.Work.GRPC {
		backend, err := peers.StartGRPC(backendAddress)
		if err != nil {
			return nil, err
		}
		return backend.Stop, nil
	}
	backend, err := peers.Backend(others, dir, backendAddress, peers.BackendSize)
	if err != nil {
		return nil, err
	}
	return backend.Stop, nil
}

// target of the requests: that of a browser, or what policies look at.
func (p Path) target() string {
	if p.Work.Policies > 0 {
		return p.Work.Target()
	}
	return browserTarget
}
