package identity

import (
	"testing"
	"time"

	cryptombv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/cryptomb/v3alpha"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
)

func TestProviderOfKeys(t *testing.T) {
	cryptomb := &objects.KeyProvider{PollDelay: 10 * time.Millisecond, Fallback: true}
	for name, keys := range map[string]Keys{
		"none asked for": {Kind: ca.RSA2048},
		"ECDSA":          {Kind: ca.ECDSAP256, Provider: cryptomb},
	} {
		if p, err := keys.provider([]byte("key")); p != nil || err != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	p, err := Keys{Kind: ca.RSA2048, Provider: cryptomb}.provider([]byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	var method cryptombv3.CryptoMbPrivateKeyMethodConfig
	if err := p.GetTypedConfig().UnmarshalTo(&method); err != nil {
		t.Fatal(err)
	}
	if p.GetProviderName() != "cryptomb" || !p.GetFallback() || method.GetPollDelay().AsDuration() != cryptomb.PollDelay ||
		string(method.GetPrivateKey().GetInlineBytes()) != "key" {
		t.Errorf("got %v with %v", p, &method)
	}
}
