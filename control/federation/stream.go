package federation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// stream is what a primary knows of one member's stream.
type stream struct {
	cluster string
	// wake holds one value when there may be something to send.
	wake chan struct{}
	// look holds one value when it is time to see whether the cluster still is a member.
	look chan struct{}
	// end ends it with an error that the member is told, and soon by force if the member does not listen.
	end func(error)

	in intake
	// progress bounds how often the member's word on a change of the root is looked at.
	progress *rate.Limiter

	// What was sent, by its hash. Only the sender touches it.
	begun   bool
	peers   map[string][32]byte
	objects map[objects.Key][32]byte
}

var errReplaced = refuse(pb.Refusal_REPLACED, "a newer stream of this cluster took this one's place", "", "if it happens again and again, two controllers run with this cluster's data")

// sync serves one member's stream.
func (f *Federation) sync(call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary]) error {
	who, connection, err := f.caller(call.Context())
	if err != nil {
		f.counters.add(countCallsRefused)
		return err
	}
	// A member that says nothing is gone; closing its connection also ends a send that it does not take.
	watchdog := time.AfterFunc(f.config.Pace.Silence, func() {
		f.counters.add(countStreamsSilent)
		f.config.Log.Warn("member is silent: its stream ends", "cluster", who.cluster)
		_ = connection.conn.Close()
	})
	defer watchdog.Stop()
	first, err := call.Recv()
	if err != nil {
		return ended(err)
	}
	if first.GetBegin() == nil {
		return refuse(pb.Refusal_INVALID, "a stream begins with Begin", "", "use the same version of heddle on both sides")
	}
	if err := checkProtocol(first.GetBegin().GetProtocol(), first.GetBegin().GetVersion(), f.config.Version); err != nil {
		f.counters.add(countCallsRefused)
		return err
	}
	ctx, cancel := context.WithCancelCause(call.Context())
	defer cancel(nil)
	s := &stream{cluster: who.cluster, wake: make(chan struct{}, 1), look: make(chan struct{}, 1), peers: map[string][32]byte{}, objects: map[objects.Key][32]byte{}}
	s.progress = rate.NewLimiter(progressRate, progressBurst)
	s.end = func(cause error) {
		cancel(cause)
		time.AfterFunc(f.config.Pace.Silence, func() { _ = connection.conn.Close() })
	}
	// Once before it takes the place of another stream, and once in the loop below: a removal in between is seen there.
	if err := f.authorize(ctx, who); err != nil {
		f.counters.add(countCallsRefused)
		return err
	}
	own := f.ratesOf(who)
	s.in.limiter = own.states
	// What takes time here is no silence of the member's.
	watchdog.Stop()
	if !f.inTurn(ctx, own) {
		return ended(context.Cause(ctx))
	}
	f.attach(s)
	defer f.detach(s)
	f.counters.add(countStreams)
	f.config.Log.Info("member connected", "cluster", who.cluster, "version", clip(first.GetBegin().GetVersion()))
	go func() {
		// receive winds the watchdog up, so that it is receive's end that stops it for good.
		defer watchdog.Stop()
		cancel(f.receive(call, s, watchdog))
	}()
	err = f.send(ctx, call, s, who)
	f.config.Log.Info("member's stream ended", "cluster", who.cluster, "reason", err)
	return err
}

// ended is nil for the ends that streams have.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// attach makes the stream its cluster's one and only.
func (f *Federation) attach(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.streams[s.cluster]; old != nil {
		f.counters.add(countStreamsReplaced)
		old.end(errReplaced)
	}
	f.streams[s.cluster] = s
	e := f.book[s.cluster]
	if e == nil {
		e = &entry{}
		f.book[s.cluster] = e
	}
	e.connected, e.lastSeen = true, f.config.Now()
	f.changed()
}

func (f *Federation) detach(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[s.cluster] != s {
		return // A newer one has the place.
	}
	delete(f.streams, s.cluster)
	if e := f.book[s.cluster]; e != nil {
		e.connected = false
		if _, known := f.clusters[s.cluster]; !known {
			delete(f.book, s.cluster)
		}
	}
	f.changed()
}

