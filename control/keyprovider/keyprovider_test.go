package keyprovider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	cryptombv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/cryptomb/v3alpha"
	qatv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/qat/v3alpha"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"heddle.io/heddle/control/objects"
)

func TestOf(t *testing.T) {
	if p, err := Of(nil, []byte("key")); p != nil || err != nil {
		t.Errorf("nobody: %v, %v", p, err)
	}
	type method interface {
		proto.Message
		GetPollDelay() *durationpb.Duration
		GetPrivateKey() *corev3.DataSource
	}
	for name, message := range map[string]method{
		objects.CryptoMb: &cryptombv3.CryptoMbPrivateKeyMethodConfig{},
		objects.QAT:      &qatv3.QatPrivateKeyMethodConfig{},
	} {
		asked := &objects.KeyProvider{Name: name, PollDelay: 10 * time.Millisecond, Fallback: true}
		p, err := Of(asked, []byte("key"))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.GetTypedConfig().UnmarshalTo(message); err != nil {
			t.Fatal(err)
		}
		if p.GetProviderName() != name || !p.GetFallback() || message.GetPollDelay().AsDuration() != asked.PollDelay ||
			string(message.GetPrivateKey().GetInlineBytes()) != "key" {
			t.Errorf("%s: got %v with %v", name, p, message)
		}
	}
}

func TestProxiesOfOthers(t *testing.T) {
	strict, lenient := &objects.KeyProvider{PollDelay: time.Millisecond}, &objects.KeyProvider{PollDelay: time.Millisecond, Fallback: true}
	for name, c := range map[string]struct {
		asked, want *objects.KeyProvider
		heddle      bool
	}{
		"heddle-proxy":                {lenient, lenient, true},
		"Envoy":                       {lenient, nil, false},
		"Envoy, without fallback":     {strict, strict, false},
		"nobody is asked for, heddle": {nil, nil, true},
	} {
		if got := For(c.asked, c.heddle); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTakes(t *testing.T) {
	certificate := func(make func() (crypto.Signer, error)) (chain, key []byte) {
		signer, err := make()
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(signer)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	}
	on := func(curve elliptic.Curve) func() (crypto.Signer, error) {
		return func() (crypto.Signer, error) { return ecdsa.GenerateKey(curve, rand.Reader) }
	}
	for name, c := range map[string]struct {
		make          func() (crypto.Signer, error)
		cryptomb, qat bool
	}{
		"RSA":   {func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 2048) }, true, true},
		"P-256": {on(elliptic.P256()), true, false},
		"P-384": {on(elliptic.P384()), false, false},
	} {
		chain, key := certificate(c.make)
		if got := Takes(&objects.KeyProvider{Name: objects.CryptoMb}, chain, key); got != c.cryptomb {
			t.Errorf("%s: cryptomb takes it: %v", name, got)
		}
		if got := Takes(&objects.KeyProvider{Name: objects.QAT}, chain, key); got != c.qat {
			t.Errorf("%s: qat takes it: %v", name, got)
		}
		if Takes(nil, chain, key) || Takes(&objects.KeyProvider{Name: objects.CryptoMb}, chain, []byte("no key")) {
			t.Errorf("%s: nobody, or what is no key, is taken", name)
		}
	}
}
