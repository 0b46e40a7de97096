package federation

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// grace is how long a cluster's old root stays trusted at most after it has joined a mesh: longer than any certificate of
// it lives. Mostly it goes within seconds, see [Federation.stepFormer].
const grace = ca.WorkloadLifetime + 10*time.Minute

// Join makes the running cluster a member of another one's mesh, or repairs its membership. Workloads go on: they trust
// both roots, and accept the names of both, before the first certificate of the new one is shown; the old root until all
// of them have certificates of the new one, and the old names until the last certificate of the old root has expired. Its error is a [*client.Problem].
func (f *Federation) Join(ctx context.Context, request client.JoinRequest) error {
	if !f.takeTurn(ctx) {
		return &client.Problem{Status: http.StatusConflict, What: "a join or a rotation is under way", Remedy: "wait until it is done"}
	}
	defer f.changing.Release(1)
	address, err := JoinAddress(request.Address)
	if err != nil {
		return err
	}
	var token Token
	if request.Token != "" {
		if token, err = ParseToken(request.Token); err != nil {
			return err
		}
	}
	f.mu.Lock()
	isMember, current, again := f.member, f.membership, f.removed != ""
	f.mu.Unlock()
	if _, expires := f.config.Authority.Issuer(); !f.config.Now().Before(expires) {
		again = true // The primary does not know it any more without a certificate.
	}
	s := stranger{cluster: f.config.Cluster, trustDomain: f.config.Settings.TrustDomain, version: f.config.Version, dial: f.config.Dial, now: f.config.Now}
	if isMember && (!again || request.Token == "") {
		repaired, err := s.repair(ctx, current, address, token)
		if err != nil {
			return local(err)
		}
		f.mu.Lock()
		f.membership = repaired
		f.mu.Unlock()
		signal(f.redial)
		return nil
	}
	if request.Token == "" {
		return &client.Problem{Status: http.StatusBadRequest, What: "joining needs a token", Remedy: "`heddle cluster token` at the primary makes one"}
	}
	j, accepted, err := s.accepted(token, current)
	if err != nil {
		return local(err)
	}
	if accepted {
		return f.finish(ctx, j)
	}
	if token.RootHash == f.config.Authority.RootHash() && !isMember {
		return &client.Problem{Status: http.StatusConflict, What: "the token is of this very cluster", Remedy: "use it at the cluster that is to join"}
	}
	if !isMember {
		// Who is being admitted here now is waited for, and nobody is from then on.
		f.primacy.Lock()
		f.setJoining(true)
		f.primacy.Unlock()
	}
	if err := f.mayJoin(ctx); err != nil {
		f.setJoining(false)
		return local(err)
	}
	if j, err = s.obtain(ctx, address, token); err != nil {
		f.setJoining(false)
		return local(err)
	}
	return f.finish(ctx, j)
}

// finish completes a join. When it fails, the cluster goes on joining, see resumeLoop.
func (f *Federation) finish(ctx context.Context, j joining) error {
	if err := f.complete(ctx, j); err != nil {
		return local(err)
	}
	return nil
}

// mayJoin refuses clusters that others depend on. It asks the store, which knows first.
func (f *Federation) mayJoin(ctx context.Context) error {
	f.mu.Lock()
	isMember := f.member
	f.mu.Unlock()
	if isMember {
		return nil
	}
	if _, changing := f.config.Authority.Change(); changing {
		return &client.Problem{Status: http.StatusConflict, What: "this cluster is changing its root", Remedy: "wait until that is done (`heddle ca status`), or take it back with `heddle ca abort`"}
	}
	clusters, _, err := f.config.Store.List(ctx, objects.Cluster, "")
	if err != nil {
		return err
	}
	namespaces, _, err := f.config.Store.List(ctx, objects.GlobalNamespace, "")
	if err != nil {
		return err
	}
	for _, o := range clusters {
		if name := o.GetName(); name != f.config.Cluster.Name {
			return &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("cluster %q is a primary with members itself", f.config.Cluster.Name), Where: "Cluster/" + name,
				Remedy: fmt.Sprintf("take its members out first: `heddle cluster remove %s`", name)}
		}
	}
	if len(namespaces) > 0 {
		return &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("cluster %q has global namespaces of its own", f.config.Cluster.Name), Where: namespaces[0].Key().String(),
			Why: "global namespaces belong to the primary", Remedy: "delete them here, and make them at the primary after joining"}
	}
	return nil
}

