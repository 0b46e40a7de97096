// Package agent runs a cluster's workloads on this machine: each replica in a network namespace of its own, with
// address, DNS, captured traffic, identity, sidecar and application; the gateways; and the controller itself, which it
// starts again when it dies.
//
// What runs does not depend on the agent: processes survive it, and the next agent finds them again (package process).
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/agent/dns"
	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/agent/lock"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/agent/users"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/server/client"
)

// Config of an agent.
type Config struct {
	Cluster cluster.Cluster
	// Launcher is the command that becomes a described process: `heddle launch`, without the file.
	Launcher []string
	// Controller is the command of the controller process, and DNS that of the process that answers names.
	Controller, DNS []string
	// Proxy is the proxy program: absolute, or a name looked up in Bin and PATH.
	Proxy string
	// ForeignProxy says that Proxy takes a stock Envoy's arguments.
	ForeignProxy bool
	// Bin is the directory that relative commands are looked up in first.
	Bin string
	// Bootstrap writes a proxy's bootstrap, and Node its xDS identity.
	Bootstrap func(Proxy) ([]byte, error)
	Node      func(Proxy) (*corev3.Node, error)
	Log       *slog.Logger
}

// unfinishedAge is after how long nobody writes a file any more that was begun.
const unfinishedAge = time.Minute

// maxStarts bounds how many replicas are being prepared at once.
const maxStarts = 8

// Agent runs workloads. Make one with [Run].
type Agent struct {
	config      Config
	options     cluster.Options
	log         *slog.Logger
	client      *client.Client
	addresses   *allocation.Table[netip.Addr]
	users       *allocation.Table[int]
	hierarchies process.Hierarchies
	controller  *service
	dns         *service
	starts      chan struct{}
	kick        chan struct{}
	rekick      chan struct{}
	// reporting guards reported, and is held while the controller is told.
	reporting sync.Mutex
	reported  reported
	shutdown  chan struct{}
	once      sync.Once

	// wishes are what is to run, as far as it is known; before mu.
	wishes wishes
	// unswept are network namespaces of stale replicas that could not be removed, and since when; with the lock of wishes.
	unswept map[string]time.Time
	now     func() time.Time

	// dnsWriting guards dnsWritten, the table that is in force, and what located and named were when it was made.
	dnsWriting           sync.Mutex
	dnsWritten           dns.Table
	dnsLocated, dnsNamed uint64
	// located counts the replicas that came to have another address, or went.
	located atomic.Uint64

	mu          sync.Mutex
	deployments map[string]*deployment
	// knowsWorkloads is set once the workloads were told, by the controller or by what the agent before kept.
	knowsWorkloads bool
	// placed is closed, and another takes its place, when a workload was told or its replicas were placed.
	placed chan struct{}
	// names are those that DNS answers, named counts how often they were told.
	names client.Names
	named uint64
	ways  waysIn

	// bypass is set before anything runs.
	bypass tcpBypass
	// captures is set before anything runs.
	captures captures
	// refusals are those of all proxies' sockets.
	refusals identity.Refusals
}

