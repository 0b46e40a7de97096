package identity

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"heddle.io/heddle/control/ca"
)

// countingSigner counts what it signs.
type countingSigner struct {
	authority
	signed atomic.Int32
}

func (s *countingSigner) Sign(ctx context.Context, identity ca.Identity, request []byte) (ca.Certificate, error) {
	s.signed.Add(1)
	return s.authority.Sign(ctx, identity, request)
}

// counted is a credential of an authority whose signings are counted.
func counted(t *testing.T) (*ca.Authority, *countingSigner, *Credential) {
	t.Helper()
	a, err := ca.Open(ca.Options{Dir: filepath.Join(t.TempDir(), "ca"), Cluster: "c", TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	signer := &countingSigner{authority: authority{a}}
	return a, signer, NewCredential(payments, ca.ECDSAP256, signer, quiet())
}

// Attempts that are repeated, because another workload's proxy does not acknowledge or its own does not, sign once.
func TestReachSignsOncePerGeneration(t *testing.T) {
	a, signer, credential := counted(t)
	go credential.Run(t.Context())
	<-credential.Ready()
	reach := func(want int32) {
		t.Helper()
		generation, err := a.Generation()
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if err := credential.Reach(t.Context(), generation); err != nil {
				t.Fatal(err)
			}
		}
		if got := signer.signed.Load(); got != want {
			t.Fatalf("signed %d times, want %d", got, want)
		}
	}
	reach(1)
	// The roots change: once more, whoever signs.
	if _, err := a.BeginRotation(); err != nil {
		t.Fatal(err)
	}
	reach(2)
	if err := credential.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	reach(3)
}

// A proxy that never acknowledges costs no signing for being waited for again.
func TestReachOfSilentProxyDoesNotSignAgain(t *testing.T) {
	a, signer, credential := counted(t)
	go credential.Run(t.Context())
	<-credential.Ready()
	generation, err := a.Generation()
	if err != nil {
		t.Fatal(err)
	}
	credential.delivered.mu.Lock()
	credential.delivered.streams[streamID{}] = map[string]*delivery{SecretCertificate: {}}
	credential.delivered.mu.Unlock()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if err := credential.Reach(ended, generation); err == nil || !strings.Contains(err.Error(), "not acknowledged") {
			t.Fatalf("a proxy that does not acknowledge is taken for done: %v", err)
		}
	}
	if got := signer.signed.Load(); got != 1 {
		t.Fatalf("signed %d times, want once", got)
	}
}

// Keys are made as many at a time as there are processors; who waits for its turn can be given up.
func TestKeysTakeTurns(t *testing.T) {
	_, signer, credential := counted(t)
	if err := generating.Acquire(t.Context(), processors); err != nil {
		t.Fatal(err)
	}
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := credential.renew(given); !errors.Is(err, context.Canceled) || signer.signed.Load() != 0 {
		t.Errorf("%v, %d signed, while all processors are at others' keys", err, signer.signed.Load())
	}
	generating.Release(processors)
	if _, err := credential.renew(t.Context()); err != nil || signer.signed.Load() != 1 {
		t.Errorf("%v, %d signed", err, signer.signed.Load())
	}
}
