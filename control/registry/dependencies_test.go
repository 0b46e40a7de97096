package registry

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/durable"
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
	path, now := filepath.Join(t.TempDir(), "dependencies.db"), time.Unix(1_000_000, 0)
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
	if err := errors.Join(d.Save(), d.Close()); err != nil {
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
	path, now := filepath.Join(t.TempDir(), "dependencies.db"), time.Unix(1_000_000, 0)
	d := dependencies(t, path, &now)
	var many []string
	for i := range MaxDependencies + 1 {
		many = append(many, fmt.Sprint("h-", i))
	}
	if fresh, all := d.Use("red/w", many); len(fresh) > 0 || !all {
		t.Fatal(len(fresh), all)
	}
	if err := errors.Join(d.Save(), d.Close()); err != nil {
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
	path, now := filepath.Join(t.TempDir(), "dependencies.db"), time.Unix(1_000_000, 0)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDependencies(path, func() time.Time { return now }); err == nil || !strings.Contains(err.Error(), "remove it to have them learned anew") {
		t.Fatal(err)
	}
}

// What is in the file after changes at random, whenever it is written, is what is known.
func TestDependenciesAreKeptAsTheyChange(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "dependencies.db"), time.Unix(1_000_000, 0)
	random := rand.New(rand.NewPCG(5, 6))
	d := dependencies(t, path, &now)
	for round := range 300 {
		now = now.Add(time.Duration(random.IntN(40)) * time.Hour)
		w, host := fmt.Sprint("red/", random.IntN(5)), fmt.Sprint("h-", random.IntN(6))
		switch random.IntN(4) {
		case 0:
			d.Use(w, []string{host})
		case 1, 2:
			d.Release(w, []string{host})
		default:
			d.Expire()
		}
		if random.IntN(3) > 0 {
			continue
		}
		if err := d.Save(); err != nil {
			t.Fatal(err)
		}
		if random.IntN(8) > 0 {
			continue
		}
		want := d.kept()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if got := dependencies(t, path, &now).kept(); len(got) != len(want) || !maps.EqualFunc(got, want, func(x, y dependentFile) bool { return reflect.DeepEqual(x, y) }) {
			t.Fatalf("round %d: kept are %v, want %v", round, got, want)
		}
	}
	if c := d.Counts(); c.Learned == 0 || c.Forgotten == 0 {
		t.Errorf("nothing happened: %+v", c)
	}
}

// A file of versions that wrote all of it is read, and gives way to the table.
func TestDependenciesOfAFormerVersion(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1_000_000, 0)
	former := filepath.Join(dir, "dependencies.json")
	if err := durable.WriteJSON(former, map[string]any{"workloads": map[string]dependentFile{"red/w": {Used: map[string]time.Time{"a": now}}, "red/all": {All: true}}}, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d := dependencies(t, filepath.Join(dir, "dependencies.db"), &now)
		if hosts, all := d.Of("red/w"); !slices.Equal(hosts, []string{"a"}) || all {
			t.Error(hosts, all)
		}
		if _, all := d.Of("red/all"); !all {
			t.Error("one that gets all does not")
		}
		if err := errors.Join(d.Save(), d.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(former); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
	}
}

// BenchmarkSaveDependencies is that a proxy of one of so many workloads, of fifty dependencies each, leaves.
func BenchmarkSaveDependencies(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d, err := OpenDependencies(filepath.Join(b.TempDir(), "dependencies.db"), time.Now)
			if err != nil {
				b.Fatal(err)
			}
			var hosts []string
			for i := range 50 {
				hosts = append(hosts, fmt.Sprintf("s-%d.shop.svc.cluster.local", i))
			}
			for i := range n {
				d.Use(fmt.Sprint("red/", i), hosts)
			}
			if err := d.Save(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				d.Use("red/7", hosts)
				d.Release("red/7", hosts)
				if err := d.Save(); err != nil {
					b.Fatal(err)
				}
			}
			if err := d.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