// Run runs the agent until ctx ends, which leaves everything else running, or until it is told to shut down, which
// stops everything.
func Run(ctx context.Context, config Config) error {
	a := &Agent{
		config: config, log: config.Log, client: client.New(config.Cluster.APISocket()),
		starts: make(chan struct{}, maxStarts), kick: make(chan struct{}, 1), rekick: make(chan struct{}, 1),
		shutdown: make(chan struct{}), deployments: map[string]*deployment{}, placed: make(chan struct{}), now: time.Now,
	}
	a.controller, a.dns = a.newService("controller", config.Controller), a.newService("dns", config.DNS)
	var keys keyMemory
	defer keys.close()
	a.controller.environment, a.controller.adopted = keys.environment, keys.take
	var err error
	if a.options, err = config.Cluster.Options(); err != nil {
		return err
	}
	unlock, err := a.claim()
	if err != nil {
		return err
	}
	defer unlock()
	if err := config.Cluster.KeepRunning(a.options); err != nil {
		return err
	}
	if err := a.prepare(); err != nil {
		return err
	}
	defer a.bypass.close()
	defer a.captures.close()
	closeAPI, err := a.serve()
	if err != nil {
		return err
	}
	defer closeAPI()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup
	parts.Go(func() { a.dns.supervise(ctx) })
	parts.Go(func() { a.controller.supervise(ctx) })
	parts.Go(func() { a.reportLoop(ctx) })
	parts.Go(func() { a.rotateLoop(ctx) })
	if attached := a.bypass.attached; attached != nil {
		parts.Go(func() {
			attached.Run(ctx, a.bypassRound)
		})
	}
	// Replicas live as long as the agent does, not as long as what follows the API.
	for key, specs := range gateways(a.options, nil) {
		a.deploy(ctx, key, specs)
	}
	parts.Go(func() { a.followWorkloads(ctx) })
	parts.Go(func() { a.followNamespaces(ctx) })
	parts.Go(func() { a.followMeshConfig(ctx) })
	parts.Go(func() { a.followNames(ctx) })
	if a.options.Isolated {
		parts.Go(func() { a.keepWAN(ctx) })
	}
	if a.options.Advertise.IsValid() {
		parts.Go(func() { a.followGateways(ctx) })
		parts.Go(func() { a.followKubernetesGateways(ctx) })
		parts.Go(func() { a.followGlobalNamespaces(ctx) })
		parts.Go(func() { a.exposeLoop(ctx) })
	}
	for _, shown := range a.hidden().Shown {
		a.log.Error("workloads that run as root may read a file with secrets", "error", shown)
	}
	a.log.Info("agent started", "cluster", config.Cluster.Name, "pid", os.Getpid())
	select {
	case <-ctx.Done():
		a.log.Info("agent ends; workloads go on without it")
		cancel()
		a.handOver()
	case <-a.shutdown:
		a.log.Info("shutting down everything")
		a.stopAll()
		cancel()
		a.controller.stop()
		a.dns.stop()
	}
	parts.Wait()
	return errors.Join(a.addresses.Close(), a.users.Close())
}

// lockPatience is how long the files of an agent that was killed may stay open: until its last child has become its program.
const lockPatience = 5 * time.Second

// claim makes this process the cluster's only agent.
func (a *Agent) claim() (func(), error) {
	run := a.config.Cluster.Run()
	if err := os.MkdirAll(filepath.Join(run, "agent"), 0o700); err != nil {
		return nil, fmt.Errorf("make runtime directory: %w", err)
	}
	// Proxies, which are not root, pass through to their own directory.
	for _, dir := range []string{a.config.Cluster.RunRoot, run} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return nil, fmt.Errorf("open runtime directory: %w", err)
		}
	}
	// An agent that was killed while it started something leaves a child that is not that program yet, and has the agent's files.
	held, err := lock.Wait(filepath.Join(run, "agent", "lock"), lockPatience)
	if err != nil {
		return nil, err
	}
	self, err := process.Self()
	if err != nil {
		return nil, fmt.Errorf("look at own process: %w", err)
	}
	if err := process.WriteRecord(recordPath(a.config.Cluster), self); err != nil {
		return nil, err
	}
	return held.Close, nil
}

func recordPath(c cluster.Cluster) string { return filepath.Join(c.Run(), "agent", "agent.json") }

// prepare makes what all workloads share. It repairs what is there.
func (a *Agent) prepare() error {
	c := a.config.Cluster
	var err error
	if err = MakeLogs(c); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	for _, dir := range []string{c.RunRoot, c.Run(), filepath.Join(c.Run(), "agent"), c.Data(), filepath.Join(c.Data(), "ca"), filepath.Join(c.Data(), "federation"), filepath.Join(c.Data(), "federation", "clusters")} {
		if err := durable.Sweep(dir, time.Now().Add(-unfinishedAge)); err != nil {
			a.log.Warn("files that a killed writer left are still there", "error", err)
		}
	}
	if a.hierarchies, err = process.Hierarchy(); err != nil {
		return err
	}
	family := a.options.Family
	if a.addresses, err = network.OpenAddresses(a.addressesPath(), family.Ranges().Pods, func() (map[string]netip.Addr, error) { return network.AddressesOfReplicas(c) }); err != nil {
		return err
	}
	if a.users, err = users.Open(filepath.Join(c.Data(), "users.db"), a.options.UserBlock, a.usersOfReplicas); err != nil {
		return err
	}
	if err := network.Forwarding(c, family); err != nil {
		return err
	}
	if err := network.EnsureBridge(c, family); err != nil {
		return err
	}
	if err := network.Host(c, family); err != nil {
		return err
	}
	a.attachBypass()
	if err := a.attachCapture(); err != nil {
		return err
	}
	if !a.options.Advertise.IsValid() {
		// There may have been an address before.
		return network.Conceal(c)
	}
	return nil
}

func (a *Agent) addressesPath() string {
	return filepath.Join(a.config.Cluster.Data(), "addresses.db")
}

