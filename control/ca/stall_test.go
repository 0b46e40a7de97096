package ca

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// stalling is an audit log whose disk can stall.
type stalling struct {
	now     atomic.Bool
	entered chan struct{}
	resume  chan struct{}
}

func (s *stalling) record(string, string, time.Time) error {
	if s.now.Load() {
		s.entered <- struct{}{}
		<-s.resume
	}
	return nil
}

// Whatever is being made while the disk does not come back, handshakes go on with what there is: certificates are looked up,
// bundles and anchors given out, workloads and members signed for.
func TestStalledDiskHoldsUpNobodyWhoAsks(t *testing.T) {
	for name, test := range map[string]struct {
		// since Open, the time that has passed when the disk stalls, and what is made then.
		since time.Duration
		make  func(a *Authority) error
	}{
		"another intermediate":         {0, func(a *Authority) error { return a.Renew(context.Background(), nil) }},
		"the next root":                {0, func(a *Authority) error { _, err := a.BeginRotation(); return err }},
		"the controller's certificate": {WorkloadLifetime * 2 / 3, func(a *Authority) error { _, err := a.Controller(); return err }},
		"the API's certificate":        {WorkloadLifetime * 2 / 3, func(a *Authority) error { _, err := a.API(nil); return err }},
		"an intermediate that is due":  {IntermediateLifetime * 3 / 4, func(a *Authority) error { _, err := a.Generation(); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{start}
			disk := &stalling{entered: make(chan struct{}), resume: make(chan struct{})}
			a, err := Open(Options{Dir: filepath.Join(t.TempDir(), "ca"), Cluster: "cluster1", TrustDomain: "cluster.local", Now: c.Now, Record: disk.record})
			if err != nil {
				t.Fatal(err)
			}
			identity := Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
			_, request, err := NewRequest(identity, ECDSAP256, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, memberRequest, err := NewIntermediateRequest("cluster2", nil)
			if err != nil {
				t.Fatal(err)
			}
			asked := func() error {
				a.Roots()
				a.Root()
				a.RootHash()
				a.MeshPool()
				a.Anchors()
				a.Announced()
				a.Issuers()
				a.Issuer()
				a.APIName()
				a.Change()
				a.FormerRoots()
				a.Describe()
				a.RenewAt()
				a.Prepared()
				for _, ask := range []func() error{
					func() error { _, err := a.Generation(); return err },
					func() error { _, err := a.Sign(request, identity, 0); return err },
					func() error { _, err := a.SignOutside(request, identity, time.Minute); return err },
					func() error {
						_, err := a.SignIntermediate(memberRequest, "cluster2", strings.Repeat("ab", 32))
						return err
					},
					func() error { _, err := a.Controller(); return err },
					func() error { _, err := a.API([]netip.Addr{netip.IPv6Loopback()}); return err },
				} {
					if err := ask(); err != nil {
						return err
					}
				}
				return nil
			}
			if _, err := a.Controller(); err != nil {
				t.Fatal(err)
			}
			if _, err := a.API(nil); err != nil {
				t.Fatal(err)
			}
			c.now = start.Add(test.since)
			// Once an hour, who signs for outsiders has to write it down first.
			if err := a.noteOutside(c.now.Add(WorkloadLifetime)); err != nil {
				t.Fatal(err)
			}
			disk.now.Store(true)
			made := make(chan error, 1)
			go func() { made <- test.make(a) }()
			<-disk.entered
			// What is made now is not made by anybody else.
			disk.now.Store(false)
			answers := make(chan error, 1)
			go func() { answers <- asked() }()
			select {
			case err := <-answers:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Error("who asks waits for the disk")
			}
			close(disk.resume)
			if err := <-made; err != nil {
				t.Error(err)
			}
		})
	}
}
