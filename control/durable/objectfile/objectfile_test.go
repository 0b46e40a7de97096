package objectfile

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
)

type set = map[objects.Key]*objects.Object

func workload(i int, version string) *objects.Object {
	return &objects.Object{Kind: objects.Workload, Version: objects.Version(version), Resource: &v1alpha1.Workload{
		TypeMeta:   metav1.TypeMeta{APIVersion: objects.Workload.APIVersion(), Kind: objects.Workload.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i), Namespace: "shop"},
		Spec:       v1alpha1.WorkloadSpec{Command: []string{"/bin/server"}, Env: []v1alpha1.EnvVar{{Name: "VERSION", Value: version}}},
	}}
}

func workloads(n int) set {
	all := set{}
	for i := range n {
		o := workload(i, "1")
		all[o.Key()] = o
	}
	return all
}

// content is what a set says, to compare sets by; "nothing" for one that was never kept.
func content(tb testing.TB, all set) string {
	tb.Helper()
	if all == nil {
		return "nothing"
	}
	var out []string
	for key, o := range all {
		text, err := o.MarshalJSON()
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, key.String()+" "+string(text))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// kept is what another process would find.
func kept(tb testing.TB, path string) string {
	tb.Helper()
	_, all, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	return content(tb, all)
}

func TestFileHoldsTheSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workloads.db")
	f, all, err := Open(path)
	if err != nil || all != nil {
		t.Fatalf("a file that there is not: %v, %v", all, err)
	}
	step := func(what string, write func() error) {
		t.Helper()
		if err := errors.Join(write(), f.Close()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got, want := kept(t, path), content(t, all); got != want {
			t.Errorf("%s: kept\n%s\nwant\n%s", what, got, want)
		}
	}
	change := func(key objects.Key) func() error { return func() error { return f.Change(all, key) } }
	all = set{}
	step("none", func() error { return f.Replace(all) })
	all = workloads(3)
	step("a set", func() error { return f.Replace(all) })
	two := workload(2, "2")
	all[two.Key()] = two
	step("one that changed, in a file just opened", change(two.Key()))
	step("several", func() error {
		three := workload(3, "1")
		all[three.Key()] = three
		delete(all, two.Key())
		return errors.Join(f.Replace(all), f.Change(all, three.Key()), f.Change(all, two.Key()), f.Change(all, two.Key()))
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v: workloads' environments are in it", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

// After a write that failed nothing is known: what was written before is not what was acted upon since. The next write makes up
// for it, also where that concerns another object.
func TestChangeAfterOneThatFailed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workloads.db")
	f, _, err := Open(path)
	all := workloads(3)
	if err := errors.Join(err, f.Replace(all)); err != nil {
		t.Fatal(err)
	}
	broken := workload(1, "broken")
	broken.Resource.(*v1alpha1.Workload).Annotations = map[string]string{"a": strings.Repeat("b", 1<<16)}
	// A key that is longer than the table takes.
	broken.Resource.(*v1alpha1.Workload).Name = strings.Repeat("n", 1<<16)
	all[broken.Key()] = broken
	if err := f.Change(all, broken.Key()); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("%v", err)
	}
	unknown := func(when string) {
		t.Helper()
		next, known, err := Open(path)
		if err != nil || known != nil {
			t.Errorf("%s: known are %d objects, %v", when, len(known), err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
	unknown("after a change that failed")
	if err := f.Replace(all); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("%v", err)
	}
	unknown("after a set that failed")
	delete(all, broken.Key())
	if err := f.Replace(all); err != nil {
		t.Fatal(err)
	}
	all[broken.Key()] = broken
	if err := f.Replace(all); err == nil {
		t.Fatal("a key that is longer than the table takes")
	}
	unknown("after a second set that failed")
	delete(all, broken.Key())
	missed, other := workload(0, "2"), workload(2, "2")
	all[missed.Key()], all[other.Key()] = missed, other
	if err := errors.Join(f.Change(all, other.Key()), f.Close()); err != nil {
		t.Fatal(err)
	}
	if got := kept(t, path); got != content(t, all) {
		t.Errorf("the write after it:\n%s", got)
	}
}

// A set that is true enough when it is older stays when a write fails, whichever way it is written.
func TestLastOneIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ids.db")
	f, _, err := OpenSet[string, int](path)
	f.KeepLast()
	if err := errors.Join(err, f.Replace(map[string]int{"a": 1}), f.Close()); err != nil {
		t.Fatal(err)
	}
	tooLong := strings.Repeat("n", 1<<16)
	next := map[string]int{"a": 1, tooLong: 2}
	for what, write := range map[string]func() error{
		"a whole set":           func() error { return f.Change(next, tooLong) },
		"a change":              func() error { return errors.Join(f.Replace(map[string]int{"a": 1}), f.Change(next, tooLong)) },
		"a set beside the file": func() error { return f.Replace(next) },
	} {
		if err := write(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, kept, err := OpenSet[string, int](path); err != nil || len(kept) != 1 || kept["a"] != 1 {
			t.Errorf("%s: kept is %v, %v", what, kept, err)
		}
	}
}

// A file becomes small again with its set.
func TestFileShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "services.db")
	f, _, err := OpenSet[string, string](path)
	if err != nil {
		t.Fatal(err)
	}
	many, few := map[string]string{}, map[string]string{"0": strings.Repeat("x", 1000)}
	var keys []string
	for i := range 5000 {
		key := fmt.Sprint(i)
		many[key], keys = few["0"], append(keys, key)
	}
	for round := range 3 {
		if err := f.Change(many, keys...); err != nil {
			t.Fatal(err)
		}
		large, err := os.Stat(path)
		if err != nil || large.Size() < 5_000_000 {
			t.Fatalf("%v bytes, %v", large.Size(), err)
		}
		// The change that empties it, and one more.
		if err := errors.Join(f.Change(few, keys...), f.Change(few, "0")); err != nil {
			t.Fatal(err)
		}
		if small, err := os.Stat(path); err != nil || small.Size() > large.Size()/10 {
			t.Errorf("round %d: %d bytes of %d are left, %v", round, small.Size(), large.Size(), err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, kept, err := OpenSet[string, string](path); err != nil || !maps.Equal(kept, few) {
		t.Errorf("kept are %d, %v", len(kept), err)
	}
}

// Of a file that is torn, of another format or changed anywhere, either everything is there as it was, or it is an error and
// nothing is believed; and the next set takes its place.
func TestDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "workloads.db")
	f, _, err := Open(path)
	all := workloads(40)
	if err = errors.Join(err, f.Replace(all)); err != nil {
		t.Fatal(err)
	}
	one := workload(7, "2")
	all[one.Key()] = one
	if err := errors.Join(f.Change(all, one.Key()), f.Change(all, one.Key()), f.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := content(t, all)
	damaged := filepath.Join(dir, "damaged.db")
	refused := 0
	try := func(what string, text []byte, must error) {
		t.Helper()
		if err := os.WriteFile(damaged, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, found, err := Open(damaged)
		switch {
		case must != nil && (found != nil || !errors.Is(err, must)):
			t.Errorf("%s: %d objects, %v", what, len(found), err)
		case err != nil && (found != nil || !strings.Contains(err.Error(), damaged)):
			t.Errorf("%s: %d objects, %v", what, len(found), err)
		case err == nil && content(t, found) != want:
			t.Errorf("%s: taken for another set, of %d objects", what, len(found))
		case err != nil:
			refused++
		}
	}
	try("empty", nil, ErrDamaged)
	try("of another format", []byte(`{"items":[],"position":"7"}`+"\n"), ErrDamaged)
	for _, size := range []int{1, 4096, 8192, 12288, 16384, len(whole) - 4096} {
		if size < len(whole) {
			try(fmt.Sprintf("torn after %d bytes", size), whole[:size], nil)
		}
		try(fmt.Sprintf("zeroes after %d bytes", size), append(slices.Clone(whole[:size]), make([]byte, len(whole)-size)...), nil)
	}
	for at := 0; at < len(whole); at += 97 {
		text := slices.Clone(whole)
		text[at] ^= 1 << (at % 8)
		try(fmt.Sprintf("byte %d", at), text, nil)
	}
	// A page that loses an entry and is otherwise whole.
	if err := os.WriteFile(damaged, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(damaged, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bbolt.Tx) error {
		k, _ := tx.Bucket(bucketName).Cursor().First()
		return tx.Bucket(bucketName).Delete(k)
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, found, err := Open(damaged); !errors.Is(err, ErrDamaged) || found != nil {
		t.Errorf("one entry is missing: %d objects, %v", len(found), err)
	}
	if refused < 100 {
		t.Errorf("only %d were refused", refused)
	}
	f, _, err = Open(damaged)
	if err := errors.Join(f.Replace(all), f.Close()); err != nil {
		t.Fatal(err)
	}
	if kept(t, damaged) != want {
		t.Errorf("what was written over a damaged file (%v) is not there", err)
	}
}

// writerVariable has this test binary write to the file that it names, until it is killed.
const writerVariable = "OBJECTFILE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerVariable); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeUntilKilled has 50 objects in the file, or 49, and says so byte by byte.
func writeUntilKilled(path string) error {
	f, _, err := Open(path)
	if err != nil {
		return err
	}
	all := workloads(50)
	if err := f.Replace(all); err != nil {
		return err
	}
	for i := 0; ; i++ {
		o := workload(i%50, strconv.Itoa(i))
		delete(all, o.Key())
		err := f.Change(all, o.Key())
		if all[o.Key()] = o; i%5 == 0 {
			err = errors.Join(err, f.Replace(all))
		}
		if err := errors.Join(err, f.Change(all, o.Key())); err != nil {
			return err
		}
		fmt.Print(".")
	}
}

// A process that is killed while it writes leaves one of the sets that it wrote.
func TestKilledWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workloads.db")
	for turn := range 20 {
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writerVariable+"="+path)
		said, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(said, make([]byte, 1+turn))
		if err := errors.Join(err, writer.Process.Kill()); err != nil {
			t.Fatal(err)
		}
		if err := writer.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}
		_, all, err := Open(path)
		if err != nil || len(all) != 50 && len(all) != 49 {
			t.Fatalf("turn %d: %d objects, %v", turn, len(all), err)
		}
	}
}
