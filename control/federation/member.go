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

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// renewRetry is between attempts to renew the intermediate, which has a month left then.
const renewRetry = time.Minute

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
	removed = removed && f.membership == m
	first := removed && f.removed == ""
	if first {
		f.removed = p.What + ": " + p.Why + "; " + p.Remedy
		f.forgetAll()
	}
	f.mu.Unlock()
	if !removed {
		return pause
	}
	if first {
		f.keepNow()
	}
	// What belongs to the mesh goes, but for what this cluster says of itself; each time, because the store may have failed
	// the time before. Where nothing is left of it, nothing is written.
	if err := f.leaveMesh(ctx); err != nil {
		f.config.Log.Warn("the primary's objects are still there", "error", err)
	}
	return f.config.Pace.RemovedRetry
}

// leaveMesh forgets the primary's objects.
func (f *Federation) leaveMesh(ctx context.Context) error {
	own := objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: f.config.Cluster.Name}
	rest := map[objects.Key]*objects.Object{}
	o, err := f.config.Store.Get(ctx, own)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil {
		o.Status, o.Version = objects.Status{}, ""
		rest[own] = o
	}
	return f.replicate(ctx, true, rest, nil)
}

// dialPrimary tries the known address, then where the primary said lately that its gateways are.
func (f *Federation) dialPrimary(ctx context.Context, m Membership) (*grpc.ClientConn, func(), error) {
	addresses := []string{m.Address}
	f.mu.Lock()
	if e := f.peers[m.Primary]; e != nil {
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
			who, err := verify(chain, f.config.Authority.MeshPool(), f.config.Now(), f.config.Settings.TrustDomain, x509.ExtKeyUsageServerAuth)
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
	// What it said over another connection may not hold any more; it says it again.
	f.live, f.root.wanted, f.root.progress = s, nil, nil
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
