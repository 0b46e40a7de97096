package federation

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// Bounds of what a member takes from its primary at once.
const (
	// maxPieces about clusters: each may come in several.
	maxPieces      = 64 * maxClusters
	maxUpdateBytes = 128 << 20
)

// renewRetry is between attempts to renew the intermediate, which has a month left then.
const renewRetry = time.Minute

// session is a member's connection to the primary.
type session struct {
	api pb.FederationClient
	// wake holds one value when this cluster's own state may have changed.
	wake chan struct{}
	// heard says that the primary has told everything at least once. The federation's lock guards it.
	heard bool
}

// memberLoop keeps a member connected. While the primary is away, the cluster goes on with what it knows.
func (f *Federation) memberLoop(ctx context.Context) {
	pace := f.config.Pace
	pause := pace.FirstRetry
	for ctx.Err() == nil {
		membership, isMember := f.refresh()
		if !isMember {
			if !wait(ctx, pace.Look, f.redial) {
				return
			}
			continue
		}
		f.counters.add(countAttempts)
		heard, err := f.connectOnce(ctx, membership)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause = pace.FirstRetry
		} else {
			f.counters.add(countAttemptsFailed)
		}
		next := f.lost(ctx, membership, err, pause)
		// A tenth earlier or later, so that a primary that comes back is not asked by all at once.
		next = time.Duration(float64(next) * (0.9 + 0.2*rand.Float64()))
		pause = min(2*pause, pace.LastRetry)
		if !wait(ctx, next, f.redial) {
			return
		}
	}
}

// refresh reads the membership: a command may have changed the address.
func (f *Federation) refresh() (Membership, bool) {
	m, isMember, err := ReadMembership(f.config.Cluster)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.config.Log.Warn("membership not read; going on with what is known", "error", err)
	} else if isMember && f.member && m.RootHash == f.membership.RootHash {
		f.membership.Address = m.Address
	}
	return f.membership, f.member
}

// lost notes why there is no connection, and says how long to wait.
func (f *Federation) lost(ctx context.Context, m Membership, err error, pause time.Duration) time.Duration {
	if err == nil {
		err = errors.New("the primary ended the connection")
	}
	p := problem(err, m.Address)
	removed := reasonOf(err) == pb.Refusal_REMOVED
	f.mu.Lock()
	if p.Error() != f.problem {
		f.config.Log.Warn("not connected to the primary", "primary", m.Primary, "problem", p.Error())
	}
	f.problem = p.Error()
	first := removed && f.removed == "" && f.membership == m
	if first {
		f.removed = p.What + ": " + p.Why
		clear(f.book)
		f.changed()
	}
	f.mu.Unlock()
	if !removed {
		return pause
	}
	if first {
		f.keepNow()
		// What belongs to the mesh goes, but for what this cluster says of itself.
		if err := f.leaveMesh(ctx); err != nil {
			f.config.Log.Warn("the primary's objects are still there", "error", err)
		}
	}
	return f.config.Pace.RemovedRetry
}

// leaveMesh forgets the primary's objects.
func (f *Federation) leaveMesh(ctx context.Context) error {
	own := objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: f.config.Cluster.Name}
	rest := map[objects.Key]*objects.Object{}
	if o, err := f.config.Store.Get(ctx, own); err == nil {
		o.Status, o.Revision = objects.Status{}, 0
		rest[own] = o
	}
	return f.replicate(ctx, true, rest, nil)
}

