package federation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/objects"
)

// Bounds of what a member takes from its primary at once.
const (
	// maxPieces about clusters: each may come in several.
	maxPieces      = 64 * maxClusters
	maxUpdateBytes = 128 << 20
	// maxPeerBytes is how much a primary says about clusters at once: it leaves the other half to objects.
	maxPeerBytes = maxUpdateBytes / 2
)

// session is a member's connection to the primary.
type session struct {
	api pb.FederationClient
	// wake holds one value when this cluster's own state may have changed.
	wake chan struct{}
	// revision is that of the primary's last update, and told are the clusters that it has told of. Only who listens touches them.
	revision uint64
	told     map[string]bool
	// heard says that the primary has told everything at least once. The federation's lock guards it.
	heard bool
}

// errEnded: the stream has ended, and the one who listens knows why.
var errEnded = errors.New("stream ended")

// speak sends this cluster's state whenever it changes, and signs of life in between.
func (f *Federation) speak(ctx context.Context, call grpc.BidiStreamingClient[pb.FromMember, pb.FromPrimary], s *session) error {
	out := &outgoing[*pb.FromMember]{send: call.Send}
	if err := out.say(&pb.FromMember{Message: &pb.FromMember_Begin{Begin: &pb.Begin{Protocol: newestProtocol, Version: f.config.Version}}}); err != nil {
		return errEnded // Why, the one who listens is told.
	}
	defer out.pulse(ctx, f.config.Pace.Alive, func() *pb.FromMember {
		// It also has the loop below look at the time.
		signal(s.wake)
		return &pb.FromMember{Message: &pb.FromMember_Alive{Alive: &pb.Alive{Time: f.config.Now().UnixNano()}}}
	})()
	renewed := make(chan error, 1)
	renewing, renewAgain := false, time.Time{}
	// sent is nil until something is, revision how often something was.
	var sent *State
	revision := uint64(0)
	var said *pb.RootProgress
	for {
		// A command may have changed the primary's address, for the next connection.
		f.refresh()
		f.mu.Lock()
		progress := f.root.progress
		f.mu.Unlock()
		if own := f.told(); sent == nil || !sent.sameAs(own) {
			if m := own.since(sent); m != nil {
				revision++
				all := parts(m)
				for i, part := range all {
					report := &pb.Report{Revision: revision, State: part, More: i < len(all)-1}
					if err := out.say(&pb.FromMember{Message: &pb.FromMember_Report{Report: report}}); err != nil {
						return errEnded
					}
				}
			}
			sent = &own
		}
		// After the state: who is done with a phase of a change has announced what the next one needs.
		if said != progress && progress != nil {
			if err := out.say(&pb.FromMember{Message: &pb.FromMember_RootProgress{RootProgress: progress}}); err != nil {
				return errEnded
			}
			said = progress
		}
		now := f.config.Now()
		if !renewing && !now.Before(renewAgain) {
			switch {
			case !now.Before(f.config.Authority.RenewAt()):
				renewing = true
				go func() { renewed <- f.renew(ctx, s) }()
			case !f.config.Authority.Prepared():
				renewing = true
				go func() { renewed <- f.prepare(ctx, s) }()
			}
		}
		select {
		case <-ctx.Done():
			return errEnded
		case <-s.wake:
		case err := <-renewed:
			renewing = false
			if err != nil {
				renewAgain = f.config.Now().Add(renewRetry)
				f.config.Log.Warn("intermediate not renewed", "error", err, "again_in", renewRetry)
			}
		}
	}
}

