package identity

import (
	"context"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
)

// Another provider is published with the certificate in use, which is not issued anew; later ones name it too.
func TestAnotherProviderOfKeysNeedsNoOtherCertificate(t *testing.T) {
	authorities, err := ca.Open(ca.Options{Dir: t.TempDir(), Cluster: "c", TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []ca.KeyType{ca.RSA2048, ca.ECDSAP256} {
		c := NewCredential(payments, kind, authority{authorities}, quiet())
		published := func() *tlsv3.Secret {
			secret, _ := c.secrets.GetResources()[SecretCertificate].(*tlsv3.Secret)
			return secret
		}
		provider := func() string { return published().GetTlsCertificate().GetPrivateKeyProvider().GetProviderName() }
		if _, err := c.renew(context.Background()); err != nil {
			t.Fatal(err)
		}
		first := published()
		before := proto.CloneOf(first)
		if err := c.UseKeysBy(&objects.KeyProvider{Name: objects.CryptoMb, PollDelay: 10 * time.Millisecond, Fallback: true}); err != nil {
			t.Fatal(err)
		}
		if provider() != objects.CryptoMb {
			t.Errorf("%v: the provider is %q", kind, provider())
		}
		if !proto.Equal(first, before) {
			t.Errorf("%v: what streams may be reading was changed", kind)
		}
		if c.Validity().Renewals != 1 || string(published().GetTlsCertificate().GetCertificateChain().GetInlineBytes()) !=
			string(before.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) {
			t.Errorf("%v: another certificate was issued", kind)
		}
		if _, err := c.renew(context.Background()); err != nil || provider() != objects.CryptoMb {
			t.Errorf("%v: the next certificate is used by %q, %v", kind, provider(), err)
		}
		if err := c.UseKeysBy(nil); err != nil || provider() != "" {
			t.Errorf("%v: nobody is asked for, and the provider is %q, %v", kind, provider(), err)
		}
	}
}
