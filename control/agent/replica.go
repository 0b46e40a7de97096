package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"heddle.io/heddle/control/agent/dns"
	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/keyprovider"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/peer"
	"heddle.io/heddle/control/server/client"
)

// Phases of a replica.
const (
	phasePending = "Pending"
	// phaseBackOff says that the application ended or cannot be started, and is tried again after a pause.
	phaseBackOff = "BackOff"
	phaseRunning = "Running"
	phaseReady   = "Ready"
	phaseStopped = "Stopped"
	phaseFailed  = "Failed"
)

// replica is one running copy of a workload: network namespace, identity, proxy and application. Two supervisors run
// it: one keeps the proxy up, the other the application, which first starts once the proxy is ready.
type replica struct {
	agent   *Agent
	spec    replicaSpec
	hash    string
	dir     string
	netns   string
	log     *slog.Logger
	cancel  context.CancelFunc
	stopped chan struct{}

	// inherited says that its network namespace is that of a replica of another spec, which may have been captured otherwise.
	inherited bool

	credential *identity.Credential
	socket     *identity.Socket

	// keeping is held while the state is written; before mu.
	keeping sync.Mutex

	// keying is held while the proxy is told who uses its keys; before mu.
	keying   sync.Mutex
	provider *objects.KeyProvider

	mu      sync.Mutex
	address netip.Addr
	// user and proxyUser are the ids that its application, unless it names a user, and its proxy run as.
	user, proxyUser int
	proxy, app      *process.Process
	// noted are the processes by part, from before they run until it is known that they have ended.
	noted map[string]*process.Record
	// ended says that the application ended and its restart policy keeps it so.
	ended      string
	proxyReady bool
	appReady   bool
	draining   bool
	backingOff bool
	phase      string
	message    string
	notice     string
	restarts   int
	changed    chan struct{}
	// said is what was reported last, of the state saidOf.
	said   *client.Replica
	saidOf replicaState
}

// replicaState is all of a replica that changes and that it is reported by, or offered.
type replicaState struct {
	address                netip.Addr
	app, proxy             *process.Process
	appRuns, proxyRuns     bool
	ready, proxyReady      bool
	draining               bool
	phase, message, notice string
	restarts               int
	certificate            identity.Validity
}

// stateLocked is what the replica is now.
func (r *replica) stateLocked() replicaState {
	s := replicaState{
		address: r.address, app: r.app, proxy: r.proxy, appRuns: r.app != nil && r.app.Running(), proxyRuns: r.proxy != nil && r.proxy.Running(),
		ready: r.readyLocked(), proxyReady: r.proxyReady, draining: r.draining, phase: r.phase, message: r.message, notice: r.notice, restarts: r.restarts,
	}
	if r.credential != nil {
		s.certificate = r.credential.Validity()
	}
	return s
}

func (a *Agent) newReplica(spec replicaSpec) *replica {
	return &replica{
		agent: a, spec: spec, hash: spec.hash(), provider: spec.KeyProvider,
		dir:   a.config.Cluster.Workload(spec.Namespace, spec.Name),
		netns: a.config.Cluster.Netns(spec.Namespace, spec.Name),
		log:   a.log.With("workload", spec.key()),
		phase: phasePending, changed: make(chan struct{}), stopped: make(chan struct{}), noted: map[string]*process.Record{},
	}
}

// start begins running the replica.
func (r *replica) start(ctx context.Context) {
	ctx, r.cancel = context.WithCancel(ctx)
	r.resume()
	go func() {
		defer close(r.stopped)
		r.run(ctx)
	}()
}

func (r *replica) run(ctx context.Context) {
	state, lost := r.readKept()
	r.mu.Lock()
	r.restarts, r.ended = state.Restarts, state.Ended
	for part, record := range map[string]*process.Record{"app": state.App, "proxy": state.Proxy} {
		if record != nil {
			r.noted[part] = record
		}
	}
	r.mu.Unlock()
	var pauses backoff
	for {
		err := r.prepare(ctx)
		if err == nil {
			break
		}
		r.set(func() { r.message = err.Error() })
		r.log.Error("workload cannot be prepared", "error", err)
		if !wait(ctx, pauses.next(0)) {
			return
		}
	}
	var parts sync.WaitGroup
	parts.Go(func() { r.credential.Run(ctx) })
	parts.Go(func() { r.superviseProxy(ctx, state.Proxy, lost) })
	if !r.spec.Gateway {
		parts.Go(func() { r.superviseApp(ctx, state, lost) })
	}
	parts.Wait()
}

