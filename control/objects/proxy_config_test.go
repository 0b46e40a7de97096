package objects

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
		"privateKeyProvider: {qat: {pollDelay: 0.002s}}":                      "",
		"privateKeyProvider: {qat: {pollDelay: 0.002s, fallback: true}}":      "",
		"privateKeyProvider: {qat: {}}":                                       "qat.pollDelay: must be a duration of 1ms or more",
		"privateKeyProvider: {}":                                              "must be cryptomb or qat",
		"concurrency: 2":                                                      "is not supported",
		"a: &a [1]\nb: *a":                                                    "has aliases",
		"privateKeyProvider: [":                                               "is no YAML",
		"noSuchField: 1":                                                      `unknown field "noSuchField"`,
		strings.Repeat("#", 1<<20):                                            "is larger than",
	} {
		c := &checker{}
		c.proxyConfigAnnotation(text)
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
	if err != nil || p == nil || *p != (KeyProvider{Name: CryptoMb, PollDelay: 20 * time.Millisecond, Fallback: true}) {
		t.Errorf("got %v, %v", p, err)
	}
}

func TestMeshKeyProvider(t *testing.T) {
	for text, want := range map[string]*KeyProvider{
		"":                  nil,
		"defaultConfig: {}": nil,
		"defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: 0.005s}}}": {Name: CryptoMb, PollDelay: 5 * time.Millisecond},
		"defaultConfig: {privateKeyProvider: {qat: {pollDelay: 0.002s, fallback: true}}}": {
			Name: QAT, PollDelay: 2 * time.Millisecond, Fallback: true},
		"defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: 0.005s, fallback: true}}}": {
			Name: CryptoMb, PollDelay: 5 * time.Millisecond, Fallback: true},
	} {
		config, err := MeshConfig(&corev1.ConfigMap{Data: map[string]string{MeshConfigKey: text}})
		if err != nil {
			t.Fatal(err)
		}
		if got := MeshKeyProvider(config); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestDefaultConfigOfTheMesh(t *testing.T) {
	key := Key{Kind: ConfigMap.Kind, Namespace: "istio-system", Name: MeshConfigName}
	for text, want := range map[string]string{
		"defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}}": "",
		"defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: 0s}}}":    "data.mesh.defaultConfig.privateKeyProvider.cryptomb.pollDelay: must be a duration of 1ms or more",
		"defaultConfig: {privateKeyProvider: {qat: {pollDelay: 0.002s}}}":     "",
		"defaultConfig: {privateKeyProvider: {qat: {pollDelay: 0.0002s}}}":    "data.mesh.defaultConfig.privateKeyProvider.qat.pollDelay: must be a duration of 1ms or more",
		"defaultConfig: {concurrency: 2}":                                     "data.mesh.defaultConfig.concurrency: is not supported",
		"trustDomain: other":                                                  "extensionProviders and defaultConfig are read",
	} {
		c := &checker{key: key}
		c.configMap(&corev1.ConfigMap{Data: map[string]string{MeshConfigKey: text}})
		var said []string
		for _, e := range c.errs {
			said = append(said, e.Error())
		}
		if all := strings.Join(said, "\n"); (want == "") != (all == "") || !strings.Contains(all, want) {
			t.Errorf("%q: %q, want %q", text, all, want)
		}
	}
}
