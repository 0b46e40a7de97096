package agent

import (
	"strings"
	"testing"

	"heddle.io/heddle/control/cluster"
)

// Workloads that say nothing are captured as the cluster's are, and gateways never.
func TestCaptureOfAWorkload(t *testing.T) {
	annotated := func(text string) []replicaSpec {
		w := workload()
		w.Spec.Replicas = new(int32)
		*w.Spec.Replicas = 2
		if text != "" {
			w.Annotations[AnnotationCapture] = text
		}
		return replicas(w, "c", false, nil)
	}
	programs, rules := captures{byPrograms: true}, captures{}
	for _, c := range []struct {
		by         *captures
		annotation string
		programs   bool
	}{
		{&programs, "", true}, {&programs, "ebpf", true}, {&programs, "nftables", false},
		{&rules, "", false}, {&rules, "ebpf", true}, {&rules, "nftables", false},
	} {
		before := annotated(c.annotation)
		settled := c.by.settle(before)
		for i, s := range settled {
			if r := (&replica{spec: s}); r.capturedByPrograms() != c.programs {
				t.Errorf("%v %q: %q", c.by.byPrograms, c.annotation, s.Capture)
			}
			if before[i].Capture != c.annotation {
				t.Error("what was wished is changed")
			}
		}
		if again := c.by.settle(settled); again[1].hash() != settled[1].hash() {
			t.Errorf("%v %q: settled otherwise the second time", c.by.byPrograms, c.annotation)
		}
	}
	for _, s := range programs.settle(ingress.replicas(1, "", nil)) {
		if s.Capture != "" {
			t.Error("a gateway is captured")
		}
	}
	// Those that ran before there was a choice go on.
	if rules.settle(annotated(""))[0].hash() != replicas(workload(), "c", false, nil)[0].hash() {
		t.Error("the default replaces running replicas")
	}
}

// Where the machine lacks something, a cluster that takes what there is goes on, and one that asked for programs does not.
func TestCaptureThatCannotBeHad(t *testing.T) {
	for wanted, refused := range map[string]bool{"": false, cluster.CaptureNFTables: false, cluster.CaptureAuto: false, cluster.CaptureEBPF: true} {
		a := newAgent(t)
		a.options.Capture = wanted
		a.hierarchies.V2 = ""
		err := a.attachCapture()
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "cgroup version 2") {
			t.Errorf("%q: %v", wanted, err)
		}
		if a.captures.byPrograms {
			t.Errorf("%q is by programs", wanted)
		}
		if wanted == cluster.CaptureAuto {
			if c := a.captures.check(); !c.OK || !strings.Contains(c.Detail, "nftables") || !strings.Contains(c.Detail, "cgroup version 2") {
				t.Errorf("%+v", c)
			}
		}
		// A workload that asks for it is told why it is not started.
		w := workload()
		w.Annotations[AnnotationCapture] = cluster.CaptureEBPF
		r := a.newReplica(replicas(w, "c", false, nil)[0])
		if err := r.capture(r.address, 1); err == nil || !strings.Contains(err.Error(), AnnotationCapture) {
			t.Errorf("%q: %v", wanted, err)
		}
		if _, err := r.captured(); err == nil {
			t.Errorf("%q: captured by what is not attached", wanted)
		}
		a.captures.close()
	}
}
