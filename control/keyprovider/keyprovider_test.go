package keyprovider

import (
	"testing"
	"time"

	cryptombv3 "github.com/envoyproxy/go-control-plane/contrib/envoy/extensions/private_key_providers/cryptomb/v3alpha"

	"heddle.io/heddle/control/objects"
)

func TestOf(t *testing.T) {
	if p, err := Of(nil, []byte("key")); p != nil || err != nil {
		t.Errorf("nobody: %v, %v", p, err)
	}
	cryptomb := &objects.KeyProvider{PollDelay: 10 * time.Millisecond, Fallback: true}
	p, err := Of(cryptomb, []byte("key"))
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
