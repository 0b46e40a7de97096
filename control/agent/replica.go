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
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent/dns"
	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/objects"
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

	credential *identity.Credential
	socket     *identity.Socket

	// keeping is held while the state is written; before mu.
	keeping sync.Mutex

	mu         sync.Mutex
	address    netip.Addr
	proxy, app *process.Process
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
}

// kept is what a new agent needs to find the replica again.
type kept struct {
	Hash     string          `json:"hash"`
	App      *process.Record `json:"app,omitempty"`
	Proxy    *process.Record `json:"proxy,omitempty"`
	Restarts int             `json:"restarts"`
	// Ended says that the application ended and its restart policy keeps it so.
	Ended string `json:"ended,omitempty"`
	// ProxyReady and AppReady as they were: a new agent goes by them until it has asked itself, so that a replica does
	// not lose its traffic because its agent was replaced.
	ProxyReady bool `json:"proxyReady"`
	AppReady   bool `json:"appReady"`
}

func (a *Agent) newReplica(spec replicaSpec) *replica {
	return &replica{
		agent: a, spec: spec, hash: spec.hash(),
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

// resume takes over the readiness of a replica that runs already, before anyone is told of it.
func (r *replica) resume() {
	var state kept
	if process.ReadRecord(r.statePath(), &state) != nil || state.Hash != r.hash || !network.Exists(r.netns) {
		return
	}
	address, err := r.agent.addresses.Get(r.spec.key())
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.address = address
	r.restarts = state.Restarts
	r.proxyReady = state.ProxyReady && state.Proxy != nil && state.Proxy.Alive()
	r.appReady = state.AppReady && state.App != nil && state.App.Alive()
	if r.readyLocked() {
		r.phase = phaseReady
	}
}

// readKept returns what an earlier agent kept of this very spec. Processes of another one are stopped. lost says that it
// could not be read: what runs is the truth then.
func (r *replica) readKept() (state kept, lost bool) {
	if err := durable.Sweep(r.dir, time.Now().Add(-unfinishedAge)); err != nil {
		r.log.Warn("files that a killed writer left are still there", "error", err)
	}
	err := process.ReadRecord(r.statePath(), &state)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.log.Warn("kept state is unreadable; looking for what runs", "error", err)
		lost, state = true, kept{Hash: r.hash}
	}
	if (err == nil || lost) && state.Hash == r.hash && network.Exists(r.netns) {
		return state, lost
	}
	for _, record := range []*process.Record{state.App, state.Proxy} {
		if record != nil {
			record.Kill(stopGrace)
		}
	}
	r.agent.hierarchies.KillMembers(r.cgroup("app"))
	r.agent.hierarchies.KillMembers(r.cgroup("proxy"))
	return kept{}, false
}

func (r *replica) statePath() string { return filepath.Join(r.dir, "state.json") }

// find finds one of the replica's two processes that an earlier agent started; ended says that it has ended since.
func (r *replica) find(part string, record *process.Record, lost bool) (p *process.Process, ended bool) {
	return process.Find(process.Search{Hierarchies: r.agent.hierarchies, Group: r.cgroup(part), File: r.launchFile(part), Record: record, Lost: lost, Label: r.hash})
}

func (r *replica) launchFile(part string) string { return filepath.Join(r.dir, part+".json") }

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
	address, err := r.agent.addresses.Get(r.spec.key())
	if err != nil {
		return err
	}
	r.set(func() { r.address = address })
	if err := network.Attach(c, r.spec.Namespace, r.spec.Name, address); err != nil {
		return err
	}
	if !r.spec.Gateway {
		if err := network.Capture(r.netns, r.agent.options.Family); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.dir, 0o711); err != nil {
		return fmt.Errorf("make runtime directory: %w", err)
	}
	logs := r.logs()
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	resolv := dns.ResolvConf(r.agent.gateway(), r.spec.Namespace, cluster.Domain)
	if err := durable.Write(filepath.Join(r.dir, "resolv.conf"), []byte(resolv), 0o644); err != nil {
		return fmt.Errorf("write resolv.conf: %w", err)
	}
	if r.socket != nil {
		return nil
	}
	credential := identity.NewCredential(ca.Identity{TrustDomain: cluster.Domain, Namespace: r.spec.Namespace,
		ServiceAccount: r.spec.ServiceAccount}, r.agent.client, r.log)
	description := r.description()
	node, err := r.agent.config.Node(description)
	if err != nil {
		return fmt.Errorf("describe proxy: %w", err)
	}
	socket, err := identity.Listen(identity.Config{
		Path: filepath.Join(r.dir, "agent.sock"), Netns: network.Path(r.netns), Credential: credential, Node: node,
		Controller: c.XDSSocket(), Log: r.log,
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
	if err := durable.WriteFor(path, bootstrap, 0o640, cluster.ProxyUID, cluster.ProxyUID); err != nil {
		socket.Close()
		return fmt.Errorf("write proxy bootstrap: %w", err)
	}
	r.set(func() { r.socket, r.credential = socket, credential })
	return nil
}

func (r *replica) logs() string {
	return filepath.Join(r.agent.config.Cluster.Logs(), r.spec.Namespace, r.spec.Name)
}

// set changes state under the lock, keeps what a new agent needs and tells whoever waits, the controller included.
func (r *replica) set(f func()) {
	r.mu.Lock()
	proxyReady, appReady := r.proxyReady, r.appReady
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
	r.mu.Unlock()
	if record {
		r.keep()
	}
	r.agent.dirty()
}

func (r *replica) readyLocked() bool {
	return r.proxyReady && (r.appReady || r.spec.Gateway) && !r.draining
}

// note keeps that a process is about to run as one of the replica's two, before it does; nil that there is none.
func (r *replica) note(part string, record *process.Record) error {
	r.mu.Lock()
	if record == nil {
		delete(r.noted, part)
	} else {
		r.noted[part] = record
	}
	r.mu.Unlock()
	return r.save()
}

// keep writes what the next agent needs. A failure is told; the next change tries again.
func (r *replica) keep() {
	if err := r.save(); err != nil {
		r.log.Warn("the replica's state is not kept", "error", err)
	}
}

func (r *replica) save() error {
	// One at a time, so that the last state is the one that stays.
	r.keeping.Lock()
	defer r.keeping.Unlock()
	r.mu.Lock()
	state := kept{Hash: r.hash, Restarts: r.restarts, Ended: r.ended, ProxyReady: r.proxyReady, AppReady: r.appReady, App: r.noted["app"], Proxy: r.noted["proxy"]}
	r.mu.Unlock()
	return process.WriteRecord(r.statePath(), state)
}

// ready says whether traffic may come, with a channel that closes at the next change.
func (r *replica) ready() (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readyLocked(), r.changed
}

// report describes the replica for the controller.
func (r *replica) report() client.Replica {
	ports := map[string]int32{}
	for _, p := range r.spec.Ports {
		if p.Name != "" {
			ports[p.Name] = p.Port
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := client.Replica{
		Namespace: r.spec.Namespace, Workload: r.spec.Workload, Gateway: r.spec.Gateway,
		ServiceAccount: r.spec.ServiceAccount, Labels: r.spec.Labels, Ports: ports, Ready: r.readyLocked(),
		NodeID: r.description().NodeID(),
		State:  objects.ReplicaState{Name: r.spec.Name, Phase: r.phase, Restarts: r.restarts, Message: r.message},
	}
	if out.State.Message == "" {
		out.State.Message = r.notice
	}
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

// startApp starts the application.
func (r *replica) startApp() (*process.Process, error) {
	uid, gid, home, err := account(r.spec.User)
	if err != nil {
		return nil, err
	}
	if len(r.spec.Command) == 0 {
		return nil, errors.New("spec.command is empty")
	}
	program, err := process.Resolve(r.spec.Command[0], r.agent.config.Bin)
	if err != nil {
		return nil, err
	}
	environment := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home,
		"HOSTNAME=" + r.spec.Name, "HEDDLE_NAMESPACE=" + r.spec.Namespace, "HEDDLE_WORKLOAD=" + r.spec.Workload,
		"HEDDLE_POD_IP=" + r.address.String(),
	}
	for _, e := range r.spec.Env {
		environment = append(environment, e.Name+"="+e.Value)
	}
	return r.launch("app", process.Spec{
		Command: append([]string{program}, r.spec.Command[1:]...), Env: environment, UID: uid, GID: gid,
		// Pods are called by their own name; so are replicas. The kernel takes 64 bytes.
		Hostname: r.spec.Name[:min(len(r.spec.Name), 63)], Resolv: filepath.Join(r.dir, "resolv.conf"),
		// The mesh's sockets and keys are nobody's business but the agent's, even if the application is root.
		Hide: []string{r.agent.config.Cluster.RunRoot, r.agent.config.Cluster.DataRoot},
	}, r.spec.Limits)
}

// superviseApp keeps the application running as its restart policy says, and probes it.
func (r *replica) superviseApp(ctx context.Context, state kept, lost bool) {
	if state.Ended != "" {
		r.end(state.Ended, r.spec.Restart == v1alpha1.RestartOnFailure)
		return
	}
	app, ended := r.find("app", state.App, lost)
	if ended && r.spec.Restart == v1alpha1.RestartNever {
		r.finish("application ended while no agent ran, its exit code is unknown", false)
		return
	}
	if app == nil {
		r.set(func() { r.appReady = false })
		if !r.awaitProxy(ctx) {
			return
		}
	}
	var pauses backoff
	for ctx.Err() == nil {
		began := time.Now()
		var reason string
		failed := true
		if app == nil {
			var err error
			if app, err = r.startApp(); err != nil {
				reason = err.Error()
			}
		}
		if app != nil {
			r.set(func() {
				r.app, r.backingOff = app, false
				if !r.appReady {
					r.message = "waiting for the readiness probe"
				}
			})
			r.keep()
			r.watchApp(ctx, app)
			if ctx.Err() != nil {
				return
			}
			reason, failed = app.Exit()
			reason = "application ended: " + reason
			// Children that outlived the application hold its ports.
			r.agent.hierarchies.KillMembers(r.cgroup("app"))
		}
		r.log.Warn("application is not running", "reason", reason)
		if app != nil && (r.spec.Restart == v1alpha1.RestartNever || r.spec.Restart == v1alpha1.RestartOnFailure && !failed) {
			r.finish(reason, !failed)
			return
		}
		pause := pauses.next(time.Since(began))
		r.set(func() {
			r.app, r.appReady, r.backingOff = nil, false, true
			r.message = fmt.Sprintf("%s; starting again in %s", reason, pause)
			if app != nil {
				r.restarts++
			}
			delete(r.noted, "app")
		})
		r.keep()
		app = nil
		if !wait(ctx, pause) {
			return
		}
	}
}

// finish keeps that the application has ended for good.
func (r *replica) finish(reason string, succeeded bool) {
	r.set(func() {
		r.app, r.appReady, r.ended = nil, false, reason
		delete(r.noted, "app")
	})
	r.keep()
	r.end(reason, succeeded)
}

func (r *replica) end(reason string, succeeded bool) {
	r.set(func() {
		r.phase, r.message = phaseFailed, reason
		if succeeded {
			r.phase = phaseStopped
		}
	})
}

// awaitProxy blocks until the proxy is ready for the first time.
func (r *replica) awaitProxy(ctx context.Context) bool {
	for {
		r.mu.Lock()
		ready, changed := r.proxyReady, r.changed
		r.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// watchApp probes the application until it ends or ctx does.
func (r *replica) watchApp(ctx context.Context, app *process.Process) {
	delay, period, timeout := timing(r.spec.Readiness)
	state := newThresholds(r.spec.Readiness)
	if state.ready = r.isAppReady(); state.ready {
		delay = 0
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-app.Done():
			return
		case <-timer.C:
		}
		probeCtx, cancel := context.WithTimeout(ctx, timeout)
		err := probe(probeCtx, r.dial, r.address, r.spec.Readiness)
		cancel()
		if ready := state.add(err == nil); ready != r.isAppReady() || !ready {
			r.set(func() {
				r.appReady = ready
				if !ready && err != nil {
					r.message = "not ready: " + err.Error()
				}
			})
		}
		next := period
		if !state.ready && err != nil {
			// A starting application is asked more often, so that it gets traffic as soon as it can.
			next = min(period, 200*time.Millisecond)
		}
		timer.Reset(next)
	}
}

func (r *replica) isAppReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.appReady
}
