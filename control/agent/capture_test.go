package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/agent/capture"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/objects"
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

// A replica is replaced when what it leaves out of capture changes, and not when it is said in other words.
func TestWhatAWorkloadLeavesOut(t *testing.T) {
	spec := func(annotations map[string]string) replicaSpec {
		w := workload()
		for name, text := range annotations {
			w.Annotations[name] = text
		}
		return replicas(w, "c", false, nil)[0]
	}
	nothing := spec(nil)
	one := spec(map[string]string{interception.ExcludeOutboundPorts: "80,81", interception.ExcludeInboundPorts: "8080"})
	if one.hash() == nothing.hash() || one.hash() != spec(map[string]string{interception.ExcludeOutboundPorts: "81, 80,80", interception.ExcludeInboundPorts: "8080"}).hash() {
		t.Error("the hash is not that of what is left out")
	}
	// The same replica runs on where nothing is left out, also what an older version admitted and this one cannot read.
	for _, annotations := range []map[string]string{
		{interception.IncludeOutboundIPRanges: "*"}, {interception.ExcludeOutboundPorts: ""},
		{interception.ExcludeOutboundPorts: "80", interception.ExcludeInboundPorts: "x"},
	} {
		if spec(annotations).hash() != nothing.hash() {
			t.Errorf("%v is another replica", annotations)
		}
	}
	grouped := spec(map[string]string{objects.AnnotationProxyConfig: "proxyMetadata: { ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE: \"101\" }"})
	if !slices.Equal(grouped.Interception.Groups, []string{"101"}) || grouped.hash() == nothing.hash() {
		t.Errorf("%+v", grouped.Interception)
	}
	// Applications that dial sidecars themselves are not sent to past TCP.
	for _, c := range []struct {
		rules interception.Rules
		want  bypass.Mode
	}{
		{interception.Rules{}, bypass.ModeBoth}, {interception.Rules{OnlyInboundPorts: true}, bypass.ModeBoth}, {interception.Rules{OnlyRanges: true}, bypass.ModeOff}, {grouped.Interception, bypass.ModeOff},
	} {
		if got, _ := (&replica{agent: &Agent{}, spec: replicaSpec{TCPBypass: objects.BypassBoth, Interception: c.rules}}).bypassMode(); got != c.want {
			t.Errorf("%v: %v", c.rules, got)
		}
	}
	// Nor are proxies that do not look twice.
	for _, gateway := range []bool{false, true} {
		if got, _ := (&replica{agent: &Agent{}, spec: replicaSpec{ProxyPath: "envoy", Gateway: gateway}}).bypassMode(); got != bypass.ModeOff {
			t.Errorf("a stock Envoy, gateway: %v: %v", gateway, got)
		}
	}
	// The check for plaintext is made at a port that the proxy has.
	ported := func(s replicaSpec, ports ...int32) int32 {
		s.Ports = nil
		for _, p := range ports {
			s.Ports = append(s.Ports, v1alpha1.WorkloadPort{Port: p})
		}
		return (&replica{spec: s}).plainPort()
	}
	if got := ported(one, 8080, 8081); got != 8081 {
		t.Errorf("port %d", got)
	}
	if got := ported(one, 8080); got != 0 {
		t.Errorf("port %d", got)
	}
	probed := one
	probed.Readiness = &v1alpha1.Readiness{TCP: &v1alpha1.TCPProbe{Port: 8080}}
	if got := ported(probed); got != 0 {
		t.Errorf("port %d", got)
	}
	if how, _ := (&replica{spec: one, agent: newAgent(t)}).captured(); !strings.Contains(how, "outbound to ports 80, 81; inbound to ports 8080") {
		t.Error(how)
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
		metrics := make(chan prometheus.Metric, 100)
		if a.captures.Collect(metrics); len(metrics) != 1 {
			t.Errorf("%q: %d metrics of what is not attached, want that it is not", wanted, len(metrics))
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

// A cluster that takes what there is has programs where the machine takes them.
func TestCaptureByProgramsIsFound(t *testing.T) {
	a := newAgent(t)
	a.options.Capture = cluster.CaptureAuto
	t.Cleanup(func() {
		a.captures.close()
		if err := errors.Join(capture.Detach(a.config.Cluster.Capture()), a.hierarchies.Remove(a.config.Cluster.Cgroup())); err != nil {
			t.Error(err)
		}
	})
	if err := a.attachCapture(); err != nil || !a.captures.byPrograms {
		t.Errorf("by programs: %v, %v", a.captures.byPrograms, err)
	}
	if specs := a.captures.settle(replicas(workload(), "c", false, nil)); specs[0].Capture != cluster.CaptureEBPF {
		t.Errorf("%+v", specs[0])
	}
	// Also where only a workload has asked for it.
	a.captures.wanted = cluster.CaptureNFTables
	if !a.captures.isToCheck() {
		t.Error("nothing is said of programs that are attached")
	}
	if c := a.captures.check(); !c.OK || !strings.HasSuffix(c.Detail, "0 to the cluster's DNS, 0 refused") {
		t.Errorf("%+v", c)
	}
	metrics := func() int {
		to := make(chan prometheus.Metric, 100)
		a.captures.Collect(to)
		return len(to)
	}
	if n := metrics(); n < 5 {
		t.Errorf("%d metrics", n)
	}
	// What cannot be read any longer is not 0.
	a.captures.close()
	if c := a.captures.check(); c.OK {
		t.Errorf("%+v", c)
	}
	if n := metrics(); n != 1 {
		t.Errorf("%d metrics of counters that cannot be read, want whether it is attached", n)
	}
}

func TestWhyCaptureRefused(t *testing.T) {
	for want, refused := range map[string]map[string]uint64{
		"0 refused": {"closed": 0, "ports": 0}, "3 refused (closed 2, ports 1)": {"ports": 1, "closed": 2, "memory": 0},
	} {
		if got := refusedByReason(refused); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
