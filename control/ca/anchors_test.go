package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
)

// announced is what others have heard of a cluster: what it announced, and when.
type announced struct {
	at      time.Time
	anchors []string
}

// listener keeps what a cluster announces, as clusters do that hear of it only after a while.
type listener struct {
	t *testing.T
	c *clock
	a *Authority
	// delay is how late it hears.
	delay time.Duration
	heard []announced
}

func (l *listener) listen() { l.heard = append(l.heard, announced{l.c.now, l.a.Announced()}) }

// known are the anchors that the listener goes by now.
func (l *listener) known() []string {
	for _, h := range slices.Backward(l.heard) {
		if !h.at.Add(l.delay).After(l.c.now) {
			return h.anchors
		}
	}
	return nil
}

// accepts says whether a listener takes a certificate, going by anchors alone.
func (l *listener) accepts(shown Certificate) error {
	l.t.Helper()
	pool := x509.NewCertPool()
	for _, a := range l.known() {
		pool.AppendCertsFromPEM([]byte(a))
	}
	chain := chainOf(l.t, shown.Chain)
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: others, CurrentTime: l.c.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

func chainOf(t *testing.T, text []byte) []*x509.Certificate {
	t.Helper()
	var out []*x509.Certificate
	for part := range strings.SplitAfterSeq(string(text), "-----END CERTIFICATE-----\n") {
		if part == "" {
			continue
		}
		c, err := parseCertificate([]byte(part))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// announcing is an authority that announces, opened anew.
func announcing(t *testing.T, dir, name string, member bool, c *clock) *Authority {
	t.Helper()
	a, err := Open(Options{Dir: dir, Cluster: name, TrustDomain: "cluster.local", Member: member, Now: c.Now, Announce: AnnounceTime})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestWhatIsShownWasAnnounced: over renewals, restarts and changes of the root, whoever hears of a cluster's intermediates
// half a minute late accepts every certificate that its workloads show, old or new.
func TestWhatIsShownWasAnnounced(t *testing.T) {
	for _, name := range []string{"cluster1", "cluster2"} {
		t.Run(name, func(t *testing.T) {
			c := &clock{start}
			primaryDir := t.TempDir()
			primary := announcing(t, primaryDir, "cluster1", false, c)
			a, dir, member := primary, primaryDir, name != "cluster1"
			if member {
				dir = t.TempDir()
				join(t, primary, name, dir, c)
				a = announcing(t, dir, name, true, c)
			}
			obtain := func(_ context.Context, request []byte) (Intermediate, error) {
				return primary.SignIntermediate(request, name, MembershipOf(a.state().current.certificate))
			}
			l := &listener{t: t, c: c, a: a, delay: AnnounceTime}
			var shown []Certificate
			look := func(step string) {
				t.Helper()
				if err := a.Prepare(t.Context(), obtain); err != nil {
					t.Fatal(err)
				}
				l.listen()
				shown = append(shown, sign(t, a))
				shown = slices.DeleteFunc(shown, func(s Certificate) bool { return !c.now.Before(s.Expires) })
				for i, s := range shown {
					if err := l.accepts(s); err != nil {
						t.Fatalf("%s, at %s: certificate %d of %d: %v", step, c.now, i+1, len(shown), err)
					}
				}
			}
			pass := func(step string, d, each time.Duration) {
				t.Helper()
				for end := c.now.Add(d); c.now.Before(end); c.now = c.now.Add(each) {
					look(step)
				}
			}
			// Who joins is heard of before it is called.
			l.listen()
			c.now = c.now.Add(AnnounceTime)
			reopen := func() {
				a = announcing(t, dir, name, member, c)
				if l.a = a; !member {
					primary = a
				}
			}
			first := a.state().current.certificate
			for range 3 {
				pass("before it is renewed", AnnounceTime+5*time.Second, 10*time.Second)
				if err := a.Renew(t.Context(), obtain); err != nil {
					t.Fatal(err)
				}
				look("renewed")
				var early *UnannouncedError
				if err := a.Renew(t.Context(), obtain); !errors.As(err, &early) {
					t.Fatalf("renewed again at once: %v", err)
				}
				look("not renewed again")
				reopen()
				look("started again")
			}
			old := shown[0]
			if !chainOf(t, old.Chain)[1].Equal(first) {
				t.Fatal("the first certificate is not of the first intermediate")
			}
			pass("afterwards", 90*time.Minute, 15*time.Minute)
			if slices.Contains(a.Announced(), string(encode(first.Raw))) {
				t.Error("an intermediate whose certificates have all expired is an anchor still")
			}
			for range 2 {
				change, err := primary.BeginRotation()
				if err != nil {
					t.Fatal(err)
				}
				if member {
					if _, err := a.Follow([]byte(change.Next), []byte(change.Previous)); err != nil {
						t.Fatal(err)
					}
				}
				pass("both roots are trusted", AnnounceTime+10*time.Second, 20*time.Second)
				before := a.state().current.key
				advance(t, primary, change.ID, Signing)
				if member {
					advance(t, a, change.ID, Signing)
					if err := a.Renew(t.Context(), obtain); err != nil {
						t.Fatal(err)
					}
				}
				if belongs(before, a.state().current.certificate) {
					t.Error("the next root signed for the same key")
				}
				look("the next root signs")
				reopen()
				pass("the next root signs", time.Minute, 30*time.Second)
				// All workloads have been renewed.
				shown = shown[len(shown)-1:]
				advance(t, primary, change.ID, Retiring)
				if member {
					advance(t, a, change.ID, Retiring)
				}
				look("the previous root is forgotten")
				for _, x := range []*Authority{primary, a} {
					if err := x.Finish(change.ID); err != nil && (!errors.Is(err, ErrNoChange) || x != a) {
						t.Fatal(err)
					}
				}
				pass("it is over", 2*time.Minute, time.Minute)
			}
			// And by itself, in its time.
			if !member {
				pass("months later", 70*24*time.Hour, 9*time.Hour)
			}
		})
	}
}

// TestAnchorsAreChecked: a cluster can announce its own intermediates only.
func TestAnchorsAreChecked(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	join(t, primary, "cluster2", dir, c)
	member := openMemberOf(t, dir, "cluster2", c)
	other := open(t, t.TempDir(), c)
	of := cluster.Issuer{Cluster: "cluster2", Membership: MembershipOf(member.state().current.certificate)}
	own := member.Announced()[0]
	if err := CheckAnchor(own, of, "cluster.local", false, primary.Roots()); err != nil {
		t.Error(err)
	}
	if err := CheckAnchor(primary.Announced()[0], cluster.Issuer{Cluster: "cluster1"}, "cluster.local", true, primary.Roots()); err != nil {
		t.Error(err)
	}
	workload := string(encode(chainOf(t, sign(t, member).Chain)[0].Raw))
	for what, refused := range map[string]struct {
		anchor  string
		of      cluster.Issuer
		primary bool
		roots   []byte
		why     string
	}{
		"nothing":                    {"", of, false, primary.Roots(), "not exactly one PEM"},
		"the root":                   {string(primary.Root()), of, false, primary.Roots(), "no intermediate"},
		"a workload's certificate":   {workload, of, false, primary.Roots(), "no intermediate"},
		"the primary's intermediate": {primary.Announced()[0], of, false, primary.Roots(), "it may issue"},
		"as the primary":             {own, cluster.Issuer{Cluster: "cluster1"}, true, primary.Roots(), "it may issue"},
		"of another membership":      {own, cluster.Issuer{Cluster: "cluster2", Membership: strings.Repeat("ab", 32)}, false, primary.Roots(), "it may issue"},
		"of another mesh":            {own, of, false, other.Roots(), "no root of the mesh"},
		"two of them":                {own + own, of, false, primary.Roots(), "not exactly one PEM"},
	} {
		if err := CheckAnchor(refused.anchor, refused.of, "cluster.local", refused.primary, refused.roots); err == nil || !strings.Contains(err.Error(), refused.why) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A thousand streams to other clusters wake, as at any change of one: each asks for the anchors, to compare them.
func BenchmarkAnnouncedToStreams(b *testing.B) {
	c := &clock{start}
	a, err := Open(Options{Dir: b.TempDir(), Cluster: "cluster1", TrustDomain: "cluster.local", Now: c.Now})
	if err != nil {
		b.Fatal(err)
	}
	for range 3 {
		if err := a.Renew(context.Background(), nil); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for range 1000 {
			if len(a.Announced()) != 5 {
				b.Fatal("not all anchors")
			}
		}
	}
}

// TestAClockThatIsSetBackDelaysNoAnnouncement: a controller that started with a clock that was ahead, and starts again once that is
// right, announces for as long as others do.
func TestAClockThatIsSetBackDelaysNoAnnouncement(t *testing.T) {
	c := &clock{start.Add(time.Hour)}
	dir := t.TempDir()
	a := announcing(t, dir, "cluster1", false, c)
	if err := a.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(-90 * time.Second)
	a = announcing(t, dir, "cluster1", false, c)
	var early *UnannouncedError
	if err := a.Renew(t.Context(), nil); !errors.As(err, &early) || early.Left != AnnounceTime {
		t.Errorf("renewed with %v", err)
	}
	c.now = c.now.Add(AnnounceTime)
	if err := a.Renew(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
