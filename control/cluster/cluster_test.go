package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNamesThatCannotBe(t *testing.T) {
	for name, want := range map[string]string{
		"cluster1": "", "a": "", "wan1": "", "": "lower-case", "A": "lower-case", "a.b": "lower-case", "-a": "lower-case", strings.Repeat("a", 41): "lower-case",
		"federation": "find their primary by", "wan": WANBridge,
	} {
		if _, err := New(name); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// A torn file of options is repaired from what runs; it is nobody's reason to remove the cluster.
func TestTornOptionsAreRepaired(t *testing.T) {
	c := Cluster{Name: "c", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	if err := errors.Join(os.MkdirAll(c.Data(), 0o700), os.MkdirAll(filepath.Join(c.Run(), "agent"), 0o700)); err != nil {
		t.Fatal(err)
	}
	want := Options{Family: IPv4, UserBlock: 7, Etcd: Etcd{Endpoints: "https://192.0.2.1:2379"}}
	if err := errors.Join(c.Keep(want), c.KeepRunning(want)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.Data(), "cluster.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tear := func() {
		t.Helper()
		if err := os.WriteFile(path, whole[:len(whole)/2], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tear()
	got, err := c.Options()
	if err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
	// The agent that starts next repairs it.
	if err := c.KeepRunning(got); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(whole) {
		t.Errorf("%s %v", now, err)
	}
	// What is whole is not what runs: another `heddle up` has changed it.
	changed := want
	changed.UserBlock = 8
	if err := errors.Join(c.Keep(changed), c.KeepRunning(want)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Options(); err != nil || got != changed {
		t.Errorf("%+v %v", got, err)
	}
	if err := os.RemoveAll(c.Run()); err != nil {
		t.Fatal(err)
	}
	tear()
	if _, err := c.Options(); err == nil || strings.Contains(err.Error(), "down") || !strings.Contains(err.Error(), "restore") {
		t.Errorf("%v", err)
	}
}
