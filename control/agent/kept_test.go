package agent

import (
	"errors"
	"os"
	"sync"
	"testing"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/durable"
)

// What was noted stays noted, whatever else changes and is written beside it, until it is known to have ended.
func TestNotesStay(t *testing.T) {
	a := newAgent(t)
	r := a.newReplica(replicas(workload(), "c", false, nil)[0])
	if err := r.note("app", &process.Record{PID: 7}); err == nil {
		t.Error("noted without a directory: the process would run and not be found again")
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	state := func() kept {
		t.Helper()
		var state kept
		if err := process.ReadRecord(r.statePath(), &state); err != nil {
			t.Fatal(err)
		}
		return state
	}
	for part, pid := range map[string]int{"app": 7, "proxy": 8} {
		if err := r.note(part, &process.Record{PID: pid}); err != nil {
			t.Fatal(err)
		}
	}
	// Neither process is held by the agent yet: it may die now.
	var changes sync.WaitGroup
	for i := range 8 {
		changes.Go(func() { r.set(func() { r.proxyReady, r.appReady = i%2 == 0, i%3 == 0 }) })
	}
	changes.Wait()
	r.set(func() { r.proxyReady, r.appReady = true, true })
	r.set(func() { r.appReady = false })
	if got := state(); got.Hash != r.hash || got.App == nil || got.App.PID != 7 || got.Proxy == nil || got.Proxy.PID != 8 || !got.ProxyReady || got.AppReady {
		t.Errorf("%+v", got)
	}
	r.finish("exit code 0", true)
	r.set(func() { r.proxyReady = false })
	if got := state(); got.Ended != "exit code 0" || got.App != nil || got.Proxy == nil {
		t.Errorf("%+v", got)
	}
	if got := r.report().State.Phase; got != phaseStopped {
		t.Error(got)
	}
}

// A state that is torn is no state, and says so.
func TestTornState(t *testing.T) {
	a := newAgent(t)
	r := a.newReplica(replicas(workload(), "c", false, nil)[0])
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.statePath(), []byte(`{"hash": "x", "app": {`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := process.ReadRecord(r.statePath(), new(kept)); !errors.Is(err, durable.ErrTorn) {
		t.Errorf("%v", err)
	}
	// Without a network there is nothing that could go on.
	if state, lost := r.readKept(); lost || state.Hash != "" {
		t.Errorf("%+v, %v", state, lost)
	}
}