// listen takes what the primary says until the stream ends; the error is why.
func (f *Federation) listen(ctx context.Context, call grpc.BidiStreamingClient[pb.FromMember, pb.FromPrimary], s *session, watchdog *time.Timer) error {
	var growing *pb.Update
	size := 0
	for {
		watchdog.Reset(f.config.Pace.Silence)
		m, err := call.Recv()
		if err != nil {
			return err
		}
		// What takes time here is no silence of the primary's.
		watchdog.Stop()
		if a := m.GetAlive(); a != nil {
			f.noteClock(time.Unix(0, a.GetTime()))
			continue
		}
		if r := m.GetRoot(); r != nil {
			if err := f.followRoot(r); err != nil {
				f.counters.add(countUpdatesRefused)
				return err
			}
			continue
		}
		part := m.GetUpdate()
		if part == nil {
			continue
		}
		if size += proto.Size(part); size > maxUpdateBytes {
			f.counters.add(countUpdatesRefused)
			return fmt.Errorf("the primary's update is larger than %d MiB", maxUpdateBytes>>20)
		}
		switch {
		case growing == nil:
			growing = part
		case part.GetRevision() != growing.GetRevision():
			f.counters.add(countUpdatesRefused)
			return fmt.Errorf("a part of the primary's update with revision %d has revision %d", growing.GetRevision(), part.GetRevision())
		default:
			growing.Peers, growing.GonePeers = append(growing.Peers, part.GetPeers()...), append(growing.GonePeers, part.GetGonePeers()...)
			growing.Objects, growing.GoneObjects = append(growing.Objects, part.GetObjects()...), append(growing.GoneObjects, part.GetGoneObjects()...)
		}
		if err := counted(growing); err != nil {
			f.counters.add(countUpdatesRefused)
			return err
		}
		if part.GetMore() {
			continue
		}
		if growing.GetRevision() != s.revision+1 {
			f.counters.add(countUpdatesRefused)
			return fmt.Errorf("the primary's update has revision %d, after %d", growing.GetRevision(), s.revision)
		}
		s.revision++
		if !s.heard && !growing.GetFull() {
			f.counters.add(countUpdatesRefused)
			return errors.New("the primary's first update is not a full one")
		}
		if err := f.take(ctx, s, growing); err != nil {
			f.counters.add(countUpdatesRefused)
			return err
		}
		f.counters.add(countUpdatesReceived)
		growing, size = nil, 0
	}
}

func (f *Federation) noteClock(theirs time.Time) {
	ours := f.config.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = theirs.Sub(ours)
	if f.clock.Abs() > maxSkew {
		f.skew = fmt.Sprintf("the clocks are apart: it is %s at the primary and %s here; set both by NTP", theirs.UTC().Format(time.RFC3339), ours.UTC().Format(time.RFC3339))
	} else {
		f.skew = ""
	}
}

