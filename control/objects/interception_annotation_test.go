package objects

import (
	"strings"
	"testing"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/interception"
)

// What is wrong is told with its place; interception.Parse has its own tests.
func TestInterceptionAnnotations(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		want        []string
	}{
		{nil, nil},
		{map[string]string{interception.ExcludeOutboundPorts: "80", AnnotationProxyConfig: "proxyMetadata: { ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE: \"101\" }"}, nil},
		{map[string]string{interception.ExcludeOutboundPorts: "eighty"}, []string{`metadata.annotations["traffic.sidecar.istio.io/excludeOutboundPorts"]`, `"eighty" is no port`}},
		{map[string]string{interception.Prefix + "excludePorts": "80"}, []string{`metadata.annotations["traffic.sidecar.istio.io/excludePorts"]`, "is not supported"}},
		{map[string]string{AnnotationProxyConfig: "proxyMetadata: { ISTIO_OUTBOUND_OWNER_GROUPS: \"a b\" }"},
			[]string{`metadata.annotations["proxy.istio.io/config"].proxyMetadata.ISTIO_OUTBOUND_OWNER_GROUPS`, "no group"}},
		{map[string]string{AnnotationProxyConfig: "proxyMetadata: { ISTIO_META_DNS_CAPTURE: \"true\" }"},
			[]string{`metadata.annotations["proxy.istio.io/config"].proxyMetadata.ISTIO_META_DNS_CAPTURE`, "is not supported"}},
	} {
		check := &checker{}
		check.interceptionAnnotations(c.annotations)
		check.proxyConfigAnnotation(c.annotations[AnnotationProxyConfig])
		if len(check.errs) != min(len(c.want), 1) {
			t.Errorf("%v: %v", c.annotations, check.errs)
			continue
		}
		for _, part := range c.want {
			if text := check.errs[0].Error(); !strings.Contains(text, part) {
				t.Errorf("%v: %q is not in %q", c.annotations, part, text)
			}
		}
	}
}

func TestLeftOut(t *testing.T) {
	w := &v1alpha1.Workload{}
	if out := LeftOut(w); len(out) != 0 {
		t.Error(out)
	}
	w.Annotations = map[string]string{interception.ExcludeOutboundPorts: "80", AnnotationProxyConfig: "proxyMetadata: { ISTIO_OUTBOUND_OWNER_GROUPS: java }"}
	if out := LeftOut(w); len(out) != 2 || !strings.Contains(out["metadata.annotations["+AnnotationProxyConfig+"].proxyMetadata"], "java") {
		t.Error(out)
	}
	if rules, err := WorkloadInterception(w); err != nil || !rules.OnlyGroups || len(rules.ExcludedOutboundPorts) != 1 {
		t.Errorf("%v %v", rules, err)
	}
	// What cannot be read counts as leaving something out where that is asked, and leaves nothing out.
	w.Annotations = map[string]string{interception.ExcludeOutboundPorts: "80", interception.ExcludeInboundPorts: "x"}
	if rules, err := WorkloadInterception(w); err == nil || !rules.CaptureAll() || len(LeftOut(w)) != 1 {
		t.Errorf("%v %v", rules, err)
	}
}