// gateway is the cluster's own address on the workloads' bridge.
func (a *Agent) gateway() netip.Addr { return a.options.Family.Ranges().Gateway().Addr() }

// slot waits for a place among the replicas that are being prepared.
func (a *Agent) slot(ctx context.Context) (func(), error) {
	select {
	case a.starts <- struct{}{}:
		return func() { <-a.starts }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// unsorted returns every replica, in no order.
func (a *Agent) unsorted() []*replica {
	a.mu.Lock()
	deployments := make([]*deployment, 0, len(a.deployments))
	for _, d := range a.deployments {
		deployments = append(deployments, d)
	}
	a.mu.Unlock()
	out := make([]*replica, 0, len(deployments))
	for _, d := range deployments {
		out = d.appendTo(out)
	}
	return out
}

// all returns every replica, sorted by namespace and name.
func (a *Agent) all() []*replica {
	out := a.unsorted()
	slices.SortFunc(out, func(a, b *replica) int {
		return cmp.Or(strings.Compare(a.spec.Namespace, b.spec.Namespace), strings.Compare(a.spec.Name, b.spec.Name))
	})
	return out
}

// complete says whether all() is everything that there is to run. Before, a report would take endpoints away that an
// agent before this one reported rightly. The channel is closed when that may be otherwise.
func (a *Agent) complete() (bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.deployments {
		if !d.isPlaced() {
			return false, a.placed
		}
	}
	return a.knowsWorkloads, a.placed
}

// signalPlaced tells who waits for [Agent.complete] to look again.
func (a *Agent) signalPlaced() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.placed)
	a.placed = make(chan struct{})
}

// find returns one replica, or nil.
func (a *Agent) find(namespace, name string) *replica {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range []string{allocation.WorkloadOf(namespace + "/" + name), ingressKey, eastWestKey} {
		if d := a.deployments[key]; d != nil {
			if r := d.replica(name); r != nil && r.spec.Namespace == namespace {
				return r
			}
		}
	}
	return nil
}

// ids returns the replicas' addresses and the user ids of their applications and proxies, in their order, which are
// durable: something may start with them.
func (a *Agent) ids(specs ...replicaSpec) (addresses []netip.Addr, users, proxyUsers []int, err error) {
	replicas, proxies := make([]string, 0, len(specs)), make([]string, 0, len(specs))
	for _, s := range specs {
		replicas, proxies = append(replicas, s.key()), append(proxies, allocation.ProxyOf(s.key()))
	}
	addresses, err = a.addresses.Get(replicas...)
	if err != nil {
		return nil, nil, nil, err
	}
	all, err := a.users.Get(append(replicas, proxies...)...)
	if err != nil {
		return nil, nil, nil, err
	}
	return addresses, all[:len(specs)], all[len(specs):], nil
}

// handOver leaves all replicas to the next agent.
func (a *Agent) handOver() {
	for _, r := range a.all() {
		r.handOver()
	}
}

// stopAll stops every replica at once: gateways too, for there is nobody left to serve.
func (a *Agent) stopAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*stopGrace)
	defer cancel()
	var all sync.WaitGroup
	a.mu.Lock()
	for _, d := range a.deployments {
		d.cancel()
	}
	a.mu.Unlock()
	for _, r := range a.all() {
		all.Go(func() {
			if err := r.stop(ctx); err != nil {
				a.log.Error("workload not stopped cleanly", "workload", r.spec.key(), "error", err)
			}
		})
	}
	all.Wait()
}

// discard removes what a replica leaves when its processes have ended: control groups, runtime files and the namespace, which
// goes last, for by it the next agent finds what is left.
func (a *Agent) discard(namespace, name string) error {
	c := a.config.Cluster
	if err := errors.Join(a.hierarchies.Remove(filepath.Join(c.Cgroup(), namespace+"."+name)), os.RemoveAll(c.Workload(namespace, name))); err != nil {
		return err
	}
	netns := network.Path(c.Netns(namespace, name))
	if err := a.bypass.forget(netns); err != nil {
		return err
	}
	if attached := a.captures.there(); attached != nil {
		if err := attached.Remove(netns); err != nil {
			return err
		}
	}
	return network.Detach(c, namespace, name)
}

// rotateLoop bounds the log files.
func (a *Agent) rotateLoop(ctx context.Context) {
	for wait(ctx, 5*time.Second) {
		if err := process.RotateLogs(a.config.Cluster.Logs(), process.MaxLogBytes); err != nil {
			a.log.Warn("logs not rotated", "error", err)
		}
	}
}
