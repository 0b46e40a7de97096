// Package identity gives a workload's proxy its identity and its configuration over one unix socket: secrets by SDS,
// with keys that are made here and never leave the host, and ADS forwarded to the controller under the identity that
// the agent vouches for, whatever the proxy calls itself.
package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"golang.org/x/sync/semaphore"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
)

// Names of the two secrets, as in Istio.
const (
	SecretCertificate = "default"
	SecretRoots       = "ROOTCA"
)

// processors of this agent, and generating the keys that they may be at: were all of a host's made at once, all would be half
// done when the time of a rotation is up, and the next attempt would begin with all again. An RSA key of 2048 bits takes some
// fifty milliseconds.
var (
	processors = int64(runtime.GOMAXPROCS(0))
	generating = semaphore.NewWeighted(processors)
)

// Signer has a request signed for an attested identity.
type Signer interface {
	Sign(ctx context.Context, identity ca.Identity, request []byte) (ca.Certificate, error)
	// SignOutside signs for a program that renews its certificate by itself, with the lifetime that it wants if it can be had.
	SignOutside(ctx context.Context, identity ca.Identity, request []byte, lifetime time.Duration) (ca.Certificate, error)
}

// Credential keeps one workload's certificate fresh and hands it to whoever subscribes to its secrets.
type Credential struct {
	Identity ca.Identity
	signer   Signer
	kind     ca.KeyType
	log      *slog.Logger
	random   io.Reader
	secrets  *cache.LinearCache
	now      func() time.Time
	// jitter is a number in [0,1).
	jitter func() float64
	after  func(time.Duration) <-chan time.Time
	// delivered is what the proxy has of the secrets.
	delivered *deliveries
	// requests are renewals that somebody waits for.
	requests chan chan error

	// publishing guards what is in secrets, and the provider that is named there.
	publishing sync.Mutex
	provider   *objects.KeyProvider

	mu      sync.Mutex
	current Validity
	// generation of the certificate that is published, see [ca.Certificate.Generation]; empty once a proxy refused it.
	generation string
	ready      chan struct{}
}

// Validity describes the certificate in use.
type Validity struct {
	Serial  string    `json:"serial"`
	Issuer  string    `json:"issuer"`
	Issued  time.Time `json:"issued,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
	// Problem is the last failure to renew, empty after a success.
	Problem string `json:"problem,omitempty"`
	// Renewals counts certificates issued.
	Renewals int `json:"renewals"`
}

// NewCredential makes a credential without a certificate yet; Run gets one, for a key of that kind.
func NewCredential(identity ca.Identity, kind ca.KeyType, signer Signer, log *slog.Logger) *Credential {
	now := time.Now()
	return &Credential{
		Identity: identity, signer: signer, kind: kind, log: log,
		// The prefix keeps versions of different agents apart: a proxy that reconnects names the last one it saw.
		secrets: cache.NewLinearCache(resource.SecretType, cache.WithVersionPrefix(fmt.Sprintf("%d-", now.UnixNano()))),
		now:     time.Now, jitter: rand.Float64, after: time.After,
		delivered: newDeliveries(), requests: make(chan chan error), ready: make(chan struct{}),
	}
}

// Ready closes when there is a certificate.
func (c *Credential) Ready() <-chan struct{} { return c.ready }

// Validity of the certificate in use.
func (c *Credential) Validity() Validity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Renew renews the certificate now, and returns when the proxy has taken it and the roots that came with it, or when that
// failed. A renewal that is under way already does not count: it may have been signed before whatever made the caller ask.
func (c *Credential) Renew(ctx context.Context) error {
	if err := c.request(ctx); err != nil {
		return err
	}
	return c.settle(ctx)
}

// Reach is Renew where the certificate is not of that generation yet (see [ca.Certificate.Generation]); where it is, only
// the proxy is waited for. What it refused is signed anew.
func (c *Credential) Reach(ctx context.Context, generation string) error {
	c.mu.Lock()
	reached := generation != "" && c.generation == generation
	c.mu.Unlock()
	if reached {
		return c.settle(ctx)
	}
	return c.Renew(ctx)
}

// request has Run renew the certificate and publish it.
func (c *Credential) request(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case c.requests <- done:
	case <-ctx.Done():
		return fmt.Errorf("renew certificate of %s: it waits for an earlier renewal: %w", c.Identity, ctx.Err())
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("renew certificate of %s: %w", c.Identity, ctx.Err())
	}
}

// settle waits until the proxy has taken what is published.
func (c *Credential) settle(ctx context.Context) error {
	var published []*tlsv3.Secret
	for _, resource := range c.secrets.GetResources() {
		if secret, ok := resource.(*tlsv3.Secret); ok {
			published = append(published, secret)
		}
	}
	err := c.delivered.settle(ctx, published...)
	if errors.Is(err, errRefused) {
		c.mu.Lock()
		c.generation = ""
		c.mu.Unlock()
	}
	return err
}

const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Minute
)

// Run keeps the certificate fresh until ctx ends: it is renewed at half its life, a tenth earlier or later so that
// workloads that started together do not renew together. A failed renewal is tried again with growing pauses while the
// proxy keeps what it has.
func (c *Credential) Run(ctx context.Context) {
	pause := firstRetry
	var asked chan error
	for {
		wait, err := c.renew(ctx)
		if asked != nil {
			asked <- err
			asked = nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			c.current.Problem = err.Error()
			c.mu.Unlock()
			level := slog.LevelWarn
			if c.Validity().Renewals == 0 && pause < time.Second {
				// A cluster that starts has no controller yet.
				level = slog.LevelDebug
			}
			c.log.Log(ctx, level, "certificate not renewed", "identity", c.Identity.String(), "error", err, "again_in", pause)
			wait = pause
			pause = min(2*pause, lastRetry)
		} else {
			pause = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-c.after(wait):
		case asked = <-c.requests:
		}
	}
}

// renew gets a certificate for a new key and publishes both. It returns when to renew next.
func (c *Credential) renew(ctx context.Context) (time.Duration, error) {
	if err := generating.Acquire(ctx, 1); err != nil {
		return 0, fmt.Errorf("wait for other keys to be made: %w", err)
	}
	key, request, err := ca.NewRequest(c.Identity, c.kind, c.random)
	generating.Release(1)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	issued, err := c.signer.Sign(ctx, c.Identity, request)
	if err != nil {
		return 0, err
	}
	c.publishing.Lock()
	defer c.publishing.Unlock()
	provider, err := c.providerOf(issued.Chain, key)
	if err != nil {
		return 0, err
	}
	// Roots first: a peer's new certificate must be trusted before it is shown.
	if err := c.secrets.UpdateResources(map[string]types.Resource{
		SecretRoots: &tlsv3.Secret{Name: SecretRoots, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(issued.Roots)},
		}},
		SecretCertificate: &tlsv3.Secret{Name: SecretCertificate, Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inline(issued.Chain), PrivateKey: inline(key), PrivateKeyProvider: provider,
			},
		}},
	}, nil); err != nil {
		return 0, fmt.Errorf("publish certificate: %w", err)
	}
	now := c.now()
	c.mu.Lock()
	first := c.current.Renewals == 0
	c.generation = issued.Generation()
	c.current = Validity{Serial: issued.Serial, Issuer: issued.Issuer, Issued: now, Expires: issued.Expires, Renewals: c.current.Renewals + 1}
	c.mu.Unlock()
	if first {
		close(c.ready)
	}
	life := issued.Expires.Sub(now)
	return time.Duration(float64(life) * (0.45 + 0.1*c.jitter())), nil
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
