package federation

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
)

// maxJudged bounds what is remembered of anchors: far more than the clusters of a mesh have.
const maxJudged = 4 * maxClusters * maxAnchors

// judged is what came of looking at an anchor, by what it was and what it was held against.
type judged map[[32]byte]bool

// anchorsOf are the anchors of another cluster that are what they should be: signed by the mesh's root, and of that cluster
// as it joined. The others count for nothing.
func (f *Federation) anchorsOf(name string, anchors []string) []string {
	f.mu.Lock()
	info, known := f.clusters[name]
	f.mu.Unlock()
	if !known || len(anchors) == 0 {
		return nil
	}
	roots := f.config.Authority.Roots()
	issuer := cluster.Issuer{Cluster: name, Membership: info.membership}
	var out []string
	for _, anchor := range anchors {
		key := sha256.Sum256([]byte(strings.Join([]string{anchor, issuer.Cluster, issuer.Membership, string(roots)}, "\x00")))
		f.mu.Lock()
		good, before := f.judged[key]
		f.mu.Unlock()
		if !before {
			err := ca.CheckAnchor(anchor, issuer, f.config.Settings.TrustDomain, info.primary, roots)
			if good = err == nil; !good {
				f.counters.add(countAnchorsRefused)
				f.config.Log.Warn("a cluster announces an intermediate that it cannot have: its servers are not known by it", "cluster", name, "error", clip(err.Error()))
			}
			f.mu.Lock()
			if len(f.judged) >= maxJudged {
				clear(f.judged)
			}
			f.judged[key] = good
			f.mu.Unlock()
		}
		if good {
			out = append(out, anchor)
		}
	}
	return out
}

// told is what this cluster says of itself now: what it exports, and the intermediates that others know its servers by.
func (f *Federation) told() State {
	// The authority is asked now, and not when the exports were made: what follows on a stream may build on it.
	anchors := f.config.Authority.Announced()
	f.mu.Lock()
	defer f.mu.Unlock()
	own := *f.own
	own.Anchors = anchors
	return own
}

// sameAs compares two states of [Federation.told] without looking into the services.
func (s State) sameAs(o State) bool {
	return s.Services == o.Services && s.About.equal(o.About)
}

// renew has the next intermediate sign, whose key has been announced, and announces another one. s is a member's connection to
// its primary.
func (f *Federation) renew(ctx context.Context, s *session) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := f.config.Authority.Renew(bounded, f.obtain(s))
	if unannounced := (*ca.UnannouncedError)(nil); errors.As(err, &unannounced) {
		// It is announced from now on.
		f.anchored()
		return err
	}
	if err != nil {
		return err
	}
	if s != nil {
		f.counters.add(countRenewals)
	}
	_, expires := f.config.Authority.Issuer()
	f.config.Log.Info("intermediate renewed", "expires", expires)
	if err := f.prepare(ctx, s); err != nil {
		f.config.Log.Warn("no next intermediate to announce yet; it is tried again", "error", err)
	}
	return nil
}

// prepare announces a next intermediate where there is none.
func (f *Federation) prepare(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := f.config.Authority.Prepare(ctx, f.obtain(s))
	f.anchored()
	return err
}

// lookAtAnchors tells of anchors that became others by themselves: a primary's authority renews its own intermediate, and
// those before expire.
func (f *Federation) lookAtAnchors() {
	now := f.config.Authority.Anchors()
	f.mu.Lock()
	same := slices.Equal(f.anchors, now)
	f.anchors = now
	f.mu.Unlock()
	if !same {
		f.anchored()
	}
}

// anchored has everybody look at the anchors.
func (f *Federation) anchored() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed()
	if f.live != nil {
		signal(f.live.wake)
	}
}

// renewPatiently is renew that waits until the next intermediate has been announced for long enough.
func (f *Federation) renewPatiently(ctx context.Context, s *session) error {
	for {
		err := f.renew(ctx, s)
		unannounced := (*ca.UnannouncedError)(nil)
		if !errors.As(err, &unannounced) {
			return err
		}
		if !wait(ctx, min(unannounced.Left, time.Second), nil) {
			return err
		}
	}
}

// obtain has the primary sign an intermediate for a member.
func (f *Federation) obtain(s *session) func(ctx context.Context, request []byte) (ca.Intermediate, error) {
	return func(ctx context.Context, request []byte) (ca.Intermediate, error) {
		response, err := s.api.Renew(ctx, &pb.RenewRequest{Request: request})
		if err != nil {
			return ca.Intermediate{}, err
		}
		return ca.Intermediate{Certificate: response.GetIssued().GetCertificate(), Root: response.GetIssued().GetRoot()}, nil
	}
}
