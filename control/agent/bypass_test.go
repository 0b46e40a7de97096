package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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
