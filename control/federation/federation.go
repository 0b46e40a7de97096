package federation

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
)

// Config of the federation of one controller.
type Config struct {
	Cluster cluster.Cluster
	// Settings of the mesh.
	Settings model.Settings
	// Version of this program.
	Version   string
	Store     store.Batch
	Authority *ca.Authority
	// Audit records who joined and whose intermediates were signed, before they are handed out.
	Audit *audit.Log
	// Gateways gives the addresses by which others reach this cluster's east-west gateways now; none when it has no
	// address to advertise.
	Gateways func() []netip.AddrPort
	// Listen opens the port that the own east-west gateways pass other controllers' connections on to. It is tried again
	// until it succeeds.
	Listen func() (net.Listener, error)
	// Dial connects to other clusters' gateways; nil means an ordinary dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Rotate has every workload's certificate renewed. Its error names those that were not.
	Rotate func(ctx context.Context) error
	// Accept returns when this cluster's proxies accept certificates of all of [ca.Authority.Issuers], and go by the
	// intermediates that all clusters have announced. Its error names those that do not.
	Accept func(ctx context.Context) error
	// Changed is called, and must not block, when peers or the membership have changed.
	Changed func()
	Log     *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Random is the source of tokens; nil means crypto/rand.
	Random io.Reader
	// Pace of everything that repeats; zero values have defaults.
	Pace Pace
}

// Pace says how often things happen.
type Pace struct {
	// Alive is the time between signs of life on a stream, default 1s; Silence how long there may be none, default 3s.
	Alive, Silence time.Duration
	// Probe is the time between two looks at a peer's gateways, default 1s, and ProbeTimeout the wait for one, default 1s.
	Probe, ProbeTimeout time.Duration
	// FirstRetry and LastRetry bound the growing pause before the primary is tried again, defaults 100ms and 2s.
	// RemovedRetry, default 30s, is the pause of a cluster that was removed.
	FirstRetry, LastRetry, RemovedRetry time.Duration
	// Dial is how long one attempt to reach the primary may take, and how long its handshake, default 2s: short, so that
	// one that began while the link was dead does not delay the return.
	Dial time.Duration
	// Listen is the time between attempts to listen, default 500ms.
	Listen time.Duration
	// Keep is the least time between two writes of what is known, default 200ms.
	Keep time.Duration
	// Sweep is the time between two looks for expired tokens, default 1m.
	Sweep time.Duration
	// Resume is the time between attempts to complete a join or a change of the root, default 5s.
	Resume time.Duration
	// Overlap is how long everybody has had what a phase of a change of the root demands before the next one begins, default
	// 5s: longer than a handshake takes that began before.
	Overlap time.Duration
	// Look is the time between two looks at what commands may have changed on disk, default 2s.
	Look time.Duration
}

