package objects

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMeshConfig(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"extensionProviders: []":   "",
		"extension_providers: []":  "",
		"a: &a [1]\nb: *a":         "has aliases",
		"a: [":                     "is no YAML",
		"- a":                      "is no MeshConfig",
		"noSuchField: 1":           `unknown field "noSuchField"`,
		"extensionProviders: 1":    "is no MeshConfig",
		"1: 2":                     "JSON",
		strings.Repeat("#", 1<<20): "is larger than",
	} {
		_, err := MeshConfig(&corev1.ConfigMap{Data: map[string]string{MeshConfigKey: text}})
		switch {
		case want == "" && err != nil:
			t.Errorf("%.40q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	config, err := MeshConfig(&corev1.ConfigMap{Data: map[string]string{
		MeshConfigKey: "extensionProviders:\n- name: a\n  envoyExtAuthzHttp: { service: b, port: 80, timeout: 1.5s }\n",
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := config.GetExtensionProviders()[0]
	if got.GetName() != "a" || got.GetEnvoyExtAuthzHttp().GetTimeout().AsDuration().Milliseconds() != 1500 {
		t.Errorf("got %v", got)
	}
}
