package agent

import (
	"os"
	"path/filepath"
	"testing"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

func TestWhetherAnAgentBegan(t *testing.T) {
	c := cluster.Cluster{Name: "never", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(c.Run(), "agent"), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.WriteRecord(recordPath(c), self); err != nil {
		t.Fatal(err)
	}
	if Began(c) {
		t.Error("its record alone is no beginning: it may have failed to prepare")
	}
	for _, path := range append(recordsOfServices(c), c.AgentSocket()) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if !Began(c) {
			t.Errorf("%s is not heeded", path)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