func (p *Pace) complete() {
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{
		{&p.Alive, time.Second}, {&p.Silence, 3 * time.Second}, {&p.Probe, time.Second}, {&p.ProbeTimeout, time.Second},
		{&p.FirstRetry, 100 * time.Millisecond}, {&p.LastRetry, 2 * time.Second}, {&p.RemovedRetry, 30 * time.Second}, {&p.Dial, 2 * time.Second},
		{&p.Listen, 500 * time.Millisecond}, {&p.Keep, 200 * time.Millisecond}, {&p.Sweep, time.Minute}, {&p.Resume, 5 * time.Second},
		{&p.Look, 2 * time.Second}, {&p.Overlap, 5 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
}

// Federation is a controller's part in the mesh, as primary or as member. Make one with [Open].
type Federation struct {
	config   Config
	counters *counters
	tokens   *tokens
	// Each holds one value when there is work: to write what is known, to look at the peers to probe, to dial, to bring a
	// change of the mesh's root further.
	unkept, reprobe, redial, reroot chan struct{}
	// keeping is held while what is known is written; written is the state file as it is on disk, nil when it could not be read.
	keeping sync.Mutex
	written *kept
	// onDisk is what was written of the other clusters; keeping guards it.
	onDisk map[string]*onDisk
	// changing is held by what changes the membership or the issuer.
	changing *semaphore.Weighted
	// primacy is held, to read, by what only a primary may do, and to write when it begins to join another mesh.
	primacy sync.RWMutex

	// setting is held while the objects are taken.
	setting sync.Mutex

	mu         sync.Mutex
	member     bool
	membership Membership
	// joining says that a cluster that was its own primary joins another mesh: it is none any more, and no member yet.
	joining bool
	// removed says why the primary took this cluster out of its mesh, empty when it did not.
	removed string
	// own is what this cluster says of itself; another one takes its place, it is not changed.
	own *State
	// peers holds what is known of the other clusters, by name.
	peers map[string]*entry
	// unwritten are the clusters of which something else is on disk than what is known.
	unwritten map[string]bool
	// clusters are the Cluster objects; replicas are these and the GlobalNamespaces, as they are sent to members, and sharing is
	// what the GlobalNamespaces say.
	clusters map[string]clusterInfo
	replicas map[objects.Key]replica
	sharing  *resolve.Sharing
	// announced is what members are told of this cluster itself, announcements how many there were of all.
	announced     *announcement
	announcements uint64
	// streams of members, at a primary, and those that wait for their turn.
	streams map[string]*stream
	waiting map[*stream]struct{}
	// rates are how often members may have the mesh at work, by membership, at a primary.
	rates map[string]*rates
	// live is a member's connection to the primary, problem why there is none, skew that the clocks are apart.
	live          *session
	problem, skew string
	// clock is by how much the primary's clock is ahead.
	clock time.Duration
	// root is how far a change of the mesh's root is.
	root rootState
	// former is how far the cluster is with the roots that it left.
	former formerState
	// renewals of this cluster's workloads.
	renewals renewals
	// judged are the anchors of other clusters that were looked at.
	judged judged
	// anchors are this cluster's own when they were last looked at.
	anchors []string
	// listenError says why nobody can reach this cluster's federation port.
	listenError string
}

// entry is one other cluster.
type entry struct {
	State
	// connected says that its stream to the primary stands, lastSeen when something came over it.
	connected bool
	lastSeen  time.Time
	// reachable says that one of its gateways answers, unreachable why not.
	reachable   bool
	unreachable string
	failures    int
	// announced is what a primary tells others of it, nil until somebody has to be told, and stale once there is something else to tell.
	announced *announcement
	stale     bool
}

// clusterInfo is what a Cluster object says.
type clusterInfo struct {
	primary    bool
	joined     time.Time
	membership string
}

// Open reads what was kept. Nothing is connected before [Federation.Run].
func Open(config Config) (*Federation, error) {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Random == nil {
		config.Random = rand.Reader
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{}).DialContext
	}
	config.Pace.complete()
	f := &Federation{
		config: config, changing: semaphore.NewWeighted(1), counters: newCounters(), tokens: newTokens(config.Store, config.Now, config.Random),
		unkept: make(chan struct{}, 1), reprobe: make(chan struct{}, 1), redial: make(chan struct{}, 1), reroot: make(chan struct{}, 1),
		own: &State{}, peers: map[string]*entry{}, unwritten: map[string]bool{}, onDisk: map[string]*onDisk{}, sharing: resolve.NewSharing(config.Settings, nil), clusters: map[string]clusterInfo{}, streams: map[string]*stream{}, waiting: map[*stream]struct{}{}, rates: map[string]*rates{}, judged: judged{},
	}
	if err := os.MkdirAll(dir(config.Cluster), 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	var err error
	if f.membership, f.member, err = ReadMembership(config.Cluster); err != nil {
		return nil, err
	}
	if _, f.joining, err = unfinished(config.Cluster, f.membership); err != nil {
		return nil, err
	}
	f.joining = f.joining && !f.member
	if err := f.recall(); err != nil {
		return nil, err
	}
	return f, nil
}

// mostTurn is how long a request waits for what changes the membership or the issuer at this moment: a step in the
// background is mostly short, and its result is seen before it has let go.
const mostTurn = 2 * time.Second

// takeTurn has the caller alone change the membership or the issuer, and says whether it may; it then releases f.changing.
func (f *Federation) takeTurn(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, mostTurn)
	defer cancel()
	return f.changing.Acquire(ctx, 1) == nil
}

// Run connects, listens, relays and probes until ctx ends. Nothing that others do or leave undone ends it.
func (f *Federation) Run(ctx context.Context) {
	var parts sync.WaitGroup
	for _, part := range []func(context.Context){f.listenLoop, f.memberLoop, f.probeLoop, f.keepLoop, f.sweepLoop, f.resumeLoop, f.rootLoop} {
		parts.Go(func() { part(ctx) })
	}
	parts.Wait()
	f.closeKept()
}

// Primary is the name of the mesh's primary: this cluster's own when it is that.
func (f *Federation) Primary() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.primaryLocked()
}