// receive takes what the member says until its stream ends; the error is why.
func (f *Federation) receive(call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary], s *stream, watchdog *time.Timer) error {
	var growing *pb.State
	size := 0
	for {
		watchdog.Reset(f.config.Pace.Silence)
		m, err := call.Recv()
		if err != nil {
			return err
		}
		// What takes time here is no silence of the member's.
		watchdog.Stop()
		f.mu.Lock()
		if e := f.book[s.cluster]; e != nil && f.streams[s.cluster] == s {
			e.lastSeen = f.config.Now()
		}
		f.mu.Unlock()
		if p := m.GetRootProgress(); p != nil {
			f.receiveProgress(s, p)
			continue
		}
		part := m.GetState()
		if part == nil {
			continue
		}
		more := part.GetMore()
		if size += proto.Size(part); size > maxStateBytes {
			f.counters.add(countStatesRefused)
			return refuse(pb.Refusal_INVALID, "the cluster's state cannot be taken", fmt.Sprintf("it is larger than %d MiB", maxStateBytes>>20),
				"offer fewer services to other clusters, or endpoints with fewer different labels")
		}
		if growing == nil {
			growing = part
		} else {
			growing.Services = append(growing.Services, part.GetServices()...)
		}
		if len(growing.GetServices()) <= maxServices && more {
			continue
		}
		state, err := readState(growing, f.config.Settings.TrustDomain, f.nearby())
		growing, size = nil, 0
		if err != nil {
			f.counters.add(countStatesRefused)
			return refuse(pb.Refusal_INVALID, "the cluster's state cannot be taken", clip(err.Error()), "use the same version of heddle on both sides")
		}
		f.counters.add(countStatesReceived)
		f.noteInTime(s, state)
	}
}

// send sends what the member has to know whenever that changes, and signs of life in between.
func (f *Federation) send(ctx context.Context, call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary], s *stream, who peerOf) error {
	out := &outgoing[*pb.FromPrimary]{send: call.Send}
	defer out.pulse(ctx, f.config.Pace.Alive, func() *pb.FromPrimary {
		// It also has the loop below look whether the member still is one.
		signal(s.look)
		return &pb.FromPrimary{Message: &pb.FromPrimary_Alive{Alive: &pb.Alive{Time: f.config.Now().UnixNano()}}}
	})()
	var root *pb.Root
	for woken := true; ; {
		// While the store does not answer, nobody is thrown out.
		if err := f.authorize(ctx, who); err != nil && !errors.Is(err, store.ErrUnavailable) {
			if ctx.Err() != nil {
				return ended(context.Cause(ctx))
			}
			f.counters.add(countCallsRefused)
			return err
		}
		if woken {
			// Before the updates are made: what they announce is what the change needs.
			now := f.rootMessage()
			for _, u := range f.updates(s) {
				if err := out.say(&pb.FromPrimary{Message: &pb.FromPrimary_Update{Update: u}}); err != nil {
					return ended(err)
				}
				f.counters.add(countUpdatesSent)
			}
			if !proto.Equal(now, root) {
				if err := out.say(&pb.FromPrimary{Message: &pb.FromPrimary_Root{Root: now}}); err != nil {
					return ended(err)
				}
				root = now
			}
		}
		woken = false
		select {
		case <-ctx.Done():
			return ended(context.Cause(ctx))
		case <-s.wake:
			woken = true
		case <-s.look:
		}
	}
}

// outgoing is the sending side of a stream. Signs of life go out while what takes longer is being prepared.
type outgoing[M any] struct {
	mu   sync.Mutex
	send func(M) error
}

func (o *outgoing[M]) say(m M) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.send(m)
}

// pulse says something every so often, until ctx or the stream ends or the function that it gives is called, which waits
// for it.
func (o *outgoing[M]) pulse(ctx context.Context, every time.Duration, what func() M) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Why a stream does not take anything any more, its reader knows.
		for wait(ctx, every, nil) && o.say(what()) == nil {
		}
	}()
	return func() { cancel(); <-done }
}

