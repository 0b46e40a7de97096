package federation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// Bounds of what a member says of a change of the root.
const (
	maxAwaited = 16
	// maxRootBytes of one root from the primary, PEM.
	maxRootBytes = ca.MaxExternalBytes
	// progressRate (per second) and progressBurst are how often a member's word has the primary look at once.
	progressRate, progressBurst = 2, 20
)

// rootState is how far this cluster is with a change of the mesh's root, beside what the authority keeps: who has been told
// is found out anew after a restart. The federation's lock guards it.
type rootState struct {
	// change and phase that the rest is about.
	change string
	phase  ca.Phase
	// settled says since when every workload of this cluster has what the phase demands; zero when not yet.
	settled time.Time
	// ready says since when that holds for the whole mesh, at a primary.
	ready time.Time
	// awaited is who that waits for.
	awaited []string
	// members is what members say, at a primary.
	members map[string]*pb.RootProgress
	// wanted is what the primary says, at a member.
	wanted *pb.Root
	// progress is what a member says to its primary; another one takes its place.
	progress *pb.RootProgress
	// stop ends the step that is under way.
	stop context.CancelFunc
}

var phases = map[ca.Phase]pb.RootPhase{
	ca.Trusting: pb.RootPhase_ROOT_PHASE_TRUST, ca.Signing: pb.RootPhase_ROOT_PHASE_SIGN, ca.Retiring: pb.RootPhase_ROOT_PHASE_RETIRE,
}

// about makes the state that of a phase of a change. The lock is held.
func (r *rootState) about(c ca.Change) {
	if r.change == c.ID && r.phase == c.Phase {
		return
	}
	r.change, r.phase, r.settled, r.ready, r.awaited, r.members, r.progress = c.ID, c.Phase, time.Time{}, time.Time{}, nil, nil, nil
}

// rootLoop brings changes of the mesh's root to their end. Each step is durable before the next one, and is done again after
// a restart; what is lost with the process is only who has been told.
func (f *Federation) rootLoop(ctx context.Context) {
	for {
		f.lookAtAnchors()
		if err := f.stepRoot(ctx); err != nil && ctx.Err() == nil {
			f.config.Log.Warn("change of the mesh's root not further yet", "error", err)
		}
		if !wait(ctx, f.config.Pace.Resume, f.reroot) {
			return
		}
	}
}

// idle says that nothing is known of a change of the root, now or just before.
func (f *Federation) idle() bool {
	_, changing := f.config.Authority.Change()
	f.mu.Lock()
	defer f.mu.Unlock()
	return !changing && f.root.phase == "" && f.root.wanted.GetChange() == nil && (!f.member || f.membership.RootHash == f.config.Authority.RootHash())
}

func (f *Federation) stepRoot(ctx context.Context) error {
	_, former := f.config.Authority.FormerRoots()
	idle := f.idle()
	if idle && !former {
		return nil
	}
	if !f.changing.TryAcquire(1) {
		return nil // A join, a renewal or a request about the root is under way; it is looked again.
	}
	defer f.changing.Release(1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	isMember := f.member
	f.root.stop = cancel
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.root.stop = nil
	}()
	if err := f.stepFormer(ctx); err != nil {
		f.config.Log.Warn("the roots of before the join are trusted still", "error", err)
	}
	switch {
	case idle:
		return nil
	case isMember:
		return f.stepMember(ctx)
	}
	return f.stepPrimary(ctx)
}