func (f *Federation) primaryLocked() string {
	if f.member {
		return f.membership.Primary
	}
	return f.config.Cluster.Name
}

// Joining says that the cluster is about to leave its own mesh for another one. What belongs to a primary cannot be made
// here any more.
func (f *Federation) Joining() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.joining
}

func (f *Federation) setJoining(joining bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joining = joining
}

// Peers are the other clusters, sorted by name, with the services that they export to this one.
func (f *Federation) Peers() []registry.Peer {
	f.mu.Lock()
	names := slices.Sorted(maps.Keys(f.peers))
	out, announced := make([]registry.Peer, 0, len(names)), make([]*announcement, len(names))
	for i, name := range names {
		e := f.peers[name]
		out = append(out, registry.Peer{Cluster: name, Gateways: e.Gateways, Reachable: e.reachable, Locality: e.Locality, Anchors: e.Anchors, Services: e.Services})
		// A member was told only what it may know.
		if !f.member {
			announced[i] = f.announcementOf(name, e)
		}
	}
	f.mu.Unlock()
	for i := range out {
		out[i].Anchors = f.anchorsOf(out[i].Cluster, out[i].Anchors)
		if a := announced[i]; a != nil {
			out[i].Services = a.view(f.config.Cluster.Name).Services
		}
	}
	return out
}

// SetOwn says what this cluster exports. It is told to the others when it changed.
func (f *Federation) SetOwn(locality registry.Locality, services *registry.Exports) {
	next := State{About: About{Gateways: f.config.Gateways(), Locality: locality, Version: f.config.Version}, Services: services}
	if next.Services = within(services); next.Services != services {
		f.config.Log.Error("not all services can be exported", "services", services.Len(), "exported", next.Services.Len(), "most", maxServices, "bytes", maxStateBytes)
	}
	f.mu.Lock()
	before := f.own
	f.mu.Unlock()
	// States are replaced, never changed, so that others need not wait for this.
	if before.equal(next) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = &next
	f.wakeAll()
}

// nearby says whether other clusters may have gateways on the loopback interface: only where this one, or the primary as
// its member knows it, is there too.
func (f *Federation) nearby() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.own.Gateways {
		if g.Addr().IsLoopback() {
			return true
		}
	}
	primary, err := netip.ParseAddrPort(f.membership.Address)
	return err == nil && primary.Addr().IsLoopback()
}

// wakeAll has every stream look for what it has not sent yet. The lock is held.
func (f *Federation) wakeAll() {
	for _, s := range f.streams {
		signal(s.wake)
	}
	if f.live != nil {
		signal(f.live.wake)
	}
}

// mark has everybody look at clusters of which something else is known. The lock is held.
func (f *Federation) mark(names ...string) {
	for _, name := range names {
		f.unwritten[name] = true
		if e := f.peers[name]; e != nil {
			e.stale = true
		}
		for _, s := range f.streams {
			s.due.peer(name)
		}
	}
}

// changed tells everybody that something else is known of these clusters. The lock is held.
func (f *Federation) changed(names ...string) {
	f.mark(names...)
	signal(f.unkept)
	signal(f.reprobe)
	f.wakeAll()
	f.config.Changed()
}

// forgetAll forgets all other clusters. The lock is held.
func (f *Federation) forgetAll() {
	names := slices.Collect(maps.Keys(f.peers))
	clear(f.peers)
	f.changed(names...)
}

// sweepLoop forgets expired tokens.
func (f *Federation) sweepLoop(ctx context.Context) {
	for wait(ctx, f.config.Pace.Sweep, nil) {
		_, swept, err := f.tokens.list(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable) {
			f.config.Log.Warn("expired join tokens not swept", "error", err)
		}
		for range swept {
			f.counters.add(countTokensSwept)
		}
	}
}

// wait returns false when ctx has ended. A value in kick, which may be nil, ends the wait early.
func wait(ctx context.Context, d time.Duration, kick <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-kick:
	}
	return true
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
