package identity

import (
	"context"
	"encoding/pem"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/server/client"
)

// maxSigning is how many requests over Istio's API are with the controller at once, of one workload.
const maxSigning = 4

// One workload has signingBurst requests granted at once, and then one in each signingPause. Istio's agents ask every half hour.
const (
	signingBurst = 20
	signingPause = 10 * time.Second
)

// istio answers Istio's certificate API (istio.v1.auth.IstioCertificateService) for the one workload whose socket it is on:
// who may open that is the workload's proxy, or root of the machine (not of a sandbox), so that the identity needs no further proof. Metadata, in which Istio's
// proxies name an impersonated identity or a signer, is ignored.
type istio struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	identity ca.Identity
	signer   Signer
	log      *slog.Logger
	slots    chan struct{}
	// rate is how often a request is granted: each is a record in the audit log, whose room is bounded, and the authority's work.
	rate     *rate.Limiter
	now      func() time.Time
	refusals *Refusals
}

func newIstio(c *Credential, log *slog.Logger, refusals *Refusals) *istio {
	return &istio{identity: c.Identity, signer: c.signer, log: log, slots: make(chan struct{}, maxSigning), rate: rate.NewLimiter(rate.Every(signingPause), signingBurst), now: time.Now, refusals: refusals}
}

// CreateCertificate implements the API. The chain is the leaf first and what verifiers trust last, as Istio's agents expect.
func (i *istio) CreateCertificate(ctx context.Context, r *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	default:
		i.refusals.certificates.Add(1)
		return nil, status.Errorf(codes.ResourceExhausted, "%d certificate requests of %s are being signed already; try again", maxSigning, i.identity)
	}
	if len(r.GetCsr()) > ca.MaxRequestBytes {
		return nil, status.Errorf(codes.InvalidArgument, "a certificate request of %d bytes is larger than %d", len(r.GetCsr()), ca.MaxRequestBytes)
	}
	seconds := r.GetValidityDuration()
	if seconds < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "validity_duration %d is less than none", seconds)
	}
	lifetime := time.Duration(min(seconds, math.MaxInt64/int64(time.Second))) * time.Second
	if !i.rate.AllowN(i.now(), 1) {
		i.refusals.certificates.Add(1)
		return nil, status.Errorf(codes.ResourceExhausted, "%s has had %d certificates signed at once, and gets another one every %s; use the one that was signed", i.identity, signingBurst, signingPause)
	}
	issued, err := i.signer.SignOutside(ctx, i.identity, []byte(r.GetCsr()), lifetime)
	if err != nil {
		i.log.Warn("certificate request over Istio's API not granted", "identity", i.identity.String(), "error", err)
		return nil, i.refusal(err)
	}
	return &securityv1alpha1.IstioCertificateResponse{CertChain: append(blocks(issued.Chain), string(issued.Roots))}, nil
}

// refusal tells what can never be granted from what may be granted later, by which callers decide whether to ask again.
func (i *istio) refusal(err error) error {
	var problem *client.Problem
	if errors.Is(err, ca.ErrRefused) || errors.As(err, &problem) && problem.Status == http.StatusForbidden {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}

// blocks are the certificates of a chain (PEM), one each.
func blocks(chain []byte) []string {
	var out []string
	for {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			return out
		}
		out = append(out, string(pem.EncodeToMemory(block)))
	}
}
