package objects

import "testing"

func TestCaptureAnnotation(t *testing.T) {
	for text, valid := range map[string]bool{"ebpf": true, "nftables": true, "": false, "auto": false, "iptables": false, "eBPF": false} {
		c := &checker{}
		c.captureAnnotation(map[string]string{AnnotationCapture: text})
		if (len(c.errs) == 0) != valid {
			t.Errorf("%q: %v", text, c.errs)
		}
	}
	c := &checker{}
	if c.captureAnnotation(nil); len(c.errs) != 0 {
		t.Error(c.errs)
	}
}
