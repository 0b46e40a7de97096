// Package controller is a cluster's brain: it keeps the store, follows it and the agents' reports, builds the model,
// has it translated, serves it to the proxies, says in every object's status how far it got, signs certificates, takes
// its part in the mesh of clusters and answers the REST API.
//
// It may be killed at any time: what was acknowledged is in the store, what agents reported is kept, and proxies go on
// with what they have until the next controller is there.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/push"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/xds"
)

// Config of a controller.
type Config struct {
	Cluster cluster.Cluster
	// Version of the program.
	Version string
	// Owner, when not zero, is the user who may use the API besides root.
	Owner int
	Log   *slog.Logger
	// KeyMemory keeps the keys of Secrets for the next controller, see [seal.Memory]; nil for none.
	KeyMemory *os.File
	// Listen opens the port for other controllers; nil means port 15012 of the bridge's address.
	Listen func() (net.Listener, error)
}

// Controller of one cluster. Make one with [Run].
type Controller struct {
	config   Config
	settings model.Settings
	remote   server.Remote
	// privilegedWorkloads as the options say.
	privilegedWorkloads bool
	log                 *slog.Logger
	store               *cache.Cache
	bindings            access.Bindings
	// sealing is the store, if it encrypts Secrets by itself.
	sealing store.Sealing
	// keys are those of Secrets.
	keys      *seal.Ring
	authority *ca.Authority
	instances *registry.Instances
	// globals are the virtual addresses of imported and external services.
	globals *registry.Globals
	// dependencies are the services that workloads were seen to use.
	dependencies *registry.Dependencies
	federation   *federation.Federation
	pusher       *push.Pusher
	xds          *xds.Server
	audit        *audit.Log
	metrics      prometheus.Gatherer
	started      time.Time
	// answered holds one value when a proxy has answered, come or gone.
	answered chan struct{}
	// changed and restatus each hold one value when there is work.
	changed  chan struct{}
	restatus chan struct{}

	// keeping is held while a report is taken and kept; before mu. unkept are the agents whose last report is in no file.
	keeping sync.Mutex
	unkept  map[string]bool

	mu       sync.Mutex
	objects  map[objects.Key]*objects.Object
	revision int64
	updated  int64
	model    *resolve.Model
	// absorbing is held while objects are put into the model; before mu.
	absorbing sync.Mutex
	// staging takes what the objects come to to the proxies in steps; it is the loop's own. staged is how far that is.
	staging *staging
	staged  stageView
	// shown is what clients go by, whose names DNS servers answer; the loop's own, too.
	shown *model.Mesh
	// exporter makes what this cluster offers to others of what the objects come to; the loop's own, too.
	exporter resolve.Exporter
	// addressed are the hosts that addresses were assigned to last; the loop's own, too.
	addressed []string
	// pending are objects that the model does not have yet, revised those that it has and proxies have not, with their
	// versions, empty for one that is gone; absorbed is how many changes the model has.
	pending  map[objects.Key]bool
	revised  map[objects.Key]objects.Version
	absorbed int64
	// taken are the objects behind revised, as the model has them.
	taken map[objects.Key]*objects.Object
	// remesh says that clusters or global namespaces are among them.
	remesh bool
	// reports are the agents' last, by agent.
	reports map[string]*agentReport
	// replicas are what the reports say of workloads.
	replicas replicaStates
	// stale are the objects of which the status may be another by what the store, agents and namespaces say.
	stale map[objects.Key]struct{}
	// overfull is the agent whose report was refused last, for more replicas than are taken, and that has sent none since.
	overfull string
	problem  string
	// issuers are who this cluster's own certificates are of, as the proxies were told last.
	issuers []cluster.Issuer
	// anchors are the intermediates that all clusters' servers are known by, as the proxies were told last.
	anchors []string
	// exports are what this cluster offers to others.
	exports *registry.Exports
	// advertised are the addresses of the own gateways that were read last.
	advertised []netip.AddrPort
	// addresses are the last that were assigned, for when no more can be.
	addresses map[string]netip.Addr
	// names are what DNS servers answer; renamed is closed when there are others.
	names   client.Names
	renamed chan struct{}
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, config Config) error {
	c := &Controller{
		config: config, log: config.Log, started: time.Now(),
		instances: registry.NewInstances(registry.DefaultSilence), answered: make(chan struct{}, 1), changed: make(chan struct{}, 1), restatus: make(chan struct{}, 1),
		objects: map[objects.Key]*objects.Object{}, pending: map[objects.Key]bool{}, revised: map[objects.Key]objects.Version{}, taken: map[objects.Key]*objects.Object{}, remesh: true, reports: map[string]*agentReport{}, unkept: map[string]bool{}, renamed: make(chan struct{}),
	}
	for _, dir := range []string{config.Cluster.Data(), config.Cluster.Run()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	options, err := config.Cluster.Options()
	if err != nil {
		return err
	}
	c.privilegedWorkloads = options.PrivilegedWorkloads
	c.settings = model.SettingsFor(config.Cluster.Name, options.Family)
	c.remote = server.Remote{Address: options.APIAddress, ClientCA: options.APIClientCA}
	c.settings.Observed = options.Observed
	c.settings.Federation = netip.AddrPortFrom(options.Family.Ranges().Gateway().Addr(), cluster.PortXDS)
	_, isMember, err := federation.ReadMembership(config.Cluster)
	if err != nil {
		return err
	}
	if c.audit, err = audit.Open(audit.Options{Dir: config.Cluster.Audit(), Log: c.log}); err != nil {
		return err
	}
	defer func() {
		if err := c.audit.Close(); err != nil {
			c.log.Warn("audit log closed with an error", "error", err)
		}
	}()
	if c.authority, err = ca.Open(ca.Options{Dir: federation.AuthorityDir(config.Cluster), Cluster: config.Cluster.Name, TrustDomain: c.settings.TrustDomain, Member: isMember,
		Announce: ca.AnnounceTime, Record: c.audit.SignedOwn}); err != nil {
		return err
	}
	if c.globals, err = registry.OpenGlobals(filepath.Join(config.Cluster.Data(), "globals.json"), c.settings.Globals); err != nil {
		return err
	}
	if c.store, err = c.openStore(ctx); err != nil {
		return err
	}
	defer func() {
		if err := c.store.Close(); err != nil {
			c.log.Warn("store closed with an error", "error", err)
		}
	}()
	if err := c.builtins(ctx); err != nil {
		return err
	}
	if !isMember {
		if err := c.ownCluster(ctx); err != nil {
			return err
		}
	}
	if err := c.openFederation(); err != nil {
		return err
	}
	for _, s := range sources {
		if err := s.load(c); err != nil {
			return fmt.Errorf("endpoints of %s: %w", s.name, err)
		}
	}
	defer c.closeReports()
	if c.dependencies, err = registry.OpenDependencies(filepath.Join(config.Cluster.Data(), "dependencies.db"), time.Now); err != nil {
		return err
	}
	defer func() {
		if err := c.dependencies.Close(); err != nil {
			c.log.Warn("file of dependencies closed with an error", "error", err)
		}
	}()
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	push.Measure(c.dependencies, metrics)
	audit.Measure(c.audit, metrics)
	c.metrics = metrics
	c.pusher = push.New(c.log, metrics, c.dependencies, func(source xds.Source) *xds.Server {
		return xds.New(ctx, c.log, time.Now, metrics, source, func() {
			signal(c.restatus)
			signal(c.answered)
		})
	})
	c.xds = c.pusher.Server()
	c.model = resolve.New(c.settings)
	c.staging = newStaging(filepath.Join(config.Cluster.Data(), "stage.db"), options.StageLimit, c.log)
	defer func() {
		if err := c.staging.file.close(); err != nil {
			c.log.Warn("file of changes under way closed with an error", "error", err)
		}
	}()
	c.update(nil)
	return c.serve(ctx)
}

// serve runs the parts until ctx ends or one of them fails.
func (c *Controller) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	xdsListener, err := server.Listen(c.config.Cluster.XDSSocket())
	if err != nil {
		return fmt.Errorf("serve xDS: %w", err)
	}
	apiListener, err := server.ListenAPI(c.config.Cluster.APISocket())
	if err != nil {
		xdsListener.Close()
		return fmt.Errorf("serve API: %w", err)
	}
	discovery := c.xds.GRPC(grpc.MaxConcurrentStreams(1<<16), grpc.MaxRecvMsgSize(8<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	api := server.New(server.Config{
		Cluster: c.config.Cluster.Name, Version: c.config.Version, Settings: c.settings, Store: c.store, Bindings: &c.bindings, Sealing: c.sealing, Authority: c.authority, Controller: c,
		Federation: meshAPI{c}, Owner: c.config.Owner, PrivilegedWorkloads: c.privilegedWorkloads, Remote: c.remote, Audit: c.audit, AgentSocket: c.config.Cluster.AgentSocket(), Logs: c.config.Cluster.Logs(), Log: c.log,
		Metrics: promhttp.HandlerFor(c.metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4}),
	})
	var parts sync.WaitGroup
	part := func(name string, f func() error) {
		parts.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("follow store", func() error { c.store.Run(ctx); return nil })
	part("update", func() error { c.updateLoop(ctx); return nil })
	for _, s := range sources {
		part("endpoints of "+s.name, func() error { s.follow(c, ctx); return nil })
	}
	part("statuses", func() error { c.statusLoop(ctx); return nil })
	part("dependencies", func() error { c.dependenciesLoop(ctx); return nil })
	part("secrets", func() error { c.secretsLoop(ctx); return nil })
	part("federation", func() error { c.federation.Run(ctx); return nil })
	part("xDS", func() error { return discovery.Serve(xdsListener) })
	part("API", func() error { return api.Serve(ctx, apiListener) })
	if c.remote.Address.IsValid() {
		part("API over TLS", func() error { return api.ServeRemote(ctx) })
	}
	c.log.Info("controller ready", "cluster", c.config.Cluster.Name, "pid", os.Getpid(), "revision", c.revisionNow())
	<-ctx.Done()
	// Streams never end by themselves.
	discovery.Stop()
	parts.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// builtins makes the namespaces that every cluster has.
func (c *Controller) builtins(ctx context.Context) error {
	for _, name := range []string{"default", cluster.GatewayNamespace} {
		key := objects.Key{Kind: objects.Namespace.Kind, Name: name}
		_, err := c.store.Get(ctx, key)
		if err == nil {
			continue
		}
		if !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("look for namespace %s: %w", name, err)
		}
		o := &objects.Object{Kind: objects.Namespace, Resource: &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), Generation: 1},
		}, Origin: objects.Origin{Cluster: c.config.Cluster.Name, User: "heddle"}}
		if err := c.store.Apply(ctx, []store.Write{{Key: key, Object: o, IfVersion: store.Absent}}); err != nil && !errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
	}
	return nil
}