// take makes an update this cluster's own: first the objects in the store, then the peers.
func (f *Federation) take(ctx context.Context, s *session, u *pb.Update) error {
	told, err := f.readPeers(s, u)
	if err != nil {
		return err
	}
	if err := f.roomFor(told, u); err != nil {
		return err
	}
	fresh := make(map[objects.Key]*objects.Object, len(u.GetObjects()))
	for _, text := range u.GetObjects() {
		o, err := readReplica(text)
		if err != nil {
			// A newer primary may have kinds that this program does not know; the rest is no worse for it.
			f.counters.add(countReplicaFailures)
			f.config.Log.Warn("object of the primary passed over", "error", clip(err.Error()))
			continue
		}
		fresh[o.Key()] = o
	}
	var gone []objects.Key
	for _, k := range u.GetGoneObjects() {
		if key, ok := keyOf(k); ok {
			gone = append(gone, key)
		}
	}
	if u.GetFull() || len(fresh) > 0 || len(gone) > 0 {
		if err := f.replicate(ctx, u.GetFull(), fresh, gone); err != nil {
			f.counters.add(countReplicaFailures)
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.GetFull() || s.told == nil {
		s.told = map[string]bool{}
	}
	// Only names that were looked at: each is a file's.
	named := slices.Collect(maps.Keys(told))
	for name, p := range told {
		e := &entry{State: p.State, connected: p.connected}
		if old := f.peers[name]; old != nil {
			e.reachable, e.unreachable, e.failures = old.reachable, old.unreachable, old.failures
		}
		f.peers[name], s.told[name] = e, true
	}
	gonePeers := make(map[string]bool, len(u.GetGonePeers()))
	for _, name := range u.GetGonePeers() {
		gonePeers[name] = true
	}
	for name := range f.peers {
		if _, is := told[name]; !is && (u.GetFull() || gonePeers[name]) {
			delete(f.peers, name)
			delete(s.told, name)
			named = append(named, name)
		}
	}
	if !s.heard {
		f.config.Log.Info("connected to the primary", "primary", f.membership.Primary, "clusters", len(f.peers)+1)
	}
	s.heard, f.problem, f.removed = true, "", ""
	f.changed(named...)
	return nil
}

// counted refuses an update of more things than one may have, as far as it has come: each costs more than its bytes.
func counted(u *pb.Update) error {
	clusters, all := max(len(u.GetPeers()), len(u.GetGonePeers())), max(len(u.GetObjects()), len(u.GetGoneObjects()))
	if clusters > maxPieces || all > maxObjects {
		return fmt.Errorf("the primary's update has %d pieces about clusters and %d objects, at most %d and %d are taken", clusters, all, maxPieces, maxObjects)
	}
	return nil
}

// roomFor refuses an update after which the clusters known here would be more than a mesh has, or than one update could say of them all:
// a primary does not make a member grow by saying something more each time.
func (f *Federation) roomFor(told map[string]toldPeer, u *pb.Update) error {
	clusters, size := len(told), 0
	for _, p := range told {
		size += p.Services.Size()
	}
	if !u.GetFull() {
		gone := make(map[string]bool, len(u.GetGonePeers()))
		for _, name := range u.GetGonePeers() {
			gone[name] = true
		}
		f.mu.Lock()
		for name, e := range f.peers {
			if _, is := told[name]; !is && !gone[name] {
				clusters++
				size += e.Services.Size()
			}
		}
		f.mu.Unlock()
	}
	if clusters > maxClusters || size > maxUpdateBytes {
		return fmt.Errorf("with the primary's update there are %d clusters with %d MiB of services, at most %d with %d MiB are taken", clusters, size>>20, maxClusters, maxUpdateBytes>>20)
	}
	return nil
}

// toldPeer is what the primary has said of another cluster.
type toldPeer struct {
	State
	connected bool
}

// readPeers checks what the primary says of clusters. It changes nothing: of an update, all is taken or nothing.
func (f *Federation) readPeers(s *session, u *pb.Update) (map[string]toldPeer, error) {
	whole := map[string]*pb.Peer{}
	for _, p := range u.GetPeers() {
		switch first := whole[p.GetCluster()]; {
		case first != nil && p.GetContinued() && first.GetState() != nil:
			first.State = joined(first.State, p.GetState())
		case first != nil || p.GetContinued():
			return nil, fmt.Errorf("the primary's update about cluster %q is not in order", clip(p.GetCluster()))
		default:
			whole[p.GetCluster()] = p
		}
	}
	out := make(map[string]toldPeer, len(whole))
	for name, p := range whole {
		if !labelPattern.MatchString(name) {
			return nil, fmt.Errorf("the primary's update about cluster %q: its name is not one of a cluster", clip(name))
		}
		if name == f.config.Cluster.Name {
			continue
		}
		peer, told := toldPeer{connected: p.GetConnected()}, false
		f.mu.Lock()
		if e := f.peers[name]; e != nil {
			peer.State, told = e.State, s.told[name] && !u.GetFull()
		}
		f.mu.Unlock()
		var err error
		if p.GetState() != nil {
			peer.State, err = peer.with(p.GetState(), told, f.config.Settings.TrustDomain, f.nearby())
		} else if !told {
			err = errors.New("it says nothing, and nothing was said before")
		}
		if err != nil {
			return nil, fmt.Errorf("the primary's update about cluster %q: %w", clip(name), err)
		}
		out[name] = peer
	}
	return out, nil
}
