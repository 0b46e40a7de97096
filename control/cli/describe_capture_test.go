package cli

import (
	"bytes"
	"strings"
	"testing"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/objects"
)

// A workload for which the bypass is off without its asking is shown why.
func TestDescribeShowsWhyNothingBypassesTCP(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"nothing said":   {nil, ""},
		"left out":       {map[string]string{interception.ExcludeOutboundPorts: "443"}, "TCP bypass:   off, because something that it dials is not captured\n"},
		"inbound alone":  {map[string]string{interception.ExcludeInboundPorts: "443"}, ""},
		"another proxy":  {map[string]string{agent.AnnotationProxyPath: "/usr/bin/envoy", objects.AnnotationTCPBypass: objects.BypassBoth}, "TCP bypass:   off, because its proxy is not heddle-proxy\n"},
		"asks for it":    {map[string]string{agent.AnnotationProxyPath: "/usr/bin/envoy", objects.AnnotationTCPBypass: objects.BypassOff}, ""},
		"cannot be read": {map[string]string{interception.ExcludeOutboundPorts: "x"}, ""},
	} {
		w := &v1alpha1.Workload{}
		w.Annotations = c.annotations
		var out bytes.Buffer
		if err := (&session{out: &out}).describe(&objects.Object{Kind: objects.Workload, Resource: w}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "TCP bypass:") != (c.want != "") {
			t.Errorf("%s:\n%s", name, &out)
		}
	}
}

// What passes by a workload's proxy is shown as what else is privileged is.
func TestDescribeShowsWhatIsNotCaptured(t *testing.T) {
	for text, want := range map[string]string{"": "", "443": "Not captured: outbound to ports 443 (privileged)\n"} {
		w := &v1alpha1.Workload{}
		w.Annotations = map[string]string{interception.ExcludeOutboundPorts: text}
		var out bytes.Buffer
		s := &session{out: &out}
		if err := s.describe(&objects.Object{Kind: objects.Workload, Resource: w}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "Not captured") != (want != "") {
			t.Errorf("%q: %s", text, out.String())
		}
	}
}