// gatherTime is how long changes may gather before the model is changed once for all of them.
const gatherTime = 10 * time.Millisecond

// stepPause is the least time between two looks at what all proxies owe because one of them answered: a thousand that connect
// answer thousands of times.
const stepPause = 50 * time.Millisecond

// updateLoop changes the model whenever objects or replicas changed. Changes of replicas that concern endpoints alone are put
// into force at once.
func (c *Controller) updateLoop(ctx context.Context) {
	look := time.NewTicker(optionsInterval)
	defer look.Stop()
	step, paused := time.NewTimer(0), time.NewTimer(0)
	defer step.Stop()
	defer paused.Stop()
	answered := c.answered
	for {
		if at := c.stagedNow().Look; !at.IsZero() {
			step.Reset(time.Until(at))
		}
		var replicas []registry.Change
		select {
		case <-ctx.Done():
			return
		case <-answered:
			c.step()
			answered = nil
			paused.Reset(stepPause)
			continue
		case <-paused.C:
			answered = c.answered
			continue
		case <-step.C:
			c.step()
			continue
		case <-c.changed:
		case <-look.C:
			// Another `heddle up` may have given the cluster an address for others.
			c.export()
			if c.issuersInForce() {
				continue
			}
			// Certificates under a former name of this cluster have all expired.
		case <-c.instances.Changed():
			if replicas = c.instances.Changes(); endpointsAlone(replicas) {
				c.update(replicas)
				continue
			}
		}
		timer := time.NewTimer(gatherTime)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		c.update(replicas)
	}
}