func (r *replica) cgroup(part string) string {
	return filepath.Join(r.agent.config.Cluster.Cgroup(), r.spec.Namespace+"."+r.spec.Name, part)
}

// prepare makes everything that processes need. It may run again over what is there.
func (r *replica) prepare(ctx context.Context) error {
	c := r.agent.config.Cluster
	release, err := r.agent.slot(ctx)
	if err != nil {
		return err
	}
	defer release()
	addresses, users, proxyUsers, err := r.agent.ids(r.spec)
	if err != nil {
		return err
	}
	address, user, proxyUser := addresses[0], users[0], proxyUsers[0]
	r.set(func() { r.address, r.user, r.proxyUser = address, user, proxyUser })
	if err := network.Attach(c, r.spec.Namespace, r.spec.Name, address); err != nil {
		return err
	}
	if !r.spec.Gateway {
		if err := r.capture(address, proxyUser); err != nil {
			return err
		}
	}
	if err := r.setBypassMode(); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o711); err != nil {
		return fmt.Errorf("make runtime directory: %w", err)
	}
	logs := r.logs()
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	resolv := dns.ResolvConf(r.agent.gateway(), r.spec.Namespace, cluster.Domain)
	if err := durable.Write(filepath.Join(r.dir, "resolv.conf"), []byte(resolv), 0o644); err != nil {
		return fmt.Errorf("write resolv.conf: %w", err)
	}
	if r.socket != nil {
		return nil
	}
	kind, err := ca.ParseKeyType(r.agent.options.WorkloadKeyType)
	if err != nil {
		return fmt.Errorf("keys of workloads: %w", err)
	}
	credential := identity.NewCredential(ca.Identity{TrustDomain: cluster.Domain, Namespace: r.spec.Namespace,
		ServiceAccount: r.spec.ServiceAccount}, kind, r.agent.client, r.log)
	description := r.description()
	node, err := r.agent.config.Node(description)
	if err != nil {
		return fmt.Errorf("describe proxy: %w", err)
	}
	socket, err := identity.Listen(identity.Config{
		Path: filepath.Join(r.dir, "agent.sock"), User: proxyUser, Netns: network.Path(r.netns), Credential: credential, Node: node,
		Controller: c.XDSSocket(), Refusals: &r.agent.refusals, Log: r.log,
	})
	if err != nil {
		return err
	}
	bootstrap, err := r.agent.config.Bootstrap(description)
	if err != nil {
		socket.Close()
		return fmt.Errorf("make proxy bootstrap: %w", err)
	}
	path := filepath.Join(r.dir, "bootstrap.yaml")
	if err := durable.WriteFor(path, bootstrap, 0o640, proxyUser, proxyUser); err != nil {
		socket.Close()
		return fmt.Errorf("write proxy bootstrap: %w", err)
	}
	r.keying.Lock()
	defer r.keying.Unlock()
	r.set(func() { r.socket, r.credential = socket, credential })
	return r.tellProvider()
}

// useKeysBy has the proxy's keys used by a provider, nil for its TLS library, without replacing the proxy.
func (r *replica) useKeysBy(provider *objects.KeyProvider) {
	r.keying.Lock()
	defer r.keying.Unlock()
	r.provider = provider
	if err := r.tellProvider(); err != nil {
		r.log.Error("the proxy is not told who uses its keys", "error", err)
	}
}

// tellProvider needs the lock keying. Before there is a credential nobody is told: it begins with what is asked for then.
func (r *replica) tellProvider() error {
	r.mu.Lock()
	credential := r.credential
	r.mu.Unlock()
	if credential == nil {
		return nil
	}
	return credential.UseKeysBy(keyprovider.For(r.provider, !r.foreign()))
}

// set changes state under the lock, keeps what a new agent needs and tells whoever waits, the controller included where there is anything
// to tell: an application that is not ready is asked several times a second, and mostly says the same.
func (r *replica) set(f func()) {
	r.mu.Lock()
	proxyReady, appReady, before := r.proxyReady, r.appReady, r.stateLocked()
	f()
	record := proxyReady != r.proxyReady || appReady != r.appReady
	switch {
	case r.phase == phaseStopped || r.phase == phaseFailed:
	case r.readyLocked():
		r.phase, r.message = phaseReady, ""
	case r.app != nil && r.app.Running() || r.spec.Gateway && r.proxy != nil && r.proxy.Running():
		r.phase = phaseRunning
	case r.backingOff:
		r.phase = phaseBackOff
	default:
		r.phase = phasePending
	}
	close(r.changed)
	r.changed = make(chan struct{})
	after := r.stateLocked()
	// What it is may have become another since it was reported without anybody's doing.
	differs := after != before || after != r.saidOf
	r.mu.Unlock()
	if record {
		r.keep()
	}
	if after.address != before.address {
		r.agent.located.Add(1)
	}
	if differs {
		r.agent.dirty()
	}
}