// updates says what the member does not know yet, and takes it as sent.
func (f *Federation) updates(s *stream) []*pb.Update {
	w := updateWriter{current: &pb.Update{Full: !s.begun}}
	f.mu.Lock()
	replicas := f.replicas
	f.mu.Unlock()
	known, self := f.snapshot(), f.config.Cluster.Name
	tell := func(name string, state State, connected bool) *pb.Peer {
		state.Services = f.share(known, state.Services, name, s.cluster)
		return &pb.Peer{Cluster: name, State: state.message(), Connected: connected}
	}
	peers := map[string]*pb.Peer{self: tell(self, f.told(), true)}
	for name, e := range known.book {
		if name != s.cluster {
			peers[name] = tell(name, e.State, e.connected)
		}
	}
	f.cut(peers, s.cluster)
	for name, p := range peers {
		// Its hash tells whether it was sent.
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			f.config.Log.Error("peer not told", "peer", name, "error", err)
			continue
		}
		if hash := sha256.Sum256(text); !s.begun || s.peers[name] != hash {
			s.peers[name] = hash
			w.peer(p)
		}
	}
	for name := range s.peers {
		if peers[name] == nil {
			delete(s.peers, name)
			u := w.room(len(name))
			u.GonePeers = append(u.GonePeers, name)
		}
	}
	there := make(map[objects.Key]bool, len(replicas))
	for _, r := range replicas {
		there[r.key] = true
		if hash := sha256.Sum256(r.text); !s.begun || s.objects[r.key] != hash {
			s.objects[r.key] = hash
			u := w.room(len(r.text))
			u.Objects = append(u.Objects, r.text)
		}
	}
	for key := range s.objects {
		if !there[key] {
			delete(s.objects, key)
			u := w.room(len(key.Name))
			u.GoneObjects = append(u.GoneObjects, &pb.ObjectKey{Group: key.Group, Kind: key.Kind, Name: key.Name})
		}
	}
	s.begun = true
	return w.finish()
}

// cut leaves out the services of the largest clusters when all together are more than a member takes, so that these do not
// keep the others away from it.
func (f *Federation) cut(peers map[string]*pb.Peer, member string) {
	sizes := make(map[string]int, len(peers))
	for name, p := range peers {
		sizes[name] = proto.Size(p)
	}
	names := slices.SortedFunc(maps.Keys(peers), func(a, b string) int { return cmp.Or(cmp.Compare(sizes[a], sizes[b]), cmp.Compare(a, b)) })
	sum := 0
	for _, name := range names {
		if sum += sizes[name]; sum > maxPeerBytes {
			f.counters.add(countPeersCut)
			f.config.Log.Error("a cluster's services are not told to a member: all together are too large", "cluster", name, "member", member, "most", maxPeerBytes)
			peers[name].State.Services = nil
		}
	}
}

// updateWriter splits an update into parts of bounded size.
type updateWriter struct {
	done    []*pb.Update
	current *pb.Update
	size    int
}

// room is the part with room for so many bytes more.
func (w *updateWriter) room(bytes int) *pb.Update {
	if w.size > 0 && w.size+bytes > partBytes {
		w.current.More = true
		w.done = append(w.done, w.current)
		w.current, w.size = &pb.Update{}, 0
	}
	w.size += bytes
	return w.current
}

// peer writes a cluster, in several pieces when it has many services: who hears nothing for long takes the sender for dead.
func (w *updateWriter) peer(p *pb.Peer) {
	services := p.State.Services
	p.State.Services = nil
	u := w.room(proto.Size(p))
	u.Peers = append(u.Peers, p)
	for _, e := range services {
		if u = w.room(proto.Size(e)); len(u.Peers) == 0 || u.Peers[len(u.Peers)-1].Cluster != p.Cluster {
			u.Peers = append(u.Peers, &pb.Peer{Cluster: p.Cluster, Continued: true, State: &pb.State{}})
		}
		last := u.Peers[len(u.Peers)-1]
		last.State.Services = append(last.State.Services, e)
	}
}

// finish gives all parts; none when there is nothing to say.
func (w *updateWriter) finish() []*pb.Update {
	if !w.current.GetFull() && w.size == 0 {
		return nil
	}
	return append(w.done, w.current)
}
