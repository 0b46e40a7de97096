package cli

import (
	"bytes"
	"strings"
	"testing"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/objects"
)

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