// endpointsAlone says whether all that changed is where replicas are and whether they are ready.
func endpointsAlone(changes []registry.Change) bool {
	return !slices.ContainsFunc(changes, func(c registry.Change) bool {
		return c.Before == nil || c.After == nil || !c.Before.SameShape(*c.After)
	})
}

// optionsInterval is how often it is looked whether the cluster's options have changed.
const optionsInterval = 5 * time.Second

// absorb brings the kept model up to date with the objects as they were read last.
func (c *Controller) absorb() {
	c.absorbing.Lock()
	defer c.absorbing.Unlock()
	change := resolve.Change{Objects: map[objects.Key]*objects.Object{}}
	c.mu.Lock()
	for key := range c.pending {
		o := c.objects[key]
		change.Objects[key], c.taken[key], c.revised[key] = o, o, ""
		if o != nil {
			c.revised[key] = o.Version
		}
		c.remesh = c.remesh || key.Kind == objects.Cluster.Kind || key.Kind == objects.GlobalNamespace.Kind
	}
	clear(c.pending)
	c.absorbed = c.revision
	c.mu.Unlock()
	c.model.Update(change)
}

// news is what of the objects is new in a mesh.
type news struct {
	// revised and taken are as those of [Controller], revision is how many changes the mesh has.
	revised  map[objects.Key]objects.Version
	taken    map[objects.Key]*objects.Object
	revision int64
}

