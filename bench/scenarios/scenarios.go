// Package scenarios is the list of benchmarks. A new scenario is a file here and a line in [All].
package scenarios

import (
	"fmt"
	"io"
	"strings"
	"time"

	"heddle.io/heddle/bench/controlplane"
	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/results"
)

// Options of a run.
type Options struct {
	// Runs counted per subject; they take turns.
	Runs int
	// Duration of one run.
	Duration time.Duration
	// Subjects to compare; empty means each scenario's own.
	Subjects []string
	// Share is how much of its processor a proxy gets, in percent, in scenarios that say [Scenario.Shares]; zero means all of it.
	Share int
	// Binaries that are not on the path.
	Binaries peers.Binaries
	// Rate is the fixed rate of p2, p3, mesh and those of p5, in requests per second; zero means each scenario's own.
	Rate int
	// Mesh is what the controller is measured with.
	Mesh Mesh
	// Progress is told what happens.
	Progress io.Writer
}

// Mesh is a mesh, and the numbers of proxies that it is measured with.
type Mesh struct {
	Size    controlplane.Size
	Proxies []int
	// Changes of endpoints.
	Changes int
}

// Scenario is one benchmark.
type Scenario struct {
	// Name as in `make bench S=name`.
	Name string
	// Summary is one line of what is measured.
	Summary string
	// Shares says that its proxies can be given a share of their processor.
	Shares bool
	// Run measures.
	Run func(Options) (results.Result, error)
}

// All scenarios in the order in which they run.
var All = []Scenario{
	proxyScenario("http1", "HTTP/1.1, keep-alive, 32 connections, 64-byte responses", proxyWork{connections: 32}),
	proxyScenario("https", "HTTPS, keep-alive, ECDSA P-256, 32 connections", proxyWork{Work: peers.Work{TLS: "ecdsa"}, connections: 32}),
	proxyScenario("h2", "HTTP/2 over TLS to HTTP/1.1, 8 connections with 32 streams each", proxyWork{Work: peers.Work{TLS: "ecdsa", HTTP2: true}, connections: 8, streams: 32}),
	proxyScenario("grpc", "unary calls of gRPC, HTTP/2 over TLS to HTTP/2, 8 connections with 100 streams each",
		proxyWork{Work: peers.Work{TLS: "ecdsa", HTTP2: true, GRPC: true}, connections: 8, streams: 100}),
	proxyScenario("tls-rsa-new", "HTTPS, RSA-2048, a new connection for each request, 32 at a time",
		proxyWork{Work: peers.Work{TLS: "rsa"}, connections: 32, closing: true, subjects: peers.NamesNew, baseline: "nginx"}),
	proxyScenario("tls-ecdsa-new", "HTTPS, ECDSA P-256, a new connection for each request, 32 at a time",
		proxyWork{Work: peers.Work{TLS: "ecdsa"}, connections: 32, closing: true, subjects: peers.NamesNew, baseline: "nginx"}),
	providers("p1", "HTTPS, RSA-2048, a new connection for each request, 400 clients: signed one by one and eight at a time", 400),
	providers("p1-lone", "the same with one client, who must not wait for others", 1),
	proxyScenario("p4", "TLS 1.2, "+load.TLS12Cipher+", a new connection for each request, by 32 of openssl s_time",
		proxyWork{Work: peers.Work{TLS: "ecdsa"}, connections: 32, sTime: true, subjects: peers.NamesNew, baseline: "nginx"}),
	balance("p5-even", even),
	balance("p5", skewed),
	balance("p5-late", late),
	balance("p5-uneven", uneven),
	policies("policies-30", 10),
	policies("policies-3000", 1000),
	{Name: "p6", Summary: "what a hundred regular expressions on the cookie add to a request, in processor time", Run: expressions},
	{Name: "kernels", Summary: "private RSA operations, ECDSA signatures and X25519 exchanges per second of one thread, eight at a time, against BoringSSL, AWS-LC and OpenSSL", Run: kernels},
	{Name: "p8", Summary: "the controller: from a change to the last proxy's acknowledgement, connecting, memory", Run: controlPlane},
	tcpBypass("p2", "client and server on one host, a sidecar each, 1 kB, without and with the bypass of TCP", false),
	tcpBypass("p2-mtls", "the same, with mutual TLS between the sidecars", true),
	{Name: "p3", Summary: "what a cluster's sidecars add within one host: none, Heddle's and Envoy's, without and with mutual TLS, without telemetry, captured by eBPF, with the bypass of TCP", Run: sidecarsOfCluster},
	{Name: "mesh", Summary: "sidecars with the mesh's full configuration (mutual TLS, metrics, access log, a policy) beside bare ones, Heddle's and Envoy's", Run: mesh},
}

// providers compares the private key providers.
func providers(name, summary string, clients int) Scenario {
	called := map[string]string{"heddle": "software", peers.Multibuffer: "multibuffer"}
	return proxyScenario(name, summary, proxyWork{Work: peers.Work{TLS: "rsa"}, connections: clients, closing: true,
		subjects: []string{"heddle", peers.Multibuffer}, called: called, baseline: "software"})
}

// policies measures requests held against three times so many DENY policies.
func policies(name string, each int) Scenario {
	return proxyScenario(name, fmt.Sprintf("HTTP/1.1, keep-alive, held against %d DENY policies on paths, paths with escapes and hosts", 3*each),
		proxyWork{Work: peers.Work{Policies: each}, connections: 32, subjects: []string{"heddle", "envoy"}})
}

// Find gives the scenario of that name.
func Find(name string) (Scenario, error) {
	names := make([]string, 0, len(All))
	for _, s := range All {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Scenario{}, fmt.Errorf("unknown scenario %q: want one of %s", name, strings.Join(names, ", "))
}
