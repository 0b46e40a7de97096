package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func TestWrite(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "kept")
	for _, c := range []struct {
		content string
		mode    fs.FileMode
	}{{"first, the longer one", 0o644}, {"second", 0o600}, {"", 0o640}} {
		if err := Write(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != c.content {
			t.Errorf("%q, %v", got, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	if got := names(t, dir); got != "kept" {
		t.Errorf("left behind: %s", got)
	}
}

// A file that somebody else has keeps its owner: `sudo heddle context use` must not take the user's file away.
func TestWriteKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root")
	}
	path := filepath.Join(t.TempDir(), "kept")
	if err := WriteFor(path, []byte("a"), 0o600, 1234, 1235); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("b"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != 1234 || stat.Gid != 1235 {
		t.Errorf("%+v", info.Sys())
	}
}

// What cannot be written changes nothing and leaves nothing.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kept")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("over a directory"), 0o600); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if err := Write(filepath.Join(dir, "none", "kept"), nil, 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if got := names(t, dir); got != "kept" {
		t.Errorf("left behind: %s", got)
	}
}

// Whoever reads meanwhile gets one of the versions, never a mixture.
func TestReadersSeeWholeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept.json")
	long, short := strings.Repeat("a", 1<<16), "b"
	if err := WriteJSON(path, short, 0o600); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for _, value := range []string{long, short} {
		writers.Go(func() {
			for range 30 {
				if err := WriteJSON(path, value, 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		var got string
		if err := ReadJSON(path, &got); err != nil || got != long && got != short {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestReadJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept.json")
	if err := ReadJSON(path, new(any)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	type kept struct{ Names []string }
	if err := WriteJSON(path, kept{[]string{"a", "b"}}, 0o600); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Cut at every byte, the last brace's included, and with zeroes for what is missing, as file systems leave it.
	for n := range len(whole) - 1 {
		for _, rest := range []string{"", strings.Repeat("\x00", len(whole)-n)} {
			if err := os.WriteFile(path, append(whole[:n:n], rest...), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := ReadJSON(path, new(kept)); !errors.Is(err, ErrTorn) || !strings.Contains(err.Error(), path) {
				t.Errorf("cut at %d with %d zeroes: %v", n, len(rest), err)
			}
		}
	}
	for _, content := range []string{`{"Names": [}`, `{"Names": "a"}`, `{} {}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ReadJSON(path, new(kept)); err == nil || errors.Is(err, ErrTorn) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func TestRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	if err := Write(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, age := range map[string]time.Duration{
		".kept.json1234567890123456789": time.Hour, ".key9876543210": time.Hour, ".young.json1234567890123456789": time.Second,
		"kept.json": time.Hour, ".settings.json": time.Hour, ".lock": time.Hour, ".v2": time.Hour, "log.1234567890123": time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir, now.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, dir), ".lock .settings.json .v2 .young.json1234567890123456789 kept.json log.1234567890123"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := Sweep(filepath.Join(dir, "none"), now); err != nil {
		t.Errorf("%v", err)
	}
}
