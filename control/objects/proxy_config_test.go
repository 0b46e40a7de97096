package objects

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
)

func TestProxyConfigOfAWorkload(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"privateKeyProvider: {cryptomb: {pollDelay: soon}}":                   "is no ProxyConfig",
		"privateKeyProvider: {cryptomb: {pollDelay: 0.010s}}":                 "",
		"privateKeyProvider: {cryptomb: {pollDelay: 0.010s, fallback: true}}": "",
		"privateKeyProvider: {cryptomb: {pollDelay: 0.0001s}}":                "1ms or more",
		"privateKeyProvider: {cryptomb: {}}":                                  "1ms or more",
		"privateKeyProvider: {qat: {pollDelay: 0.002s}}":                      "must be cryptomb",
		"privateKeyProvider: {}":                                              "must be cryptomb",
		"concurrency: 2":                                                      "is not supported",
		"a: &a [1]\nb: *a":                                                    "has aliases",
		"privateKeyProvider: [":                                               "is no YAML",
		"noSuchField: 1":                                                      `unknown field "noSuchField"`,
		strings.Repeat("#", 1<<20):                                            "is larger than",
	} {
		c := &checker{}
		c.proxyConfig(text)
		var said []string
		for _, e := range c.errs {
			said = append(said, e.Error())
		}
		all := strings.Join(said, "\n")
		if (want == "") != (all == "") || !strings.Contains(all, want) {
			t.Errorf("%.60q: %q, want %q", text, all, want)
		}
		if want != "" && !strings.Contains(all, "proxy.istio.io/config") {
			t.Errorf("%.60q: %q does not name the annotation", text, all)
		}
	}
}

func TestWorkloadKeyProvider(t *testing.T) {
	w := &v1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	if p, err := WorkloadKeyProvider(w); p != nil || err != nil {
		t.Errorf("without annotation: %v, %v", p, err)
	}
	w.Annotations[AnnotationProxyConfig] = "privateKeyProvider: {cryptomb: {pollDelay: 0.02s, fallback: true}}"
	p, err := WorkloadKeyProvider(w)
	if err != nil || p == nil || *p != (KeyProvider{PollDelay: 20 * time.Millisecond, Fallback: true}) {
		t.Errorf("got %v, %v", p, err)
	}
}
