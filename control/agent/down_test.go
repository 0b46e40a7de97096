package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/seal"
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

// The keys of Secrets in a store elsewhere outlive the cluster on this machine, unless they are to go too.
func TestKeysOfAStoreElsewhereStay(t *testing.T) {
	for _, c := range []struct {
		name         string
		keep         Keep
		embedded     bool
		key, another bool
	}{
		{"elsewhere", KeepKeys, false, true, false}, {"elsewhere, purged", KeepNothing, false, false, false}, {"elsewhere, all kept", KeepData, false, true, true},
		{"embedded", KeepKeys, true, false, false}, {"embedded, kept", KeepData, true, true, true},
	} {
		here := cluster.Cluster{Name: "keys", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
		key, another := here.SecretsKey(cluster.Options{}), filepath.Join(here.Data(), "ca", "root.key")
		files := []string{key, another, filepath.Join(here.Data(), "cluster.json")}
		if c.embedded {
			files = append(files, filepath.Join(here.Data(), "store", "etcd", "member"))
		}
		for _, path := range files {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := removeData(here, c.keep); err != nil {
			t.Error(c.name, err)
		}
		for path, want := range map[string]bool{key: c.key, another: c.another} {
			if _, err := os.Stat(path); (err == nil) != want {
				t.Errorf("%s: %s: %v", c.name, path, err)
			}
		}
		if left := Traces(here); c.keep == KeepKeys && len(left) > 0 {
			t.Errorf("%s: a second down would find %v", c.name, left)
		}
	}
	// An external store's key that a cluster of its own store has gone on with.
	here := cluster.Cluster{Name: "keys", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	file := here.SecretsKey(cluster.Options{})
	keys, err := seal.Open(t.Context(), seal.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(keys.Add(t.Context()), keys.Claim("etcd 1/clusters/keys"), os.MkdirAll(filepath.Join(here.Data(), "store", "etcd"), 0o700), here.Keep(cluster.Options{Family: cluster.IPv4})); err != nil {
		t.Fatal(err)
	}
	if err := removeData(here, KeepKeys); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil || here.Kept() {
		t.Errorf("the external store's key: %v", err)
	}
	// What the user named is the user's.
	here = cluster.Cluster{Name: "keys", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	if err := os.MkdirAll(here.Data(), 0o700); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(t.TempDir(), "mine.key")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := here.Keep(cluster.Options{SecretsKeyFile: mine}); err != nil {
		t.Fatal(err)
	}
	if err := removeData(here, KeepNothing); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

// An agent that answers nothing because it is ending is none that runs, also while its socket still takes connections; one that
// goes on is.
func TestAgentThatIsEnding(t *testing.T) {
	c := cluster.Cluster{Name: "ending", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(c.Run(), "agent"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, running := Serving(t.Context(), c); running {
		t.Error("one that there is not")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	listening := func() {
		listener, err := net.Listen("unix", c.AgentSocket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	}
	for _, one := range []struct {
		command string
		goesOn  bool
		before  func()
	}{{"0.1", false, func() {}}, {"1000", true, func() {}}, {"0.1", false, listening}, {"1000", true, func() {}}} {
		one.before()
		p, err := process.Start(process.Spec{Command: []string{"/bin/sleep", one.command}, Env: os.Environ()}, filepath.Join(c.Run(), "launch.json"), filepath.Join(c.Run(), "log"), []string{self, "launch"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := process.WriteRecord(recordPath(c), p.Record); err != nil {
			t.Fatal(err)
		}
		if _, running := Serving(t.Context(), c); running != one.goesOn {
			t.Errorf("sleep %s: running %v", one.command, running)
		}
		p.Record.Kill(0)
		<-p.Done()
	}
}
