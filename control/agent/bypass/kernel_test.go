package bypass

import (
	"strings"
	"testing"
)

func TestKernelsWithoutBoundAreRefused(t *testing.T) {
	for release, want := range map[string]string{
		"6.18.44-fc": "", "6.13.0": "", "7.0.1": "",
		"6.12.30+deb13-amd64": "kernel 6.12.30+deb13-amd64 does not bound", "5.15.0": "needs Linux 6.13", "unknown": "not a version",
	} {
		err := checkKernel(release)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", release, err)
		}
	}
}
