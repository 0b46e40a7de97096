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
	set := func(s replicaSpec) error { return (&replica{agent: a, spec: s}).setBypassMode() }
	off := map[string]replicaSpec{
		"(annotation heddle.io/tcp-bypass: off)":    {TCPBypass: objects.BypassOff},
		"(something that it dials is not captured)": {Interception: interception.Rules{ExcludedOutboundPorts: []uint16{80}}},
		"(its proxy is not heddle-proxy)":           {ProxyPath: "/usr/bin/envoy", TCPBypass: objects.BypassBoth},
	}
	for why, s := range off {
		if err := set(s); err != nil {
			t.Errorf("%s, and nothing is attached: %v", why, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "established"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !bypass.IsAttached(dir) {
		t.Fatal("the file does not stand for programs that run")
	}
	for _, mode := range []string{"", objects.BypassSend, objects.BypassBoth} {
		if err := set(replicaSpec{TCPBypass: mode}); err != nil {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
	for why, s := range off {
		if err := set(s); !errors.Is(err, cause) || !strings.Contains(err.Error(), "cannot be kept off this workload "+why) {
			t.Errorf("%s: %v", why, err)
		}
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
