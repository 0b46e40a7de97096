// Package samehost sets up what is measured on one host: a client and a server in network namespaces of their own, each with
// a sidecar that its traffic is captured for, as the agent does it, with and without the bypass of TCP.
package samehost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/agent/network"
	agentprocess "heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
)

// sidecarUser is whom sidecars run as, as in Istio: what it sends is not captured.
const sidecarUser = 1337

const (
	serverPort   = 8080
	responseSize = 1000
)

// Host is this machine with what was set up on it.
type Host struct {
	cluster     cluster.Cluster
	hierarchies agentprocess.Hierarchies
	dir         string
	pairs       int
	stop        []*process.Process
	attached    []*attachedBypass
}

// attachedBypass is one with its rounds, as an agent makes them.
type attachedBypass struct {
	*bypass.Bypass
	end    context.CancelFunc
	ended  chan struct{}
	failed error
}

func attach(pins, group string) (*attachedBypass, error) {
	b, err := bypass.Attach(pins, group)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	a := &attachedBypass{Bypass: b, end: end, ended: make(chan struct{})}
	go func() {
		b.Run(ctx, func(err error) { a.failed = errors.Join(a.failed, err) })
		close(a.ended)
	}()
	return a, nil
}

func (a *attachedBypass) close() error {
	a.end()
	<-a.ended
	a.Close()
	return a.failed
}

// Open takes away what a run that was killed has left, and makes the bridge.
func Open() (*Host, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("network namespaces, control groups and eBPF programs need root")
	}
	// No cluster can have the name, so that nobody's is removed.
	c := cluster.Cluster{Name: "bench_p2", RunRoot: cluster.DefaultRunRoot}
	h := &Host{cluster: c}
	var err error
	if h.hierarchies, err = agentprocess.Hierarchy(); err != nil {
		return nil, err
	}
	if h.hierarchies.V2 == "" {
		return nil, errors.New("no cgroup version 2 is mounted, which the bypass needs")
	}
	if err := h.remove(); err != nil {
		return nil, fmt.Errorf("remove what a run before has left: %w", err)
	}
	taken, err := network.Conflict(c.Bridge(), cluster.IPv4, cluster.IPv4.Ranges().Pods)
	if err != nil {
		return nil, err
	}
	if taken != "" {
		return nil, fmt.Errorf("%s; take down what uses it, or run in a network namespace: unshare -n sh -c 'ip link set lo up; make bench S=p2'", taken)
	}
	if h.dir, err = os.MkdirTemp("", "heddle-bench"); err != nil {
		return nil, err
	}
	// Sidecars have a user of their own.
	if err := os.Chmod(h.dir, 0o755); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := network.EnsureBridge(c, cluster.IPv4); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// Close ends and removes everything.
func (h *Host) Close() error {
	for _, p := range h.stop {
		p.Stop()
	}
	var errs []error
	for _, b := range h.attached {
		errs = append(errs, b.close())
	}
	return errors.Join(append(errs, h.remove(), os.RemoveAll(h.dir))...)
}

// remove is what `heddle down` does of the parts that are used here.
func (h *Host) remove() error {
	errs := []error{h.hierarchies.Remove(h.cluster.Cgroup())}
	attached, err := filepath.Glob(h.pins("*"))
	errs = append(errs, err)
	for _, pins := range attached {
		errs = append(errs, bypass.Detach(pins))
	}
	names, err := network.Names(h.cluster.NetnsPrefix())
	errs = append(errs, err)
	for _, name := range names {
		errs = append(errs, network.Delete(name))
	}
	return errors.Join(append(errs, network.RemoveBridge(h.cluster), os.RemoveAll(h.cluster.Run()))...)
}

// pins is where a pair's programs are pinned.
func (h *Host) pins(pair string) string { return h.cluster.Bypass() + "-" + pair }

// Pair is a client's place and its server, each with a sidecar.
type Pair struct {
	// Client is where a load generator belongs, URL what it asks for.
	Client process.Place
	URL    string
	// ClientSidecar, ServerSidecar and Server run.
	ClientSidecar, ServerSidecar, Server *process.Process
	// Bypass is nil where it is not attached.
	Bypass *bypass.Bypass
}