func (r *replica) readyLocked() bool {
	return r.proxyReady && (r.appReady || r.spec.Gateway) && !r.draining
}

// ready says whether traffic may come, with a channel that closes at the next change.
func (r *replica) ready() (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readyLocked(), r.changed
}

// maxMessage bounds what is said of a replica's state, in characters.
const maxMessage = 1000

// report describes the replica for the controller. As long as that is the same, it is the same pointer, which is not changed.
func (r *replica) report() *client.Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is := r.stateLocked(); r.said == nil || is != r.saidOf {
		r.said, r.saidOf = r.describeLocked(), is
	}
	return r.said
}

func (r *replica) describeLocked() *client.Replica {
	ports := map[string]int32{}
	for _, p := range r.spec.Ports {
		if p.Name != "" {
			ports[p.Name] = p.Port
		}
	}
	out := &client.Replica{
		Namespace: r.spec.Namespace, Workload: r.spec.Workload, Gateway: r.spec.Gateway,
		ServiceAccount: r.spec.ServiceAccount, Labels: r.spec.Labels, Ports: ports, Ready: r.readyLocked(),
		NodeID: r.description().NodeID(),
		State:  objects.ReplicaState{Name: r.spec.Name, Phase: r.phase, Restarts: r.restarts, Message: r.message},
	}
	if out.State.Message == "" {
		out.State.Message = r.notice
	}
	if out.State.Message == "" && r.spec.Unconfined {
		out.State.Message = "runs without a sandbox (--privileged-workloads)"
	}
	// Some of it are words of the application and the proxy: what they answer to probes, and why they do not.
	out.State.Message = peer.Words(out.State.Message, maxMessage, false)
	if r.address.IsValid() {
		out.State.Address = r.address.String()
	}
	if r.app != nil && r.app.Running() {
		out.State.PID, out.State.Started = r.app.Record.PID, r.app.Record.Started
	}
	if r.proxy != nil && r.proxy.Running() {
		out.State.ProxyPID = r.proxy.Record.PID
		if r.spec.Gateway {
			out.State.Started = r.proxy.Record.Started
		}
	}
	if r.credential != nil {
		validity := r.credential.Validity()
		out.CertificateExpires, out.CertificateProblem = validity.Expires, validity.Problem
	}
	return out
}

// description of the replica's proxy; the address is set by prepare.
func (r *replica) description() Proxy {
	return Proxy{
		Cluster: r.agent.config.Cluster.Name, Namespace: r.spec.Namespace, Workload: r.spec.Workload, Name: r.spec.Name,
		Gateway: r.spec.Gateway, ServiceAccount: r.spec.ServiceAccount, Labels: r.spec.Labels, Address: r.address,
		Socket: filepath.Join(r.dir, "agent.sock"), Foreign: r.spec.ProxyPath != "",
	}
}

// dial connects from inside the replica's network namespace.
func (r *replica) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	return network.Dial(ctx, r.netns, kind, address)
}

// launch starts one of the replica's two processes.
func (r *replica) launch(part string, spec process.Spec, limits process.Limits) (*process.Process, error) {
	dirs, unenforced, err := r.agent.hierarchies.Create(r.cgroup(part), limits)
	if err != nil {
		return nil, err
	}
	if len(unenforced) > 0 && part == "app" {
		r.set(func() {
			r.notice = fmt.Sprintf("limits without a control group controller on this machine, not enforced: %v", unenforced)
		})
	}
	spec.Cgroups, spec.Label = dirs, r.hash
	spec.Netns = network.Path(r.netns)
	p, err := process.Start(spec, r.launchFile(part), filepath.Join(r.logs(), part+".log"), r.agent.config.Launcher,
		func(record process.Record) error { return r.note(part, &record) })
	if err != nil {
		return nil, errors.Join(err, r.note(part, nil))
	}
	return p, nil
}
