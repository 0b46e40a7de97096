package federation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/server/client"
)

// host is an agent's credentials, and what was signed for them. Each signing is a line of the audit log, as at the controller.
type host struct {
	t    *testing.T
	node *node
	log  *audit.Log

	mu       sync.Mutex
	signed   map[string]int
	workload map[string]*identity.Credential
}

func (h *host) Sign(_ context.Context, who ca.Identity, request []byte) (ca.Certificate, error) {
	issued, err := h.node.authority.Sign(request, who, 0)
	if err == nil {
		err = h.log.Signed(audit.Record{Who: "agent", Action: audit.Sign, Objects: []audit.Object{{Name: who.String()}}, Detail: issued.Serial, Result: audit.Done})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.signed[who.ServiceAccount]++
	return issued, err
}

func (h *host) SignOutside(context.Context, ca.Identity, []byte, time.Duration) (ca.Certificate, error) {
	return ca.Certificate{}, errors.New("nobody renews here by themselves")
}

// rotate is the agent's part. It gives the one that says nothing up once the others are done.
func (h *host) rotate(silent string) error {
	generation, err := h.node.authority.Generation()
	if err != nil {
		return err
	}
	ctx, giveUp := context.WithCancel(h.t.Context())
	defer giveUp()
	var others, last sync.WaitGroup
	var mu sync.Mutex
	var problems []string
	for name, c := range h.workload {
		reach := func() {
			if err := c.Reach(ctx, generation); err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, "shop/"+name+": "+err.Error())
			}
		}
		if name == silent {
			last.Go(reach)
		} else {
			others.Go(reach)
		}
	}
	others.Wait()
	giveUp()
	last.Wait()
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}

func (h *host) signings() (all, silent int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, n := range h.signed {
		all += n
		if name == "w0" {
			silent = n
		}
	}
	return all, silent
}

func (h *host) recorded() (lines int) {
	h.t.Helper()
	err := h.log.Read(context.Background(), client.AuditFilter{}, func(line []byte) error {
		var r audit.Record
		err := json.Unmarshal(line, &r)
		if r.Action == audit.Sign {
			lines++
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return lines
}

// subscribe has a proxy ask for its secrets and never say a word on what it gets. It returns how it goes away.
func subscribe(t *testing.T, dir string, c *identity.Credential) (leave func()) {
	t.Helper()
	path := filepath.Join(dir, "w0.sock")
	s, err := identity.Listen(identity.Config{Path: path, Netns: "/proc/self/ns/net", Credential: c, Node: &corev3.Node{Id: "p"},
		Controller: filepath.Join(dir, "xds.sock"), Refusals: new(identity.Refusals), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).DeltaSecrets(t.Context())
	if err == nil {
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: resource.SecretType,
			ResourceNamesSubscribe: []string{identity.SecretCertificate, identity.SecretRoots}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { conn.Close() }
}

// One proxy of fifty never says whether it took a certificate. Hours of a change of the root that waits for it sign once per
// workload and phase, and it is asked once a minute; the change names it, and goes on when it is gone, or when what it has has
// expired.
func TestOneSilentProxyCostsItselfAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("giving a socket to the proxy's user needs root")
	}
	const n = 50
	p := newNode(t, "cluster1", newLink(), &clock{})
	log, err := audit.Open(audit.Options{Dir: filepath.Join(t.TempDir(), "audit"), Size: 4 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	h := &host{t: t, node: p, log: log, signed: map[string]int{}, workload: map[string]*identity.Credential{}}
	for i := range n {
		name := fmt.Sprint("w", i)
		c := identity.NewCredential(ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: name}, ca.ECDSAP256, h, slog.New(slog.DiscardHandler))
		h.workload[name] = c
		go c.Run(t.Context())
	}
	for _, c := range h.workload {
		<-c.Ready()
	}
	leave := subscribe(t, t.TempDir(), h.workload["w0"])
	// It is away for a moment as the next root begins to sign, so that there is a phase where it is waited for with the next root.
	again := sync.OnceFunc(func() { leave = subscribe(t, t.TempDir(), h.workload["w0"]) })
	p.onRotate(func() error {
		if c, _ := p.authority.Change(); c.Phase == ca.Signing {
			again()
		}
		return h.rotate("w0")
	})
	if err := p.f.RotateRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	attempts := func() uint64 { return p.f.counters.snapshot()[countWorkloadRenewals] }
	// waits lets time pass in a phase.
	waits := func(phase string, minutes uint64, signed int) {
		t.Helper()
		eventually(t, "the phase "+phase+" waits for it, by name", func() bool {
			return phaseOf(p) == phase && strings.Contains(awaited(p), "cluster1: shop/w0: ") && strings.Contains(awaited(p), "not acknowledged")
		})
		if strings.Contains(awaited(p), "w1") {
			t.Errorf("others are awaited: %s", awaited(p))
		}
		began := attempts()
		for range minutes {
			before := attempts()
			p.clock.advance(lastRenewal)
			eventually(t, "it is looked again after a minute", func() bool { return attempts() > before })
			for range 3 {
				// Looking is not asking.
				if err := p.f.stepRoot(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		// Beside one a minute, those of the first pauses, which the test's pace makes short.
		if got := attempts() - began; got > minutes+20 {
			t.Errorf("%d attempts in %d minutes", got, minutes)
		}
		all, silent := h.signings()
		if all != signed || silent*n != signed {
			t.Errorf("in phase %s: %d signings, of them %d for the silent one; want %d and %d", phase, all, silent, signed, signed/n)
		}
		if lines := h.recorded(); lines != signed {
			t.Errorf("in phase %s: %d lines of the audit log, want %d", phase, lines, signed)
		}
	}
	before := p.authority.Roots()
	// Each had one certificate, and has got one with the next root.
	waits("trust", 120, 2*n)
	leave()
	p.clock.advance(lastRenewal)
	// One more, of the next root. What it has expires.
	waits("sign", 60, 3*n)
	p.clock.advance(grace - time.Hour)
	// And one without the previous root.
	waits("retire", 120, 4*n)
	leave()
	p.clock.advance(lastRenewal)
	rotated(t, before, p)
	if all, _ := h.signings(); all != 4*n {
		t.Errorf("%d signings in all, want %d", all, 4*n)
	}
}
