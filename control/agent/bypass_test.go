package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/interception"
	"heddle.io/heddle/control/objects"
)

// Programs of an agent before go on that this one cannot take over: they treat a workload of which they know nothing as one that
// may be sent to. Who wants none of it must not start.
func TestAWorkloadWithoutBypassDoesNotStartUnderProgramsThatCannotBeTold(t *testing.T) {
	dir := t.TempDir()
	cause := errors.New("of another version")
	a := &Agent{bypass: tcpBypass{wanted: true, dir: dir, problem: cause}}
	with := func(mode string, leaves bool) error {
		r := &replica{agent: a}
		r.spec.TCPBypass = mode
		if leaves {
			r.spec.Interception = interception.Rules{ExcludedOutboundPorts: []uint16{80}}
		}
		return r.setBypassMode()
	}
	if err := with(objects.BypassOff, false); err != nil {
		t.Errorf("nothing is attached: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "established"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !bypass.IsAttached(dir) {
		t.Fatal("the file does not stand for programs that run")
	}
	for _, mode := range []string{"", objects.BypassSend, objects.BypassBoth} {
		if err := with(mode, false); err != nil {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
	if err := with(objects.BypassOff, false); !errors.Is(err, cause) {
		t.Errorf("a workload that is off: %v", err)
	}
	if err := with("", true); !errors.Is(err, cause) {
		t.Errorf("one that leaves something of outbound out: %v", err)
	}
}

// Where the machine lacks something, connections use TCP, workloads start, and it is said.
func TestABypassThatCannotBeHad(t *testing.T) {
	a := newAgent(t)
	a.options.TCPBypass, a.hierarchies.V2 = true, ""
	a.attachBypass()
	if s := a.bypass.status(); !s.Wanted || s.Attached || !strings.Contains(s.Problem, "cgroup version 2") {
		t.Errorf("%+v", s)
	}
	if c := a.bypass.check(); c.OK || !strings.Contains(c.Detail, "cgroup version 2") || !strings.Contains(c.Remedy, "connections use TCP") {
		t.Errorf("%+v", c)
	}
	for _, mode := range []string{"", objects.BypassBoth, objects.BypassOff} {
		w := workload()
		w.Annotations[AnnotationTCPBypass] = mode
		if err := a.newReplica(replicas(w, "c", false, nil)[0]).setBypassMode(); err != nil {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
	metrics := make(chan prometheus.Metric, 100)
	a.bypass.Collect(metrics)
	if len(metrics) != 1 {
		t.Errorf("%d metrics of a bypass that is not there, want whether it is attached", len(metrics))
	}
}
