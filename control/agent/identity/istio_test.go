package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"heddle.io/heddle/control/ca"
)

// A program with Istio's own client gets the certificate of the workload whose socket it has, and no other.
func TestIstiosCertificateAPI(t *testing.T) {
	credential, connection, _ := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := securityv1alpha1.NewIstioCertificateServiceClient(connection)
	key, request, err := ca.NewRequest(credential.Identity, ca.RSA2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"ImpersonatedIdentity": "spiffe://cluster.local/ns/bank/sa/teller", "CertSigner": "other"})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(request), ValidityDuration: 600, Metadata: metadata})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.GetCertChain()) != 3 {
		t.Fatalf("%d certificates", len(answer.GetCertChain()))
	}
	var chain []*x509.Certificate
	for _, text := range answer.GetCertChain() {
		block, rest := pem.Decode([]byte(text))
		if block == nil || len(bytes.TrimSpace(rest)) > 0 {
			t.Fatalf("not one certificate: %s", text)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool()}
	o.Roots.AddCert(chain[2])
	o.Intermediates.AddCert(chain[1])
	if _, err := chain[0].Verify(o); err != nil {
		t.Error(err)
	}
	if len(chain[0].URIs) != 1 || chain[0].URIs[0].String() != credential.Identity.String() || chain[0].PublicKeyAlgorithm != x509.RSA {
		t.Errorf("%v %v", chain[0].URIs, chain[0].PublicKeyAlgorithm)
	}
	if left := time.Until(chain[0].NotAfter); left > 10*time.Minute || left < 9*time.Minute {
		t.Errorf("it lives for %s", left)
	}
	if block, _ := pem.Decode(key); block == nil {
		t.Error("no key")
	}
	// What a hostile workload may try.
	other := credential.Identity
	other.ServiceAccount = "teller"
	_, foreign, err := ca.NewRequest(other, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]*securityv1alpha1.IstioCertificateRequest{
		"another identity":  {Csr: string(foreign)},
		"no request":        {},
		"not a request":     {Csr: answer.GetCertChain()[0]},
		"two requests":      {Csr: string(request) + string(request)},
		"a negative time":   {Csr: string(request), ValidityDuration: -1},
		"a request too big": {Csr: string(request) + strings.Repeat("\n", ca.MaxRequestBytes)},
	} {
		if _, err := client.CreateCertificate(ctx, bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A time beyond all bounds is the authority's own.
	long, err := client.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(request), ValidityDuration: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(long.GetCertChain()[0]))
	if c, err := x509.ParseCertificate(block.Bytes); err != nil || time.Until(c.NotAfter) > ca.WorkloadLifetime {
		t.Errorf("%v %v", c.NotAfter, err)
	}
}

// slow signs when it is told to.
type slow struct {
	Signer
	asked, proceed chan struct{}
}

func (s slow) SignOutside(context.Context, ca.Identity, []byte, time.Duration) (ca.Certificate, error) {
	s.asked <- struct{}{}
	<-s.proceed
	return ca.Certificate{}, errors.New("no controller")
}

func TestIstiosCertificateAPIIsBounded(t *testing.T) {
	s := slow{asked: make(chan struct{}, maxSigning), proceed: make(chan struct{})}
	var refused Refusals
	i := newIstio(NewCredential(payments, ca.ECDSAP256, s, quiet()), quiet(), &refused)
	ended := make(chan error, maxSigning)
	for range maxSigning {
		go func() {
			_, err := i.CreateCertificate(context.Background(), &securityv1alpha1.IstioCertificateRequest{Csr: "x"})
			ended <- err
		}()
	}
	for range maxSigning {
		<-s.asked
	}
	if _, err := i.CreateCertificate(context.Background(), &securityv1alpha1.IstioCertificateRequest{}); status.Code(err) != codes.ResourceExhausted || refused.certificates.Load() != 1 {
		t.Errorf("%v, %d refused", err, refused.certificates.Load())
	}
	close(s.proceed)
	for range maxSigning {
		// Without a controller it may be asked again.
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
}

// granting signs whatever it is asked.
type granting struct {
	Signer
	signed int
}

func (g *granting) SignOutside(context.Context, ca.Identity, []byte, time.Duration) (ca.Certificate, error) {
	g.signed++
	return ca.Certificate{}, nil
}

// A proxy that was taken over asks without end: each certificate is a record of the audit log, which it must not fill.
func TestIstiosCertificateAPIHasARate(t *testing.T) {
	signer, now := &granting{}, time.Unix(1, 0)
	var refused Refusals
	i := newIstio(NewCredential(payments, ca.ECDSAP256, signer, quiet()), quiet(), &refused)
	i.now = func() time.Time { return now }
	ask := func(n int) {
		for range n {
			if _, err := i.CreateCertificate(context.Background(), &securityv1alpha1.IstioCertificateRequest{Csr: "x"}); err != nil && status.Code(err) != codes.ResourceExhausted {
				t.Fatal(err)
			}
		}
	}
	ask(10 * signingBurst)
	if signer.signed != signingBurst || refused.certificates.Load() != 9*signingBurst {
		t.Errorf("%d were signed, %d refused", signer.signed, refused.certificates.Load())
	}
	now = now.Add(signingPause)
	ask(10)
	if signer.signed != signingBurst+1 {
		t.Errorf("%d were signed", signer.signed)
	}
}

// A proxy has a bounded number of streams on its connection to the agent: a further one waits until another ends.
func TestAProxyHasFewStreams(t *testing.T) {
	_, connection, _ := socket(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	api := secretv3.NewSecretDiscoveryServiceClient(connection)
	first, end := context.WithCancel(ctx)
	defer end()
	for n := range maxStreams {
		holder := ctx
		if n == 0 {
			holder = first
		}
		if _, err := api.DeltaSecrets(holder); err != nil {
			t.Fatal(err)
		}
	}
	short, give := context.WithTimeout(ctx, 200*time.Millisecond)
	defer give()
	if _, err := api.DeltaSecrets(short); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one stream more than %d: %v", maxStreams, err)
	}
	end()
	if _, err := api.DeltaSecrets(ctx); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
