package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func dependencies(t *testing.T, path string, now *time.Time) *Dependencies {
	t.Helper()
	d, err := OpenDependencies(path, func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDependenciesAreKeptWhileTheyAreUsed(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "dependencies.json"), time.Unix(1_000_000, 0)
	d := dependencies(t, path, &now)
	if fresh, all := d.Use("red/w", []string{"b", "a"}); !slices.Equal(fresh, []string{"b", "a"}) || all {
		t.Fatal(fresh, all)
	}
	if fresh, _ := d.Use("red/w", []string{"a"}); len(fresh) > 0 {
		t.Fatal(fresh)
	}
	d.Release("red/w", []string{"a", "b", "never"})
	now = now.Add(dependencyExpiry + time.Hour)
	if gone := d.Expire()["red/w"]; !slices.Equal(gone, []string{"b"}) {
		t.Fatalf("%q are forgotten; a is used by another proxy", gone)
	}
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	d = dependencies(t, path, &now)
	if hosts, all := d.Of("red/w"); !slices.Equal(hosts, []string{"a"}) || all {
		t.Fatal(hosts, all)
	}
	// After a restart nobody uses it until a proxy says so.
	d.Expire()
	if c := d.Counts(); c.Workloads != 0 || c.Hosts != 0 || c.Forgotten != 1 {
		t.Fatalf("%+v", c)
	}
}

func TestDependenciesAreBounded(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "dependencies.json"), time.Unix(1_000_000, 0)
	d := dependencies(t, path, &now)
	var many []string
	for i := range MaxDependencies + 1 {
		many = append(many, fmt.Sprint("h-", i))
	}
	if fresh, all := d.Use("red/w", many); len(fresh) > 0 || !all {
		t.Fatal(len(fresh), all)
	}
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	if hosts, all := dependencies(t, path, &now).Of("red/w"); len(hosts) > 0 || !all {
		t.Fatal(hosts, all)
	}
	for i := range maxDependents {
		now = now.Add(time.Second)
		w := fmt.Sprint("red/", i)
		d.Use(w, []string{"a"})
		d.Release(w, []string{"a"})
	}
	if c := d.Counts(); c.Workloads != maxDependents || c.Crowded != 1 {
		t.Fatalf("%+v", c)
	}
}

func TestDependenciesThatCannotBeReadAreAnError(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "dependencies.json"), time.Unix(1_000_000, 0)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDependencies(path, func() time.Time { return now }); err == nil || !strings.Contains(err.Error(), "remove it to have them learned anew") {
		t.Fatal(err)
	}
}
