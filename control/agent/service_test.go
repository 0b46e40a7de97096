package agent

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// TestMain lets the test binary stand in for `heddle launch`.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "launch" {
		if err := process.Launch(os.Args[2]); err != nil {
			os.Exit(127)
		}
	}
	os.Exit(m.Run())
}

// until polls a condition, with a bound.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.After(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatal(what + ": not in time")
		case <-tick.C:
		}
	}
}

func TestServicesAreKeptRunningAndTakenOver(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("starting processes needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	c := cluster.Cluster{Name: "unit", RunRoot: filepath.Join(root, "run"), DataRoot: filepath.Join(root, "data")}
	for _, dir := range []string{filepath.Join(c.Run(), "agent"), c.Logs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// supervise is one agent's life.
	supervise := func() (*service, func()) {
		s := &service{name: "dns", command: []string{"/bin/sleep", "1000"}, cluster: c, launcher: []string{self, "launch"},
			log: slog.New(slog.NewTextHandler(io.Discard, nil)), hierarchies: func() process.Hierarchies { return process.Hierarchies{} }}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); s.supervise(ctx) }()
		return s, func() { cancel(); <-ended }
	}
	first, leave := supervise()
	t.Cleanup(func() { first.stop() })
	until(t, "start", func() bool { return first.pid() != 0 })
	killed := first.pid()
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "restart", func() bool { return first.pid() != 0 && first.pid() != killed })
	pid := first.pid()
	leave()
	if syscall.Kill(pid, 0) != nil {
		t.Fatal("it ended with its agent")
	}
	second, leave := supervise()
	t.Cleanup(func() { second.stop() })
	until(t, "take over", func() bool { return second.pid() != 0 })
	if second.pid() != pid {
		t.Fatalf("process %d was started beside %d", second.pid(), pid)
	}
	leave()
	second.stop()
	if second.pid() != 0 {
		t.Fatal("still running")
	}
}
