package agent

import (
	"testing"

	"heddle.io/heddle/control/objects"
)

// An Envoy without contrib extensions refuses a secret that names a provider: where fallback is allowed it gets none.
func TestKeyProviderOfAReplica(t *testing.T) {
	for _, test := range []struct {
		config, proxy string
		want          bool
	}{
		{config: "", want: false},
		{config: "privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}", want: true},
		{config: "privateKeyProvider: {cryptomb: {pollDelay: 0.01s, fallback: true}}", want: true},
		{config: "privateKeyProvider: {cryptomb: {pollDelay: 0.01s, fallback: true}}", proxy: "/usr/bin/envoy", want: false},
		{config: "privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}", proxy: "/usr/bin/envoy", want: true},
	} {
		w := workload()
		w.Annotations[objects.AnnotationProxyConfig], w.Annotations[AnnotationProxyPath] = test.config, test.proxy
		if got := replicas(w, "c", false)[0].KeyProvider != nil; got != test.want {
			t.Errorf("%q with proxy %q: provider %v", test.config, test.proxy, got)
		}
	}
}
