package objects

import "testing"

func TestBypassAnnotation(t *testing.T) {
	for text, valid := range map[string]bool{"send": true, "both": true, "off": true, "": false, "on": false, "Off": false} {
		c := &checker{}
		c.bypassAnnotation(map[string]string{AnnotationTCPBypass: text})
		if (len(c.errs) == 0) != valid {
			t.Errorf("%q: %v", text, c.errs)
		}
	}
	c := &checker{}
	if c.bypassAnnotation(nil); len(c.errs) != 0 {
		t.Error(c.errs)
	}
}

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