// dialPrimary tries the known address, then where the primary said lately that its gateways are.
func (f *Federation) dialPrimary(ctx context.Context, m Membership) (*grpc.ClientConn, func(), error) {
	addresses := []string{m.Address}
	f.mu.Lock()
	if e := f.book[m.Primary]; e != nil {
		for _, g := range e.Gateways {
			if !slices.Contains(addresses, g.String()) {
				addresses = append(addresses, g.String())
			}
		}
	}
	f.mu.Unlock()
	certificate, err := f.config.Authority.Controller()
	if err != nil {
		return nil, nil, &client.Problem{Status: http.StatusInternalServerError, What: "this controller has no certificate to show", Why: err.Error(),
			Remedy: "join again with a new token: `heddle cluster token` at the primary, then `heddle cluster join`"}
	}
	var first error
	for _, address := range addresses {
		conn, err := connect(ctx, f.config.Dial, patience{f.config.Pace.Dial, f.config.Pace.Dial}, address, f.config.Settings.TrustDomain, certificate, func(chain []*x509.Certificate) error {
			who, err := verify(chain, f.config.Authority.RootPool(), f.config.Now(), f.config.Settings.TrustDomain, x509.ExtKeyUsageServerAuth)
			if err == nil && (!who.primary || who.cluster != m.Primary) {
				err = fmt.Errorf("it is %s", who.cluster)
			}
			if err != nil {
				return &client.Problem{Status: http.StatusForbidden, What: "it is not the primary " + m.Primary + " that answers", Where: address, Why: clip(err.Error()),
					Remedy: "check that the clocks agree and that the address is the primary's"}
			}
			return nil
		})
		if err == nil {
			rpc, err := overConn(conn)
			if err != nil {
				conn.Close()
				return nil, nil, err
			}
			return rpc, func() {
				// Both: the first does not know of the second when it was never used.
				_ = rpc.Close()
				_ = conn.Close()
			}, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, nil, first
}

// connectOnce lives through one connection. It says whether the primary told everything.
func (f *Federation) connectOnce(ctx context.Context, m Membership) (heard bool, err error) {
	rpc, hangUp, err := f.dialPrimary(ctx, m)
	if err != nil {
		return false, err
	}
	defer hangUp()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &session{api: pb.NewFederationClient(rpc), wake: make(chan struct{}, 1)}
	call, err := s.api.Sync(ctx)
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	f.live = s
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.live == s {
			f.live = nil
		}
		heard = s.heard
		f.config.Changed()
	}()
	silent := errors.New("the primary is silent")
	watchdog := time.AfterFunc(f.config.Pace.Silence, func() {
		f.counters.add(countStreamsSilent)
		cancel(silent)
	})
	defer watchdog.Stop()
	go func() { cancel(f.listen(ctx, call, s, watchdog)) }()
	if err := f.speak(ctx, call, s); err != nil && !errors.Is(err, errEnded) {
		return false, err
	}
	<-ctx.Done()
	return false, context.Cause(ctx)
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
	var sent *State
	for {
		f.mu.Lock()
		own := f.own
		f.mu.Unlock()
		if sent != own {
			for _, part := range own.parts() {
				if err := out.say(&pb.FromMember{Message: &pb.FromMember_State{State: part}}); err != nil {
					return errEnded
				}
			}
			sent = own
		}
		now := f.config.Now()
		if !renewing && !now.Before(f.config.Authority.RenewAt()) && !now.Before(renewAgain) {
			renewing = true
			go func() { renewed <- f.renew(ctx, s) }()
		}
		select {
		case <-ctx.Done():
			return errEnded
		case <-s.wake:
		case err := <-renewed:
			renewing, renewAgain = false, f.config.Now().Add(renewRetry)
			if err != nil {
				f.config.Log.Warn("intermediate not renewed", "error", err, "again_in", renewRetry)
			}
		}
	}
}

// renew gets a new intermediate from the primary.
func (f *Federation) renew(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := f.config.Authority.Renew(ctx, func(ctx context.Context, request []byte) (ca.Intermediate, error) {
		response, err := s.api.Renew(ctx, &pb.RenewRequest{Request: request})
		if err != nil {
			return ca.Intermediate{}, err
		}
		return ca.Intermediate{Certificate: response.GetIssued().GetCertificate(), Root: response.GetIssued().GetRoot()}, nil
	})
	if err != nil {
		return err
	}
	f.counters.add(countRenewals)
	_, expires := f.config.Authority.Issuer()
	f.config.Log.Info("intermediate renewed", "expires", expires)
	return nil
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
		part := m.GetUpdate()
		if part == nil {
			continue
		}
		if size += proto.Size(part); size > maxUpdateBytes {
			f.counters.add(countUpdatesRefused)
			return fmt.Errorf("the primary's update is larger than %d MiB", maxUpdateBytes>>20)
		}
		if growing == nil {
			growing = part
		} else {
			growing.Peers, growing.GonePeers = append(growing.Peers, part.GetPeers()...), append(growing.GonePeers, part.GetGonePeers()...)
			growing.Objects, growing.GoneObjects = append(growing.Objects, part.GetObjects()...), append(growing.GoneObjects, part.GetGoneObjects()...)
		}
		if part.GetMore() {
			continue
		}
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
	if len(u.GetPeers()) > maxPieces || len(u.GetObjects()) > maxObjects {
		return fmt.Errorf("the primary's update has %d pieces about clusters and %d objects, at most %d and %d are taken", len(u.GetPeers()), len(u.GetObjects()), maxPieces, maxObjects)
	}
	whole := map[string]*pb.Peer{}
	for _, p := range u.GetPeers() {
		if first := whole[p.GetCluster()]; first != nil && p.GetContinued() {
			first.State.Services = append(first.State.Services, p.GetState().GetServices()...)
		} else if first != nil || p.GetContinued() || p.GetState() == nil {
			return fmt.Errorf("the primary's update about cluster %q is not in order", clip(p.GetCluster()))
		} else {
			whole[p.GetCluster()] = p
		}
	}
	peers := make(map[string]*entry, len(whole))
	for _, p := range whole {
		state, err := readState(p.GetState(), f.config.Settings.TrustDomain)
		if err == nil && !labelPattern.MatchString(p.GetCluster()) {
			err = errors.New("its name is not one of a cluster")
		}
		if err != nil {
			return fmt.Errorf("the primary's update about cluster %q: %w", clip(p.GetCluster()), err)
		}
		if p.GetCluster() != f.config.Cluster.Name {
			peers[p.GetCluster()] = &entry{State: state, connected: p.GetConnected()}
		}
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
	for name, e := range peers {
		if old := f.book[name]; old != nil {
			e.reachable, e.unreachable, e.failures = old.reachable, old.unreachable, old.failures
		}
		f.book[name] = e
	}
	for name := range f.book {
		if u.GetFull() && peers[name] == nil || slices.Contains(u.GetGonePeers(), name) && peers[name] == nil {
			delete(f.book, name)
		}
	}
	if !s.heard {
		f.config.Log.Info("connected to the primary", "primary", f.membership.Primary, "clusters", len(f.book)+1)
	}
	s.heard, f.problem, f.removed = true, "", ""
	f.changed()
	return nil
}
