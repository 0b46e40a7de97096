package federation

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"time"

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
	wake   chan struct{}
	cancel context.CancelCauseFunc

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
	s := &stream{cluster: who.cluster, wake: make(chan struct{}, 1), cancel: cancel, peers: map[string][32]byte{}, objects: map[objects.Key][32]byte{}}
	// Once before it takes the place of another stream, and once in the loop below: a removal in between is seen there.
	if err := f.authorize(ctx, who); err != nil {
		f.counters.add(countCallsRefused)
		return err
	}
	f.attach(s)
	defer f.detach(s)
	f.counters.add(countStreams)
	f.config.Log.Info("member connected", "cluster", who.cluster, "version", clip(first.GetBegin().GetVersion()))
	go func() { cancel(f.hear(call, s, watchdog)) }()
	err = f.tell(ctx, call, s, who)
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
		old.cancel(errReplaced)
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

// hear takes what the member says until its stream ends; the error is why.
func (f *Federation) hear(call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary], s *stream, watchdog *time.Timer) error {
	var growing *pb.State
	for {
		m, err := call.Recv()
		if err != nil {
			return err
		}
		watchdog.Reset(f.config.Pace.Silence)
		f.mu.Lock()
		if e := f.book[s.cluster]; e != nil && f.streams[s.cluster] == s {
			e.lastSeen = f.config.Now()
		}
		f.mu.Unlock()
		part := m.GetState()
		if part == nil {
			continue
		}
		more := part.GetMore()
		if growing == nil {
			growing = part
		} else {
			growing.Services = append(growing.Services, part.GetServices()...)
		}
		if len(growing.GetServices()) <= maxServices && more {
			continue
		}
		state, err := readState(growing, f.config.Settings.TrustDomain)
		growing = nil
		if err != nil {
			f.counters.add(countStatesRefused)
			return refuse(pb.Refusal_INVALID, "the cluster's state cannot be taken", clip(err.Error()), "use the same version of heddle on both sides")
		}
		f.counters.add(countStatesReceived)
		f.note(s, state)
	}
}

// note writes a member's state into the book.
func (f *Federation) note(s *stream, state State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.book[s.cluster]
	if e == nil || f.streams[s.cluster] != s || e.equal(state) {
		return
	}
	e.State = state
	f.changed()
}

// tell sends what the member has to know whenever that changes, and signs of life in between.
func (f *Federation) tell(ctx context.Context, call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary], s *stream, who peerOf) error {
	alive := time.NewTicker(f.config.Pace.Alive)
	defer alive.Stop()
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
			for _, u := range f.updates(s) {
				if err := call.Send(&pb.FromPrimary{Message: &pb.FromPrimary_Update{Update: u}}); err != nil {
					return ended(err)
				}
				f.counters.add(countUpdatesSent)
			}
		}
		woken = false
		select {
		case <-ctx.Done():
			return ended(context.Cause(ctx))
		case <-s.wake:
			woken = true
		case <-alive.C:
			if err := call.Send(&pb.FromPrimary{Message: &pb.FromPrimary_Alive{Alive: &pb.Alive{Time: f.config.Now().UnixNano()}}}); err != nil {
				return ended(err)
			}
		}
	}
}

// updates says what the member does not know yet, and takes it as sent.
func (f *Federation) updates(s *stream) []*pb.Update {
	w := updateWriter{current: &pb.Update{Full: !s.begun}}
	f.mu.Lock()
	peers := make(map[string]*pb.Peer, len(f.book)+1)
	peers[f.config.Cluster.Name] = &pb.Peer{Cluster: f.config.Cluster.Name, State: f.stateFor(s.cluster, f.config.Cluster.Name, *f.own), Connected: true}
	for name, e := range f.book {
		if name != s.cluster {
			peers[name] = &pb.Peer{Cluster: name, State: f.stateFor(s.cluster, name, e.State), Connected: e.connected}
		}
	}
	replicas := f.replicas
	f.mu.Unlock()
	for name, p := range peers {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			f.config.Log.Error("peer not told", "peer", name, "error", err)
			continue
		}
		if hash := sha256.Sum256(text); !s.begun || s.peers[name] != hash {
			s.peers[name] = hash
			u := w.room(len(text))
			u.Peers = append(u.Peers, p)
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

// stateFor is one cluster's state as another may know it. The lock is held.
func (f *Federation) stateFor(receiver, of string, state State) *pb.State {
	state.Services = f.servicesFor(receiver, of)
	return state.message()
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

// finish gives all parts; none when there is nothing to say.
func (w *updateWriter) finish() []*pb.Update {
	if !w.current.GetFull() && w.size == 0 {
		return nil
	}
	return append(w.done, w.current)
}