// Setup says what is between a client and its server.
type Setup struct {
	// Sidecars are what both sidecars are and do.
	Sidecars peers.SidecarWork
	// Bypass of TCP is attached.
	Bypass bool
	// Both has what sidecars send client and server bypass TCP as well.
	Both bool
}

// Pair starts one. Programs that talk to each other are on different processors, as far as there are enough.
func (h *Host) Pair(name string, setup Setup, binaries peers.Binaries) (*Pair, error) {
	p := &Pair{}
	setup.Sidecars.Bypassed = setup.Bypass
	group := filepath.Join(h.cluster.Cgroup(), name)
	if _, _, err := h.hierarchies.Create(group, agentprocess.Limits{}); err != nil {
		return nil, err
	}
	directory := filepath.Join(h.hierarchies.V2, group)
	if setup.Bypass {
		attached, err := attach(h.pins(name), directory)
		if err != nil {
			return nil, err
		}
		h.attached = append(h.attached, attached)
		p.Bypass = attached.Bypass
	}
	address := cluster.IPv4.Ranges().Gateway().Addr()
	for range 2 * h.pairs {
		address = address.Next()
	}
	h.pairs++
	client, server := address.Next(), address.Next().Next()
	clientNetns, err := h.workload(name, "client", client)
	if err != nil {
		return nil, err
	}
	serverNetns, err := h.workload(name, "server", server)
	if err != nil {
		return nil, err
	}
	for _, netns := range []string{clientNetns, serverNetns} {
		if !setup.Both {
			break
		}
		if err := p.Bypass.SetWorkload(network.Path(netns), "", bypass.ModeBoth); err != nil {
			return nil, err
		}
	}
	place := func(netns string, turn int, user uint32) process.Place {
		return process.Place{CPU: turn % runtime.NumCPU(), Netns: netns, Cgroup: directory, User: user}
	}
	target := netip.AddrPortFrom(server, serverPort).String()
	p.Client, p.URL = place(clientNetns, 0, 0), "http://"+target+"/"
	// Both sidecars have the same configuration and certificate.
	dir := filepath.Join(h.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if p.Server, err = peers.Backend(place(serverNetns, 3, 0), dir, fmt.Sprintf("0.0.0.0:%d", serverPort), responseSize); err != nil {
		return nil, err
	}
	h.stop = append(h.stop, p.Server)
	if p.ServerSidecar, err = peers.Sidecar("the server's sidecar", place(serverNetns, 2, sidecarUser), dir, target, setup.Sidecars, binaries); err != nil {
		return nil, err
	}
	h.stop = append(h.stop, p.ServerSidecar)
	if p.ClientSidecar, err = peers.Sidecar("the client's sidecar", place(clientNetns, 1, sidecarUser), dir, target, setup.Sidecars, binaries); err != nil {
		return nil, err
	}
	h.stop = append(h.stop, p.ClientSidecar)
	return p, p.ask()
}

// workload makes a namespace, whose traffic goes to the sidecar.
func (h *Host) workload(pair, role string, address netip.Addr) (string, error) {
	if err := network.Attach(h.cluster, pair, role, address); err != nil {
		return "", err
	}
	netns := h.cluster.Netns(pair, role)
	return netns, network.Capture(netns, cluster.IPv4, sidecarUser, interception.Rules{})
}

// ask waits until the server answers the client, for at most ten seconds.
func (p *Pair) ask() error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
			return network.Dial(ctx, p.Client.Netns, kind, address)
		}}}
	for deadline := time.Now().Add(10 * time.Second); ; {
		response, err := client.Get(p.URL)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK && response.ContentLength == responseSize {
				return nil
			}
			err = fmt.Errorf("%s with %d bytes, want 200 with %d", response.Status, response.ContentLength, responseSize)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server does not answer through the sidecars after 10 s: %w", err)
		}
		// Nothing tells when a sidecar listens.
		<-time.After(20 * time.Millisecond)
	}
}