// settleRoot has every workload of this cluster renewed, once per phase, and says whether that has been done. A workload
// that cannot be renewed is waited for until what it has has expired.
func (f *Federation) settleRoot(ctx context.Context, c ca.Change) (bool, error) {
	f.mu.Lock()
	f.root.about(c)
	done := !f.root.settled.IsZero()
	f.mu.Unlock()
	if done {
		return true, nil
	}
	err := f.renewAll(ctx)
	if err == nil && c.Phase == ca.Trusting {
		// With what was announced for this change, which came before it.
		err = f.config.Accept(ctx)
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil && (c.Phase != ca.Signing || f.config.Now().Before(c.Since.Add(grace))) {
		f.await(c, []string{f.config.Cluster.Name + ": " + clip(err.Error())})
		return false, nil
	}
	if left := c.Until.Sub(f.config.Now()); c.Phase == ca.Signing && left > 0 {
		f.await(c, []string{fmt.Sprintf("%s: certificates that were signed for others, until %s", f.config.Cluster.Name, c.Until.UTC().Format(time.RFC3339))})
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.settled = f.config.Now()
	return true, nil
}

func (f *Federation) await(c ca.Change, who []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.about(c)
	f.root.awaited, f.root.ready = who, time.Time{}
}

// recordRoot makes a step of a change durable in the audit log before it is made.
func (f *Federation) recordRoot(action audit.Action, c ca.Change, detail string, do func() error) error {
	ended, err := f.config.Audit.Begin(audit.Record{Who: "controller of " + f.config.Cluster.Name, Action: action,
		Objects: []audit.Object{{Name: "root " + c.ID}}, Detail: detail})
	if err != nil {
		return err
	}
	err = do()
	ended("", err)
	return err
}

// stepPrimary looks whether everybody is done with the phase, and then begins the next one.
func (f *Federation) stepPrimary(ctx context.Context) error {
	c, changing := f.config.Authority.Change()
	if !changing {
		return f.settleNothing(ctx)
	}
	if err := f.config.Authority.Complete(c.ID); err != nil {
		f.await(c, []string{f.config.Cluster.Name + ": " + clip(err.Error())})
		return err
	}
	if ok, err := f.settleRoot(ctx, c); err != nil || !ok {
		return err
	}
	missing, err := f.behind(ctx, c)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		f.await(c, missing)
		return nil
	}
	f.mu.Lock()
	now := f.config.Now()
	if f.root.ready.IsZero() {
		f.root.ready = now
	}
	left := f.root.ready.Add(f.config.Pace.Overlap).Sub(now)
	f.root.awaited = nil
	f.mu.Unlock()
	if left > 0 {
		// Handshakes that have begun end meanwhile.
		time.AfterFunc(left, func() { signal(f.reroot) })
		return nil
	}
	next := map[ca.Phase]ca.Phase{ca.Trusting: ca.Signing, ca.Signing: ca.Retiring}[c.Phase]
	if next == "" {
		err = f.recordRoot(audit.FinishRoot, c, "", func() error { return f.config.Authority.Finish(c.ID) })
	} else {
		err = f.recordRoot(audit.Action("root."+string(next)), c, "", func() error { return f.config.Authority.Advance(c.ID, next) })
	}
	if err != nil {
		return err
	}
	f.counters.add(countRootSteps)
	f.config.Log.Info("change of the mesh's root", "change", c.ID, "kind", c.Kind, "after", string(c.Phase), "now", string(next))
	f.sendRoot()
	signal(f.reroot)
	return nil
}

// settleNothing has proxies forget the next root of a change that was taken back.
func (f *Federation) settleNothing(ctx context.Context) error {
	f.mu.Lock()
	taken := f.root.phase == ca.Trusting
	f.mu.Unlock()
	if taken {
		if err := f.renewAll(ctx); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.about(ca.Change{})
	return nil
}

// behind lists the members that are not done with the phase. The store is asked who is one.
func (f *Federation) behind(ctx context.Context, c ca.Change) ([]string, error) {
	all, _, err := f.config.Store.List(ctx, objects.Cluster, "")
	if err != nil {
		return nil, err
	}
	var missing []string
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range all {
		name := o.GetName()
		if name == f.config.Cluster.Name {
			continue
		}
		said := f.root.members[name]
		switch {
		case said != nil && said.GetDone():
		case c.Phase == ca.Signing && f.config.Now().After(c.Since.Add(ca.IntermediateLifetime+grace)):
			// Whatever it still has of the previous root has expired.
		case f.streams[name] == nil:
			missing = append(missing, name+": it is not connected; `heddle cluster remove "+name+"` goes on without it")
		case said == nil || len(said.GetAwaited()) == 0:
			missing = append(missing, name+": it has not answered yet")
		default:
			missing = append(missing, said.GetAwaited()...)
		}
	}
	return missing, nil
}

// sendRoot has every stream look for what it has not sent yet.
func (f *Federation) sendRoot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeAll()
}

// rootMessage is what members are told.
func (f *Federation) rootMessage() *pb.Root {
	m := &pb.Root{Current: f.config.Authority.Root()}
	if c, changing := f.config.Authority.Change(); changing {
		m.Change = &pb.RootChange{Phase: phases[c.Phase], Next: []byte(c.Next), Previous: []byte(c.Previous)}
	}
	return m
}

// receiveProgress takes what a member says. It counts for the member's own part only, and holds no certificate.
func (f *Federation) receiveProgress(s *stream, p *pb.RootProgress) {
	clean := &pb.RootProgress{Done: p.GetDone()}
	for _, a := range p.GetAwaited()[:min(len(p.GetAwaited()), maxAwaited)] {
		clean.Awaited = append(clean.Awaited, s.cluster+": "+clip(strings.TrimPrefix(a, s.cluster+": ")))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, changing := f.config.Authority.Change()
	if f.streams[s.cluster] != s || !changing || p.GetChange() != c.ID || p.GetPhase() != phases[c.Phase] {
		return // Of another change or phase: it says so again for this one.
	}
	f.root.about(c)
	if f.root.members == nil {
		f.root.members = map[string]*pb.RootProgress{}
	}
	f.root.members[s.cluster] = clean
	if s.progress.AllowN(f.config.Now(), 1) {
		signal(f.reroot)
	} else {
		// It is looked at all the same, with the next tick.
		f.counters.add(countProgressDelayed)
	}
}

// followRoot takes what the primary says, at a member.
func (f *Federation) followRoot(r *pb.Root) error {
	if len(r.GetCurrent()) > maxRootBytes || len(r.GetChange().GetNext()) > maxRootBytes || len(r.GetChange().GetPrevious()) > maxRootBytes {
		return fmt.Errorf("the primary's root is larger than %d bytes", maxRootBytes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.wanted = r
	signal(f.reroot)
	return nil
}

// stepMember brings this cluster to where the primary is with a change. Each phase before is gone through too.
func (f *Federation) stepMember(ctx context.Context) error {
	if err := f.keepRootHash(); err != nil {
		return err
	}
	f.mu.Lock()
	wanted, live, removed := f.root.wanted, f.live, f.removed != ""
	f.mu.Unlock()
	c, changing := f.config.Authority.Change()
	if wanted == nil || live == nil || removed {
		return nil
	}
	target := wanted.GetChange()
	if target == nil {
		return f.endMember(ctx, wanted, c, changing)
	}
	next, err := ca.ParseRoot(target.GetNext())
	if err != nil {
		return fmt.Errorf("the primary's next root: %w", err)
	}
	id := ca.ChangeID(next)
	if changing && c.ID != id {
		// The one before was taken back, or ended, while the primary was out of reach.
		if err := f.dropChange(c); err != nil {
			return err
		}
		changing = false
	}
	if !changing {
		if bytes.Equal(f.config.Authority.Root(), target.GetNext()) {
			// It joined, or was completed here already; nothing is left to do but to say so.
			f.answerRoot(id, target.GetPhase(), true, nil)
			return nil
		}
		if err := f.recordRoot(audit.TrustRoot, ca.Change{ID: id}, "told by the primary", func() error {
			c, err = f.config.Authority.Follow(target.GetNext(), target.GetPrevious())
			return err
		}); err != nil {
			f.answerRoot(id, target.GetPhase(), false, []string{clip(err.Error())})
			return err
		}
	}
	for {
		done, err := f.memberPhase(ctx, c, live)
		if err != nil {
			f.answerRoot(id, target.GetPhase(), false, []string{clip(err.Error())})
			return err
		}
		if !done {
			f.mu.Lock()
			awaited := f.root.awaited
			f.mu.Unlock()
			f.answerRoot(id, target.GetPhase(), false, awaited)
			return nil
		}
		if phases[c.Phase] >= target.GetPhase() {
			f.answerRoot(id, target.GetPhase(), true, nil)
			return nil
		}
		to := map[ca.Phase]ca.Phase{ca.Trusting: ca.Signing, ca.Signing: ca.Retiring}[c.Phase]
		if err := f.recordRoot(audit.Action("root."+string(to)), c, "told by the primary", func() error { return f.config.Authority.Advance(id, to) }); err != nil {
			return err
		}
		f.counters.add(countRootSteps)
		c, _ = f.config.Authority.Change()
	}
}

// memberPhase does what a phase demands.
func (f *Federation) memberPhase(ctx context.Context, c ca.Change, live *session) (bool, error) {
	if c.Phase == ca.Signing && !bytes.Equal(f.config.Authority.Root(), []byte(c.Next)) {
		if err := f.renew(ctx, live); err != nil {
			return false, err
		}
		if !bytes.Equal(f.config.Authority.Root(), []byte(c.Next)) {
			return false, errors.New("the primary's intermediate is not of the next root")
		}
		if err := f.keepRootHash(); err != nil {
			return false, err
		}
	}
	return f.settleRoot(ctx, c)
}

// endMember forgets a change that the primary does not speak of any more: it is complete, or was taken back.
func (f *Federation) endMember(ctx context.Context, wanted *pb.Root, c ca.Change, changing bool) error {
	if !changing {
		return f.settleNothing(ctx)
	}
	if !bytes.Equal(f.config.Authority.Root(), wanted.GetCurrent()) && !bytes.Equal([]byte(c.Next), wanted.GetCurrent()) {
		return errors.New("the primary has a root that was never announced here; join again with a new token")
	}
	if bytes.Equal([]byte(c.Next), wanted.GetCurrent()) {
		// Complete at the primary, so it did not wait for this cluster; go through the phases that are left.
		f.mu.Lock()
		live := f.live
		f.mu.Unlock()
		for {
			done, err := f.memberPhase(ctx, c, live)
			if err != nil || !done {
				return err
			}
			if c.Phase == ca.Retiring {
				break
			}
			to := map[ca.Phase]ca.Phase{ca.Trusting: ca.Signing, ca.Signing: ca.Retiring}[c.Phase]
			if err := f.recordRoot(audit.Action("root."+string(to)), c, "complete at the primary", func() error { return f.config.Authority.Advance(c.ID, to) }); err != nil {
				return err
			}
			c, _ = f.config.Authority.Change()
		}
		return f.recordRoot(audit.FinishRoot, c, "", func() error { return f.config.Authority.Finish(c.ID) })
	}
	f.mu.Lock()
	f.root.about(c)
	f.mu.Unlock()
	if err := f.dropChange(c); err != nil {
		return err
	}
	return f.settleNothing(ctx)
}

// dropChange forgets a change whose next root does not sign here, or one that was complete.
func (f *Federation) dropChange(c ca.Change) error {
	if c.Phase == ca.Retiring {
		return f.recordRoot(audit.FinishRoot, c, "", func() error { return f.config.Authority.Finish(c.ID) })
	}
	return f.recordRoot(audit.AbortRoot, c, "taken back by the primary", func() error { return f.config.Authority.Abort(c.ID) })
}

// answerRoot is what this member says to its primary.
func (f *Federation) answerRoot(change string, phase pb.RootPhase, done bool, awaited []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.progress = &pb.RootProgress{Change: change, Phase: phase, Done: done, Awaited: awaited[:min(len(awaited), maxAwaited)]}
	if f.live != nil {
		signal(f.live.wake)
	}
}

// keepRootHash keeps the membership in step with the root of this member's intermediate, by which it knows its primary.
func (f *Federation) keepRootHash() error {
	hash := f.config.Authority.RootHash()
	f.mu.Lock()
	m := f.membership
	f.mu.Unlock()
	if m.RootHash == hash {
		return nil
	}
	m.RootHash = hash
	if err := writeMembership(f.config.Cluster, m); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.membership.RootHash = hash
	return nil
}

// RotateRoot begins the change to a new root that is made here. Its error is a [*client.Problem].
func (f *Federation) RotateRoot(ctx context.Context) error {
	return f.beginRoot(ctx, f.config.Authority.BeginRotation)
}

// InstallRoot begins the change to a root that was made elsewhere, for the request of [Federation.RequestRoot].
func (f *Federation) InstallRoot(ctx context.Context, certificates, chain []byte) error {
	external, err := f.config.Authority.Requested(certificates, chain)
	if err != nil {
		return &client.Problem{Status: http.StatusBadRequest, What: "the certificate cannot be the mesh's authority", Why: err.Error(),
			Remedy: "nothing was changed; have the request of `heddle ca csr` signed as a certificate authority with pathlen 1, and give its chain up to the root"}
	}
	return f.beginRoot(ctx, func() (ca.Change, error) { return f.config.Authority.BeginInstall(external) })
}

// RequestRoot is the request (PEM) for the mesh's authority, to be signed elsewhere.
func (f *Federation) RequestRoot(another bool) ([]byte, error) {
	request, err := f.config.Authority.Request(another)
	return request, f.rootProblem(err)
}

func (f *Federation) beginRoot(ctx context.Context, begin func() (ca.Change, error)) error {
	if !f.takeTurn(ctx) {
		return &client.Problem{Status: http.StatusConflict, What: "a join, a rotation or a change of the root is under way", Remedy: "wait until it is done; `heddle ca status` shows it"}
	}
	defer f.changing.Release(1)
	// Who is being admitted now is a member when the change begins, and nobody is admitted while it lasts.
	f.primacy.Lock()
	defer f.primacy.Unlock()
	if f.Joining() {
		return &client.Problem{Status: http.StatusConflict, What: "this cluster is joining another mesh", Remedy: "change the root at that mesh's primary"}
	}
	c, err := begin()
	if err != nil {
		return f.rootProblem(err)
	}
	f.config.Log.Info("change of the mesh's root begins", "change", c.ID, "kind", c.Kind)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.about(c)
	f.wakeAll()
	signal(f.reroot)
	return nil
}

// AbortRoot takes a change of the root back. Its error is a [*client.Problem].
func (f *Federation) AbortRoot(ctx context.Context) error {
	f.mu.Lock()
	isMember := f.member
	if f.root.stop != nil {
		f.root.stop()
	}
	f.mu.Unlock()
	if isMember {
		return f.rootProblem(ca.ErrNoRoot)
	}
	// The step that was under way ends at once.
	if err := f.changing.Acquire(ctx, 1); err != nil {
		return f.rootProblem(fmt.Errorf("the request ended before the step that was under way: %w", err))
	}
	defer f.changing.Release(1)
	c, changing := f.config.Authority.Change()
	if !changing {
		return f.rootProblem(ca.ErrNoChange)
	}
	if err := f.config.Authority.Abort(c.ID); err != nil {
		return f.rootProblem(err)
	}
	f.config.Log.Info("change of the mesh's root taken back", "change", c.ID)
	f.sendRoot()
	signal(f.reroot)
	return nil
}

// rootProblem makes an error about the root one for people.
func (f *Federation) rootProblem(err error) error {
	if err == nil {
		return nil
	}
	p := &client.Problem{Status: http.StatusConflict, What: "the mesh's root was not changed", Why: err.Error()}
	f.mu.Lock()
	primary := f.membership.Primary
	f.mu.Unlock()
	switch {
	case errors.Is(err, ca.ErrNoRoot):
		p.What, p.Why, p.Remedy = "only the primary changes the mesh's root", "this cluster is a member of the mesh of "+primary, "run the command there; members follow by themselves"
	case errors.Is(err, ca.ErrExternal):
		p.Remedy = "have the next one made there: `heddle ca csr`, then `heddle ca install`"
	case errors.Is(err, ca.ErrChanging):
		p.Remedy = "wait until it is done, or take it back with `heddle ca abort`; `heddle ca status` shows who is awaited"
	case errors.Is(err, ca.ErrNoChange):
		p.What, p.Remedy = "there is nothing to take back", "`heddle ca status` shows what is under way"
	case errors.Is(err, ca.ErrTooLate):
		p.What, p.Remedy = "the change of the root cannot be taken back", "let it end, and then rotate again"
	default:
		p.Status, p.Remedy = http.StatusInternalServerError, "nothing was changed; see `heddle logs --controller`"
	}
	return p
}

// RootStatus tells what the mesh's certificates hang on, and how far a change of it is.
func (f *Federation) RootStatus() client.AuthorityStatus {
	d := f.config.Authority.Describe()
	s := client.AuthorityStatus{Cluster: f.config.Cluster.Name, Root: client.Root(d.Root), Elsewhere: d.Elsewhere, Above: d.Above, Requested: d.Requested}
	for _, t := range d.Trusted {
		s.Trusted = append(s.Trusted, client.Root(t))
	}
	s.Issuer, s.IssuerExpires = f.config.Authority.Issuer()
	c, changing := f.config.Authority.Change()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Primary = f.primaryLocked()
	if changing {
		s.Change = &client.RootChange{ID: c.ID, Kind: c.Kind, Phase: string(c.Phase), Began: c.Began, Since: c.Since}
		if f.root.change == c.ID && f.root.phase == c.Phase {
			s.Change.Awaited = slices.Clone(f.root.awaited)
		}
	}
	return s
}
