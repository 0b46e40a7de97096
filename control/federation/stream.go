package federation

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	cluster, membership string
	// wake holds one value when there may be something to send.
	wake chan struct{}
	// look holds one value when it is time to see whether the cluster still is a member.
	look chan struct{}
	// end ends it with an error that the member is told, and soon by force if the member does not listen.
	end func(error)

	in intake
	// progress bounds how often the member's word on a change of the root is looked at.
	progress *rate.Limiter

	// due is what may have to be sent. The federation's lock guards it.
	due due
	// What was sent. Only the sender touches it.
	begun bool
	// revision counts the updates.
	revision uint64
	peers    map[string]telling
	objects  map[objects.Key][]byte
	// bytes is what the member may know of all clusters together, cut that it is more than it takes.
	bytes int
	cut   bool
}

func newStream(who peerOf) *stream {
	return &stream{
		cluster: who.cluster, membership: who.membership, wake: make(chan struct{}, 1), look: make(chan struct{}, 1), progress: rate.NewLimiter(progressRate, progressBurst),
		due: due{all: true}, peers: map[string]telling{}, objects: map[objects.Key][]byte{},
	}
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
	s := newStream(who)
	s.end = func(cause error) {
		cancel(cause)
		time.AfterFunc(f.config.Pace.Silence, func() { _ = connection.conn.Close() })
	}
	// Before it waits, and once more when it has the place of the cluster's stream: it may have waited for long.
	if err := f.authorize(ctx, who); err != nil {
		f.counters.add(countCallsRefused)
		return err
	}
	own := f.ratesOf(who)
	s.in.limiter = own.states
	// What takes time here is no silence of the member's.
	watchdog.Stop()
	if !f.inTurn(ctx, s, own) {
		return ended(context.Cause(ctx))
	}
	defer f.detach(s)
	// Nothing that it says is taken before.
	if err := f.takePlace(ctx, s, who); err != nil {
		if ctx.Err() != nil {
			return ended(context.Cause(ctx))
		}
		f.counters.add(countCallsRefused)
		return err
	}
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

// takePlace makes the stream of a member its cluster's one and only. One whose name is another member's now does not get its place:
// the store has one membership of a name, and is asked again when there is a stream of another one.
func (f *Federation) takePlace(ctx context.Context, s *stream, who peerOf) error {
	var other *stream
	for {
		if err := f.authorize(ctx, who); err != nil {
			return err
		}
		holder := f.attach(s, other)
		if holder == nil {
			// Whom a removal did not find among the streams was removed before, and the store says so.
			return f.authorize(ctx, who)
		}
		other = holder
	}
}

// attach gives the stream its cluster's place, unless a stream of another membership has that, which it returns. former is one
// that was seen there before the store said that s is of the member.
func (f *Federation) attach(s, former *stream) (holder *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.streams[s.cluster]; old != nil {
		if old.membership != s.membership && old != former {
			return old
		}
		f.counters.add(countStreamsReplaced)
		old.end(errReplaced)
	}
	f.streams[s.cluster] = s
	e := f.peers[s.cluster]
	if e == nil {
		e = &entry{}
		f.peers[s.cluster] = e
	}
	e.connected, e.lastSeen = true, f.config.Now()
	f.changed(s.cluster)
	return nil
}

func (f *Federation) detach(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[s.cluster] != s {
		return // A newer one has the place.
	}
	delete(f.streams, s.cluster)
	if e := f.peers[s.cluster]; e != nil {
		e.connected = false
		if _, known := f.clusters[s.cluster]; !known {
			delete(f.peers, s.cluster)
		}
	}
	f.changed(s.cluster)
}

// receive takes what the member says until its stream ends; the error is why.
func (f *Federation) receive(call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary], s *stream, watchdog *time.Timer) error {
	var growing *pb.State
	size := 0
	revision := uint64(0)
	// What is known already is not made anew when the stream begins with it.
	var known State
	f.mu.Lock()
	if e := f.peers[s.cluster]; e != nil {
		known = e.State
	}
	f.mu.Unlock()
	for {
		watchdog.Reset(f.config.Pace.Silence)
		m, err := call.Recv()
		if err != nil {
			return err
		}
		// What takes time here is no silence of the member's.
		watchdog.Stop()
		f.mu.Lock()
		if e := f.peers[s.cluster]; e != nil && f.streams[s.cluster] == s {
			e.lastSeen = f.config.Now()
		}
		f.mu.Unlock()
		if p := m.GetRootProgress(); p != nil {
			f.receiveProgress(s, p)
			continue
		}
		report := m.GetReport()
		part := report.GetState()
		if part == nil {
			continue
		}
		if growing == nil {
			revision++
		}
		if report.GetRevision() != revision {
			f.counters.add(countStatesRefused)
			return refuse(pb.Refusal_INVALID, "the cluster's state cannot be taken", fmt.Sprintf("its revision is %d, and %d is the next", report.GetRevision(), revision),
				"use the same version of heddle on both sides")
		}
		if size += proto.Size(part); size > maxStateBytes {
			f.counters.add(countStatesRefused)
			return refuse(pb.Refusal_INVALID, "the cluster's state cannot be taken", fmt.Sprintf("it is larger than %d MiB", maxStateBytes>>20),
				"offer fewer services to other clusters, or endpoints with fewer different labels")
		}
		if growing == nil {
			growing = part
		} else {
			growing = joined(growing, part)
		}
		if len(growing.GetServices()) <= maxServices && len(growing.GetGone()) <= maxServices && report.GetMore() {
			continue
		}
		// Whoever is refused begins another stream, with all there is.
		known, err = known.with(growing, revision > 1, f.config.Settings.TrustDomain, f.nearby())
		growing, size = nil, 0
		if err != nil {
			f.counters.add(countStatesRefused)
			return refuse(pb.Refusal_INVALID, "the cluster's state cannot be taken", clip(err.Error()), "use the same version of heddle on both sides")
		}
		f.counters.add(countStatesReceived)
		f.noteInTime(s, known)
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