// complete takes over an intermediate that the primary issued. It may run again after a crash at any point.
func (f *Federation) complete(ctx context.Context, j joining) error {
	authority := f.config.Authority
	hash, err := hashOf([]byte(j.Root))
	if err != nil {
		return err
	}
	if hash != authority.RootHash() {
		if !bytes.Contains(authority.Roots(), bytes.TrimSpace([]byte(j.Root))) {
			if err := authority.Trust([]byte(j.Root)); err != nil {
				return err
			}
		}
		if err := f.rotatePatiently(ctx); err != nil {
			return &client.Problem{Status: http.StatusBadGateway, What: "the primary has accepted, but not all workloads trust its root yet", Why: err.Error(),
				Remedy: "the join is completed by itself once they do; `heddle cluster status` shows it"}
		}
	}
	// The next certificates have other names, which are accepted before the first is shown.
	if err := authority.Expect([]byte(j.Certificate)); err != nil {
		return err
	}
	if err := f.config.Accept(ctx); err != nil {
		return &client.Problem{Status: http.StatusBadGateway, What: "the primary has accepted, but not all proxies know the names of its certificates yet", Why: err.Error(),
			Remedy: "the join is completed by itself once they do; `heddle cluster status` shows it"}
	}
	// From here on there is no way back, so nobody may have come to depend on this cluster in between.
	if err := f.mayJoin(ctx); err != nil {
		return err
	}
	if err := authority.Install(j.issuer(), grace); err != nil {
		return err
	}
	if err := writeMembership(f.config.Cluster, j.Membership); err != nil {
		return err
	}
	f.become(j.Membership)
	f.keepNow()
	if err := durable.Remove(joiningPath(f.config.Cluster)); err != nil {
		return err
	}
	f.config.Log.Info("joined the mesh", "primary", j.Membership.Primary)
	// Who is not renewed now will be: both roots are trusted so long.
	f.joined(f.renewAll(ctx) == nil)
	return nil
}

// rotatePatiently gives workloads that are just being started a moment.
func (f *Federation) rotatePatiently(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := f.config.Rotate(ctx)
		if err == nil || attempt == attempts || !wait(ctx, f.config.Pace.Resume, nil) {
			return err
		}
	}
}

// become makes this controller a member's.
func (f *Federation) become(m Membership) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.member, f.joining, f.membership, f.removed, f.problem = true, false, m, "", ""
	f.forgetAll()
	signal(f.redial)
}

// resumeLoop completes a join that a crash, or workloads that could not be renewed, have interrupted.
func (f *Federation) resumeLoop(ctx context.Context) {
	for {
		// Mostly there is none, and nobody must be told that a join is under way.
		if _, err := os.Stat(joiningPath(f.config.Cluster)); err == nil && f.changing.TryAcquire(1) {
			var j joining
			found, err := readJSON(joiningPath(f.config.Cluster), &j)
			if err == nil && found && j.Certificate != "" {
				err = f.complete(ctx, j)
			}
			f.changing.Release(1)
			if err != nil && ctx.Err() == nil {
				f.config.Log.Warn("join not completed yet", "error", err)
			}
		}
		if !wait(ctx, f.config.Pace.Resume, nil) {
			return
		}
	}
}

// Rotate gets the cluster a new intermediate now and has all its workloads' certificates renewed by it. Its error is a
// [*client.Problem].
func (f *Federation) Rotate(ctx context.Context) error {
	if !f.takeTurn(ctx) {
		return &client.Problem{Status: http.StatusConflict, What: "a join or a rotation is under way", Remedy: "wait until it is done"}
	}
	defer f.changing.Release(1)
	f.mu.Lock()
	isMember, live, why, address := f.member, f.live, f.problem, f.membership.Address
	if live != nil && !live.heard {
		live = nil
	}
	f.mu.Unlock()
	var err error
	switch {
	case !isMember:
		err = f.renewPatiently(ctx, nil)
	case live == nil:
		return &client.Problem{Status: http.StatusServiceUnavailable, What: "the primary is not reached, and only it can issue an intermediate", Where: address, Why: why,
			Remedy: "the cluster goes on with the one it has; try again when the primary is back"}
	default:
		err = f.renewPatiently(ctx, live)
	}
	if err != nil {
		p := problem(err, address)
		p.What = "no new intermediate: " + p.What
		return p
	}
	if err := f.config.Rotate(ctx); err != nil {
		return &client.Problem{Status: http.StatusBadGateway, What: "the intermediate is new, but not all workloads have certificates of it yet", Why: err.Error(),
			Remedy: "nothing is broken: the old ones are good until they expire, and the agent goes on trying"}
	}
	return nil
}