// takeMesh makes the last change of the model before it is put into force, and gives the mesh with what is new since the one before.
// An admission may absorb objects at any time: those that the mesh has are all said to be new with it, so that none goes to the
// proxies unstaged, or into force unsaid.
func (c *Controller) takeMesh(change resolve.Change) (*model.Mesh, news) {
	c.absorbing.Lock()
	defer c.absorbing.Unlock()
	mesh := c.model.Update(change)
	c.mu.Lock()
	defer c.mu.Unlock()
	n := news{revised: c.revised, taken: c.taken, revision: c.absorbed}
	c.revised, c.taken = map[objects.Key]objects.Version{}, map[objects.Key]*objects.Object{}
	return mesh, n
}

// update brings the model up to date with objects, replicas and other clusters, and puts it into force. Only the loop may
// call it.
//
// A replica's readiness takes this way: server.handleReportChange, ReportChange, registry.Instances.Revise and Changed; updateLoop,
// endpointsAlone, update; resolve.Model.Update and setInstance; stage, push, push.Pusher.Update, renewEndpoints and
// translate.Cache.Assign; xds.Server.Update, Group.apply, Proxy.note; exchange and respond, in each stream's goroutine.
//
// The model is changed three times, since each change needs what the one before came to: absorb has it know the objects, as an
// admission does that cannot wait; then come replicas, other clusters and certificates, and hosts of imported services with them,
// which get their virtual addresses with the last one. That one, takeMesh, has what is new and the mesh belong together.
func (c *Controller) update(replicas []registry.Change) {
	c.absorb()
	change := resolve.Change{Instances: map[string]*registry.Instance{}}
	for _, r := range slices.Concat(replicas, c.instances.Changes()) {
		if r.After != nil {
			change.Instances[r.After.ID()] = r.After
		} else if r.Before != nil {
			change.Instances[r.Before.ID()] = nil
		}
	}
	c.mu.Lock()
	var all []*objects.Object
	remesh := c.remesh
	if c.remesh = false; remesh {
		all = slices.Collect(maps.Values(c.objects))
	}
	c.mu.Unlock()
	if remesh {
		c.federation.SetObjects(all)
	}
	peers, issuers, anchors := c.federation.Peers(), c.authority.Issuers(), c.authority.Anchors()
	change.Peers, change.Issuers, change.Anchors = &peers, &issuers, &anchors
	c.model.Update(change)
	var addresses map[string]netip.Addr
	problem := ""
	if hosts := c.model.GlobalHosts(); !slices.Equal(hosts, c.addressed) || c.problem != "" {
		if addresses, problem = c.assign(hosts); problem == "" {
			c.addressed = hosts
		}
	}
	mesh, fresh := c.takeMesh(resolve.Change{Addresses: addresses})
	c.stage(mesh, fresh.taken)
	c.push(push.Update{Revision: fresh.revision, Revised: fresh.revised})
	c.step()
	exports := c.exporter.Exports(mesh)
	c.mu.Lock()
	c.updated, c.problem, c.issuers, c.anchors, c.exports = fresh.revision, problem, issuers, anchorsOf(anchors, peers), exports
	c.mu.Unlock()
	c.export()
	signal(c.restatus)
}

// Admit implements [server.Controller].
func (c *Controller) Admit(writes []store.Write) ([]store.Write, map[objects.Key]resolve.Warnings, []error) {
	c.absorb()
	// What a trial restates is taken away even where nothing else happens.
	defer signal(c.restatus)
	return c.model.Admit(writes)
}

func (c *Controller) revisionNow() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision
}

// Status implements [server.Controller].
func (c *Controller) Status(context.Context) (client.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return client.Status{
		Cluster: c.config.Cluster.Name, Version: c.config.Version, Started: c.started, PID: os.Getpid(), Revision: c.revision,
		ModelRevision: c.updated, RootHash: c.authority.RootHash(), Objects: len(c.objects), Proxies: c.xds.Connected(), Problem: c.problems(),
	}, nil
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
